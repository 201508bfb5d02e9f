#!/usr/bin/env bash
# Measures the CUDA backend from a bundle, within a time limit: what matters most comes first, and a
# stage that outlasts its share is cut off. It checks nothing: deploy/gpu_test.sh does. Prints the
# tables; LOG_DIR keeps them, and the measured GEMM plans.
#
#   bench/cuda/measure.sh BUNDLE_DIR LOG_DIR [MODEL_DIR]
#
# BUNDLE_DIR: deploy/bundle.sh's, with the programs of the chosen stages. STAGES=flips,passes,..
# chooses among these (default: all but plain); the seconds are the most that each may take:
#   flips      120  flip_share_bench: of MODEL_DIR, a real model, and of synthetic ones that should
#                   have its share; GAINS and BETA: those to try (common/model/synthetic.h), SLACKS
#                   and ROUNDS: of flip_share_bench
#   passes     150  cuda_pass_bench: passes of the 8B shape and their parts
#   attention   40  attention_bench
#   rows        40  row_ops_bench
#   classes    110  gemm_class_bench: the fastest products of each reduction class
#   plain      100  cuda_pass_bench, without graphs
# LIMIT_S bounds the whole; by default 560, their sum.
set -uo pipefail

if [[ $# -lt 2 ]]; then
  sed -n '2,/^set /p' "$0" | sed '$d; s/^# \{0,1\}//' >&2
  exit 2
fi
bundle=$1
logs=$2
model=${3:-}
stages=${STAGES:-flips,passes,attention,rows,classes}
limit_s=${LIMIT_S:-560}
mkdir -p "$logs"
status=0
summary=()

for name in ${stages//,/ }; do
  if [[ ! $name =~ ^(flips|passes|attention|rows|classes|plain)$ ]]; then
    echo "measure.sh: there is no stage $name" >&2
    exit 2
  fi
done

# stage NAME SECONDS COMMAND..: runs it for at most that long and at most what is left.
stage() {
  local name=$1 most=$2 start=$SECONDS result=0
  shift 2
  [[ ,$stages, == *,$name,* ]] || return 0
  local left=$((limit_s - SECONDS))
  if ((left <= 0)); then
    summary+=("$name: not run, no time was left")
    status=1
    return 0
  fi
  echo "=== $name"
  timeout --kill-after=5 $((most < left ? most : left)) "$@" 2>&1 | tee "$logs/$name.out" || result=$?
  ((result == 0)) || status=1
  summary+=("$name: status $result, $((SECONDS - start)) s")
}

# Both class slacks of each model beside one canonical run. The most telling settings come first.
flips() {
  local settings=() flags=(--device=cuda --batch=32 --tokens=256 --class_slack="${SLACKS:-0.03,0}"
    --gemm_plan_file="$logs/flip-plans.json") rounds=${ROUNDS:-2} status=0 gain
  for gain in ${GAINS:-0.5 0.125 1 0.25 2}; do
    settings+=("synthetic:8b:1:gain=$gain:beta=${BETA:-0.25}")
  done
  [[ -z $model ]] || "$bundle/run" flip_share_bench "${flags[@]}" --rounds=$((2 * rounds)) "$model" || status=1
  "$bundle/run" flip_share_bench "${flags[@]}" --rounds="$rounds" "${settings[@]}" || status=1
  return "$status"
}
export -f flips
export bundle logs model

stage flips 120 bash -c flips
stage passes 150 "$bundle/run" cuda_pass_bench 1024
stage attention 40 "$bundle/run" attention_bench
stage rows 40 "$bundle/run" row_ops_bench
stage classes 110 "$bundle/run" gemm_class_bench
stage plain 100 "$bundle/run" cuda_pass_bench 1024 plain

printf '\n'
printf '%s\n' "${summary[@]}"
exit $status
