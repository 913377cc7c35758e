"""One all-reduce's curve (eq. 16) and what it does to a step (eq. 17); expected numbers are worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from specsim import SpecConfig, Workload
from specsim.cost.allreduce import NcclPrior, measured_curve, nccl_priors
from specsim.cost.custom_allreduce import Wiring, carried_by_custom, custom_paths
from specsim.cost.graph_padding import single_launches
from specsim.cost.step_change import Shape, draft_forwards, forward_change_ms, forward_ms, gather_ms, step_change
from specsim.cost.terms import Cycle
from specsim.errors import ConfigurationError
from specsim.fitting.allreduce import fit_affine

KB = 1024.0


def curve(*rows: tuple[float, float], label: str = "s"):
    sizes, times = np.array(rows, dtype=float).T
    return measured_curve(label, sizes, times)


# -- eq. 16 ----------------------------------------------------------------------------------------------------------


def test_repeats_count_as_their_median_in_any_order():
    found = curve((2, 30.0), (1, 10.0), (1, 11.0), (1, 90.0))
    assert (found.sizes, found.times_us, found.repeats) == ((1.0, 2.0), (11.0, 30.0), (3, 1))


def test_between_sizes_the_line_is_straight_in_logarithms():
    found = curve((4 * KB, 10.0), (16 * KB, 40.0))
    assert found.time_us(8 * KB) == pytest.approx(20.0)  # √(10·40), half way in octaves
    assert found.time_us(np.array([4 * KB, 16 * KB])) == pytest.approx([10.0, 40.0])


def test_outside_the_table_it_is_flagged_flat_below_and_the_last_octave_goes_on_above():
    found = curve((1000, 8.0), (2000, 9.0), (3000, 10.5), (4000, 13.0))
    assert found.time_us(10.0) == pytest.approx(8.0)
    assert found.time_us(6000.0) == pytest.approx(13.0 + 2000 * (13.0 - 9.0) / 2000)
    assert found.beyond(np.array([999.0, 1000.0, 4000.0, 4001.0])).tolist() == [True, False, False, True]
    alone = curve((1000, 8.0))
    assert alone.time_us(np.array([1.0, 1e9])) == pytest.approx([8.0, 8.0])


def test_a_dip_is_pooled_with_what_stands_before_it():
    found = curve((1, 4.0), (2, 9.0), (4, 4.0), (8, 20.0))
    assert found.times_us == pytest.approx((4.0, 6.0, 6.0, 20.0))  # √(9·4) = 6
    assert found.raw_us == (4.0, 9.0, 4.0, 20.0)
    assert found.largest_correction == pytest.approx(0.5)


def test_scalar_in_scalar_out():
    found = curve((1, 4.0), (2, 9.0))
    for one in (found, fit_affine(found), NcclPrior("Ring", "LL", "pcie", 4, 24.0)):
        assert isinstance(one.time_us(2.0), float)
        assert np.shape(one.time_us(np.full((2, 3), 2.0))) == (2, 3)
        with pytest.raises(ConfigurationError, match="more than 0 bytes"):
            one.time_us(0.0)


def test_an_affine_table_is_recovered_without_a_knee():
    sizes = 1024.0 * 2 ** np.arange(10)
    form = fit_affine(measured_curve("s", sizes, 9.0 + sizes / 20e3))
    assert (form.fixed_us, form.us_per_byte, form.knees) == (pytest.approx(9.0), (pytest.approx(1 / 20e3),), ())
    assert form.largest_error < 1e-9


def test_a_knee_is_recovered_where_it_is():
    sizes = 1024.0 * 2 ** np.arange(12)
    knee = 65536.0
    times = 9.0 + np.minimum(sizes, knee) / 100e3 + np.maximum(sizes - knee, 0) / 5e3
    form = fit_affine(measured_curve("s", sizes, times))
    assert form.knees == (knee,)
    assert (form.fixed_us, *form.us_per_byte) == pytest.approx((9.0, 1 / 100e3, 1 / 5e3))
    assert form.time_us(knee) == pytest.approx(9.0 + 0.65536)
    assert form.beyond(np.array([1.0, knee])).tolist() == [True, False]


def test_noise_gets_no_knees():
    rng, sizes = np.random.default_rng(3), 1024.0 * 2 ** np.arange(12)
    knees = [
        len(fit_affine(measured_curve("s", sizes, (9 + sizes / 20e3) * rng.lognormal(0, 0.03, 12))).knees)
        for _ in range(20)
    ]
    assert np.mean([count == 0 for count in knees]) >= 0.8


# -- NCCL's own model --------------------------------------------------------------------------------------------------


def test_the_prior_gives_its_sources_example():
    """PCIe, 4 ranks, 24 GB/s: 6.6 + 6·1.0 and 24/2·4/6 GB/s for Ring LL; 8.4 + 6·5.7 and 24·4/6 for Simple."""
    low, simple = (NcclPrior("Ring", protocol, "pcie", 4, 24.0) for protocol in ("LL", "Simple"))
    assert (low.fixed_us, low.gb_s) == (pytest.approx(12.6), pytest.approx(8.0))
    assert (simple.fixed_us, simple.gb_s) == (pytest.approx(42.6), pytest.approx(16.0))
    assert low.time_us(480e3) == pytest.approx(simple.time_us(480e3))  # where they cross: 30 µs · 16 GB/s


def test_the_prior_knows_links_and_trees():
    tree = NcclPrior("Tree", "Simple", "nvlink", 8, 100.0)
    assert (tree.fixed_us, tree.gb_s) == (pytest.approx(8.4 + 14 * 4.0), pytest.approx(46.0))
    assert NcclPrior("Tree", "LL", "net", 4, 24.0).fixed_us == pytest.approx(6.8 + 4 * 5.0)
    assert NcclPrior("Ring", "LL", "nvlink", 2, 1000.0).gb_s == pytest.approx(141.0)  # the ceiling
    assert [p.label for p in nccl_priors("pcie", 8)] == [
        "prior:Ring-LL", "prior:Ring-Simple", "prior:Tree-LL", "prior:Tree-Simple",
    ]  # fmt: skip
    assert len(nccl_priors("nvlink", 8)) == 6
    assert tree.beyond(np.array([1.0, 2.0])).all()


def test_the_prior_is_too_low_where_the_warning_says_so():
    """205 µs were measured for 12 KiB on one host with 8 GPUs on PCIe."""
    assert NcclPrior("Ring", "LL", "pcie", 8, 24.0).time_us(12 * KB) == pytest.approx(22.4, abs=0.05)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("Ring", "LL", "infiniband", 8, 1.0), "allowed: nvlink, pcie, net"),
        (("NVLS", "LL", "nvlink", 8, 1.0), "NVLS-LL is not modelled"),
        (("Ring", "LL", "pcie", 1, 1.0), "1 ranks"),
        (("Ring", "LL", "pcie", 2, 0.0), "0 GB/s"),
    ],
)
def test_impossible_priors_are_refused(arguments, said):
    with pytest.raises(ConfigurationError, match=said):
        NcclPrior(*arguments)


# -- custom all-reduce -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wiring", "limits"),
    [
        (Wiring("sglang", "nvlink", 8), [("custom all-reduce V2", 16384)]),
        (Wiring("sglang", "nvlink", 8, engine_version="0.5.12"), [("custom all-reduce", 8192)]),
        (Wiring("sglang", "pcie", 2), [("custom all-reduce", 8192)]),
        (Wiring("sglang", "pcie", 8), []),
        (Wiring("vllm", "pcie", 4), []),
        (Wiring("vllm", "nvlink", 8, "sm90"), [("custom all-reduce", 256), ("torch symmetric memory", 65536)]),
        (Wiring("vllm", "nvlink", 2, "sm100"), [("custom all-reduce", 2048)]),
        (Wiring("vllm", "nvlink", 8), []),  # it depends on the architecture
        (Wiring("sglang", "nvlink", 3), []),
        (Wiring("llama.cpp", "nvlink", 2), []),
    ],
)
def test_the_path_is_decided_by_engine_version_link_ranks_and_architecture(wiring, limits):
    assert [(path.kernel, path.max_bytes / 1024) for path in custom_paths(wiring)] == limits


def test_limits_are_strict_for_vllm_and_not_for_sglang():
    sglang, vllm = custom_paths(Wiring("sglang", "pcie", 2)), custom_paths(Wiring("vllm", "pcie", 2))
    size = np.array([1, 8 * 2**20 - 1, 8 * 2**20, 8 * 2**20 + 1])
    assert carried_by_custom(sglang, size).tolist() == [True, True, True, False]
    assert carried_by_custom(vllm, size).tolist() == [True, True, False, False]
    assert carried_by_custom((), size).tolist() == [False] * 4


# -- eq. 17 ------------------------------------------------------------------------------------------------------------

SLOW, FAST = curve((1, 30.0), (1e9, 30.0), label="slow"), curve((1, 10.0), (1e9, 10.0), label="fast")


def test_a_forward_changes_by_its_all_reduces():
    shape = Shape(61, 7168)
    assert (shape.all_reduces, shape.message_bytes(3)) == (122, 43008)
    assert forward_ms(SLOW, shape, 4) == pytest.approx(122 * 30e-3)
    assert forward_change_ms(SLOW, FAST, shape, 4) == pytest.approx(-2.44)
    assert isinstance(forward_change_ms(SLOW, FAST, shape, 4), float)
    assert forward_change_ms(SLOW, FAST, shape, np.ones((2, 3))).shape == (2, 3)


def test_a_split_vocabulary_has_one_more_all_reduce_and_half_of_one_for_its_logits():
    """Flat curves, −20 µs: two all-reduces in each of 10 layers, the embedding's, and half of one."""
    shape = Shape(10, 4096, vocab_size=1000)
    assert (shape.all_reduces, shape.logits_bytes(3)) == (21, 6000)
    assert forward_change_ms(SLOW, FAST, shape, 4) == pytest.approx(-20e-3 * 21)
    before, after = gather_ms((SLOW, FAST), shape, 1)
    assert after - before == pytest.approx(-20e-3 / 2)
    assert Shape(10, 4096).logits_bytes(3) == 0


