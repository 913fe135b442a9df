"""What this machine is, and how its processes are started."""
