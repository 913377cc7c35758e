"""`calibration serve` and `allreduce` with vLLM's CPU build and a tiny shape; nothing here depends on how busy the machine is."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from specsim import fit, load_runs
from specsim.runs.allreduce_files import load_allreduce

pytestmark = pytest.mark.vllm

TINY = {
    "_name_or_path": "tiny", "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 3,
    "hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 256,
    "vocab_size": 512, "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "max_position_embeddings": 4096, "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False,
}  # fmt: skip


def serve(folder, *arguments, **environment):
    command = [sys.executable, "-m", "calibration", "serve", "--model", "config.json", "--batch-size", "1"]
    return subprocess.run(
        [*command, "--num-draft-tokens", "1,3", "--context-len", "32", "--servers-at-once", "2", "-o", "served.json", *arguments],
        cwd=folder, capture_output=True, text=True, timeout=900, check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **environment},
    )  # fmt: skip


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("serve")
    (folder / "config.json").write_text(json.dumps(TINY), encoding="utf-8")
    done = serve(folder)
    assert done.returncode == 0, done.stderr
    return folder, done.stderr


def test_every_configuration_was_served_and_the_runs_can_be_fitted(served):
    folder, told = served
    runs = load_runs(folder / "served.json").runs
    assert [run.id for run in runs] == ["plain default 1x32", "3 draft tokens default 1x32"], told
    plain, drafted = runs
    assert plain.spec is None
    assert (drafted.spec.num_steps, drafted.spec.num_draft_tokens) == (2, 3)
    assert drafted.setup.engine_version
    assert 1 <= drafted.figures["accept_length"].best <= 3
    assert drafted.counts.cycles > 0
    assert fit(load_runs(folder / "served.json")).model.settings[0].label == "default"


def test_a_wait_in_each_all_reduces_place_is_paid_once_for_each(served, tmp_path):
    """Three layers and the embedding: 7 in plain decode; 7 and two draft forwards of 3 each, 13, in a cycle (eq. 17)."""
    folder, _ = served
    (tmp_path / "config.json").write_text((folder / "config.json").read_text(encoding="utf-8"), encoding="utf-8")
    done = serve(tmp_path, SPECSIM_WAIT_US="20000")
    assert done.returncode == 0, done.stderr
    free, held = (load_runs(at / "served.json").runs for at in (folder, tmp_path))
    added = [after.figures[figure].best - before.figures[figure].best
             for before, after, figure in zip(free, held, ("decode_ms", "cycle_ms"), strict=True)]  # fmt: skip
    for ms, count in zip(added, (7, 13), strict=True):
        assert count - 0.5 < ms / 20.0 < 1.2 * count, added  # a wait is never shorter; a busy machine is slower


def test_what_is_there_is_gone_on_with_and_starts_no_server(served):
    folder, _ = served
    done = serve(folder)
    assert done.returncode == 0, done.stderr
    assert "0 servers, 0 loads" in done.stderr
    assert "starting" not in done.stderr


def test_a_server_that_refuses_its_flags_is_told_and_exits_with_2(served, tmp_path):
    folder, _ = served
    (tmp_path / "config.json").write_text((folder / "config.json").read_text(encoding="utf-8"), encoding="utf-8")
    done = serve(tmp_path, "--budget", "0.5", "--", "--no-such-flag")
    assert done.returncode == 2
    assert "no-such-flag" in done.stderr
    assert "nothing was measured" in done.stderr


def test_all_reduces_are_vllms_own_where_they_are_asked_for(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "calibration", "allreduce", "--settings", "default", "--implementations", "nccl,vllm,vllm-nccl", "-o", "t.csv"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader((tmp_path / "t.csv").read_text(encoding="utf-8").splitlines()))
    made = {row["implementation"]: row["source"] for row in rows}
    assert "torch.distributed over gloo" in made["nccl"]
    assert ", vLLM " in made["vllm"]
    assert ", vLLM " in made["vllm-nccl"]
    assert "VLLM_ALLREDUCE_USE_SYMM_MEM=0" in made["vllm-nccl"]
    assert "VLLM_ALLREDUCE_USE_SYMM_MEM" not in made["vllm"]
    assert [setting.label for setting in load_allreduce([(None, tmp_path / "t.csv")]).settings()] == [
        "default",
        "vllm",
        "vllm-nccl",
    ]