def test_logits_are_gathered_at_the_positions_that_are_asked():
    """a(m) = m/1000 µs against nothing: messages of 1,000 bytes a token, logits of 2,000 a position."""
    sizes = np.array([1e2, 1e8])
    rising, nothing = measured_curve("rising", sizes, sizes / 1e3), measured_curve("none", sizes, sizes * 1e-12)
    shape, kb = Shape(10, 500, vocab_size=1000), 1e-3
    assert forward_change_ms(nothing, rising, shape, 8) == pytest.approx(21 * 8 * kb)
    assert gather_ms((nothing, rising), shape, np.array([8.0, 2.0]))[1] == pytest.approx([8 * kb, 2 * kb])
    draft = Shape(1, 500, vocab_size=200)  # 400 bytes a position
    cycle = Cycle.of(SpecConfig.of(num_draft_tokens=6), Workload(2), "vllm")
    found = step_change(nothing, rising, cycle, shape, draft)
    assert found.verify_ms == pytest.approx([(21 * 12 + 12) * kb])
    assert found.draft_ms == pytest.approx([(3 * 12 + 0.4 + 4 * (3 * 2 + 0.4)) * kb])  # one of 12 tokens, four of two
    assert found.decode_ms == pytest.approx([(21 * 2 + 2) * kb])
    alone = step_change(nothing, rising, cycle, shape, draft, gathered=False)
    assert alone.verify_ms == pytest.approx([21 * 12 * kb])
    assert alone.draft_ms == pytest.approx([(3 * 12 + 4 * 3 * 2) * kb])


