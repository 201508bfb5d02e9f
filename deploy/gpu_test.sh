#!/usr/bin/env bash
# Runs every check that needs a GPU, from a bundle that has selfsame_gpu_test, selfsame-tiny-model,
# selfsame-verifier, selfsame-decoder and selfsame, and ends with one table. Fails when any check
# fails. GPU_TEST_MODEL: a model directory for the services, instead of a random small one.
#
#   deploy/gpu_test.sh BUNDLE_DIR [LOG_DIR]
#
# compute-sanitizer's checks run a part of the tests; without the tool they count as failed unless
# GPU_TEST_SANITIZER=off.
set -uo pipefail

bundle=${1:?usage: deploy/gpu_test.sh BUNDLE_DIR [LOG_DIR]}
logs=${2:-$(mktemp -d)}
mkdir -p "$logs"
names=()
results=()
seconds=()

# check NAME COMMAND..: runs it, keeps its output in LOG_DIR/NAME.log.
check() {
  local name=$1 start=$SECONDS
  shift
  echo "== $name"
  if "$@" > "$logs/$name.log" 2>&1; then
    results+=(passed)
  else
    results+=(FAILED)
    grep -E 'Failure|FAILED|error|Error|ERROR|Invalid|Race|hazard' "$logs/$name.log" | head -40
    tail -5 "$logs/$name.log"
  fi
  names+=("$name")
  seconds+=($((SECONDS - start)))
}

nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
for suite in RowOpsTest SyntheticTest SamplingTest AttentionTest GemmTest PassGraphsTest RoundedRowsTest ModelTest ModelControlTest; do
  check "$suite" "$bundle/run" selfsame_gpu_test --gtest_filter="$suite.*:*/$suite.*"
done

# serve LOG PROGRAM ARGS..: starts a service and waits until it says where it listens.
pids=()
serve() {
  local log=$1
  shift
  "$bundle/run" "$@" > "$log" 2>&1 &
  pids+=($!)
  for _ in $(seq 1200); do
    address=$(sed -n 's/^listening on //p' "$log")
    [[ -n $address ]] && return 0
    kill -0 "${pids[-1]}" 2> /dev/null || break
    sleep 0.1
  done
  echo "error: $1 did not start:"
  cat "$log"
  return 1
}

# Both services on the device: deterministic answers must not change, ordinary ones must.
check_services() {
  local name=$1 model=$2 status=0
  shift 2
  pids=()
  serve "$logs/$name-verifier.log" selfsame-verifier --device=cuda --model_dir="$model" \
    --listen=127.0.0.1:0 --kv_size_mb=2048 "$@" &&
    serve "$logs/$name-decoder.log" selfsame-decoder --device=cuda --model_dir="$model" \
      --listen=127.0.0.1:0 --kv_size_mb=2048 --verifiers="$address" --class_slack=0 &&
    "$bundle/run" selfsame check --server="$address" --raw --ignore_eos --max_tokens=160 \
      --require_control "${answers[@]}" || status=$?
  for pid in "${pids[@]}"; do
    kill "$pid" 2> /dev/null
    wait "$pid" || { echo "error: a service ended with status $?"; status=1; }
  done
  return $status
}

model=${GPU_TEST_MODEL:-$(mktemp -d)}
[[ -n ${GPU_TEST_MODEL:-} ]] || "$bundle/run" selfsame-tiny-model "$model"
# Then anew, with other rungs: the answers must be those of the first run.
answers=(--save_reference="$logs/answers.json")
check services check_services services "$model"
answers=(--reference="$logs/answers.json")
check services-other-rungs check_services services-other-rungs "$model" --verify_batch_size=2

if [[ ${GPU_TEST_SANITIZER:-on} != off ]]; then
  small='RowOpsTest.RopeRotates*:RowOpsTest.AddRmsNorm*:RowOpsTest.EmbedAndGather*'
  small+=':RowOpsTest.QkNorm*:SamplingTest.TopP*:AttentionTest.PaddingRowsAreZero'
  for tool in memcheck racecheck; do
    check "sanitizer-$tool" "$bundle/run" --under "compute-sanitizer --tool $tool --error-exitcode 9" \
      selfsame_gpu_test --gtest_filter="$small"
  done
fi

printf '\n%-22s %-8s %s\n' check result seconds
status=0
for i in "${!names[@]}"; do
  printf '%-22s %-8s %s\n' "${names[$i]}" "${results[$i]}" "${seconds[$i]}"
  [[ ${results[$i]} == passed ]] || status=1
done
exit $status
