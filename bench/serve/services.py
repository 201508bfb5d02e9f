"""Starts the two services on free ports for a measurement, and reads what they say of themselves."""

import os
import re
import subprocess
import tempfile
import urllib.request


class Service:
    """A running service; `cpus` as taskset takes them, or None."""

    def __init__(self, program, flags, cpus=None):
        command = [program, "--listen=127.0.0.1:0", "--metrics_listen=127.0.0.1:0", *flags]
        if cpus:
            command = ["taskset", "--cpu-list", cpus, *command]
        # A file, since nobody reads a pipe while the service runs.
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True)
        self.address = self.metrics_address = None
        while not (self.address and self.metrics_address):
            line = self.process.stdout.readline()
            if not line:
                self.log.seek(0)
                raise SystemExit(f"{program} did not start:\n{self.log.read()}")
            if match := re.match(r"metrics on (\S+)", line):
                self.metrics_address = match.group(1)
            elif match := re.match(r"listening on (\S+)", line):
                self.address = match.group(1)

    def metric(self, name):
        """Sum of a metric over its labels; 0 when there is none."""
        text = urllib.request.urlopen(f"http://{self.metrics_address}/metrics").read().decode()
        total = 0.0
        for line in text.splitlines():
            if re.match(re.escape(name) + r"[ {]", line):
                total += float(line.rsplit(" ", 1)[1])
        return total

    def resident_kib(self):
        with open(f"/proc/{self.process.pid}/status", encoding="utf-8") as file:
            return int(re.search(r"VmRSS:\s+(\d+)", file.read()).group(1))

    def stop(self):
        self.process.terminate()
        self.process.wait()


def binary(folder, name):
    path = os.path.join(folder, name)
    if not os.access(path, os.X_OK):
        raise SystemExit(f"{path} is not there: build it, or name its folder with --bin_dir")
    return path