def test_logits_outside_either_table_are_flagged():
    """2,000 bytes a position: verify of 12 and decode of two lie inside, a drafter's 20 bytes do not."""
    cycle = Cycle.of(SpecConfig.of(num_draft_tokens=6), Workload(2), "vllm")
    shape, small = Shape(10, 500, vocab_size=1000), Shape(1, 500, vocab_size=10)
    known = curve((2000, 10.0), (24000, 20.0))
    assert not step_change(SLOW, known, cycle, shape).logits_extrapolated.any()
    assert step_change(SLOW, known, cycle, shape, small).logits_extrapolated.all()
    assert not step_change(SLOW, known, cycle, shape, small, gathered=False).logits_extrapolated.any()
    assert step_change(SLOW, curve((2000, 10.0), (23999, 20.0)), cycle, shape).logits_extrapolated.all()


def test_gathers_that_were_measured_under_both_settings_stand_in_for_halves_of_all_reduces():
    """Logits of 2,000 bytes a position, 24,000 of verify and 4,000 of decode; gathers of 7 and 3 µs, all-reduces of 40 and 20."""
    cycle = Cycle.of(SpecConfig.of(num_draft_tokens=6), Workload(2), "vllm")
    shape, at = Shape(1, 500, vocab_size=1000), np.array([2000.0, 24000.0])
    slow, fast = (replace(curve((1000, us), (1e5, us)), gather=measured_curve("g", at, np.full(2, g)))
                  for us, g in ((40.0, 7.0), (20.0, 3.0)))  # fmt: skip
    found = step_change(slow, fast, cycle, shape)
    assert (found.verify_ms, found.decode_ms) == (pytest.approx([-0.064]), pytest.approx([-0.064]))  # 3 × 20 + 4 µs
    assert not found.logits_extrapolated.any()
    for before, after in ((slow, replace(fast, gather=None)), (replace(slow, gather=None), fast)):
        assert step_change(before, after, cycle, shape).verify_ms == pytest.approx([-0.07])  # 3.5 × 20 µs
    short = replace(fast, gather=measured_curve("g", np.array([2000.0, 23999.0]), np.full(2, 3.0)))
    beyond = step_change(slow, short, cycle, shape)
    assert beyond.logits_extrapolated.all()
    assert not beyond.extrapolated.any()


