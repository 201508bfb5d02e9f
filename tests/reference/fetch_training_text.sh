#!/usr/bin/env bash
# Extracts the text that train_tiny_model.py trains on: the King James Bible, from Debian's packages
# bible-kjv-text (the text, 1611, copyright expired) and bible-kjv (the program that unpacks it).
# Nothing is installed.
#
# Usage: tests/reference/fetch_training_text.sh OUTPUT_DIR
# Writes OUTPUT_DIR/kjv.txt. Needs a Debian 12 machine, amd64, with network access.
set -euo pipefail

readonly TEXT_SHA256=6f74f5589333c56c263963e6347dba662bae2d96861302e690aaae0b4a855eda

if (($# != 1)); then
  echo "usage: fetch_training_text.sh OUTPUT_DIR" >&2
  exit 2
fi
mkdir -p "$1"
output_dir="$(cd "$1" && pwd)"
work_dir="$(mktemp -d)"
trap 'rm -rf "$work_dir"' EXIT

cd "$work_dir"
apt-get download bible-kjv=4.38 bible-kjv-text=4.38 >&2
for package in *.deb; do dpkg-deb --extract "$package" .; done
# One line a verse, whatever its length; a chapter's verses follow a heading such as "Genesis 1".
./usr/bin/bible -p ./usr/lib -l1000000 'gen1:1-rev22:21' </dev/null >"$output_dir/kjv.txt"
sha256sum --check --quiet <<<"$TEXT_SHA256  $output_dir/kjv.txt"
printf '%s\n' "$output_dir/kjv.txt"
