"""Makes the weights of a synthetic model (common/model/synthetic.h), bit for bit, with numpy.

    python synthetic_weights.py SHAPE:SEED[:gain=G][:beta=B] --digests FILE
    python synthetic_weights.py SHAPE:SEED[:gain=G][:beta=B] --model DIR

--digests writes one line for each matrix, as the services pack it (q, k, v stacked; gate, up
stacked): its name and the SHA-256 of its bf16 elements, row-major and little-endian. --model writes a
Hugging Face directory for transformers; needs torch, safetensors, and memory for the model.
"""

import argparse
import hashlib
import json
import math
import pathlib

import numpy as np

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
UNIT = 1024
IMAGES = 4
MASK = (1 << 64) - 1
EMBEDDING, HEAD, LAYER_TENSORS = 0, 1, 8
Q, K, V, O, GATE, UP, DOWN = range(7)

# name: ordinary tokens, vocabulary, hidden, intermediate, layers, heads, kv heads, head_dim, scaling
SHAPES = {
    "8b": (128000, 128256, 4096, 14336, 32, 32, 8, 128, 8.0),
    "3b": (128000, 128256, 3072, 8192, 28, 24, 8, 128, 32.0),
    "tiny": (500, 512, 256, 704, 4, 4, 2, 64, None),
}


def hash64(value):
    """SplitMix64's finaliser of a Python integer."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & MASK
    return value ^ (value >> 31)


def sums(key, indices):
    """Nearly normal integers (SyntheticSum), of an array of indices."""
    with np.errstate(over="ignore"):
        word = np.uint64(key) + (indices.astype(np.uint64) + np.uint64(1)) * GOLDEN
        word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        word ^= word >> np.uint64(31)
    total = sum((word >> np.uint64(shift)) & np.uint64(0xFFFF) for shift in (0, 16, 32, 48))
    return total.astype(np.int64) - 131070


def to_bfloat16(values):
    """Bits of float32 values, rounded to nearest even."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


class Model:
    def __init__(self, text):
        shape, seed, *settings = text.split(":")
        self.seed = int(seed)
        factors = {"gain": 0.5, "beta": 0.25}
        for setting in settings:
            name, value = setting.split("=")
            assert name in factors, name
            factors[name] = float(value)
        self.gain, self.beta = factors["gain"], factors["beta"]
        (self.ordinary, self.vocab, self.hidden, self.intermediate, self.layers, self.heads,
         self.kv_heads, self.head_dim, self.scaling) = SHAPES[shape]

    def key(self, tensor):
        return hash64(hash64(self.seed) + tensor * 0xD1342543DE82EF95 & MASK)

    @staticmethod
    def scale(deviation):
        return np.float32(deviation / math.sqrt(4294967295.0 / 3.0))

    def matrix(self, tensor, rows, cols, deviation):
        scale = self.scale(deviation)
        result = np.empty((rows, cols), np.uint16)
        step = max(1, (1 << 22) // cols)
        for row in range(0, rows, step):
            end = min(rows, row + step)
            indices = np.arange(row * cols, end * cols, dtype=np.int64)
            values = sums(self.key(tensor), indices).astype(np.float32) * scale
            result[row:end] = to_bfloat16(values).reshape(end - row, cols)
        return result

    def input_matrix(self, tensor, rows):
        return self.matrix(tensor, rows, self.hidden, 1.0 / math.sqrt(self.hidden))

    def output_matrix(self, tensor, cols):
        damping = math.sqrt(2.0 * self.layers)
        return self.matrix(tensor, self.hidden, cols, self.gain / damping / math.sqrt(cols))

    def embedding(self):
        return self.matrix(EMBEDDING, self.vocab, self.hidden, 1.0)

    def images(self):
        """Multiplier and offset of each bijection of the head."""
        word = self.key(HEAD)
        images = []

        def draw():
            nonlocal word
            word = hash64(word + 1 & MASK)
            return word % self.ordinary

        for _ in range(IMAGES):
            multiplier = draw()
            while math.gcd(multiplier, self.ordinary) != 1:
                multiplier += 1
            images.append((multiplier, draw()))
        return images

    def image_weight(self):
        # As lround: half away from zero.
        return math.floor(self.beta * UNIT + 0.5)

    def head(self):
        hidden = self.hidden
        scale = self.scale(1.0 / UNIT / math.sqrt(hidden))
        images = self.images()
        result = np.zeros((self.vocab, hidden), np.uint16)
        columns = np.arange(hidden, dtype=np.int64)
        for row in range(self.ordinary):
            total = UNIT * sums(self.key(HEAD), row * hidden + columns)
            for multiplier, offset in images:
                image = (row * multiplier + offset) % self.ordinary
                total += self.image_weight() * sums(self.key(EMBEDDING), image * hidden + columns)
            result[row] = to_bfloat16(total.astype(np.float32) * scale)
        return result

    def layer(self, index):
        first = LAYER_TENSORS * (index + 1)
        q_width, kv_width = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "self_attn.q_proj": self.input_matrix(first + Q, q_width),
            "self_attn.k_proj": self.input_matrix(first + K, kv_width),
            "self_attn.v_proj": self.input_matrix(first + V, kv_width),
            "self_attn.o_proj": self.output_matrix(first + O, q_width),
            "mlp.gate_proj": self.input_matrix(first + GATE, self.intermediate),
            "mlp.up_proj": self.input_matrix(first + UP, self.intermediate),
            "mlp.down_proj": self.output_matrix(first + DOWN, self.intermediate),
        }