def beside(alone_us, drafting_us, launch_us):
    """Flat curves: an all-reduce in a forward, one in a forward between drafts, and a single launch there."""
    wide = (1000, 1e9)
    drafting = replace(curve(*((size, drafting_us) for size in wide)), launch_us=launch_us)
    return replace(curve(*((size, alone_us) for size in wide)), drafting=drafting)


def test_cycles_that_draft_are_told_by_what_was_measured_between_drafts_and_decode_is_not():
    """40 → 10 µs alone, 43 → 10 beside drafts, launches 3 → 1 µs: 20 all-reduces in verify, 2 in each of three draft forwards."""
    nccl, own = beside(40.0, 43.0, 3.0), beside(10.0, 10.0, 1.0)
    drafts = Cycle.of(SpecConfig(3, 1, 4, "eagle3"), Workload(2), "vllm").captured("vllm", "0.24.0")
    found = step_change(nccl, own, drafts, Shape(10, 500), Shape(1, 500))
    assert found.verify_ms == pytest.approx([20 * -0.033])
    assert found.draft_ms == pytest.approx([3 * 2 * -0.033])
    assert found.launch_ms == pytest.approx([49 * -0.002])
    assert found.cycle_ms == pytest.approx([26 * -0.033 - 0.098])
    assert found.decode_ms == pytest.approx([20 * -0.03])
    plain = Cycle.of(SpecConfig(0, 1, 1), Workload(2), "vllm").captured("vllm", "0.24.0")
    at_once = step_change(nccl, own, plain, Shape(10, 500), Shape(1, 500))
    assert at_once.verify_ms == at_once.decode_ms == at_once.cycle_ms == pytest.approx([20 * -0.03])


