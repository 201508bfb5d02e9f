"""Runs the load generator, serve_bench."""

import json
import os
import subprocess
import tempfile

from services import binary


def run_load(bin_dir, address, flags):
    """What one run with these flags measured, as in bench/serve/load_report.h."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "figures.json")
        subprocess.run([binary(bin_dir, "serve_bench"), f"--server={address}", *flags,
                        f"--json={path}"], check=True, stdout=subprocess.DEVNULL)
        with open(path, encoding="utf-8") as file:
            return json.load(file)
