"""Studies that measure the design on this machine; each imports the real parts."""
