"""Scripts that print ratios and errors measured in one run; docs quote what they print."""
