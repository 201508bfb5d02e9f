"""Compares logits with transformers on the same GPU.

    python compare_transformers.py BUNDLE_DIR [--models=MODEL_DIR,..] [--device=cuda]

BUNDLE_DIR: deploy/bundle.sh's, with selfsame-write-logits. Cases: the 8B and 3B Llama shapes with
synthetic weights, a Qwen3 shape with random ones, and the directories given. transformers gives
float32 logits, and bf16 ones, whose distance from those says what bf16 costs; both schedules may be
at most twice as far (RMS over all rows and tokens). Prints a table; exit status 1 when one is
farther. Needs torch, transformers and a GPU with 80 GB of memory for the 8B shape.
"""

import argparse
import contextlib
import gc
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import numpy as np
import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "reference"))
import synthetic_weights  # noqa: E402

TOKENS = 96
ALLOWANCE = 2.0
MASK16 = 0xFFFF


def as_signed(value):
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def shifted(value, bits):
    """Logical right shift of int64."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def torch_sums(key, indices):
    """synthetic_weights.sums on the GPU."""
    word = (indices + 1) * as_signed(0x9E3779B97F4A7C15) + as_signed(key)
    word = (word ^ shifted(word, 30)) * as_signed(0xBF58476D1CE4E5B9)
    word = (word ^ shifted(word, 27)) * as_signed(0x94D049BB133111EB)
    word = word ^ shifted(word, 31)
    total = (word & MASK16) + (shifted(word, 16) & MASK16) + (shifted(word, 32) & MASK16)
    return total + shifted(word, 48) - 131070


class TorchModel(synthetic_weights.Model):
    """The same weights, made where they are needed."""

    def __init__(self, text, device):
        super().__init__(text)
        self.device = device

    def matrix(self, tensor, rows, cols, deviation):
        scale = float(self.scale(deviation))
        result = torch.empty((rows, cols), dtype=torch.bfloat16, device=self.device)
        step = max(1, (1 << 26) // cols)
        for row in range(0, rows, step):
            end = min(rows, row + step)
            indices = torch.arange(row * cols, end * cols, dtype=torch.int64, device=self.device)
            values = torch_sums(self.key(tensor), indices).to(torch.float32) * scale
            result[row:end] = values.to(torch.bfloat16).view(end - row, cols)
        return result

    def head(self):
        scale = float(self.scale(1.0 / synthetic_weights.UNIT / self.hidden**0.5))
        images = self.images()
        result = torch.zeros((self.vocab, self.hidden), dtype=torch.bfloat16, device=self.device)
        columns = torch.arange(self.hidden, dtype=torch.int64, device=self.device)
        step = 4096
        for begin in range(0, self.ordinary, step):
            row = torch.arange(begin, min(begin + step, self.ordinary), device=self.device)
            at = lambda rows: rows[:, None] * self.hidden + columns  # noqa: E731
            total = synthetic_weights.UNIT * torch_sums(self.key(synthetic_weights.HEAD), at(row))
            for multiplier, offset in images:
                image = (row * multiplier + offset) % self.ordinary
                total += self.image_weight() * torch_sums(
                    self.key(synthetic_weights.EMBEDDING), at(image))
            result[begin:begin + len(row)] = (total.to(torch.float32) * scale).to(torch.bfloat16)
        return result


def synthetic_llama(name, device):
    weights = TorchModel(name, device)
    rope = {"rope_type": "default", "rope_theta": 500000.0}
    if weights.scaling is not None:
        rope = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": weights.scaling,
                "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192}
    config = transformers.LlamaConfig(
        vocab_size=weights.vocab, hidden_size=weights.hidden,
        intermediate_size=weights.intermediate, num_hidden_layers=weights.layers,
        num_attention_heads=weights.heads, num_key_value_heads=weights.kv_heads,
        head_dim=weights.head_dim, max_position_embeddings=131072, rms_norm_eps=1e-5,
        rope_parameters=rope, tie_word_embeddings=False)
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    ones = lambda: torch.ones(weights.hidden, dtype=torch.bfloat16, device=device)  # noqa: E731
    state = {"model.embed_tokens.weight": weights.embedding(), "lm_head.weight": weights.head(),
             "model.norm.weight": ones()}
    for i in range(weights.layers):
        prefix = f"model.layers.{i}."
        for part, matrix in weights.layer(i).items():
            state[f"{prefix}{part}.weight"] = matrix
        state[f"{prefix}input_layernorm.weight"] = ones()
        state[f"{prefix}post_attention_layernorm.weight"] = ones()
    model.load_state_dict(state, assign=True, strict=True)
    # The only buffers are the rotary frequencies, which a model on "meta" lacks.
    model.model.rotary_emb = type(model.model.rotary_emb)(config).to(device)
    return model.eval()


def random_qwen3(path):
    config = transformers.Qwen3Config(
        vocab_size=4096, hidden_size=1024, intermediate_size=3072, num_hidden_layers=6,
        num_attention_heads=16, num_key_value_heads=8, head_dim=128, max_position_embeddings=4096,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
        tie_word_embeddings=True)
    model = transformers.Qwen3ForCausalLM(config)
    generator = torch.Generator().manual_seed(5)
    for name, parameter in sorted(model.named_parameters()):
        noise = torch.randn(parameter.shape, generator=generator)
        is_norm = name.endswith("norm.weight")
        parameter.data.copy_(1.0 + 0.2 * noise if is_norm else noise * parameter.shape[1] ** -0.5)
    model.to(torch.bfloat16).save_pretrained(path)


def logits_of(model, token_ids):
    with torch.no_grad():
        return model(token_ids, use_cache=False).logits[0].float().cpu().numpy()


@contextlib.contextmanager
def start_ours(bundle, device, source, folder):
    """Both schedules at once, beside transformers: most of their time is spent on the host.

    None of them outlives the block."""
    runs = {}
    try:
        for schedule in ("fast", "canonical"):
            runs[schedule] = subprocess.Popen([f"{bundle}/run", "selfsame-write-logits", device,
                                               schedule, source, str(TOKENS),
                                               f"{folder}/{schedule}"])
        yield runs
    finally:
        for process in runs.values():
            process.kill()
        for process in runs.values():
            process.wait()


def reference_logits(make_model, device):
    """transformers' logits in bf16 and in float32."""
    model = make_model()
    tokens = [(i * 977 + 5) % model.config.vocab_size for i in range(TOKENS)]
    token_ids = torch.tensor([tokens], device=device)
    half = logits_of(model, token_ids)
    return half, logits_of(model.float(), token_ids)


