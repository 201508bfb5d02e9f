#!/usr/bin/env python3
"""Shows whether the fast schedule's choices on this CPU are the fastest of their candidates.

Runs kernels_bench and prints, for each shape and number of rows, the time of every candidate beside
that of the one which the fast schedule takes.

Usage: bench/kernels/choices.py [--bench=build/release/bin/kernels_bench] [--output=FILE.md]
"""

import argparse
import collections
import datetime
import json
import re
import statistics
import subprocess

GEMM = re.compile(r"BM_GemmKernel/kernel:(-?\d+)/rows:(\d+)/n:(\d+)/k:(\d+)/cold:(\d)")
ATTENTION = re.compile(
    r"BM_Attention/canonical:(\d)/threads:(\d)/sequences:(\d+)/rows:(\d+)/cached:(\d+)")


def run_bench(path, repetitions):
    """Median time in microseconds and label of every benchmark, by name."""
    command = [path, "--benchmark_filter=BM_GemmKernel.*rows:(1|2|4|8|16)/|BM_Attention",
               "--benchmark_format=json", "--benchmark_min_time=0.05",
               f"--benchmark_repetitions={repetitions}",
               "--benchmark_enable_random_interleaving=true"]
    report = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    times, labels = collections.defaultdict(list), {}
    scale = {"ns": 1e-3, "us": 1.0, "ms": 1e3}
    for entry in report["benchmarks"]:
        if entry["run_type"] != "iteration" or entry.get("error_occurred"):
            continue
        times[entry["run_name"]].append(entry["real_time"] * scale[entry["time_unit"]])
        labels[entry["run_name"]] = entry.get("label", "")
    return {name: statistics.median(values) for name, values in times.items()}, labels


def kernel_name(number):
    if number == 0:
        return "one chain"
    return f"{number} dot" if number > 0 else f"{-number} fma"


def gemm_table(times, labels):
    groups = collections.defaultdict(dict)
    chosen = {}
    for name, time in times.items():
        match = GEMM.match(name)
        if not match:
            continue
        kernel, *shape = (int(group) for group in match.groups())
        groups[tuple(shape)][kernel] = time
        if labels[name] == "chosen":
            chosen[tuple(shape)] = kernel
    lines = ["| rows | n × k | weights in | candidates, µs | chosen | chosen ÷ fastest |",
             "|---|---|---|---|---|---|"]
    for shape in sorted(groups, key=lambda s: (s[3], s[0], s[1], s[2])):
        rows, n, k, cold = shape
        candidates = groups[shape]
        listed = ", ".join(f"{kernel_name(i)} {candidates[i]:.1f}" for i in sorted(candidates))
        pick = chosen[shape]
        ratio = candidates[pick] / min(candidates.values())
        lines.append(f"| {rows} | {n} × {k} | {'memory' if cold else 'cache'} | {listed} | "
                     f"{kernel_name(pick)} | {ratio:.2f} |")
    return lines


def attention_table(times):
    groups = collections.defaultdict(dict)
    for name, time in times.items():
        match = ATTENTION.match(name)
        if match:
            canonical, threads, *shape = (int(group) for group in match.groups())
            groups[tuple(shape)][canonical, threads] = time
    lines = ["| sequences | rows of each | cached | fast, 2 threads, µs | canonical, 2 threads | "
             "unshared, 1 thread |", "|---|---|---|---|---|---|"]
    for shape in sorted(groups):
        group = groups[shape]
        lines.append(f"| {shape[0]} | {shape[1]} | {shape[2]} | {group[0, 2]:.1f} | "
                     f"{group[1, 2]:.1f} | {group[0, 1]:.1f} |")
    return lines


def git(*arguments):
    return subprocess.run(["git", *arguments], check=True, capture_output=True,
                          text=True).stdout.strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bench", default="build/release/bin/kernels_bench")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--output")
    arguments = parser.parse_args()
    times, labels = run_bench(arguments.bench, arguments.repetitions)
    dirty = " with uncommitted changes" if git("status", "--porcelain", "-uno") else ""
    lines = [
        "# Choices of the fast schedule on a CPU", "",
        "The shapes are those of SmolLM2-135M. Each time is the median of "
        f"{arguments.repetitions} runs taken in random order. A candidate of the matrix product "
        "is a number of chains of dot products (dot) or of multiply-adds (fma) a sum; one chain is "
        "the canonical order. From memory a product of few rows is bound by bandwidth, and there "
        "the candidates are level but for noise.", "",
        "- Command: `bench/kernels/choices.py`",
        f"- Commit: {git('rev-parse', '--short=12', 'HEAD')}{dirty}",
        f"- Date: {datetime.date.today().isoformat()}", "",
        "## Matrix product, one thread", "", *gemm_table(times, labels), "",
        "## Attention of one layer", "", *attention_table(times)]
    text = "\n".join(lines) + "\n"
    print(text)
    if arguments.output:
        with open(arguments.output, "w", encoding="utf-8") as file:
            file.write(text)


if __name__ == "__main__":
    main()
