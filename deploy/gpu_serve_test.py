#!/usr/bin/env python3
"""Serves one model in every way there is and checks that the answers are the same.

    deploy/gpu_serve_test.py BUNDLE_DIR LOG_DIR [--model=DIR | --synthetic=SHAPE:SEED..]
        [--device=cuda] [--placements=one,small,mps,two,canonical] [--allow_left_out]
        [--tokens=64] [--class_slack=X]

BUNDLE_DIR: deploy/bundle.sh's, with selfsame, selfsame-decoder and selfsame-verifier. LOG_DIR keeps
logs, figures, answers, measured GEMM plans and placements.tsv: the result of each placement.

One run of `selfsame check`, one request at a time on services that just started, gives the reference;
each way is then a replay of the same requests (greedy, seeded, penalties, prompt logprobs, shared
prefixes), compared with it in token ids and the bits of all logprobs:

  one        both services on one device: few and many requests in flight, without, with half and with
             nine tenths of ordinary traffic; a second verifier, with other rungs, that stays alone
             when the first is killed in the middle; that second one
  small      new services with little memory for KV: requests are preempted, sessions rebuilt
  mps        new services whose kernels share the GPU (NVIDIA MPS)
  two        new services, each on its own GPU
  canonical  a decoder that is an authority by itself

`one` comes first: its first services give the reference.

Ends with one table. Fails when an answer changed, a service failed, or a way did not happen; and when
nothing was rolled back or no ordinary answer changed in the whole run, which would show nothing. A
machine without nvidia-cuda-mps-control cannot run mps, one with a single GPU cannot run two: that
is a failure too, unless they are not among --placements, or with --allow_left_out.
"""

import argparse
import json
import math
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "bench/serve"))
from gpu_serve_rows import Row, report, write_placements  # noqa: E402
from services import STOP_TIMEOUT_S, Service, ServiceError  # noqa: E402

CONTEXT_LIMIT = 1024
PLACEMENTS = "one,small,mps,two,canonical"
CHECK_TIMEOUT_S = 240
# The second verifier's windows in a pass; the first has the default.
OTHER_RUNGS = "--verify_batch_size=3"
# Verdicts before the first verifier is killed: requests are in the middle of their answers.
VERDICTS_BEFORE_KILL = 8
MPS_CONTROL = "nvidia-cuda-mps-control"
# A row's fields, the services they are counted in, and the metrics.
COUNTERS = {"preempted": ("decoder", "selfsame_num_preemptions_total"),
            "failovers": ("decoder", "selfsame_failovers_total"),
            "rebuilt": ("verifier", "selfsame_verifier_rebuilds_total")}
# Of the synthetic shapes (common/model/synthetic.h): layers * kv heads * head_dim.
KV_WIDTHS = {"8b": 32 * 8 * 128, "3b": 28 * 8 * 128, "tiny": 4 * 2 * 64}


def say(text):
    print(text, file=sys.stderr, flush=True)


def free_address():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{listener.getsockname()[1]}"


