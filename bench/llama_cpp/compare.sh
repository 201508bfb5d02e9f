#!/usr/bin/env bash
# Times our forward pass beside llama.cpp's on this machine: the same bf16 weights, the same threads,
# in turns. Writes the table to bench/results/cpu.md.
#
# Usage: bench/llama_cpp/compare.sh [THREADS [ROUNDS]]
# The first run builds llama.cpp from PyPI's llama-cpp-python with the optimisations of this CPU,
# which takes some minutes. Run it on an idle machine.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

readonly THREADS="${1:-$(nproc)}"
readonly ROUNDS="${2:-5}"
readonly VENV_DIR="${XDG_CACHE_HOME:-$HOME/.cache}/selfsame/venv-llama-cpp-0.3.36"
readonly OUT_DIR="$PWD/build/llama_cpp"

if [[ ! -f "$VENV_DIR/complete" ]]; then
  rm -rf "$VENV_DIR"
  python3 -m venv "$VENV_DIR"
  CMAKE_ARGS=-DGGML_NATIVE=ON "$VENV_DIR/bin/pip" install --disable-pip-version-check \
    --no-binary llama-cpp-python llama-cpp-python==0.3.36 gguf==0.19.0 numpy==2.4.6
  touch "$VENV_DIR/complete"
fi

cmake --preset release >/dev/null
cmake --build --preset release --target engine_bench
model_dir="$(deploy/fetch_model.sh | tail -n 1)"
mkdir -p "$OUT_DIR" bench/results
"$VENV_DIR/bin/python" bench/llama_cpp/hf_to_gguf.py "$model_dir" "$OUT_DIR/model.gguf"
"$VENV_DIR/bin/python" bench/llama_cpp/compare.py --engine_bench=build/release/bin/engine_bench \
  --model_dir="$model_dir" --gguf="$OUT_DIR/model.gguf" --threads="$THREADS" --rounds="$ROUNDS" \
  --output=bench/results/cpu.md
