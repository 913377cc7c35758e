"""Fused kernels beside the same steps written out, in Triton's interpreter: TRITON_INTERPRET=1 python -m tests.calibration.fused."""

import torch

from calibration import decoder, kernels
from calibration.machine import Machine


def main():
    torch.manual_seed(0)
    for batch, heads, kv_heads, width, context, before in (
        (2, 4, 2, 3, 600, 0),
        (1, 8, 2, 1, 1100, 0),
        (2, 4, 4, 4, 30, 6),
    ):
        length = context + before + width
        query, keys, values = (
            torch.randn(batch, n, rows, 16) for n, rows in ((heads, width), (kv_heads, length), (kv_heads, length))
        )
        plain = decoder.attention(query, keys, values, context, None)
        torch.testing.assert_close(kernels.attention(query, keys, values, context, None), plain, atol=1e-4, rtol=1e-4)
        mask = torch.rand(batch, width, before + width) < 0.5
        mask |= torch.eye(width, before + width, dtype=torch.bool).roll(before, 1)
        plain = decoder.attention(query, keys, values, context, mask)
        torch.testing.assert_close(kernels.attention(query, keys, values, context, mask), plain, atol=1e-4, rtol=1e-4)
    mixed = torch.randn(2, 3, 8, 16)
    turn = decoder._rotation(16, 5, 3, Machine("cpu"))
    caches = [[torch.zeros(2, 2, 8, 16) for _ in range(2)] for _ in range(2)]
    queries = [
        each.turn_and_store(mixed, *cache, turn, 4, 5) for each, cache in zip((decoder, kernels), caches, strict=True)
    ]
    torch.testing.assert_close(*queries)
    torch.testing.assert_close(caches[0], caches[1])
    both = torch.randn(3, 64)
    torch.testing.assert_close(kernels.gated(both), decoder.gated(both))
    hidden, more = torch.randn(3, 40), torch.randn(3, 40)
    mine, theirs = hidden.clone(), hidden.clone()
    torch.testing.assert_close(kernels.add_norm(mine, more, 1e-5), decoder.add_norm(theirs, more))
    torch.testing.assert_close(mine, theirs)
    print("alike")


if __name__ == "__main__":
    main()
