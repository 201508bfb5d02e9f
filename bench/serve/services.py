"""Starts services on free ports, and reads what they say of themselves."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

START_TIMEOUT_S = 240
STOP_TIMEOUT_S = 60
POLL_S = 0.02


class ServiceError(Exception):
    """A service that did not do what it should."""


class Service:
    """A service that is starting or running; its output is in a file, since nobody reads a pipe."""

    def __init__(self, command, log_path=None, env=None):
        """`command` is a program that becomes the service, with its flags but for free ports."""
        if log_path is None:
            handle, path = tempfile.mkstemp(prefix="selfsame-service-", suffix=".log")
            os.close(handle)
            log_path = pathlib.Path(path)
        self.name = log_path.stem
        self.log_path = log_path
        if not any(flag.startswith("--listen=") for flag in command):
            command = [*command, "--listen=127.0.0.1:0"]
        with open(log_path, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen([*command, "--metrics_listen=127.0.0.1:0"], stdout=log,
                                            stderr=subprocess.STDOUT, env=env)
        self.address = self.metrics_address = None

    def wait_until_ready(self):
        deadline = time.monotonic() + START_TIMEOUT_S
        while not (self.address and self.metrics_address):
            ended = self.process.poll() is not None
            text = self.log_path.read_text(encoding="utf-8", errors="replace")
            for line in text.splitlines():
                if match := re.match(r"metrics on (\S+)", line):
                    self.metrics_address = match.group(1)
                elif match := re.match(r"listening on (\S+)", line):
                    self.address = match.group(1)
            if ended or time.monotonic() > deadline:
                last = "\n".join(text.splitlines()[-5:])
                raise ServiceError(f"{self.name} {'ended' if ended else 'is late'} at start: {last}")
            time.sleep(POLL_S)

    def metric(self, name):
        """Sum of a metric over its labels; 0 when there is none, or the service has gone."""
        try:
            url = f"http://{self.metrics_address}/metrics"
            text = urllib.request.urlopen(url, timeout=10).read().decode()
        except (urllib.error.URLError, OSError):
            return 0.0
        lines = [line for line in text.splitlines() if re.match(re.escape(name) + r"[ {]", line)]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def wait_for_metric(self, name, value):
        deadline = time.monotonic() + START_TIMEOUT_S
        while self.metric(name) < value:
            if time.monotonic() > deadline:
                raise ServiceError(f"{self.name} never had {name} at {value}")
            time.sleep(POLL_S)

    def is_running(self):
        return self.process.poll() is None

    def resident_kib(self):
        with open(f"/proc/{self.process.pid}/status", encoding="utf-8") as file:
            return int(re.search(r"VmRSS:\s+(\d+)", file.read()).group(1))

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        """Whether it drained and ended as it should."""
        self.process.terminate()
        try:
            status = self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            status = "timeout"
        if status != 0:
            print(f"{self.name} ended with status {status}", file=sys.stderr, flush=True)
        return status == 0


def start(program, flags, cpus=None):
    """A service that is ready; `cpus` as taskset takes them, or None."""
    service = Service([*(["taskset", "--cpu-list", cpus] if cpus else []), program, *flags])
    try:
        service.wait_until_ready()
    except ServiceError as error:
        service.kill()
        raise SystemExit(f"{program}: {error}") from error
    finally:
        # A running service keeps the file open; nobody else needs its name.
        service.log_path.unlink()
    return service


def binary(folder, name):
    path = os.path.join(folder, name)
    if not os.access(path, os.X_OK):
        raise SystemExit(f"{path} is not there: build it, or name its folder with --bin_dir")
    return path
