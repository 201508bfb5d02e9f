"""Turns a Llama model in GGUF form into a Hugging Face directory of bf16 weights.

Usage: python gguf_to_hf.py MODEL.gguf OUTPUT_DIR

Writes config.json, generation_config.json, model.safetensors, tokenizer.json and
tokenizer_config.json. Quantised tensors are dequantised to float32 and every tensor is rounded to
bf16, nearest even. The same input gives the same bytes. Works with gguf 0.19.0, safetensors 0.8.0
and numpy 2.4.6.
"""

import json
import pathlib
import sys

import gguf
import numpy as np
import safetensors

from gguf_tokenizer import tokenizer_config_from_gguf, tokenizer_json_from_gguf

# Parts of a tensor's GGUF name -> its Hugging Face name.
_GLOBAL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}


def read_field(reader, name):
    field = reader.get_field(name)
    if field is None:
        raise ValueError(f"the GGUF file has no {name}")
    return field.contents()


def shortest_float(value):
    """The shortest decimal that is this float32: 9.9999997e-06 was 1e-05 before it was stored."""
    return float(str(np.float32(value)))


def hugging_face_name(gguf_name):
    if gguf_name in _GLOBAL_NAMES:
        return _GLOBAL_NAMES[gguf_name]
    block, layer, suffix = gguf_name.split(".", 2)
    if block != "blk" or suffix not in _LAYER_NAMES:
        raise ValueError(f"unknown tensor {gguf_name}")
    return f"model.layers.{int(layer)}.{_LAYER_NAMES[suffix]}"


def undo_rope_permutation(weights, head_count):
    """RoPE turns neighbouring rows of a head in GGUF, rows i and i + dim / 2 in Hugging Face."""
    rows, columns = weights.shape
    pairs = weights.reshape(head_count, rows // head_count // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def to_bf16(values):
    """The bits of little-endian bf16, rounded to nearest even. The weights must be finite."""
    if not np.isfinite(values).all():
        raise ValueError("a weight is not finite")
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded >> np.uint32(16)).astype("<u2")


def convert_tensors(reader, head_count, kv_head_count):
    """Hugging Face name -> bf16 bits, in the tensor's shape."""
    tensors = {}
    for tensor in reader.tensors:
        name = hugging_face_name(tensor.name)
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if name.endswith("q_proj.weight"):
            values = undo_rope_permutation(values, head_count)
        elif name.endswith("k_proj.weight"):
            values = undo_rope_permutation(values, kv_head_count)
        tensors[name] = to_bf16(values)
    return tensors


def model_config(reader, tensors):
    hidden_size = int(read_field(reader, "llama.embedding_length"))
    head_count = int(read_field(reader, "llama.attention.head_count"))
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": int(read_field(reader, "tokenizer.ggml.bos_token_id")),
        "eos_token_id": int(read_field(reader, "tokenizer.ggml.eos_token_id")),
        "head_dim": int(read_field(reader, "llama.rope.dimension_count")),
        "hidden_act": "silu",
        "hidden_size": hidden_size,
        "intermediate_size": int(read_field(reader, "llama.feed_forward_length")),
        "max_position_embeddings": int(read_field(reader, "llama.context_length")),
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": head_count,
        "num_hidden_layers": int(read_field(reader, "llama.block_count")),
        "num_key_value_heads": int(read_field(reader, "llama.attention.head_count_kv")),
        "pad_token_id": int(read_field(reader, "tokenizer.ggml.padding_token_id")),
        "rms_norm_eps": shortest_float(
            read_field(reader, "llama.attention.layer_norm_rms_epsilon")
        ),
        "rope_scaling": None,
        "rope_theta": shortest_float(read_field(reader, "llama.rope.freq_base")),
        "tie_word_embeddings": "lm_head.weight" not in tensors,
        "torch_dtype": "bfloat16",
        "vocab_size": int(read_field(reader, "llama.vocab_size")),
    }


def write_json(path, content):
    text = json.dumps(content, ensure_ascii=False, indent=2) + "\n"
    path.write_text(text, encoding="utf-8", newline="\n")


def write_safetensors(path, tensors):
    specs = {
        name: safetensors.TensorSpec(
            dtype="bfloat16", shape=bits.shape, data_ptr=bits.ctypes.data, data_len=bits.nbytes
        )
        for name, bits in tensors.items()
    }
    safetensors.serialize_file(specs, str(path), {"format": "pt"})


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: gguf_to_hf.py MODEL.gguf OUTPUT_DIR")
    reader = gguf.GGUFReader(sys.argv[1])
    output_dir = pathlib.Path(sys.argv[2])
    architecture = read_field(reader, "general.architecture")
    if architecture != "llama":
        raise ValueError(f"general.architecture is {architecture!r}; only 'llama' is known")
    if reader.get_field("llama.rope.scaling.type") is not None or any(
        tensor.name == "rope_freqs.weight" for tensor in reader.tensors
    ):
        raise ValueError("the model scales its RoPE, which this script does not translate")

    tensors = convert_tensors(
        reader,
        int(read_field(reader, "llama.attention.head_count")),
        int(read_field(reader, "llama.attention.head_count_kv")),
    )
    config = model_config(reader, tensors)
    output_dir.mkdir(parents=True, exist_ok=True)
    write_json(output_dir / "config.json", config)
    write_json(
        output_dir / "generation_config.json",
        {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")},
    )
    write_json(output_dir / "tokenizer.json", tokenizer_json_from_gguf(reader))
    write_json(output_dir / "tokenizer_config.json", tokenizer_config_from_gguf(reader))
    write_safetensors(output_dir / "model.safetensors", tensors)


if __name__ == "__main__":
    main()
