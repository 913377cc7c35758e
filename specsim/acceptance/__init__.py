"""Accept length and acceptance rates; knows nothing of time (cost and acceptance never import each other)."""

from specsim.acceptance.chain import accept_length_bounds, chain_accept_length, required_accept_rate
from specsim.acceptance.laws import AcceptanceLaw, ConstantRate, DecayingRate, PerPosition, TreeLaw

__all__ = [
    "AcceptanceLaw",
    "ConstantRate",
    "DecayingRate",
    "PerPosition",
    "TreeLaw",
    "accept_length_bounds",
    "chain_accept_length",
    "required_accept_rate",
]
