"""Servers of one's own: what is started, in which order, with what; a local process that is waited for and stopped."""

import json
import os
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration.allreduce import SETTINGS
from calibration.checkpoints import texts, write_checkpoint
from calibration.engines import (
    ENGINE_OWN,
    MOST_CONTEXT,
    Deployment,
    Loads,
    Serving,
    captured_tokens,
    labels_of,
    most_requests,
    survival,
)
from calibration.results import Results
from calibration.serve import chosen, run_id, servings
from calibration.server import LocalServer, free_ports, settled, stop
from calibration.vllm_phases import PHASES
from calibration.vllm_plugin import (
    DISTINCT,
    WAIT_US,
    distinct,
    followed,
    own_seeds,
    refilling,
    remembering,
    write_entry_point,
)
from specsim.errors import InputError, SpecsimError
from specsim.quantities import SpecConfig
from specsim.runs.writing import write_runs

DENSE = {"_name_or_path": "org/dense", "architectures": ["LlamaForCausalLM"], "model_type": "llama",
         "num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
         "intermediate_size": 128, "vocab_size": 50000, "rope_theta": 5.0, "rms_norm_eps": 1e-5}  # fmt: skip
MIXTURE = DENSE | {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16}


@pytest.fixture
def config(tmp_path):
    def write(fields):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(fields), encoding="utf-8")
        return path

    return write


def deployed(checkpoint, folder, **changes):
    made = {
        "engine": "vllm",
        "loads": Loads((1, 4), (128,)),
        "ranks": 1,
        "accept_rate": 0.5,
        "graphs": True,
        "on_gpu": True,
    }
    return Deployment(checkpoint=checkpoint, folder=folder, **(made | changes))


def serving(width, nccl="default"):
    return Serving(None if width == 1 else SpecConfig(width - 1, 1, width, "eagle3"), nccl)


# -- model folders -----------------------------------------------------------------------------------------------------


def test_a_checkpoint_has_what_a_server_reads(config, tmp_path):
    made = write_checkpoint(config(DENSE), tmp_path / "models")
    target, drafter = (json.loads((at / "config.json").read_text()) for at in (made.target, made.drafter))
    assert (made.target.name, made.drafter.name) == ("dense", "dense-drafter")
    assert target | DENSE == target
    assert drafter["architectures"] == ["LlamaForCausalLMEagle3"]
    assert (drafter["num_hidden_layers"], drafter["vocab_size"], drafter["draft_vocab_size"]) == (1, 50000, 32000)
    assert (drafter["hidden_size"], drafter["rope_theta"]) == (64, 5.0)


@pytest.mark.vllm  # brings what a server reads a tokenizer with
def test_a_text_of_so_many_words_is_as_many_tokens(config, tmp_path):
    from transformers import AutoTokenizer

    made = write_checkpoint(config(DENSE), tmp_path / "models")
    tokenizer = AutoTokenizer.from_pretrained(made.target)
    one, other = texts(50000, 2, 1000, np.random.default_rng(0))
    encoded = tokenizer(one)["input_ids"]
    assert [f"t{token}" for token in encoded] == one.split()
    assert min(encoded) >= 3
    assert one != other


def test_a_configuration_without_an_architecture_is_refused_by_name(config, tmp_path):
    fields = {name: value for name, value in DENSE.items() if name != "architectures"}
    with pytest.raises(InputError, match="architectures"):
        write_checkpoint(config(fields), tmp_path / "models")


# -- what is started ---------------------------------------------------------------------------------------------------


def stated(command, flag):
    return json.loads(command[command.index(flag) + 1])


def test_a_drafting_server_is_told_drafts_rates_and_graph_sizes(config, tmp_path):
    deployment = deployed(write_checkpoint(config(DENSE), tmp_path / "models"), tmp_path)
    command = deployment.command(serving(4, "default"), 8000)
    spec = stated(command, "--speculative-config")
    assert spec["num_speculative_tokens"] == 3
    assert spec["synthetic_acceptance_rates"] == [0.5, 0.25, 0.125]
    assert stated(command, "--compilation-config") == {"cudagraph_capture_sizes": [4, 16]}
    assert "--disable-custom-all-reduce" not in command
    assert "--enforce-eager" not in command