def write_digests(model, path):
    lines = []

    def add(name, *parts):
        digest = hashlib.sha256()
        for part in parts:
            digest.update(part.astype("<u2").tobytes())
        lines.append(f"{name} {digest.hexdigest()}\n")

    add("embedding", model.embedding())
    for i in range(model.layers):
        layer = model.layer(i)
        add(f"{i}.qkv", *(layer[f"self_attn.{name}_proj"] for name in "qkv"))
        add(f"{i}.output", layer["self_attn.o_proj"])
        add(f"{i}.gate_up", layer["mlp.gate_proj"], layer["mlp.up_proj"])
        add(f"{i}.down", layer["mlp.down_proj"])
    add("head", model.head())
    path.write_text("".join(lines))


def write_model(model, path):
    import safetensors.torch
    import torch

    def tensor(bits):
        return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)

    path.mkdir(parents=True, exist_ok=True)
    ones = torch.ones(model.hidden, dtype=torch.bfloat16)
    tensors = {"model.embed_tokens.weight": tensor(model.embedding()),
               "lm_head.weight": tensor(model.head()), "model.norm.weight": ones.clone()}
    for i in range(model.layers):
        prefix = f"model.layers.{i}."
        for name, bits in model.layer(i).items():
            tensors[f"{prefix}{name}.weight"] = tensor(bits)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}{name}.weight"] = ones.clone()
    safetensors.torch.save_file(tensors, path / "model.safetensors", {"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16",
        "vocab_size": model.vocab, "hidden_size": model.hidden,
        "intermediate_size": model.intermediate, "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads, "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0, "hidden_act": "silu", "tie_word_embeddings": False,
        "eos_token_id": model.ordinary,
    }
    if model.scaling is not None:
        config["rope_scaling"] = {
            "rope_type": "llama3", "factor": model.scaling, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    (path / "config.json").write_text(json.dumps(config, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", metavar="SHAPE:SEED[:gain=G][:beta=B]")
    parser.add_argument("--digests", type=pathlib.Path)
    parser.add_argument("--model", type=pathlib.Path)
    arguments = parser.parse_args()
    model = Model(arguments.name)
    if arguments.digests:
        write_digests(model, arguments.digests)
    if arguments.model:
        write_model(model, arguments.model)


if __name__ == "__main__":
    main()
