"""Turns a Hugging Face directory of bf16 Llama weights into a bf16 GGUF file without a vocabulary.

Usage: python hf_to_gguf.py MODEL_DIR OUTPUT.gguf

For timing llama.cpp on the same weights: matrices keep their bf16 bits, norms become float32, as
llama.cpp wants them. Works with gguf 0.19.0 and numpy 2.4.6.
"""

import json
import pathlib
import struct
import sys

import gguf
import numpy as np

_GLOBAL_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_LAYER_NAMES = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}


def read_safetensors(path):
    """Tensor name -> bf16 bits in the tensor's shape."""
    data = path.read_bytes()
    (header_size,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + header_size])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] != "BF16":
            raise ValueError(f"{name} is {entry['dtype']}; only BF16 is known")
        begin, end = entry["data_offsets"]
        bits = np.frombuffer(data[8 + header_size + begin : 8 + header_size + end], "<u2")
        tensors[name] = bits.reshape(entry["shape"])
    return tensors


def gguf_name(name):
    if name in _GLOBAL_NAMES:
        return _GLOBAL_NAMES[name]
    _, _, layer, suffix = name.split(".", 3)
    return f"blk.{int(layer)}.{_LAYER_NAMES[suffix]}"


def rope_permutation(bits, head_count):
    """Hugging Face pairs row i of a head with i + dim / 2 for RoPE; GGUF pairs neighbouring rows."""
    rows, columns = bits.shape
    halves = bits.reshape(head_count, 2, rows // head_count // 2, columns)
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows, columns)


def add_parameters(writer, config):
    writer.add_name("benchmark")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: hf_to_gguf.py MODEL_DIR OUTPUT.gguf")
    model_dir = pathlib.Path(sys.argv[1])
    config = json.loads((model_dir / "config.json").read_text(encoding="utf-8"))
    if config["model_type"] != "llama" or config.get("rope_scaling") is not None:
        raise ValueError("only Llama models without RoPE scaling are known")
    writer = gguf.GGUFWriter(sys.argv[2], "llama")
    add_parameters(writer, config)
    for name, bits in read_safetensors(model_dir / "model.safetensors").items():
        if name.endswith("q_proj.weight"):
            bits = rope_permutation(bits, config["num_attention_heads"])
        elif name.endswith("k_proj.weight"):
            bits = rope_permutation(bits, config["num_key_value_heads"])
        if bits.ndim == 1:
            writer.add_tensor(gguf_name(name), (bits.astype(np.uint32) << 16).view(np.float32))
        else:
            writer.add_tensor(
                gguf_name(name), bits.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16
            )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