def test_plain_decode_is_told_of_no_drafts(config, tmp_path):
    deployment = deployed(write_checkpoint(config(DENSE), tmp_path / "models"), tmp_path, graphs=False)
    command = deployment.command(serving(1, "default"), 8000)
    assert "--speculative-config" not in command
    assert "--enforce-eager" in command


def test_sglang_is_told_a_tree_and_the_length_that_a_chain_as_deep_would_have(config, tmp_path):
    """Half of three: 1 + 1/2 + 1/4 + 1/8."""
    checkpoint = write_checkpoint(config(DENSE), tmp_path / "models")
    deployment = deployed(checkpoint, tmp_path, engine="sglang", extra=("--attention-backend", "triton"))
    tree = Serving(SpecConfig(3, 4, 8, "eagle3"), "default")
    command = deployment.command(tree, 8000)
    told = {flag: command[command.index(f"--speculative-{flag}") + 1]
            for flag in ("num-steps", "eagle-topk", "num-draft-tokens")}  # fmt: skip
    assert told == {"num-steps": "3", "eagle-topk": "4", "num-draft-tokens": "8"}
    assert command[-2:] == ["--attention-backend", "triton"]
    assert command[command.index("--cuda-graph-bs") :][:3] == ["--cuda-graph-bs", "1", "4"]
    environment = deployment.environment(tree)
    assert environment["SGLANG_SIMULATE_ACC_LEN"] == "1.875"
    assert "SGLANG_SIMULATE_ACC_TOKEN_MODE" not in environment
    assert "SGLANG_SIMULATE_ACC_LEN" not in deployment.environment(serving(1))
    assert "--speculative-algorithm" not in deployment.command(serving(1), 8000)


@pytest.mark.parametrize(("nccl", "off"), [("Ring-LL", True), ("default", True), (ENGINE_OWN, False)])
def test_a_setting_is_in_the_environment_and_nccl_carries_all_but_the_engines_own(config, tmp_path, nccl, off):
    deployment = deployed(write_checkpoint(config(DENSE), tmp_path / "models"), tmp_path, ranks=2)
    plain = serving(1, nccl)
    command = deployment.command(plain, 1)
    assert ("--disable-custom-all-reduce" in command) is off
    assert (stated(command, "--compilation-config").get("pass_config") == {"fuse_allreduce_rms": False}) is off
    environment = deployment.environment(plain)
    assert environment | SETTINGS.get(nccl, {}) == environment
    assert environment["NCCL_NVLS_ENABLE"] == "0"
    assert environment["VLLM_ALLREDUCE_USE_SYMM_MEM"] == environment["VLLM_ALLREDUCE_USE_FLASHINFER"] == "0"


def test_on_one_device_settings_are_waits_and_over_several_nccls(config, tmp_path):
    assert labels_of("vllm", 1) == ["default", "wait-5", "wait-20"]
    assert labels_of("sglang", 1) == labels_of("vllm", 1, mixture=True) == ["default"]
    assert set(labels_of("vllm", 2)) == {ENGINE_OWN, *SETTINGS}
    deployment = deployed(write_checkpoint(config(DENSE), tmp_path / "models"), tmp_path)
    assert deployment.environment(serving(4, "wait-20"))[WAIT_US] == "20"
    assert WAIT_US not in deployment.environment(serving(4))
    caches = [
        deployment.environment(serving(4, nccl)).get("VLLM_CACHE_ROOT") for nccl in ("default", "wait-5", "wait-20")
    ]
    assert caches[0] is None  # what was compiled without waits is not taken for one that waits
    assert caches[1] == caches[2] is not None
    together = replace(deployment, at_once=2)
    assert len({together.environment(serving(4, nccl), 1)["VLLM_CACHE_ROOT"] for nccl in ("default", "wait-5")}) == 2


