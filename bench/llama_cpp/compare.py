"""Runs engine_bench and llama_bench.py in turns and writes a table of both. See compare.sh."""

import argparse
import datetime
import pathlib
import statistics
import subprocess
import sys

_HERE = pathlib.Path(__file__).resolve().parent
# Figure, what it is, rows of it.
_FIGURES = [
    ("decode_1_ms", "decode, batch 1", 1),
    ("decode_8_ms", "decode, batch 8", 8),
    ("prefill_512_ms", "prefill, 512 tokens", 512),
]


def read_figures(command):
    """The "NAME VALUE" lines a benchmark prints."""
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return {name: float(value) for name, value in (line.split() for line in output.splitlines())}


def run_rounds(arguments):
    """A list of figures for each of the three that take turns."""
    engine = [arguments.engine_bench, f"--model={arguments.model_dir}"]
    engine.append(f"--threads={arguments.threads}")
    commands = {
        "fast": [*engine, "--schedule=fast"],
        "llama.cpp": [
            sys.executable,
            str(_HERE / "llama_bench.py"),
            arguments.gguf,
            str(arguments.threads),
        ],
        "canonical": [*engine, "--schedule=canonical", "--nobandwidth"],
    }
    figures = {name: [] for name in commands}
    for round_index in range(arguments.rounds):
        for name, command in commands.items():
            print(f"round {round_index + 1} of {arguments.rounds}: {name}", file=sys.stderr)
            figures[name].append(read_figures(command))
    return figures


def median(rounds, figure):
    return statistics.median(entry[figure] for entry in rounds)


def cpu_name():
    for line in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown CPU"


def commit_id():
    def git(*words):
        return subprocess.run(["git", *words], capture_output=True, text=True, check=False)

    commit = git("rev-parse", "--short=12", "HEAD").stdout.strip() or "unknown"
    changed = git("status", "--porcelain", "--untracked-files=no").stdout.strip()
    return commit + (" with uncommitted changes" if changed else "")


def rows_of_table(figures):
    bandwidth = max(entry["read_gb_per_second"] for entry in figures["fast"])
    weight_bytes = figures["fast"][0]["weight_bytes"]
    for figure, label, rows in _FIGURES:
        fast = median(figures["fast"], figure)
        canonical = median(figures["canonical"], figure)
        other = median(figures["llama.cpp"], figure)
        # A prefill is bound by arithmetic, not by reading the weights once.
        share = f"{weight_bytes / fast / 1e6 / bandwidth:.0%}" if rows < 512 else ""
        yield [
            label,
            f"{fast:.2f}",
            f"{rows / fast * 1e3:.0f}",
            f"{other:.2f}",
            f"{rows / other * 1e3:.0f}",
            f"{other / fast:.2f}",
            share,
            f"{canonical:.2f}",
        ]


def markdown(arguments, figures):
    bandwidth = max(entry["read_gb_per_second"] for entry in figures["fast"])
    weight_mb = figures["fast"][0]["weight_bytes"] / 1e6
    date = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    header = [
        "",
        "ours, ms",
        "tokens/s",
        "llama.cpp, ms",
        "tokens/s",
        "llama.cpp / ours",
        "of read bandwidth",
        "canonical, ms",
    ]
    lines = [
        "# Forward pass on a CPU, beside llama.cpp",
        "",
        "Model: SmolLM2-135M-Instruct, Q4_1 dequantised to bf16; the same weights as a bf16 GGUF",
        "file. llama.cpp: PyPI `llama-cpp-python` 0.3.36, built for this CPU, its defaults. Decode",
        "steps after 128 tokens of context, 64 steps; the median over the steps, and of that the",
        f"median of {arguments.rounds} rounds in which the three took turns.",
        "",
        f"- Command: `bench/llama_cpp/compare.sh {arguments.threads} {arguments.rounds}`",
        f"- Commit: {commit_id()}",
        f"- Date: {date}",
        f"- CPU: {cpu_name()}, {arguments.threads} threads",
        f"- Read bandwidth, measured in the same run: {bandwidth:.1f} GB/s; a decode step reads",
        f"  {weight_mb:.0f} MB of weights",
        "",
        "| " + " | ".join(header) + " |",
        "|" + "---|" * len(header),
    ]
    lines += ["| " + " | ".join(row) + " |" for row in rows_of_table(figures)]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine_bench", required=True)
    parser.add_argument("--model_dir", required=True)
    parser.add_argument("--gguf", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--output", required=True)
    arguments = parser.parse_args()
    text = markdown(arguments, run_rounds(arguments))
    pathlib.Path(arguments.output).write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
