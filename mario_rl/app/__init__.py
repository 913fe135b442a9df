"""The application: command line, commands, one session of training, and the wiring of all parts."""
