"""llama.cpp's server with a tiny random model, drafted for by the same model: run as a script, it prints its address.

Needs the `servers` extra: xllamacpp holds the server, gguf writes the model. With `--drafts 0` it runs plain decode.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

HIDDEN, LAYERS, HEADS, INNER = 64, 2, 4, 128
TOKENS = [b"<unk>", b"<s>", b"</s>", *(f"<0x{byte:02X}>".encode() for byte in range(256)), "▁".encode()]


def write_model(path: Path, seed: int = 0) -> None:
    """A Llama of random weights over bytes."""
    import gguf

    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(4096)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(TOKENS)
    writer.add_token_scores([0.0] * len(TOKENS))
    writer.add_token_types([2, 3, 3, *[6] * 256, 1])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for name, shape in _shapes().items():
        norm = name.endswith("norm.weight")
        weights = np.ones(shape, np.float32) if norm else _random(rng, shape)
        if name == "output.weight":  # only printable characters are ever likely: half a character is no text to stream
            weights[[not _printable(token) for token in TOKENS]] = 0.0
        writer.add_tensor(name, weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _printable(token: bytes | str) -> bool:
    return isinstance(token, bytes) and token.startswith(b"<0x") and 32 <= int(token[3:5], 16) < 127


def _random(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return (0.05 * rng.standard_normal(shape)).astype(np.float32)


def _shapes() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (len(TOKENS), HIDDEN), "output_norm.weight": (HIDDEN,), "output.weight": (len(TOKENS), HIDDEN),
    }  # fmt: skip
    for layer in range(LAYERS):
        block = {
            **{f"attn_{part}": (HIDDEN, HIDDEN) for part in ("q", "k", "v", "output")},
            "attn_norm": (HIDDEN,), "ffn_norm": (HIDDEN,),
            "ffn_gate": (INNER, HIDDEN), "ffn_up": (INNER, HIDDEN), "ffn_down": (HIDDEN, INNER),
        }  # fmt: skip
        shapes |= {f"blk.{layer}.{name}.weight": shape for name, shape in block.items()}
    return shapes


def main() -> None:
    """Serve until standard input ends."""
    import xllamacpp

    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--drafts", type=int, default=0)
    asked = parser.parse_args()
    model = asked.folder / "model.gguf"
    write_model(model)
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(model)
    parameters.port, parameters.endpoint_metrics = 0, True
    parameters.n_ctx, parameters.n_parallel, parameters.verbosity = 4096, 2, 0
    parameters.cpuparams.n_threads = 1
    if asked.drafts:
        kinds = xllamacpp.common_speculative_type
        parameters.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        parameters.speculative.draft.mparams.path = str(model)
        parameters.speculative.draft.n_max = asked.drafts
    server = xllamacpp.Server(parameters)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
