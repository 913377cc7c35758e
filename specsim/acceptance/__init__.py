"""Accept length and acceptance rates; knows nothing of time (cost and acceptance never import each other)."""

from specsim.acceptance.chain import accept_length_bounds, chain_accept_length, required_accept_rate

__all__ = ["accept_length_bounds", "chain_accept_length", "required_accept_rate"]