def test_what_was_measured_between_drafts_counts_for_both_settings_and_split_drafters_alone():
    nccl, own = beside(40.0, 43.0, 3.0), beside(10.0, 10.0, 1.0)
    drafts = Cycle.of(SpecConfig(3, 1, 4, "eagle3"), Workload(2), "vllm").captured("vllm", "0.24.0")
    split = Shape(1, 500)
    for before, after, draft in ((nccl, replace(own, drafting=None), split), (replace(nccl, drafting=None), own, split),
                                 (nccl, own, None)):  # fmt: skip
        found = step_change(before, after, drafts, Shape(10, 500), draft)
        assert (found.verify_ms, found.launch_ms) == (pytest.approx([20 * -0.03]), pytest.approx([0.0]))
    unlaunched = beside(10.0, 10.0, None)
    assert step_change(nccl, unlaunched, drafts, Shape(10, 500), split).launch_ms == pytest.approx([0.0])


def test_messages_between_drafts_are_flagged_by_the_table_made_between_drafts():
    """Verify's eight tokens are 8,000 bytes; the tables end there alone, and before that beside drafts."""
    long, short = curve((1000, 40.0), (8000, 40.0)), curve((1000, 43.0), (7999, 43.0))
    cycle = Cycle.of(SpecConfig(3, 1, 4, "eagle3"), Workload(2), "vllm").captured("vllm", "0.24.0")
    for drafting, flagged in ((long, False), (short, True)):
        one = replace(long, drafting=drafting)
        assert step_change(one, one, cycle, Shape(10, 500), Shape(1, 500)).extrapolated.tolist() == [flagged]


def test_flags_are_by_the_tables_that_are_read():
    """Verify's 8,000 bytes, drafts of 8,000 and 2,000 (8 and 2 tokens), decode's 2,000; one table at a time ends too early or begins too late."""
    cycle = Cycle.of(SpecConfig(3, 1, 4, "eagle3"), Workload(2), "vllm").captured("vllm", "0.24.0")
    plain = Cycle.of(SpecConfig(0, 1, 1), Workload(2), "vllm").captured("vllm", "0.24.0")
    whole, early, late = ((100, 1e5), (100, 7999), (2001, 1e5))

    def flagged(alone, beside, counts, draft):
        one = replace(curve(*((size, 9.0) for size in alone)), drafting=curve(*((size, 9.0) for size in beside)))
        return bool(step_change(one, one, counts, Shape(10, 500), draft).extrapolated[0])

    same, small = Shape(1, 500), Shape(1, 50)  # messages of 1,000 and of 100 bytes a token
    assert not flagged(whole, whole, cycle, same)
    assert flagged(whole, early, cycle, small)  # verify's
    assert flagged(whole, (101, 1e5), replace(cycle, padded_draft=np.array([1.0])), small)  # a narrow draft's
    assert flagged(whole, (801, 1e5), cycle, small)  # a wide draft's 800
    assert flagged(late, whole, cycle, same)  # decode's, read alone
    assert not flagged(early, whole, cycle, same)  # a verify between drafts is not read alone
    assert not flagged(whole, late, plain, same)  # nor one without drafts beside them
    assert flagged(late, whole, plain, same)


def test_a_lookup_and_a_cycle_without_graphs_have_no_drafts_beside_their_verify():
    lookup = Cycle.of(SpecConfig(1, 1, 4, "ngram"), Workload(2), "vllm").captured("vllm", "0.24.0")
    eager = Cycle.of(SpecConfig(3, 1, 4, "eagle3"), Workload(2), "vllm", eager=True).captured("vllm", "0.24.0")
    extends = Cycle.of(SpecConfig(1, 1, 2, "eagle3"), Workload(2), "sglang").captured("sglang", None)
    assert [c.between_drafts.tolist() for c in (lookup, eager, extends)] == [[0], [0], [1]]
    nccl, own = beside(40.0, 43.0, 3.0), beside(10.0, 10.0, 1.0)
    for cycle in (lookup, eager):
        found = step_change(nccl, own, cycle, Shape(10, 500), Shape(1, 500))
        assert (found.verify_ms, found.launch_ms) == (pytest.approx([20 * -0.03]), pytest.approx([0.0]))


