"""Studies that measure the design on the machine they run on. Each imports the real parts, never a copy of them."""