def test_each_server_marks_its_phases_in_a_file_of_its_own(config, tmp_path, monkeypatch):
    deployment = deployed(write_checkpoint(config(DENSE), tmp_path / "models"), tmp_path, ranks=2)
    assert PHASES not in deployment.environment(serving(4))
    monkeypatch.setenv(PHASES, "marks")
    found = [deployment.environment(serving(width, nccl))[PHASES] for width, nccl in ((1, "default"), (4, "Ring-LL"))]
    assert found == ["marks-plain-default", "marks-4-draft-tokens-Ring-LL"]


@pytest.mark.parametrize(
    ("asked", "model", "said"),
    [
        (("--settings", "Ring-LL"), DENSE, "'Ring-LL' is a setting between GPUs: state --tensor-parallel 2 or more"),
        (
            ("--settings", "default,wait-5", "--tensor-parallel", "2"),
            DENSE,
            "'wait-5' is for vLLM, a dense model and one GPU",
        ),
        (("--settings", "wait-20"), MIXTURE, "'wait-20' is for vLLM, a dense model and one GPU"),
        (("--settings", "wait-7"), DENSE, "'wait-7' is not known; allowed: all, default, wait-5, wait-20"),
    ],
)
def test_settings_that_say_nothing_here_are_refused(config, tmp_path, asked, model, said):
    from click.testing import CliRunner

    from calibration.__main__ import group

    done = CliRunner().invoke(group, ["serve", "--model", str(config(model)), "-o", str(tmp_path / "s.json"), *asked])
    assert isinstance(done.exception, SpecsimError)
    assert said in str(done.exception)


def test_the_drafts_of_a_mixture_differ(config, tmp_path):
    both = [deployed(write_checkpoint(config(each), tmp_path / "m"), tmp_path) for each in (DENSE, MIXTURE)]
    assert [deployment.environment(serving(4, "default"))[DISTINCT] for deployment in both] == ["0", "1"]
    assert both[1].environment(serving(1, "default"))[DISTINCT] == "0"