def rms(values):
    return float(np.sqrt(np.mean(values.astype(np.float64) ** 2)))


def compare(name, make_model, source, bundle, device):
    """One case: whether both schedules are near enough."""
    start = time.monotonic()
    is_near = True
    with (tempfile.TemporaryDirectory() as folder,
          start_ours(bundle, device, source, folder) as runs):
        half, reference = reference_logits(make_model, device)
        gc.collect()
        torch.cuda.empty_cache()
        allowed = ALLOWANCE * rms(half - reference)
        for schedule, process in runs.items():
            if process.wait() != 0:
                print(f"| {name} | {schedule} | no logits, FAILED |", flush=True)
                is_near = False
                continue
            ours = np.fromfile(f"{folder}/{schedule}", np.float32).reshape(reference.shape)
            off = rms(ours - reference)
            same = float(np.mean(np.argmax(ours, 1) == np.argmax(reference, 1)))
            near = off <= allowed  # false for NaN
            is_near = is_near and near
            print(f"| {name} | {schedule} | {rms(reference):.3f} | {rms(half - reference):.5f} | "
                  f"{off:.5f} | {off / rms(half - reference):.3f} | {same:.3f} | "
                  f"{'passed' if near else 'FAILED'} |", flush=True)
    print(f"{name}: {time.monotonic() - start:.1f} s", file=sys.stderr, flush=True)
    return is_near


def stop_early(signal_number, _frame):
    raise SystemExit(f"signal {signal_number}")


def main():
    # So that a time limit ends the programs that run beside this one, too.
    signal.signal(signal.SIGTERM, stop_early)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle")
    parser.add_argument("--models", default="", help="directories, separated by commas")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--synthetic", default="8b:1,3b:1", help="SHAPE:SEED.., likewise")
    arguments = parser.parse_args()
    device = arguments.device

    def from_directory(path):
        model = transformers.AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.bfloat16, local_files_only=True)
        return model.to(device).eval()

    print("| model | schedule | RMS of logits | transformers bf16 off by | ours off by | ratio | "
          "same best token | |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
    results = []
    for path in filter(None, arguments.models.split(",")):
        results.append(compare(pathlib.Path(path).name, lambda: from_directory(path), path,
                               arguments.bundle, device))
    with tempfile.TemporaryDirectory() as folder:
        random_qwen3(folder)
        results.append(compare("random Qwen3", lambda: from_directory(folder), folder,
                               arguments.bundle, device))
    for name in filter(None, arguments.synthetic.split(",")):
        results.append(compare(f"synthetic {name}", lambda: synthetic_llama(name, device),
                               f"synthetic:{name}", arguments.bundle, device))
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
