#!/usr/bin/env python3
"""What deterministic neighbours cost an ordinary request.

For each share of deterministic requests, in turns: (a) the trace as it is, and (b) the same trace
with every flag off, while the verifier's work of (a) runs detached: verify_load plays it to the
verifier from a recording. Both runs so put the same load on the machine, and what is left is what
the decoder does for verification. Prints, for each share, the median over the rounds of the P50
time per output token of the requests that are ordinary in (a), and their ratio.

--decoder_flags and --verifier_flags are given to the services as they are. On two GPUs:
    bench/serve/interference.py --model_flags=--load_format=synthetic:8b:1 --vocab_size=128256 \\
        --decoder_flags=--device=cuda:0 --verifier_flags=--device=cuda:1

Usage: bench/serve/interference.py [--bin_dir=DIR] [--model_flags=--model_dir=DIR] [--vocab_size=N]
           [--decoder_cpus=0-3 --verifier_cpus=4-7] [--rounds=5] [--requests=200] [--rate=20]
"""

import argparse
import os
import statistics
import subprocess
import tempfile

from load import run_load
from services import binary, start

WAITED = ("selfsame_steps_waited_for_verdict_total",
          "selfsame_ordinary_rows_waited_for_verdict_total")


def ordinary_p50(arguments, address, share, seed, *flags):
    """Of one run, in milliseconds a token."""
    figures = run_load(arguments.bin_dir, address, [
        f"--requests={arguments.requests}", f"--rate={arguments.rate}", "--concurrency=256",
        f"--seed={seed}", f"--deterministic_share={share}",
        f"--prompt_tokens={arguments.prompt_tokens}", f"--output_tokens={arguments.output_tokens}",
        *flags])
    return figures["ordinary"]["time_per_output_token_ms"]["p50"]


def measure(arguments, decoder, verifier, share, seed, folder):
    """P50 of (a) and of (b), in milliseconds."""
    record = os.path.join(folder, "record.json")
    attached = ordinary_p50(arguments, decoder.address, share, seed, f"--record={record}")
    replay = subprocess.Popen(
        [binary(arguments.bin_dir, "verify_load"), f"--verifier={verifier.address}",
         f"--replay={record}", f"--vocab_size={arguments.vocab_size}",
         f"--context_limit={arguments.context_limit}"], stdout=subprocess.DEVNULL)
    # The flag is off, and the figures of "ordinary" still leave out what is deterministic in (a).
    detached = ordinary_p50(arguments, decoder.address, share, seed, "--flag_off")
    if replay.wait() != 0:
        raise SystemExit("verify_load failed")
    return attached, detached


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin_dir", default="build/release/bin")
    parser.add_argument("--model_flags", default="--model_dir=tests/data/tiny-kjv")
    parser.add_argument("--vocab_size", type=int, default=2048)
    parser.add_argument("--decoder_flags", default="")
    parser.add_argument("--verifier_flags", default="")
    parser.add_argument("--context_limit", type=int, default=512)
    parser.add_argument("--shares", default="0,0.1,0.5")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--rate", type=float, default=20)
    parser.add_argument("--prompt_tokens", default="32:96")
    parser.add_argument("--output_tokens", default="64:192")
    parser.add_argument("--decoder_cpus")
    parser.add_argument("--verifier_cpus")
    parser.add_argument("--threads", type=int, default=0)
    arguments = parser.parse_args()
    flags = [*arguments.model_flags.split(), f"--threads={arguments.threads}",
             f"--context_limit={arguments.context_limit}"]
    verifier = start(binary(arguments.bin_dir, "selfsame-verifier"),
                     [*flags, *arguments.verifier_flags.split()], arguments.verifier_cpus)
    decoder = start(binary(arguments.bin_dir, "selfsame-decoder"),
                    [*flags, *arguments.decoder_flags.split(),
                     f"--verifiers={verifier.address}"], arguments.decoder_cpus)
    print("| deterministic share | with the flag, P50 ms a token | flag off, equal verifier load "
          "detached | ratio of medians | ratios of the rounds |")
    print("|---|---|---|---|---|")
    try:
        with tempfile.TemporaryDirectory() as folder:
            measure(arguments, decoder, verifier, 0.5, 0, folder)  # warms both up
            for share in arguments.shares.split(","):
                rounds = [measure(arguments, decoder, verifier, share, seed + 1, folder)
                          for seed in range(arguments.rounds)]
                attached = statistics.median(pair[0] for pair in rounds)
                detached = statistics.median(pair[1] for pair in rounds)
                ratios = ", ".join(f"{a / b:.3f}" for a, b in rounds)
                print(f"| {float(share):.0%} | {attached:.3f} | {detached:.3f} | "
                      f"{attached / detached:.3f} | {ratios} |", flush=True)
        print("\nSteps and ordinary rows that waited for a verdict: " +
              ", ".join(f"{decoder.metric(name):.0f}" for name in WAITED))
    finally:
        decoder.stop()
        verifier.stop()


if __name__ == "__main__":
    main()
