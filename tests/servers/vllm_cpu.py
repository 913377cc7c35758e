"""vLLM's server on a processor with the bigram model: run as a module, it prints its address once it answers.

`.ci/vllm` makes an environment with vLLM's CPU build. With `--drafts 0` it runs plain decode. It ends, and all its processes
with it, when standard input does: whoever started it need not live to end it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

from tests.servers import bigram

PATIENCE_S = 600
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "torch_dtype": "float32",
    "hidden_size": bigram.HIDDEN, "intermediate_size": bigram.INNER, "num_hidden_layers": bigram.LAYERS,
    "num_attention_heads": bigram.HEADS, "num_key_value_heads": bigram.HEADS, "vocab_size": bigram.TOKENS,
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
ENVIRONMENT = {
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",  # two threads that wait for each other stand still on a busy machine
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # with one executor, one process less to import everything
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
FLAGS = (
    "--dtype bfloat16 --max-model-len 2048 --max-num-seqs 8 --enforce-eager --no-enable-prefix-caching"
    " --distributed-executor-backend uni --host 127.0.0.1 --served-model-name bigram"
)


def write_model(folder: Path, drafter: bool) -> Path:
    """A checkpoint with its tokenizer, as Hugging Face lays them out."""
    from safetensors.numpy import save_file

    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer()), encoding="utf-8")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    save_file(bigram.weights(drafter), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _tokenizer() -> dict:
    """A byte is a token: byte-level pair encoding without a pair."""
    special = ["<unk>", "<s>", "</s>"]
    bytewise = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    vocabulary = {token: number for number, token in enumerate([*special, *_byte_letters(), "▁"])}
    return {
        "version": "1.0",
        "added_tokens": [{"id": number, "content": token, **plain} for number, token in enumerate(special)],
        "pre_tokenizer": bytewise,
        "decoder": bytewise,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }


def _byte_letters() -> list[str]:
    """GPT-2's letters for bytes: itself where a byte is visible in Latin-1, else one from 256 on, in turn."""
    visible = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in visible else next(others)) for byte in range(256)]


def main() -> None:
    """Start the server, tell its address, and wait."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--drafts", type=int, default=0)
    parser.add_argument("--development", action="store_true", help="let it answer /server_info")
    asked = parser.parse_args()
    if os.getpgrp() != os.getpid():
        os.setpgrp()
    threading.Thread(target=_die_with_standard_input, daemon=True).start()
    model, port = write_model(asked.folder / "target", False), _free_port()
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--port", str(port)]
    if asked.drafts:
        drafter = write_model(asked.folder / "drafter", True)
        speculation = {"method": "draft_model", "model": str(drafter), "num_speculative_tokens": asked.drafts}
        command += ["--speculative-config", json.dumps(speculation)]
    environment = os.environ | ENVIRONMENT | {"VLLM_SERVER_DEV_MODE": str(int(asked.development))}
    server = subprocess.Popen([*command, *FLAGS.split()], env=environment, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    url = f"http://127.0.0.1:{port}"
    _wait_for(url, server)
    print(url, flush=True)
    server.wait()


def _die_with_standard_input() -> None:
    sys.stdin.read()
    os.killpg(0, signal.SIGKILL)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _wait_for(url: str, server: subprocess.Popen) -> None:
    until = time.monotonic() + PATIENCE_S
    while server.poll() is None and time.monotonic() < until:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    sys.exit(f"vLLM did not answer: it ended with {server.poll()}, or took over {PATIENCE_S} s")


if __name__ == "__main__":
    main()
