#!/usr/bin/env bash
# Checks the CUDA backend and then measures it, from a bundle, within a time limit: what matters most
# comes first, and a stage that outlasts its share is cut off. Prints the tables; LOG_DIR keeps the
# logs.
#
#   bench/cuda/measure.sh BUNDLE_DIR LOG_DIR [MODEL_DIR]
#
# BUNDLE_DIR: deploy/bundle.sh's, with selfsame, selfsame-decoder, selfsame-verifier,
# selfsame-tiny-model, selfsame-write-logits, selfsame_gpu_test, cuda_pass_bench and
# flip_share_bench. MODEL_DIR: a real model whose share of flipped tokens the synthetic ones should
# have; GAINS and BETA: those to try (common/model/synthetic.h), SLACKS and ROUNDS: of
# flip_share_bench.
# STAGES=tests,flips,transformers,passes,plain,serve,serve-model chooses (transformers: needs torch;
# plain: passes without graphs; serve-model: MODEL_DIR at class slack 0); LIMIT_S=560 bounds the whole;
# SYNTHETIC=8b:1 is the model that is served.
set -uo pipefail

if [[ $# -lt 2 ]]; then
  sed -n '2,15p' "$0" | cut -c3- >&2
  exit 2
fi
here=$(cd "$(dirname "$0")/../.." && pwd)
bundle=$1
logs=$2
model=${3:-}
stages=${STAGES:-tests,flips,transformers,passes,serve,serve-model}
limit_s=${LIMIT_S:-560}
mkdir -p "$logs"
status=0
summary=()

# stage NAME SECONDS COMMAND..: runs it for at most that long and at most what is left.
stage() {
  local name=$1 most=$2 start=$SECONDS result=0
  shift 2
  [[ ,$stages, == *,$name,* ]] || return 0
  local left=$((limit_s - SECONDS))
  if ((left < 15)); then
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
  return $status
}
export -f flips
export bundle logs model

stage tests 240 env GPU_TEST_SANITIZER="${GPU_TEST_SANITIZER:-off}" \
  "$here/deploy/gpu_test.sh" "$bundle" "$logs/tests"
stage flips 150 bash -c flips
stage transformers 120 env HF_HUB_DISABLE_PROGRESS_BARS=1 python3 "$here/tests/gpu/compare_transformers.py" "$bundle" --models="$model"
stage passes 150 "$bundle/run" cuda_pass_bench 1024
stage plain 120 "$bundle/run" cuda_pass_bench 1024 plain
stage serve 240 python3 "$here/deploy/gpu_serve_test.py" "$bundle" "$logs/serve" \
  --synthetic="${SYNTHETIC:-8b:1}" --tokens="${SERVE_TOKENS:-64}"
if [[ -n $model ]]; then
  # A model with few kv heads: attention is split in other ways from about 44 sequences on.
  stage serve-model 180 python3 "$here/deploy/gpu_serve_test.py" "$bundle" "$logs/serve-model" \
    --model="$model" --tokens="${MODEL_TOKENS:-256}" --class_slack="${MODEL_SLACK:-0}" \
    --phases="${MODEL_PHASES:-2:0.5,16:0,64:0.5,128:0.9}" --decoder_flags=--max_batch_size=128
fi

printf '\n'
printf '%s\n' "${summary[@]}"
exit $status
