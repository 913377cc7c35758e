"""Measured runs: their frozen form, the files they come from, and whether they compare like for like."""
