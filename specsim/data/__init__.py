"""Measured runs that ship with specsim."""
