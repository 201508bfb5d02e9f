#!/usr/bin/env bash
# From nothing to the proof, on one machine: installs what is missing, builds, fetches the model,
# starts a verifier and a decoder, and shows with `selfsame check` that deterministic answers do not
# change while ordinary ones do.
#
# Usage: deploy/demo.sh
# Leaves build/demo/check.json (the figures) and the logs of both services beside it. Fails when a
# deterministic answer changed, and also when no ordinary one did or nothing was rolled back.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly DEMO_DIR="$PWD/build/demo"
readonly BIN_DIR="$PWD/build/release/bin"
readonly START_TIMEOUT_S=120
readonly STOP_TIMEOUT_S=40

say() { printf '\ndemo: %s\n' "$*"; }

service_pids=()

# Ends what is still running, gently at first.
stop_services() {
  local pid deadline=$((SECONDS + STOP_TIMEOUT_S))
  for pid in "${service_pids[@]}"; do kill -TERM "$pid" 2>/dev/null || true; done
  for pid in "${service_pids[@]}"; do
    while kill -0 "$pid" 2>/dev/null; do
      if ((SECONDS >= deadline)); then
        kill -KILL "$pid" 2>/dev/null || true
        break
      fi
      sleep 0.1
    done
    wait "$pid" 2>/dev/null || true
  done
  service_pids=()
}

# start_service NAME COMMAND...: runs it with its output in build/demo/NAME.log and waits until it
# serves; `address` is then where.
start_service() {
  local name="$1" log="$DEMO_DIR/$1.log" deadline=$((SECONDS + START_TIMEOUT_S))
  shift
  : >"$log"
  "$@" >"$log" 2>&1 &
  local pid=$!
  service_pids+=("$pid")
  until address="$(sed -n 's/^listening on //p' "$log")" && [[ -n "$address" ]]; do
    if ! kill -0 "$pid" 2>/dev/null; then
      say "the $name did not start:"
      cat "$log" >&2
      exit 1
    fi
    if ((SECONDS >= deadline)); then
      say "the $name was not ready within $START_TIMEOUT_S s; see $log"
      exit 1
    fi
    sleep 0.1
  done
  say "the $name serves on $address"
}

say "installing what is missing"
deploy/install.sh
say "building"
cmake --preset release -DSELFSAME_BUILD_TESTS=OFF -DSELFSAME_BUILD_BENCH=OFF >/dev/null
cmake --build --preset release --target selfsame selfsame-decoder selfsame-verifier
say "fetching the model"
model_dir="$(deploy/fetch_model.sh | tail -n 1)"

mkdir -p "$DEMO_DIR"
rm -f "$DEMO_DIR/check.json"
trap stop_services EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

start_service verifier "$BIN_DIR/selfsame-verifier" --listen=127.0.0.1:0 --model_dir="$model_dir"
verifier_address="$address"
start_service decoder "$BIN_DIR/selfsame-decoder" --listen=127.0.0.1:0 --model_dir="$model_dir" \
  --verifiers="$verifier_address"

say "selfsame check"
status=0
"$BIN_DIR/selfsame" check --server="$address" --max_tokens=96 --require_control \
  --json="$DEMO_DIR/check.json" || status=$?
if ((status == 0)); then
  say "passed: the figures are in $DEMO_DIR/check.json"
else
  say "FAILED with status $status; the logs are in $DEMO_DIR"
fi
exit "$status"
