#!/usr/bin/env bash
# Runs every check that needs a GPU, from a bundle that has selfsame_gpu_test, and ends with one
# table. Fails when any check fails.
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
for suite in RowOpsTest SamplingTest AttentionTest GemmTest ModelTest; do
  check "$suite" "$bundle/run" selfsame_gpu_test --gtest_filter="$suite.*"
done

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