def test_a_verify_that_no_graph_holds_has_no_launches_beside_graphs():
    cycle = Cycle.of(SpecConfig(3, 1, 4, "eagle3"), Workload(np.array([16, 600])), "vllm").captured("vllm", "0.24.0")
    assert cycle.launches.tolist() == [49, 0]


def test_single_launches_were_counted_in_vllm_alone():
    """23, 6, 5 and 15 between the graphs of a cycle with three drafts."""
    forwards = np.array([0.0, 1.0, 3.0, 5.0])
    assert single_launches(forwards, "vllm").tolist() == [0, 38, 49, 60]
    for engine in ("sglang", None):
        assert single_launches(forwards, engine).tolist() == [0, 0, 0, 0]
    eager = Cycle.of(SpecConfig(3, 1, 4, "eagle3"), Workload(2), "vllm", eager=True).captured("vllm", "0.24.0")
    assert eager.launches.tolist() == [0]


def test_logits_go_over_nccl_where_a_custom_all_reduce_carries_messages():
    paths = custom_paths(Wiring("vllm", "pcie", 2))
    cycle = Cycle.of(SpecConfig(0, 1, 1), Workload(1), "vllm")
    found = step_change(SLOW, FAST, cycle, Shape(10, 4096, vocab_size=9), custom=paths)
    assert (found.verify_ms, found.decode_ms) == (pytest.approx([-0.01]), pytest.approx([-0.01]))