def test_servers_together_are_told_the_memory_that_the_largest_load_fills(config, tmp_path):
    """4 requests of 128 + 512 tokens and 16 + 2·4 to spare: 2656; 5 layers, 2 heads of 16, keys and values, a quarter more."""
    checkpoint = write_checkpoint(config(DENSE), tmp_path / "models")
    drafted = serving(4)
    alone, together = (deployed(checkpoint, tmp_path, at_once=count) for count in (1, 2))
    command = together.command(drafted, 8000)
    assert command[command.index("--kv-cache-memory-bytes") + 1] == str(2656 * 5 * 2 * 2 * 16 * 2 * 5 // 4)
    assert "--kv-cache-memory-bytes" not in alone.command(drafted, 8000)
    told = [together.environment(drafted, slot) for slot in (0, 1)]
    for name in ("VLLM_CACHE_ROOT", "VLLM_PORT"):
        assert told[0][name] != told[1][name]
        assert name not in alone.environment(drafted)
    sglang = deployed(checkpoint, tmp_path, at_once=2, engine="sglang", ranks=2).command(drafted, 8000)
    assert sglang[sglang.index("--max-total-tokens") + 1] == "5312"
    assert "--enforce-disable-flashinfer-allreduce-fusion" in sglang


def test_a_cache_holds_the_longest_request_that_is_allowed_for(config, tmp_path):
    """A context whose loads are all left out is in the server's longest request nevertheless."""
    checkpoint, loads = write_checkpoint(config(DENSE), tmp_path / "models"), Loads((16,), (128, 32768))
    deployment = deployed(checkpoint, tmp_path, at_once=2, loads=loads)
    assert loads.points() == [(16, 128)]
    assert deployment.kv_tokens(serving(4)) >= deployment.context_len + 4


@given(st.lists(st.integers(1, 300), min_size=1, max_size=6), st.integers(1, 12))
def test_no_batch_is_padded_and_draft_steps_are_to_a_multiple(batches, width):
    sizes = captured_tokens(batches, width)
    assert sizes == sorted(set(sizes))
    assert all(batch * width in sizes for batch in batches)
    assert all(any(batch <= size < batch + width for size in sizes) for batch in batches)
    assert all(size % width == 0 for size in sizes)


@given(st.lists(st.integers(1, 300), min_size=1, max_size=6), st.integers(1, 12))
def test_there_is_room_for_every_row_of_a_draft_step(batches, width):
    room = most_requests(batches, width)
    assert max(batches) <= room < max(batches) + width
    assert all(-(-batch // width) * width <= room for batch in batches)


@given(st.floats(0, 1), st.integers(1, 16))
def test_forced_rates_are_what_the_server_allows(rate, drafts):
    rates = survival(rate, drafts)
    assert len(rates) == drafts
    assert all(0 <= later <= earlier <= 1 for earlier, later in pairwise(rates))


# -- the order ---------------------------------------------------------------------------------------------------------


@given(st.sets(st.integers(1, 16), min_size=1), st.integers(1, 3))
def test_every_server_is_started_once_and_plain_decode_of_the_first_setting_first(widths, count):
    settings = list(SETTINGS)[:count]
    order = servings(widths, [(3, 4, 8)], settings)
    assert len(order) == len(set(order)) == (len(widths) + 1) * count
    if 1 in widths:
        assert order[0] == serving(1, settings[0])


@given(st.sets(st.integers(1, 600), min_size=1, max_size=6), st.sets(st.integers(1, 300_000), min_size=1, max_size=3))
def test_loads_are_each_asked_once_and_none_is_beyond_the_limit(batches, contexts):
    loads = Loads(tuple(batches), tuple(contexts))
    points = loads.points()
    assert len(points) == len(set(points))
    fits = {(b, c) for b in batches for c in contexts if b * (c + loads.output_len) <= MOST_CONTEXT}
    assert set(points) == fits


def measured(width, batch, ms):
    row = {"id": f"{width} {batch}", "model": "m", "nccl": "default", "batch_size": batch}
    plain = {"method": "none", "decode_ms": ms}
    return row | (plain if width == 1 else {"num_draft_tokens": width, "topk": 1, "method": "eagle3", "cycle_ms": ms})


def test_without_a_fit_the_first_is_chosen(tmp_path):
    left = [serving(4, "default"), serving(8, "default")]
    assert chosen(left, tmp_path / "none.json", 1) == left[:1]


def test_with_a_fit_the_server_is_chosen_of_which_it_tells_least(tmp_path):
    """Two and three tokens tell of 4 well and of 16 badly; of a setting that was never run nothing."""
    runs = tmp_path / "runs.json"
    noise = np.random.default_rng(3).normal(1, 0.01, 6)
    pairs = [(1, 1), (1, 4), (2, 1), (2, 4), (3, 1), (3, 4)]
    rows = [measured(w, b, (5 + 0.2 * w * b) * e) for (w, b), e in zip(pairs, noise, strict=True)]
    write_runs(rows, "", runs)
    near, far = serving(4, "default"), serving(16, "default")
    assert chosen([near, far], runs, 1) == [far]
    assert chosen([near, serving(4, "Ring-LL"), far], runs, 2) == [serving(4, "Ring-LL"), far]
    assert chosen([near, serving(1, "Ring-LL"), serving(4, "Ring-LL")], runs, 1) == [serving(1, "Ring-LL")]


def test_names_of_runs_have_no_commas_which_lists_have():
    assert "," not in run_id(serving(4, "Ring-LL"), (16, 128))


# -- the plugin --------------------------------------------------------------------------------------------------------


def test_every_parameter_is_filled_from_a_seed_of_its_own():
    seeds = []
    fill = own_seeds(lambda param, low, high, seed: seeds.append(seed))
    for _ in range(5):
        fill("a parameter")
    assert len(set(seeds)) == 5


def test_drafts_of_a_cycle_differ_and_stay_in_the_vocabulary():
    class Speculator:
        vocab_size = 10_000

        def sample_draft(self, hidden, positions, draft_step):
            return hidden

    drafted = distinct(Speculator.sample_draft)
    tokens = [drafted(Speculator(), np.array([7, 8]), None, draft_step=step) for step in range(6)]
    firsts = [int(step[0]) for step in tokens]
    assert len(set(firsts)) == 6
    assert all(0 <= token < 10_000 for token in firsts)


@pytest.mark.parametrize(
    ("given", "reduces", "then"), [(3, True, 4), ((3, "bias"), True, (4, "bias")), ((3, None), False, (3, None))]
)
def test_a_layers_output_is_followed_where_it_would_be_reduced(given, reduces, then):
    class Row:
        reduce_results = reduces

        def forward(self, x):
            return given

    class Embedding:
        def forward(self, x):
            return given

    assert followed(Row.forward, lambda x: x + 1)(Row(), "x") == then
    if reduces:
        assert followed(Embedding.forward, lambda x: x + 1)(Embedding(), x="x") == then


def test_a_drafters_graph_is_captured_on_the_schedule_of_its_own_batch():
    """As vLLM 0.24 does it: all batches' states view one buffer, which the target's last batch has filled."""

    class Batch(NamedTuple):
        num_reqs: int
        num_tokens: int

    class State(NamedTuple):
        attn_metadata: object

    class States(NamedTuple):
        captured: State

    def prepare(reqs, tokens, model_state, buffer, block_tables, attn_groups, kv_cache):
        buffer[:] = [reqs, tokens]

    def of_target(self, model, model_state, input_buffers, block_tables, attn_groups, kv_cache_config):
        for batch in batches:
            prepare(*batch, model_state, input_buffers, block_tables, attn_groups, kv_cache_config)

    def of_draft(self, forward, attn_states, progress_bar_desc):
        found = []
        for batch in batches:
            for _ in ("warm-up", "capture"):
                buffer.append("used")
                found.append((batch, list(attn_states[batch].captured.attn_metadata)))
        return found

    buffer, batches, seen = [], [Batch(64, 256), Batch(16, 64), Batch(1, 4)], {}
    remembering(of_target, seen)(
        "manager", "model", 1, input_buffers=buffer, block_tables=2, attn_groups=3, kv_cache_config=4
    )
    states = {batch: States(State(buffer)) for batch in batches}
    assert of_draft(None, None, states, "")[0] == (batches[0], [1, 4, "used"])
    mended = refilling(of_draft, prepare, seen)(None, None, states, progress_bar_desc="")
    assert mended == [(batch, list(batch)) for batch in batches for _ in range(2)]
    pieces = {batch: States(State(None)) for batch in batches}
    asked = refilling(lambda self, forward, attn_states: [attn_states[b] for b in batches], None, seen)
    assert asked(None, None, pieces) == list(pieces.values())


def test_a_server_finds_the_entry_point(tmp_path, monkeypatch):
    from importlib.metadata import entry_points

    for folder in write_entry_point(tmp_path / "plugin").split(os.pathsep):
        monkeypatch.syspath_prepend(folder)
    found = [each for each in entry_points(group="vllm.general_plugins") if each.name == "specsim_dummy"]
    assert len(found) == 1
    assert found[0].load().__name__ == "register"


# -- served together ---------------------------------------------------------------------------------------------------


def test_a_server_that_ends_while_it_waits_is_told(config, tmp_path, monkeypatch):
    """The first is loaded while the second ends: both were well, and one run is there."""
    from calibration import served

    deployment = deployed(write_checkpoint(config(DENSE), tmp_path / "models"), tmp_path, at_once=2,
                          loads=Loads((1,), (128,)))  # fmt: skip
    begun = []

    def local(deployment, serving, port, slot):
        begun.append(LocalServer([sys.executable, "-c", SERVES, str(port)], {}, port, tmp_path / f"{slot}.log"))
        return begun[-1]

    def load(deployment, serving, point, url, seed):
        stop(begun[1:])
        return {"method": "none", "batch_size": 1, "decode_ms": 4.0}

    monkeypatch.setattr(served, "_server", local)
    monkeypatch.setattr(served, "served_run", load)
    results = Results(tmp_path / "r.json", "", {}, {})
    told = served.serve_all(deployment, [serving(1), serving(4)], results, 0, time.monotonic() + 60)
    assert [run["id"] for run in results.runs] == ["plain default 1x128"]
    assert len(told) == 1
    assert "4 draft tokens default: the server ended while it waited for its turn" in told[0]
    assert all(server.gone() for server in begun)


# -- a process of one's own --------------------------------------------------------------------------------------------

SERVES = """
import http.server, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Health).serve_forever()
"""


@pytest.fixture
def begun(tmp_path):
    """Begins a program with a port of its own; whatever it began is stopped afterwards."""
    servers = []

    def begin(program):
        number, (port,) = len(servers), free_ports(1)
        log = tmp_path / f"log{number}"
        servers.append(LocalServer([sys.executable, "-c", program, str(port)], {"A": "b"}, port, log))
        servers[-1].start()
        return servers[-1]

    yield begin
    stop(servers)


def lives(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return (
        Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").split()[2] != "Z"
    )  # a zombie waits for whoever reaps it


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="looks at /proc")
def test_all_that_servers_started_is_gone_with_them(begun):
    servers = [begun(SERVES), begun(SERVES)]
    assert [failure for _, failure in settled(servers, 60.0)] == [None, None]
    children = [int(each.log.read_text().split()[0]) for each in servers]
    assert all(lives(child) for child in children)
    assert all(each.started_s > 0 for each in servers)
    stop(servers)
    assert all(each.gone() for each in servers)
    end = time.monotonic() + 30
    while any(lives(child) for child in children) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(lives(child) for child in children)


ENDS = """
import sys
for said in ("(Worker) RuntimeError: out of memory", "(Worker) frame #0: nothing", "(Engine) ValueError: no engine",
             "(Engine) KeyError: 1", "(Engine) TypeError: 2", "(API) RuntimeError: out of memory"):
    print(said)
sys.exit(3)
"""


def test_a_server_that_ends_is_told_with_its_first_errors_each_once(begun):
    ((_, failure),) = settled([begun(ENDS)], 60.0)
    told = str(failure).splitlines()
    assert "ended with 3" in told[0]
    assert [line.strip() for line in told[1:-1]] == [
        "(Worker) RuntimeError: out of memory",
        "(Engine) ValueError: no engine",
        "(Engine) KeyError: 1",
    ]


def test_a_log_is_of_one_start(begun):
    again = begun("import time; time.sleep(600)")
    stop([again])
    again.log.write_text("OldError: of an earlier start\n", encoding="utf-8")
    again.start()
    assert "OldError" not in again.last_words()


def test_a_server_that_never_is_ready_is_stopped_and_the_others_are_not(begun):
    hangs, serves = begun("import time; print('loading', flush=True); time.sleep(600)"), begun(SERVES)
    assert list(settled([serves], 60.0)) == [(serves, None)]
    ((_, failure),) = settled([hangs], 1.0)
    assert "not ready within 1 s" in str(failure)
    assert "loading" in str(failure)
    assert hangs.gone()
    assert not serves.gone()


def test_of_servers_alike_none_may_take_much_longer_than_another(begun, monkeypatch):
    monkeypatch.setattr("calibration.server._LEAST_S", 0.0)
    hangs, serves = begun("import time; time.sleep(600)"), begun(SERVES)
    failures = [failure for _, failure in settled([hangs, serves], 600.0)]
    assert failures[0] is None
    assert "not ready within" in str(failures[1])


def test_ports_of_servers_that_start_together_differ():
    ports = free_ports(50)
    assert len(set(ports)) == 50
