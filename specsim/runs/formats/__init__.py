"""What tools print, one file a tool: text in, rows and a count of what was dropped out."""
