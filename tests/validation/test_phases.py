"""Where a change of a server's cycles lies: waits of a known length on one GPU, and phases of cycles over two.

Own measurements of 2026-11-30 (calibration/data/README.md).
"""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.accuracy_allreduce import gather_shares
from benchmarks.accuracy_phases import BATCHES, CASES, kernels, measured, told
from benchmarks.accuracy_tensor_parallel import UNSTEADY
from benchmarks.accuracy_waits import clocks, runs, waited
from benchmarks.held_out import scatters


@pytest.mark.parametrize(("width", "count"), [(1, 65), (4, 74), (6, 80)])
def test_a_wait_is_paid_once_in_each_all_reduces_place(width, count):
    """15 µs more in each of 2 a layer, one for the embedding, and 3 in each draft forward; found: within 5% to 16 requests."""
    found = waited(width)
    assert found.all_reduces == count
    assert found.told_ms == pytest.approx(np.full(4, 0.015 * count))
    assert found.share[:3] == pytest.approx(np.ones(3), abs=0.05)


def test_at_the_power_limit_part_of_a_wait_comes_back_in_clock():
    """64 requests with drafts: about three quarters are paid; in plain decode, whose power is below the limit, all."""
    assert waited(1).share[3] == pytest.approx(1.0, abs=0.1)
    for width, drafts in ((4, 3), (6, 5)):
        assert 0.7 < waited(width).share[3] < 0.85
        assert clocks()["wait-5", drafts] < clocks()["wait-20", drafts]
    assert clocks()["wait-5", 0] == clocks()["wait-20", 0] == 1980


def test_the_waiting_servers_are_alike_but_for_the_wait():
    """Every configuration and batch size under both, of one setup; one load of 18 below 64 requests stands out."""
    asked = [{(run.spec and run.spec.num_draft_tokens, run.workload.batch_size) for run in runs() if run.nccl == wait}
             for wait in ("wait-5", "wait-20")]  # fmt: skip
    assert asked[0] == asked[1]
    assert [len(asked[0]), len(runs())] == [12, 24]
    assert len({run.setup for run in runs()}) == 1
    scattered = scatters(run for run in runs() if run.workload.batch_size < 64)
    assert [name for name, share in scattered.items() if share > UNSTEADY] == ["6 draft tokens wait-20 1x128"]


@pytest.mark.parametrize("batch", BATCHES)
def test_gathers_are_told_and_verifys_all_reduces_differ_by_more(batch):
    for nccl, drafts in CASES:
        said, found = told(nccl, drafts, batch), measured(nccl, drafts, batch)
        assert found.gather == pytest.approx(said.gather, rel=0.05, abs=0.005)
        assert 1.0 < found.verify / said.verify < 1.7
        assert 1.0 < found.drafts / said.drafts < 1.7


@pytest.mark.parametrize("batch", BATCHES)
def test_what_carries_no_message_differs_between_implementations_alone(batch):
    assert measured("engine-own", 3, batch).rest < -0.06
    assert abs(measured("nop2p", 5, batch).rest) < 0.02


def test_launches_and_nccls_own_kernels_begin_later_beside_nccl_and_others_in_a_graph_do_not():
    gaps = kernels()
    for what in ("gap before a single launch", "gap before an all-reduce in the verify graph"):
        assert gaps["default", what][0] > gaps["engine-own", what][1] + 1.0
    assert gaps["default", "other gap in the verify graph"][1] <= gaps["engine-own", "other gap in the verify graph"][1]


def test_a_gather_is_more_than_half_an_all_reduce():
    shares = gather_shares()
    assert shares.size == 20
    assert 0.6 < shares[0] < shares[-1] < 1.0
