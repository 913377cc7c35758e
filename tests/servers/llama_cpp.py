"""llama.cpp's server with the bigram model: run as a module, it prints its address once it answers.

Needs the `servers` extra: xllamacpp holds the server, gguf writes the models. With `--drafts 0` it runs plain decode. It ends
when standard input does.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.servers import bigram

TOKENS = [b"<unk>", b"<s>", b"</s>", *(f"<0x{byte:02X}>".encode() for byte in range(256)), "▁".encode()]
NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "model.layers": "blk",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip


def write_model(path: Path, drafter: bool) -> Path:
    """A model as GGUF."""
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(4096)
    writer.add_embedding_length(bigram.HIDDEN)
    writer.add_block_count(bigram.LAYERS)
    writer.add_feed_forward_length(bigram.INNER)
    writer.add_head_count(bigram.HEADS)
    writer.add_head_count_kv(bigram.HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(bigram.HIDDEN // bigram.HEADS)
    writer.add_vocab_size(bigram.TOKENS)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(TOKENS)
    writer.add_token_scores([0.0] * bigram.TOKENS)
    writer.add_token_types([2, 3, 3, *[6] * 256, 1])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for name, values in bigram.weights(drafter).items():
        writer.add_tensor(_named(name), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _named(name: str) -> str:
    """GGUF's name of a tensor, of Hugging Face's."""
    for theirs, ours in NAMES.items():
        name = name.replace(theirs, ours)
    return name


def main() -> None:
    """Serve until standard input ends."""
    import xllamacpp

    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--drafts", type=int, default=0)
    asked = parser.parse_args()
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(write_model(asked.folder / "target.gguf", False))
    parameters.port, parameters.endpoint_metrics = 0, True
    parameters.n_ctx, parameters.n_parallel, parameters.verbosity = 4096, 2, 0
    parameters.cpuparams.n_threads = 1
    if asked.drafts:
        kinds = xllamacpp.common_speculative_type
        parameters.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        parameters.speculative.draft.mparams.path = str(write_model(asked.folder / "drafter.gguf", True))
        parameters.speculative.draft.n_max = asked.drafts
    server = xllamacpp.Server(parameters)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
