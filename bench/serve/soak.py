#!/usr/bin/env python3
"""Whether memory grows: resident memory of both services after 1,000 and after 10,000 requests.

Half of the requests are deterministic, a fifth are cancelled at a random token, and no two prompts
are alike. Batches are small, so that the fast path differs and is rolled back. Exit status 1 when
either service grew by more than --limit.

Usage: bench/serve/soak.py [--bin_dir=build/release/bin] [--model_dir=tests/data/tiny-kjv]
"""

import argparse
import sys

from load import run_load
from services import binary, start


def run_requests(arguments, decoder, requests, seed):
    return run_load(arguments.bin_dir, decoder.address, [
        f"--requests={requests}", f"--seed={seed}", "--concurrency=24", "--deterministic_share=0.5",
        "--cancel_share=0.2", "--prompt_tokens=4:120", "--output_tokens=8:48", "--temperature=0.8"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin_dir", default="build/release/bin")
    parser.add_argument("--model_dir", default="tests/data/tiny-kjv")
    parser.add_argument("--first", type=int, default=1000)
    parser.add_argument("--last", type=int, default=10000)
    parser.add_argument("--limit", type=float, default=0.02)
    arguments = parser.parse_args()
    flags = [f"--model_dir={arguments.model_dir}", "--threads=2", "--kv_size_mb=32"]
    verifier = start(binary(arguments.bin_dir, "selfsame-verifier"), flags)
    decoder = start(binary(arguments.bin_dir, "selfsame-decoder"),
                    [*flags, "--max_batch_size=4", f"--verifiers={verifier.address}"])
    services = {"decoder": decoder, "verifier": verifier}
    try:
        first = run_requests(arguments, decoder, arguments.first, 1)
        before = {name: service.resident_kib() for name, service in services.items()}
        rest = run_requests(arguments, decoder, arguments.last - arguments.first, 2)
        after = {name: service.resident_kib() for name, service in services.items()}
    finally:
        decoder.stop()
        verifier.stop()
    cancelled = first["cancelled"] + rest["cancelled"]
    print(f"{arguments.last} requests, {cancelled} cancelled, "
          f"{first['all']['rollbacks'] + rest['all']['rollbacks']} rollbacks, "
          f"{first['seconds'] + rest['seconds']:.0f} s\n")
    print(f"| service | MiB after {arguments.first} | MiB after {arguments.last} | growth |")
    print("|---|---|---|---|")
    worst = 0.0
    for name in services:
        growth = after[name] / before[name] - 1
        worst = max(worst, growth)
        print(f"| {name} | {before[name] / 1024:.1f} | {after[name] / 1024:.1f} | {growth:+.2%} |")
    sys.exit(worst > arguments.limit)


if __name__ == "__main__":
    main()