def test_a_message_that_a_custom_all_reduce_carries_does_not_change():
    paths = custom_paths(Wiring("vllm", "pcie", 2))  # below 8 MiB
    tokens = np.array([1, 8 * 2**20 // 8192 - 1, 8 * 2**20 // 8192])
    assert forward_change_ms(SLOW, FAST, Shape(10, 4096), tokens, paths) == pytest.approx([0.0, 0.0, -0.4])


@pytest.mark.parametrize(
    ("method", "engine", "forwards"),
    [
        ("eagle3", "sglang", (0, 4)),  # S − 1 loops of k tokens; the re-extend is apart
        ("eagle3", "vllm", (1, 4)),  # one of the width, S − 1 of one token
        ("eagle3", None, (0, 5)),
        ("dflash", "sglang", (1, 0)),
        ("ngram", "vllm", (0, 0)),
    ],
)
def test_draft_forwards_are_parted_by_their_width(method, engine, forwards):
    steps = 5 if method == "eagle3" else 1
    cycle = Cycle.of(SpecConfig(steps, 1, 6, method), Workload(3), engine)
    assert tuple(float(n[0]) for n in draft_forwards(cycle)) == forwards


def test_a_tree_as_wide_as_its_branches_has_forwards_of_one_width():
    cycle = Cycle.of(SpecConfig(2, 4, 4), Workload(3), "vllm")
    assert sum(float(n[0]) for n in draft_forwards(cycle)) == 2


def test_a_cycle_counts_verify_draft_and_re_extend():
    """Flat curves, −20 µs an all-reduce: 2·61 in verify, 2·2 in each of 4 draft forwards and in one re-extend."""
    cycle = Cycle.of(SpecConfig.of(num_draft_tokens=6), Workload(np.array([1, 8])), "sglang")
    found = step_change(SLOW, FAST, cycle, Shape(61, 7168), Shape(2, 4096), extend_forwards=1)
    assert found.verify_ms == pytest.approx([-2.44, -2.44])
    assert found.draft_ms == pytest.approx([-0.32, -0.32])
    assert found.extend_ms == pytest.approx([-0.08, -0.08])
    assert found.cycle_ms == pytest.approx([-2.84, -2.84])
    assert found.decode_ms == pytest.approx([-2.44, -2.44])
    alone = step_change(SLOW, FAST, cycle, Shape(61, 7168))
    assert alone.cycle_ms == pytest.approx(alone.verify_ms)


def test_each_forward_has_messages_of_its_own_width():
    """a(m) = m/1000 µs against nothing to speak of: verify of 6 tokens, drafts of one, decode of one."""
    sizes = np.array([1e2, 1e8])
    rising, nothing = measured_curve("rising", sizes, sizes / 1e3), measured_curve("none", sizes, sizes * 1e-12)
    cycle = Cycle.of(SpecConfig.of(num_draft_tokens=6), Workload(2), "vllm")
    found = step_change(nothing, rising, cycle, Shape(10, 500), Shape(1, 500))
    token = 1000 / 1000 / 1000  # 1,000 bytes a token are 1 µs
    assert found.verify_ms == pytest.approx([20 * 12 * token])
    assert found.draft_ms == pytest.approx([2 * (12 + 4 * 2) * token])
    assert found.decode_ms == pytest.approx([20 * 2 * token])
    assert not found.extrapolated.any()


def test_messages_have_the_tokens_that_graphs_are_padded_to():
    """One request with five drafts, a(m) = m/1000 µs: vLLM up to 0.24 captures multiples of six tokens, so a draft step has six.

    Ten requests of the newest: 60 tokens are padded to 64, ten draft tokens to 12 (two verifies), ten of plain decode to 16.
    """
    sizes = np.array([1e2, 1e8])
    rising, nothing = measured_curve("rising", sizes, sizes / 1e3), measured_curve("none", sizes, sizes * 1e-12)
    token = 1000 / 1000 / 1000  # 1,000 bytes a token are 1 µs
    for batch, version, verify, step, decode in ((1, "0.24.0", 6, 6, 1), (10, None, 64, 12, 16)):
        cycle = Cycle.of(SpecConfig.of(num_draft_tokens=6), Workload(batch), "vllm").captured("vllm", version)
        found = step_change(nothing, rising, cycle, Shape(10, 500), Shape(1, 500))
        assert found.verify_ms == pytest.approx([20 * verify * token])
        assert found.draft_ms == pytest.approx([2 * (verify + 4 * step) * token])
        assert found.decode_ms == pytest.approx([20 * decode * token])
    eager = Cycle.of(SpecConfig.of(num_draft_tokens=6), Workload(10), "vllm", eager=True).captured("vllm", None)
    assert step_change(nothing, rising, eager, Shape(10, 500)).verify_ms == pytest.approx([20 * 60 * token])


def test_a_drafts_logits_are_those_of_the_graph_and_a_verifys_those_of_its_tokens():
    """Logits of 1,000 bytes a position and next to no messages; half an all-reduce gathers them."""
    sizes = np.array([1.0, 1e8])
    rising, nothing = measured_curve("rising", sizes, sizes / 1e3), measured_curve("none", sizes, sizes * 1e-12)
    cycle = Cycle.of(SpecConfig.of(num_draft_tokens=6), Workload(10), "vllm").captured("vllm", None)
    split = Shape(1, 1, bytes_per_element=1, per_layer=1, vocab_size=1000)
    found = step_change(nothing, rising, cycle, split, split)
    position = 0.5 * 1e-3  # ms
    assert found.verify_ms == pytest.approx([60 * position], rel=0.01)
    assert found.draft_ms == pytest.approx([(64 / 6 + 4 * 12) * position], rel=0.01)
    assert found.decode_ms == pytest.approx([10 * position], rel=0.01)


def test_outside_either_table_is_flagged():
    short = curve((14336, 10.0), (43008, 20.0))
    cycle = Cycle.of(SpecConfig.of(num_draft_tokens=2), Workload(np.array([1, 2])), None)
    assert step_change(SLOW, short, cycle, Shape(61, 7168)).extrapolated.tolist() == [False, True]
    assert step_change(SLOW, short, cycle, Shape(61, 7168), Shape(1, 64)).extrapolated.all()  # the draft's are small


def test_shapes_are_at_least_one():
    with pytest.raises(ConfigurationError, match="layers must be at least 1, not 0"):
        Shape(0, 4096)
