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

here=$(cd "$(dirname "$0")" && pwd)
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
# Every suite of the program, so that none is left out: "Suite." or "Shapes/Suite." at a line's start.
mapfile -t suites < <("$bundle/run" selfsame_gpu_test --gtest_list_tests |
  sed -n 's/^\([^ ]*\)\.\( .*\)\{0,1\}$/\1/p')
[[ ${#suites[@]} -gt 0 ]] || check suites false
for suite in "${suites[@]}"; do
  check "${suite##*/}" "$bundle/run" selfsame_gpu_test --gtest_filter="$suite.*"
done

model=${GPU_TEST_MODEL:-$(mktemp -d)}
[[ -n ${GPU_TEST_MODEL:-} ]] || "$bundle/run" selfsame-tiny-model "$model"
# Both services on the device: deterministic answers must not change, ordinary ones must.
check services python3 "$here/gpu_serve_test.py" "$bundle" "$logs/services" --model="$model" \
  --placements=one,small --phases=2:0.25,128:0.9 --decoder_flags=--max_batch_size=128 \
  --tokens=160 --kv_size_mb=2048 --class_slack=0

if [[ ${GPU_TEST_SANITIZER:-on} != off ]]; then
  small='RowOpsTest.RopeRotates*:RowOpsTest.AddRmsNorm*:RowOpsTest.EmbedAndGather*'
  small+=':RowOpsTest.QkNorm*:SamplingTest.TopP*:SamplingTest.AFewSlices*'
  small+=':AttentionTest.PaddingRowsAreZero:AttentionTest.WindowsOverStages*:GemmTest.PartialProducts*'
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
