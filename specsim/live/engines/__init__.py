"""One module an engine: what is asked of it, and what its answers mean."""