class Matrix:
    def __init__(self, arguments):
        self.arguments = arguments
        self.bundle = pathlib.Path(arguments.bundle)
        self.logs = pathlib.Path(arguments.logs)
        self.logs.mkdir(parents=True, exist_ok=True)
        self.answers = self.logs / "answers.json"
        self.answers.unlink(missing_ok=True)
        self.env = dict(os.environ)
        self.services = []
        self.rows = []
        self.placements = arguments.placements.split(",")
        self.placement = ""  # the one that is run
        self.has_started = False
        self.start_s = 0.0

    # Services.

    def device(self, index):
        device = self.arguments.device
        return f"{device}:{index}" if device == "cuda" else device

    def source_flags(self):
        if self.arguments.model:
            return [f"--model_dir={self.arguments.model}"]
        return [f"--load_format=synthetic:{self.arguments.synthetic}"]

    def small_kv_mb(self, contexts):
        """Memory for so many contexts."""
        if self.arguments.model:
            text = pathlib.Path(self.arguments.model, "config.json").read_text(encoding="utf-8")
            config = json.loads(text)
            heads = config["num_attention_heads"]
            head_dim = config.get("head_dim") or config["hidden_size"] // heads
            width = (config["num_hidden_layers"] * config.get("num_key_value_heads", heads)
                     * head_dim)
        else:
            width = KV_WIDTHS[self.arguments.synthetic.split(":")[0]]
        return math.ceil(contexts * CONTEXT_LIMIT * width * 4 / 2**20)

    def launch(self, name, program, device_index, flags, listen="127.0.0.1:0"):
        # The two services have different plans, and a file of their own.
        plans = self.logs / f"{program}-plans.json"
        command = [str(self.bundle / "run"), program, f"--listen={listen}",
                   f"--device={self.device(device_index)}",
                   f"--context_limit={CONTEXT_LIMIT}", f"--gemm_plan_file={plans}",
                   *self.source_flags(), *self.arguments.service_flags.split(), *flags]
        service = Service(command, self.logs / f"{name}.log", self.env)
        self.services.append(service)
        return service

    def launch_verifier(self, name, device_index=0, kv_mb=None, flags=(), listen="127.0.0.1:0"):
        kv_mb = kv_mb or self.arguments.kv_size_mb
        return self.launch(f"{name}-verifier", "selfsame-verifier", device_index,
                           [f"--kv_size_mb={kv_mb}", *flags], listen)

    def launch_decoder(self, name, kv_mb=None, flags=()):
        kv_mb = kv_mb or self.arguments.kv_size_mb
        if self.arguments.class_slack is not None:
            flags = [f"--class_slack={self.arguments.class_slack}", *flags]
        return self.launch(f"{name}-decoder", "selfsame-decoder", 0,
                           [f"--kv_size_mb={kv_mb}", *self.arguments.decoder_flags.split(), *flags])

    def start_pair(self, name, verifier_device=0, verifier_kv_mb=None, decoder_kv_mb=None,
                   verifier_flags=(), more_verifiers=()):
        """A verifier and a decoder; side by side, but for the first time, which measures plans."""
        start = time.monotonic()
        address = free_address()
        verifier = self.launch_verifier(name, verifier_device, verifier_kv_mb, verifier_flags,
                                        address)
        if not self.has_started:
            verifier.wait_until_ready()
        verifiers = ",".join([address, *more_verifiers])
        decoder = self.launch_decoder(name, decoder_kv_mb, [f"--verifiers={verifiers}"])
        verifier.wait_until_ready()
        decoder.wait_until_ready()
        decoder.wait_for_metric("selfsame_verifiers_up", 1)
        self.has_started = True
        self.start_s = time.monotonic() - start
        return verifier, decoder

    def stop_services(self):
        """Decoders first."""
        ended = [service.stop() for service in
                 sorted(self.services, key=lambda service: not service.name.endswith("decoder"))]
        self.services = []
        if not all(ended):
            self.rows[-1].problem = self.rows[-1].problem or "a service failed at its end"

    def kill_services(self):
        for service in self.services:
            service.kill()
        self.services = []

    # Ways.

    def counters(self):
        """By field and service, since a service that has gone takes its counts with it."""
        return {(field, service): service.metric(metric)
                for field, (kind, metric) in COUNTERS.items() for service in self.services
                if service.name.endswith(kind) and service.is_running()}

    def check(self, way, decoder, phase="", during=None, has_control=True):
        """Replays the requests; `during` is called while they run. Appends a row and returns it."""
        number = len(self.rows)
        row = Row(way, self.placement, start_s=self.start_s, has_control=has_control)
        self.start_s = 0.0
        self.rows.append(row)
        row.flight, share = phase.split(":") if phase else ("1", "-")
        row.share = f"{float(share):.0%}" if phase else share
        figures = self.logs / f"{number:02d}-{way.replace(' ', '-')}.json"
        command = [str(self.bundle / "run"), "selfsame", "check", f"--server={decoder.address}",
                   "--raw", "--ignore_eos", "--shared_prefix",
                   f"--max_tokens={self.arguments.tokens}", f"--order_seed={number + 1}",
                   f"--phases={phase}", f"--json={figures}"]
        if self.answers.exists():
            command += [f"--reference={self.answers}", *(["--phases_only"] if phase else [])]
        else:
            command += [f"--save_reference={self.answers}"]
        # Of an earlier run with the same folder.
        figures.unlink(missing_ok=True)
        before = self.counters()
        start = time.monotonic()
        with open(figures.with_suffix(".log"), "w", encoding="utf-8") as log:
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
            try:
                if during:
                    during(process)
                status = process.wait(CHECK_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                status = "timeout"
            finally:
                process.kill()
                process.wait()
        row.check_s = time.monotonic() - start
        for (field, service), value in self.counters().items():
            setattr(row, field, getattr(row, field) + round(value - before[field, service]))
        if figures.exists():
            row.figures = json.loads(figures.read_text(encoding="utf-8"))
        if status != 0:
            row.problem = f"check status {status}"
            say(figures.with_suffix(".log").read_text(encoding="utf-8", errors="replace"))
        self.require(row, row.figures.get("deterministic_requests", 0) > 0, "nothing was compared")
        say(" | ".join(row.cells()))
        return row

    def leave_out(self, way, reason):
        say(f"{way}: not run, {reason}")
        self.rows.append(Row(way, self.placement, left_out=reason))

    @staticmethod
    def require(row, is_shown, problem):
        if not row.problem and not is_shown:
            row.problem = problem

    def one_device(self):
        second_address = free_address()
        first, decoder = self.start_pair("one", more_verifiers=[second_address])
        self.check("alone", decoder)
        if not self.answers.exists():
            raise ServiceError("there is no reference")
        for phase in self.arguments.phases.split(","):
            row = self.check("together", decoder, phase)
        self.require(row, row.figures.get("cached_prompt_tokens"), "nothing was cached")
        start = time.monotonic()
        self.launch_verifier("one-second", flags=[OTHER_RUNGS],
                             listen=second_address).wait_until_ready()
        decoder.wait_for_metric("selfsame_verifiers_up", 2)
        self.start_s = time.monotonic() - start

        def kill_first(process):
            name = "selfsame_windows_committed_total"
            enough = decoder.metric(name) + VERDICTS_BEFORE_KILL
            while decoder.metric(name) < enough and process.poll() is None:
                time.sleep(0.005)
            first.kill()
            self.services.remove(first)

        row = self.check("a verifier is lost", decoder, "16:0.5", kill_first)
        self.require(row, row.failovers > 0, "no request changed its verifier")
        self.check("other rungs", decoder, "16:0.5")

    def small_memory(self):
        _, decoder = self.start_pair("small", verifier_kv_mb=self.small_kv_mb(1.25),
                                     decoder_kv_mb=self.small_kv_mb(2.5),
                                     verifier_flags=["--verify_batch_size=2"])
        for phase in ("32:0", "32:0.5"):
            row = self.check("little memory", decoder, phase)
            self.require(row, row.preempted > 0, "nothing was preempted")
            self.require(row, row.rebuilt > 0, "no session was rebuilt")

    def with_mps(self):
        if not shutil.which(MPS_CONTROL):
            self.leave_out("MPS", f"there is no {MPS_CONTROL}")
            return
        folder = tempfile.mkdtemp(prefix="selfsame-mps-")
        env = self.env
        mps_env = {**env, "CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}

        def control(line):
            return subprocess.run([MPS_CONTROL], input=f"{line}\n", stdout=subprocess.PIPE,
                                  text=True, env=mps_env, check=False,
                                  timeout=STOP_TIMEOUT_S).stdout

        try:
            self.env = mps_env
            subprocess.run([MPS_CONTROL, "-d"], env=mps_env, check=True, timeout=STOP_TIMEOUT_S)
            _, decoder = self.start_pair("mps")
            row = self.check("MPS", decoder, "16:0.5")
            servers = [line for line in control("get_server_list").splitlines()
                       if line.strip().isdigit()]
            self.require(row, servers, "did not happen: there was no MPS server")
            self.stop_services()
        finally:
            self.env = env
            self.kill_services()
            try:
                control("quit")
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    def two_devices(self):
        if not shutil.which("nvidia-smi"):
            self.leave_out("two GPUs", "there is no nvidia-smi to count them")
            return
        listed = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
                                stdout=subprocess.PIPE, text=True, check=True)
        if len(listed.stdout.splitlines()) < 2:
            self.leave_out("two GPUs", "there is one GPU")
            return
        _, decoder = self.start_pair("two", verifier_device=1)
        self.check("two GPUs", decoder, "16:0.5")

    def canonical_decoder(self):
        start = time.monotonic()
        decoder = self.launch_decoder("canonical", flags=["--schedule=canonical"])
        decoder.wait_until_ready()
        self.start_s = time.monotonic() - start
        for phase in ("2:0", "16:0"):
            self.check("canonical decoder", decoder, phase, has_control=False)

    def run(self):
        ways = {"one": self.one_device, "small": self.small_memory, "mps": self.with_mps,
                "two": self.two_devices, "canonical": self.canonical_decoder}
        for placement in self.placements:
            self.placement = placement
            say(f"== {placement}, after {time.monotonic() - STARTED:.0f} s")
            try:
                ways[placement]()
                if self.services:
                    self.stop_services()
            except (ServiceError, OSError, subprocess.SubprocessError) as error:
                self.kill_services()
                say(f"{placement}: {error}")
                self.rows.append(Row(placement, placement, problem=str(error).splitlines()[0]))
                if not self.answers.exists():
                    return


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", metavar="BUNDLE_DIR")
    parser.add_argument("logs", metavar="LOG_DIR")
    parser.add_argument("--model", help="model directory")
    parser.add_argument("--synthetic", default="8b:1", help="SHAPE:SEED[:gain=G][:beta=B]")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu")
    parser.add_argument("--placements", default=PLACEMENTS)
    parser.add_argument("--allow_left_out", action="store_true",
                        help="a placement that this machine cannot run is no failure")
    parser.add_argument("--phases", default="2:0.5,16:0,16:0.5,32:0.9",
                        help="IN_FLIGHT:ORDINARY_SHARE on one device, separated by commas")
    parser.add_argument("--tokens", type=int, default=64, help="output tokens of a request")
    parser.add_argument("--class_slack", help="the decoder's; 0: the fast path at its most different")
    parser.add_argument("--kv_size_mb", type=int, default=6144)
    parser.add_argument("--service_flags", default="", help="for all services, separated by spaces")
    parser.add_argument("--decoder_flags", default="", help="for decoders")
    arguments = parser.parse_args()
    unknown = set(arguments.placements.split(",")) - set(PLACEMENTS.split(","))
    if unknown:
        parser.error(f"--placements knows no {', '.join(sorted(unknown))}")
    if arguments.placements.split(",")[0] != "one":
        parser.error("--placements must begin with one: its first services, which have enough "
                     "memory and one request at a time, give the reference")
    return arguments


def stop_early(signal_number, _frame):
    raise SystemExit(f"signal {signal_number}: what is known so far")


STARTED = time.monotonic()


def main():
    signal.signal(signal.SIGTERM, stop_early)
    signal.signal(signal.SIGINT, stop_early)
    matrix = Matrix(parse_arguments())
    is_complete = False
    try:
        matrix.run()
        is_complete = True
    finally:
        matrix.kill_services()
        write_placements(matrix.logs / "placements.tsv", matrix.placements, matrix.rows)
        passed = report(matrix.rows, matrix.placements, time.monotonic() - STARTED,
                        matrix.arguments.allow_left_out)
    sys.exit(0 if is_complete and passed else 1)


if __name__ == "__main__":
    main()
