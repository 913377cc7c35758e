"""The decoder, the tree, and the subcommands on a CPU with small shapes; run with -m torch."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from calibration.__main__ import group
from calibration.allreduce import COLUMNS, Way, Work, measured
from calibration.shapes import ModelShape, read_shape
from specsim import CostModel, fit, load_runs
from specsim.errors import SpecsimError
from specsim.runs.allreduce_files import load_allreduce

try:
    import torch
except ImportError:  # then nothing here is selected
    torch = None
pytestmark = pytest.mark.torch

TINY = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "intermediate_size": 64, "vocab_size": 100, "_name_or_path": "tiny"}  # fmt: skip
MIXTURE = TINY | {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16}


@pytest.fixture(params=[TINY, MIXTURE], ids=["dense", "mixture"])
def model(request, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(request.param), encoding="utf-8")
    return path


@pytest.fixture
def decoder(model):
    from calibration.decoder import Decoder
    from calibration.machine import Machine

    return Decoder.random(read_shape(model), Machine("cpu"), 0)


def run(*arguments):
    done = CliRunner().invoke(group, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done


def test_a_wide_forward_is_as_many_narrow_ones(decoder):
    with torch.inference_mode():
        hidden = decoder.inputs(12, 1, 1)[0]
        whole = decoder.forward(hidden, decoder.cache(3, 10, 6, 2), 3).view(3, 4, -1)
        cache = decoder.cache(3, 10, 6, 2)
        steps = [decoder.forward(hidden.view(3, 4, -1)[:, i], cache, 3, start=i) for i in range(4)]
    torch.testing.assert_close(whole, torch.stack(steps, 1), atol=1e-5, rtol=1e-4)


def test_a_tree_of_one_branch_is_a_chain_and_siblings_do_not_see_each_other(decoder):
    chain = torch.ones(4, 4, dtype=torch.bool).tril()
    with torch.inference_mode():
        hidden = decoder.inputs(4, 1, 1)[0]
        told = decoder.forward(hidden, decoder.cache(1, 10, 4, 2), 1)
        masked = decoder.forward(hidden, decoder.cache(1, 10, 4, 2), 1, mask=chain)
        torch.testing.assert_close(told, masked, atol=1e-5, rtol=1e-4)
        siblings = torch.eye(4, dtype=torch.bool)
        siblings[:, 0] = True
        alone = decoder.forward(hidden, decoder.cache(1, 10, 4, 2), 1, mask=siblings)
        changed = hidden.clone()
        changed[2] += 1.0
        other = decoder.forward(changed, decoder.cache(1, 10, 4, 2), 1, mask=siblings)
    torch.testing.assert_close(alone[[0, 1, 3]], other[[0, 1, 3]], atol=1e-5, rtol=1e-4)
    assert not torch.allclose(alone[2], other[2])


def test_fused_steps_are_what_is_written_out():
    """The GPU's kernels in Triton's interpreter, which has to be chosen before triton is imported."""
    pytest.importorskip("triton")
    done = subprocess.run(
        [sys.executable, "-m", "tests.calibration.fused"],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "alike\n"), done.stderr


# -- trees -------------------------------------------------------------------------------------------------------------


def test_a_tree_by_hand():
    """Root's candidates a .6, b .3; a's aa .5, ab .4; b's ba .9, bb .05: of .6, .3, .3, .27, .24 … three are kept, a aa ba's kin."""
    from calibration.tree import Level, accepted_path, next_level, selected, survivors

    first = Level(torch.log(torch.tensor([[0.6, 0.3]])), torch.tensor([[7, 8]]), torch.tensor([[-1, -1]]))
    below = torch.full((1, 2, 10), 1e-9)
    below[0, 0, 1], below[0, 0, 2] = 0.5, 0.4  # after a
    below[0, 1, 3], below[0, 1, 4] = 0.85, 0.05  # after b
    grown = next_level(below.log(), first, torch.tensor([[0, 1]]), 2)
    kept, at, origin = survivors(grown, 2, 2)
    assert kept.tokens.tolist() == [[1, 3]]  # .30 and .255 beat .24
    assert at.tolist() == [[2, 4]]
    assert origin.tolist() == [[0, 1]]
    tokens, mask, depths = selected([first, grown], 5)
    assert tokens.tolist() == [[7, 8, 1, 3]]
    assert depths.tolist() == [[0, 1, 1, 2, 2]]
    assert mask[0, 3].tolist() == [True, True, False, True, False]
    assert mask[0, 4].tolist() == [True, False, True, False, True]
    path = accepted_path(mask, depths, torch.tensor([2]))
    assert path[0, :3].tolist() == [0, 1, 3]
    assert accepted_path(mask, depths, torch.tensor([0]))[0, :2].tolist() == [0, -1]


# -- subcommands -------------------------------------------------------------------------------------------------------


def test_forward_writes_runs_that_fit(model, tmp_path):
    out = tmp_path / "forward.json"
    done = run("forward", "--model", model, "-o", out, "--batch-size", "1,3", "--num-draft-tokens", "1,2,4",
               "--context-len", "16", "--extra-widths", 1)  # fmt: skip
    assert "forward:" in done.stderr
    assert "no GPU" in done.stderr
    loaded = load_runs(out)
    assert loaded.model_card["provenance"]["torch"] == torch.__version__
    phases = fit(loaded).model.measured_phases
    assert {"verify", "draft", "extend", "decode"} <= set(phases)
    before = out.read_bytes()
    run("forward", "--model", model, "-o", out, "--batch-size", "1,3", "--num-draft-tokens", "1,2,4",
        "--context-len", "16", "--extra-widths", 0)  # fmt: skip
    assert out.read_bytes() == before


def test_quick_goes_from_a_configuration_to_a_model(model, tmp_path):
    out = tmp_path / "calibrated"
    done = run("quick", "--model", model, "-o", out)
    said = done.stdout
    assert done.stderr.count("no GPU") == 1
    assert {path.name for path in out.iterdir()} == {"forward.json", "model.json", "fit.png"}
    assert CostModel.load(out / "model.json").measured_phases
    assert "NOT KNOWN: the accept length" in said


def test_cycle_measures_chains_and_trees(model, tmp_path):
    out = tmp_path / "cycle.json"
    run(
        "cycle",
        "--model",
        model,
        "-o",
        out,
        "--chains",
        "1,3",
        "--trees",
        "3/4/8",
        "--batch-size",
        "2",
        "--context-len",
        32,
    )
    runs = {r.id: r for r in load_runs(out).runs}
    assert set(runs) == {"plain 2", "1/1/2 2", "3/1/4 2", "3/4/8 2"}
    for name in ("1/1/2 2", "3/1/4 2", "3/4/8 2"):
        figures = runs[name].figures
        assert 1 <= figures["accept_length"].best <= runs[name].spec.max_accept_length
        per_block = np.array(figures["output_tok_s"].repeats) * figures["cycle_ms"].repeats / 2000
        assert per_block.mean() == pytest.approx(figures["accept_length"].best, rel=1e-3)


def test_a_forced_chain_accepts_as_the_law_says(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TINY), encoding="utf-8")
    for rate, length in ((0.0, 1.0), (1.0, 4.0)):
        out = tmp_path / f"{rate}.json"
        run(
            "cycle",
            "--model",
            path,
            "-o",
            out,
            "--chains",
            "3",
            "--batch-size",
            "1",
            "--context-len",
            32,
            "--accept-rate",
            rate,
        )
        assert {r.id: r for r in load_runs(out).runs}["3/1/4 1"].figures["accept_length"].best == length


def test_allreduce_over_processes(tmp_path, monkeypatch):
    path, out = tmp_path / "config.json", tmp_path / "table.csv"
    monkeypatch.setattr(sys, "argv", ["calibration", "allreduce", "--settings", "default", "-o", str(out)])
    path.write_text(json.dumps(TINY), encoding="utf-8")
    run("allreduce", "-o", out, "--settings", "default", "--model", path)
    (setting,) = load_allreduce([(None, out)]).settings()
    assert (setting.label, setting.ranks) == ("default", 2)
    assert (tmp_path / "table-forward.csv").read_text().startswith("nccl,implementation,tokens,bytes,with_ms")
    rows = list(csv.DictReader(out.read_text(encoding="utf-8").splitlines()))
    assert {row["implementation"] for row in rows} == {"nccl"}
    (source,) = {row["source"] for row in rows}
    assert "python -m calibration allreduce --settings default -o table.csv" in source
    assert all(part in source for part in (f"torch {torch.__version__}", "started 20", "gloo", "NCCL_NVLS_ENABLE=0"))
    before = out.read_bytes()
    again = run("allreduce", "-o", out, "--settings", "default,Ring-LL", "--model", path, "--budget", 1e-12)
    assert "3 measurements left by the budget" in again.stderr
    assert out.read_bytes() == before
    (felt,) = load_allreduce([(None, tmp_path / "table-in-forward.csv")]).settings()
    assert felt.curve.in_forward
    assert felt.curve.drafting is not None
    assert felt.curve.drafting.sizes == felt.curve.sizes
    assert felt.curve.drafting.launch_us is not None
    assert not setting.curve.in_forward
    assert {path.name for path in tmp_path.glob("*.csv")} == {
        f"table{name}.csv" for name in ("", "-after", "-after-cold", "-gather", "-forward", "-in-forward")
    }
    (beside,) = load_allreduce([(None, out), (None, tmp_path / "table-gather.csv")]).settings()
    assert beside.curve.gather.sizes == (16384.0, 65536.0)
    assert setting.curve.gather is None


def test_a_cycle_over_two_ranks_is_told_by_its_parts(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TINY), encoding="utf-8")
    work = Work("cycle", 2, cycles=((1, 2), (3, 1)), shape=read_shape(path), graphs=(True,))
    rows = measured(work, Way("nccl"))
    assert [(row["drafts"], row["batch_size"], "narrow_ms" in row) for row in rows] == [(1, 2, False), (3, 1, True)]
    assert all(row[f"{part}_ms"] > 0 for row in rows for part in ("alone", "verify", "gather", "launches", "wide"))
    forwards = measured(Work("forward", 2, tokens=(4,), shape=read_shape(path)), Way("nccl"))
    assert all(row[name] > 0 for row in forwards for name in COLUMNS["forward"] if name.endswith("_ms"))


def test_an_implementation_that_ends_early_says_why_in_its_own_words():
    """Symmetric memory is a GPU's; what torch's launcher prints last is a line of dashes."""
    with pytest.raises(SpecsimError, match=r"one-shot: its processes ended with 1: \w+(Error|Exception): ") as caught:
        measured(Work("allreduce", 2, (1024,)), Way("one-shot"))
    assert "===" not in str(caught.value)


def test_ranks_that_fail_together_are_one_sentence():
    """One KV head is not split over two: both processes say so at once."""
    shape = ModelShape("m", 2, 8, 4, 1, 2, 16, 32)
    for _ in range(3):
        with pytest.raises(
            SpecsimError, match=r"its processes ended with 1: ConfigurationError: .* kv_heads does not divide"
        ):
            measured(Work("forward", 2, (1024,), (1,), shape), Way("nccl"))


def test_processes_that_do_not_end_are_ended_with_their_launcher(monkeypatch):
    import calibration.allreduce as module

    monkeypatch.setattr(module, "SECONDS", 3)
    monkeypatch.setitem(module.SETTINGS, "slow", {"SPECSIM_NONE": "1"})
    work = Work("allreduce", 2, tuple(1024 * 2**power for power in range(13)) * 50)
    with pytest.raises(SpecsimError, match="NCCL setting slow: no end within 3 s"):
        measured(work, Way("nccl", "slow"))
    assert not [p for p in Path("/proc").glob("[0-9]*/environ") if b"SPECSIM_NONE=1" in _read_if_there(p)]


def _read_if_there(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("nccl,bytes,time_us,ranks\ndefault,1024,9,4\n", "row 2: ranks is 4, and this would measure 2"),
        ("nccl,bytes,time_us,hardware\ndefault,1024,9,Z100\n", "row 2: hardware is Z100"),
        ("a,b\n1,2\n", "no table of all-reduces"),
        ("nccl\xff", "cannot be gone on with"),
    ],
)
def test_a_table_of_something_else_is_not_gone_on_with(written, says, tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(written.encode("latin-1"))
    done = CliRunner().invoke(group, ["allreduce", "--ranks", "2", "-o", str(path)])
    assert says in str(done.exception)
    assert path.read_bytes() == written.encode("latin-1")


@pytest.fixture
def alone(tmp_path):
    """A group of this process."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_sums_are_seen_to_before_anything_is_timed():
    """One rank's sum is what it holds: refused are another number, another place, and the first call's result for good."""
    from calibration.machine import Machine
    from calibration.reducers import Reducer, checked, reducer

    machine = Machine("cpu")
    shapes = ((16,), (3, 5))
    checked(reducer("nccl", machine, 16), machine, False, shapes)
    kept: dict[tuple[int, ...], torch.Tensor] = {}

    def stale(message):
        return kept.setdefault(tuple(message.shape), message)

    for wrong in (lambda message: message + 1, lambda message: message.flip(0), stale):
        with pytest.raises(SpecsimError, match=r"a wrong one: wrong sums of \(16,\)"):
            checked(Reducer(wrong, "a wrong one"), machine, False, shapes)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("two-shot", "two-shot needs GPUs"),
        ("three-shot", "'three-shot' is not known; allowed: all, nccl, one-shot, two-shot, vllm, vllm-nccl"),
        ("vllm", "vllm needs vLLM, which is not installed here"),
    ],
)
def test_implementations_that_cannot_be_measured_here(asked, says, tmp_path, monkeypatch):
    monkeypatch.setattr("calibration.commands.find_spec", lambda _: None)
    done = CliRunner().invoke(group, ["allreduce", "--implementations", asked, "-o", str(tmp_path / "o.csv")])
    assert says in str(done.exception)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("cycle", "--trees", "3/4"), "is not steps/topk/draft tokens"),
        (("cycle", "--trees", "2/2/40"), "verifies 2 to"),
        (("forward", "--most-tokens", "0"), "nothing to measure"),
    ],
)
def test_bad_input_is_one_sentence(arguments, says, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TINY), encoding="utf-8")
    done = CliRunner().invoke(group, [*arguments, "--model", str(path), "-o", str(tmp_path / "o.json")])
    assert says in str(done.exception)
