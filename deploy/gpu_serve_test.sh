#!/usr/bin/env bash
# Serves one model in several placements and checks that the answers are the same: both services on
# one GPU with and without MPS, with other rungs, on two GPUs where there are two, and one decoder
# that is an authority by itself. Ends with one table; fails when an answer changed anywhere.
#
#   deploy/gpu_serve_test.sh BUNDLE_DIR LOG_DIR [--model=DIR | --synthetic=SHAPE:SEED..]
#       [--placements=shared,rungs,mps,two,canonical] [--tokens=160] [--phases=2:0.25,16:0.5]
#       [--decoder_kv_mb=16384] [--verifier_kv_mb=16384]
#
# BUNDLE_DIR: deploy/bundle.sh's, with selfsame, selfsame-decoder and selfsame-verifier. Default
# model: --synthetic=8b:1. LOG_DIR keeps logs, JSON figures and the measured GEMM plans.
set -uo pipefail

if [[ $# -lt 2 ]]; then
  sed -n '2,11p' "$0" | cut -c3- >&2
  exit 2
fi
bundle=$1
logs=$2
shift 2
source_flags=(--load_format=synthetic:8b:1)
placements=shared,rungs,mps,two,canonical
tokens=160
phases=2:0.25,16:0.5
decoder_kv_mb=16384
verifier_kv_mb=16384
for argument in "$@"; do
  value=${argument#*=}
  case $argument in
    --model=*) source_flags=("--model_dir=$value") ;;
    --synthetic=*) source_flags=("--load_format=synthetic:$value") ;;
    --placements=*) placements=$value ;;
    --tokens=*) tokens=$value ;;
    --phases=*) phases=$value ;;
    --decoder_kv_mb=*) decoder_kv_mb=$value ;;
    --verifier_kv_mb=*) verifier_kv_mb=$value ;;
    *) echo "gpu_serve_test.sh: unknown argument $argument" >&2; exit 2 ;;
  esac
done
mkdir -p "$logs"

# serve LOG PROGRAM ARGS..: starts a service and waits until it says where it listens.
pids=()
serve() {
  local log=$1
  shift
  "$bundle/run" "$@" > "$log" 2>&1 &
  pids+=($!)
  for _ in $(seq 3000); do
    address=$(sed -n 's/^listening on //p' "$log")
    [[ -n $address ]] && return 0
    kill -0 "${pids[-1]}" 2> /dev/null || break
    sleep 0.1
  done
  echo "error: $2 did not start:"
  tail -5 "$log"
  return 1
}

# The two services have different plans, and a file of their own.
start_verifier() {  # NAME DEVICE ARGS..
  local name=$1 device=$2
  shift 2
  serve "$logs/$name-verifier.log" selfsame-verifier --device="$device" "${source_flags[@]}" \
    --listen=127.0.0.1:0 --kv_size_mb="$verifier_kv_mb" \
    --gemm_plan_file="$logs/verifier-plans.json" "$@"
}
start_decoder() {  # NAME DEVICE ARGS..
  local name=$1 device=$2
  shift 2
  serve "$logs/$name-decoder.log" selfsame-decoder --device="$device" "${source_flags[@]}" \
    --listen=127.0.0.1:0 --kv_size_mb="$decoder_kv_mb" \
    --gemm_plan_file="$logs/decoder-plans.json" "$@"
}

# Stops what was started, in reverse order.
stop_services() {
  local status=0 i
  for ((i = ${#pids[@]} - 1; i >= 0; --i)); do
    kill "${pids[$i]}" 2> /dev/null
    wait "${pids[$i]}" || { echo "error: a service ended with status $?"; status=1; }
  done
  pids=()
  return $status
}

names=()
results=()
seconds=()
reference=()
# place NAME DECODER_DEVICE VERIFIER_DEVICE VERIFIER_ARGS..: one row of the table.
place() {
  local name=$1 decoder_device=$2 verifier_device=$3 start=$SECONDS status=0
  shift 3
  echo "== $name"
  if [[ $verifier_device == none ]]; then
    start_decoder "$name" "$decoder_device" --schedule=canonical || status=1
  else
    start_verifier "$name" "$verifier_device" "$@" &&
      start_decoder "$name" "$decoder_device" --verifiers="$address" || status=1
  fi
  local ready=$((SECONDS - start))
  local compare=("${reference[@]}")
  [[ ${#compare[@]} -gt 0 ]] || compare=(--save_reference="$logs/answers.json")
  if [[ $status == 0 ]]; then
    "$bundle/run" selfsame check --server="$address" --raw --ignore_eos --max_tokens="$tokens" \
      --phases="$phases" --json="$logs/$name.json" "${compare[@]}" > "$logs/$name.log" 2>&1 ||
      status=$?
    cat "$logs/$name.log"
  fi
  [[ -s $logs/answers.json ]] && reference=(--reference="$logs/answers.json")
  stop_services || status=1
  names+=("$name")
  results+=("$([[ $status == 0 ]] && echo passed || echo FAILED)")
  seconds+=("$ready+$((SECONDS - start - ready))")
}

# Under MPS the two processes' kernels share the GPU instead of taking turns.
place_with_mps() {
  export CUDA_MPS_PIPE_DIRECTORY=$logs/mps-pipe CUDA_MPS_LOG_DIRECTORY=$logs/mps-log
  mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
  if nvidia-cuda-mps-control -d; then
    place one-gpu-mps cuda:0 cuda:0
    echo quit | nvidia-cuda-mps-control
  else
    names+=(one-gpu-mps)
    results+=(FAILED)
    seconds+=(-)
  fi
  unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
}

gpu_count=$(nvidia-smi --query-gpu=name --format=csv,noheader | wc -l)
for placement in ${placements//,/ }; do
  case $placement in
    shared) place one-gpu cuda:0 cuda:0 ;;
    rungs) place one-gpu-other-rungs cuda:0 cuda:0 --verify_batch_size=3 ;;
    mps) place_with_mps ;;
    two)
      if ((gpu_count >= 2)); then
        place two-gpus cuda:0 cuda:1
      else
        echo "== two-gpus: not run, there is one GPU"
      fi
      ;;
    canonical) place canonical-decoder cuda:0 none ;;
    *) echo "gpu_serve_test.sh: unknown placement $placement" >&2; exit 2 ;;
  esac
done

figure() { sed -n "s/^  \"$2\": \"\{0,1\}\([^\",]*\)\"\{0,1\},\{0,1\}$/\1/p" "$logs/$1.json" 2> /dev/null | head -1; }
printf '\n%-20s %-8s %7s %9s %9s %9s %9s %9s %10s %9s  %-12s %s\n' placement result determ. diverged \
  ordinary diverged windows rollbacks committed tokens/s fingerprint 'seconds (start+check)'
status=0
for i in "${!names[@]}"; do
  name=${names[$i]}
  printf '%-20s %-8s %7s %9s %9s %9s %9s %9s %10s %9.1f  %-12.12s %s\n' "$name" "${results[$i]}" \
    "$(figure "$name" deterministic_requests)" "$(figure "$name" deterministic_divergences)" \
    "$(figure "$name" ordinary_requests)" "$(figure "$name" ordinary_divergences)" \
    "$(figure "$name" windows)" "$(figure "$name" rollbacks)" \
    "$(figure "$name" committed_tokens)" "$(figure "$name" tokens_per_second)" \
    "$(figure "$name" fingerprint)" "${seconds[$i]}"
  [[ ${results[$i]} == passed ]] || status=1
done
exit $status
