"""What crosses processes: experience rings, weight slots, the control block, and the doorbells that wake people up."""
