#!/usr/bin/env bash
# Runs every fuzzer of the preset `fuzz` from its committed corpus for some seconds each and sums up.
# A crash, hang or leak fails; the input that caused it is kept.
#
#   cmake --preset fuzz && cmake --build --preset fuzz
#   tests/fuzz/run.sh 10
#   build/fuzz/bin/NAME_fuzzer build/fuzz/fuzz/NAME/crash-...      reproduces
#
# Usage: tests/fuzz/run.sh SECONDS_EACH [NAME...]
#   NAME       a fuzzer, such as config; all by default
#   BUILD_DIR  environment: the build, build/fuzz by default. What is found new goes to
#              BUILD_DIR/fuzz/NAME/corpus and is used again by the next run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

if [[ ! "${1:-}" =~ ^[1-9][0-9]*$ ]]; then
  echo "usage: tests/fuzz/run.sh SECONDS_EACH [NAME...]" >&2
  exit 2
fi
seconds="$1"
shift
build_dir="$(realpath "${BUILD_DIR:-build/fuzz}")"
names=("$@")
if ((${#names[@]} == 0)); then
  for corpus in tests/fuzz/corpus/*/; do names+=("$(basename "$corpus")"); done
fi
# Some fuzzers write files for each input; those go to memory.
if [[ -z "${TMPDIR:-}" && -w /dev/shm ]]; then export TMPDIR=/dev/shm; fi

stat_of() { sed -n "s/^stat::$1: *//p" "$2"; }

failures=0
total=0
for name in "${names[@]}"; do
  fuzzer="$build_dir/bin/${name}_fuzzer"
  [[ -x "$fuzzer" ]] || { echo "run: $fuzzer is not built" >&2; exit 2; }
  work="$build_dir/fuzz/$name"
  mkdir -p "$work/corpus"
  options=(-max_total_time="$seconds" -timeout=120 -rss_limit_mb=2048 -print_final_stats=1
           -use_value_profile=1 -artifact_prefix="$work/")
  if [[ -f "tests/fuzz/dictionaries/$name.dict" ]]; then
    options+=(-dict="tests/fuzz/dictionaries/$name.dict")
  fi
  result=passed
  if ! "$fuzzer" "${options[@]}" "$work/corpus" "tests/fuzz/corpus/$name" >"$work/log" 2>&1; then
    result=FAILED
    failures=$((failures + 1))
    grep -E "check failed|ERROR: |SUMMARY: |runtime error|Test unit written" "$work/log" >&2 || true
  fi
  runs="$(stat_of number_of_executed_units "$work/log")"
  total=$((total + ${runs:-0}))
  printf '%-20s %s: %s inputs, %s new, slowest %s s, %s MB\n' "$name" "$result" "${runs:-0}" \
    "$(stat_of new_units_added "$work/log")" "$(stat_of slowest_unit_time_sec "$work/log")" \
    "$(stat_of peak_rss_mb "$work/log")"
done
echo "fuzz: $total inputs; $((${#names[@]} - failures)) passed, $failures failed"
((failures == 0))
