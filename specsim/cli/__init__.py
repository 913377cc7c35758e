"""The command line: one file a command, each parse → call → print."""
