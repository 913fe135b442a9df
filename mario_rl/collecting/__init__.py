"""Playing: what runs in collector processes, and the supervisor that starts and stops them."""
