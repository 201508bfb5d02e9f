#!/usr/bin/env python3
"""What determinism costs in throughput.

Offline load: all requests are there at once, --concurrency of them in flight. Each share of
deterministic requests runs through the same services, the shares in turn, --rounds times; then a
decoder with the canonical schedule, which needs no verifier, answers everybody deterministically.
Every run has prompts of its own, so that none finds them in a cache. Prints the median of the
rounds in output tokens a second and its ratio to that of no deterministic request; the other
columns are of the median's round.

--decoder_flags and --verifier_flags are given to the services as they are. On two GPUs:
    bench/serve/throughput.py --model_flags=--load_format=synthetic:8b:1 \\
        --decoder_flags=--device=cuda:0 --verifier_flags=--device=cuda:1

Usage: bench/serve/throughput.py [--bin_dir=DIR] [--model_flags=--model_dir=DIR]
           [--shares=0,0.1,0.5,1] [--requests=64] [--concurrency=16] [--prompt_tokens=64]
           [--output_tokens=128] [--rounds=3] [--no-canonical]
"""

import argparse
import contextlib
import itertools

from load import run_load
from services import binary, start


def measure(arguments, address, share, seed):
    """The figures of one run."""
    figures = run_load(arguments.bin_dir, address, [
        f"--requests={arguments.requests}", f"--concurrency={arguments.concurrency}",
        f"--prompt_tokens={arguments.prompt_tokens}", f"--output_tokens={arguments.output_tokens}",
        f"--seed={seed}", f"--deterministic_share={share}"])
    if figures["errors"] > 0:
        raise SystemExit(f"{figures['errors']} requests failed")
    return figures


def tokens_per_second(figures):
    return figures["all"]["output_tokens_per_second"]


def median(runs):
    return sorted(runs, key=tokens_per_second)[len(runs) // 2]


def print_row(name, figures, base):
    every, some = figures["all"], figures["deterministic"]
    first = every["time_to_first_token_ms"]
    recomputed = some["rolled_back_tokens"] + some["redecoded_tokens"]
    share = recomputed / some["output_tokens"] if some["output_tokens"] else 0.0
    print(f"| {name} | {tokens_per_second(figures):.0f} | "
          f"{tokens_per_second(figures) / tokens_per_second(base):.3f} | "
          f"{every['time_per_output_token_ms']['p50']:.2f} | {first['p50']:.0f} | "
          f"{first['p99']:.0f} | {some['windows']} | {some['rollbacks']} | {share:.1%} |",
          flush=True)


@contextlib.contextmanager
def service(arguments, program, flags):
    running = start(binary(arguments.bin_dir, program), flags)
    try:
        yield running
    finally:
        running.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin_dir", default="build/release/bin")
    parser.add_argument("--model_flags", default="--model_dir=tests/data/tiny-kjv")
    parser.add_argument("--decoder_flags", default="")
    parser.add_argument("--verifier_flags", default="")
    parser.add_argument("--shares", default="0,0.1,0.5,1")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--prompt_tokens", default="64")
    parser.add_argument("--output_tokens", default="128")
    parser.add_argument("--canonical", action=argparse.BooleanOptionalAction, default=True)
    arguments = parser.parse_args()
    shares = [float(share) for share in arguments.shares.split(",")]
    if shares[0] != 0:
        raise SystemExit("--shares must begin with 0, which the others are compared to")
    model, decoder_flags = arguments.model_flags.split(), arguments.decoder_flags.split()
    with service(arguments, "selfsame-verifier",
                 [*model, *arguments.verifier_flags.split()]) as verifier, \
         service(arguments, "selfsame-decoder",
                 [*model, *decoder_flags, f"--verifiers={verifier.address}"]) as decoder:
        measure(arguments, decoder.address, 0.5, 0)  # warms both up
        seeds = itertools.count(1)
        runs = [[measure(arguments, decoder.address, share, next(seeds))
                 for share in shares] for _ in range(arguments.rounds)]
    print("| deterministic | tokens a second | ratio | P50 ms a token | P50 ms to first token "
          "| P99 | windows | rollbacks | tokens computed again |")
    print("|---|---|---|---|---|---|---|---|---|")
    by_share = [median(list(of_share)) for of_share in zip(*runs)]
    for share, figures in zip(shares, by_share):
        print_row(f"{share:.0%}", figures, by_share[0])
    if not arguments.canonical:
        return
    with service(arguments, "selfsame-decoder",
                 [*model, *decoder_flags, "--schedule=canonical"]) as decoder:
        measure(arguments, decoder.address, 1, 0)
        print_row("canonical decoder", median(
            [measure(arguments, decoder.address, 1, seed + 1)
             for seed in range(arguments.rounds)]), by_share[0])


if __name__ == "__main__":
    main()
