#!/usr/bin/env bash
# Installs what is missing, makes one release build and runs every CPU test. Closes with CTest's
# summary.
#
# Usage: deploy/test.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

deploy/install.sh
cmake --preset release
cmake --build --preset release
ctest --test-dir build/release --output-on-failure --no-tests=error --label-exclude gpu --parallel "$(nproc)"
