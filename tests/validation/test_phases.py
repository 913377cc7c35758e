"""Where a change of a server's cycles lies: waits of a known length on one GPU, and phases of cycles over two.

Own measurements of 2026-11-30 (calibration/data/README.md).
"""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.accuracy_allreduce import gather_shares
from benchmarks.accuracy_phases import (
    BATCHES,
    BEFORE,
    CASES,
    SINGLE,
    STREAMS,
    TRIED,
    between,
    kernels,
    larger_ms,
    measured,
    rests,
    told,
)
from benchmarks.accuracy_tensor_parallel import ALONE, UNSTEADY
from benchmarks.accuracy_waits import clocks, runs, waited
from benchmarks.held_out import scatters
from specsim.cost.graph_padding import single_launches


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


EACH = [(*case, batch) for case in CASES for batch in BATCHES[case[0]]]


@pytest.mark.parametrize(("machine", "nccl", "drafts", "batch"), EACH)
def test_every_part_of_a_step_is_told(machine, nccl, drafts, batch):
    """Found: verify within 0.07 ms, gathers within 0.02, drafts within 0.03, what has no message within 0.042."""
    said, found = told(nccl, drafts, batch), measured(machine, nccl, drafts, batch)
    assert found.verify == pytest.approx(said.verify, abs=0.075)
    assert found.gather == pytest.approx(said.gather, abs=0.02)
    assert found.drafts == pytest.approx(said.drafts, abs=0.03)
    assert found.rest == pytest.approx(said.rest, abs=0.042)


def test_without_what_was_measured_beside_drafts_verifys_changes_would_be_missed():
    assert max(map(abs, larger_ms("verify"))) < 0.075
    alone = larger_ms("verify", ALONE)
    assert alone[0] > 0.04
    assert alone[-1] > 0.18


def test_what_carries_no_message_differs_where_mixing_is_gone_and_not_without_peer_access():
    assert rests("engine-own")[-1] < -0.055
    assert rests("no-mixing")[-1] < -0.05
    assert max(map(abs, rests("nop2p"))) < 0.02


def test_launches_and_nccls_own_kernels_begin_later_beside_nccl_and_others_in_a_graph_do_not():
    gaps = kernels("h200x2f")
    for what in (SINGLE, BEFORE):
        assert gaps["default", 3, what][0] > gaps["engine-own", 3, what][1] + 1.0
    other = "other gap in the verify graph"
    assert gaps["default", 3, other][1] <= gaps["engine-own", 3, other][1]


def test_what_nccl_adds_goes_with_its_mixing_and_streams_with_drafts():
    gaps = kernels("h200x2h")
    for nccl, drafts in (("default", 0), ("default", 3), ("NCCL_MEM_SYNC_DOMAIN=0", 3), ("NCCL_GRAPH_REGISTER=0", 3)):
        assert gaps[nccl, drafts, BEFORE][0] > 2.0
        assert gaps[nccl, drafts, STREAMS][0] == (5 if drafts else 1)
    for nccl, drafts in (("engine-own", 0), ("engine-own", 3), ("no-mixing", 3)):
        assert gaps[nccl, drafts, BEFORE][1] < 0.2
        assert gaps[nccl, drafts, STREAMS] == (1, 1)
    assert gaps["default", 0, SINGLE][1] < 1.1
    assert gaps["default", 3, SINGLE][1] > 2.0


def test_single_launches_are_those_counted():
    """49 in a cycle of three drafts, two more where the cache grows by a block."""
    counted = kernels("h200x2h")
    behind = {"verify": 23, "the first draft graph": 6, "the second": 5, "the third": 15}
    for nccl in ("default", "engine-own", "no-mixing"):
        for what, launches in behind.items():
            assert counted[nccl, 3, f"of them behind {what}"][0] == pytest.approx(
                launches, abs=2 * (what == "the third")
            )
        least, most = counted[nccl, 3, "single launches in a step"]
        assert single_launches(np.array([3.0]), "vllm")[0] == pytest.approx(least, abs=2)
        assert most - least <= 2


@pytest.mark.parametrize("tokens", [16, 64])
def test_drafts_that_gather_by_another_communicator_are_what_makes_the_harnesss_forwards_longer(tokens):
    """By 1.1 to 1.5 µs an all-reduce under NCCL with mixing; not by the same one, without mixing, or where NCCL does not reduce."""
    another = "and drafts that gather by another"
    mixed = between("default", "nccl", tokens)
    rest = [found.all_reduce for what, found in mixed.items() if what != another]
    assert 1.0 < mixed[another].all_reduce - max(rest) < mixed[another].all_reduce - min(rest) < 1.6
    for nccl, implementation in (("no-mixing", "nccl"), ("default", "one-shot")):
        every = [found.all_reduce for found in between(nccl, implementation, tokens).values()]
        assert max(every) - min(every) < 0.2


def test_streams_and_gaps_go_with_it():
    """Where kernels were looked at, at 16 tokens."""
    seen = {(nccl, implementation, what): found for nccl, implementation in TRIED
            for what, found in between(nccl, implementation).items() if found.streams}  # fmt: skip
    assert len(seen) == 9
    for (nccl, implementation, what), found in seen.items():
        another = (nccl, implementation, what) == ("default", "nccl", "and drafts that gather by another")
        assert found.streams == (3 if another else 1)
        assert min(found.single) > 2.8 if another else max(found.single) < 1.4
        assert min(found.before) > 3.7 if another else max(found.before) < 2.6
    assert max(seen["no-mixing", "nccl", "launches and a gather"].before) < 0.5


def test_a_gather_is_more_than_half_an_all_reduce():
    shares = gather_shares()
    assert shares.size == 20
    assert 0.6 < shares[0] < shares[-1] < 1.0
