#!/usr/bin/env bash
# Runs every check that needs a GPU, from a bundle, and ends with one table.
#
#   deploy/gpu_test.sh [OPTION..] BUNDLE_DIR [LOG_DIR]
#
#   --model=DIR        a model for the services, and for the comparison with transformers
#   --synthetic=NAME   a synthetic model for the services, such as 8b:1; beside --model, both are
#                      served; without either, a small random one whose logits are nearly tied
#   --without=NAME,..  leaves out tests, services, transformers or sanitizer, or a way of serving:
#                      small, mps, two or canonical
#   --allow_left_out   what this machine has not (a second GPU, MPS, torch, compute-sanitizer) is no
#                      failure
#   --limit_s=SECONDS  for all together (default 3600): what is then running fails, the rest is not
#                      run
#
# tests: all suites of selfsame_gpu_test. services: deploy/gpu_serve_test.py. transformers:
# tests/gpu/compare_transformers.py, by $PYTHON (default python3). sanitizer: compute-sanitizer on
# tests small enough for it. BUNDLE_DIR: deploy/bundle.sh's, with selfsame_gpu_test, selfsame,
# selfsame-decoder, selfsame-verifier, selfsame-tiny-model and selfsame-write-logits. LOG_DIR keeps
# logs.
#
# Exit status 0: all that was asked for passed; 1: something failed, or was left out without
# --without or --allow_left_out; 2: bad arguments.
set -uo pipefail

here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}

usage() {
  [[ $# -eq 0 ]] || echo "gpu_test.sh: $*" >&2
  sed -n '2,/^set /p' "$0" | sed '$d; s/^# \{0,1\}//' >&2
  exit 2
}

model='' synthetic='' without='' may_lack='' limit_s=3600
while [[ $# -gt 0 && $1 == -* ]]; do
  case $1 in
    --model=?*) model=${1#*=} ;;
    --synthetic=?*) synthetic=${1#*=} ;;
    --without=?*) without=${1#*=} ;;
    --allow_left_out) may_lack=yes ;;
    --limit_s=*) limit_s=${1#*=} ;;
    *) usage "unknown option $1" ;;
  esac
  shift
done
[[ $# -eq 1 || $# -eq 2 ]] || usage
[[ $limit_s =~ ^[1-9][0-9]*$ ]] || usage "--limit_s must be a number of seconds"
for name in ${without//,/ }; do
  [[ $name =~ ^(tests|services|transformers|sanitizer|small|mps|two|canonical)$ ]] ||
    usage "--without knows no $name"
done
bundle=$1
logs=${2:-$(mktemp -d)}
mkdir -p "$logs"

# Rows of the table.
names=()
results=() # passed, FAILED, or not run
seconds=()
notes=()
child='' interrupted=''
trap 'interrupted=yes; [[ -z $child ]] || kill "$child" 2> /dev/null' TERM INT

# row NAME RESULT SECONDS [NOTE]
row() {
  names+=("$1")
  results+=("$2")
  seconds+=("$3")
  notes+=("${4:-}")
}

# missing NAME REASON: what this machine has not.
missing() {
  row "$1" 'not run' '' "$2"
  [[ -n $may_lack ]] || lacking=yes
}
lacking='' cut_off=''

# is_left_out NAME [ROW]: whether --without names it; then there is a row that says so.
is_left_out() {
  [[ ,$without, == *,$1,* ]] || return 1
  row "${2:-$1}" 'not run' '' '--without'
}

# run LOG COMMAND..: in what is left of the time, its output to LOG_DIR/LOG.log; its exit status, or
# kNotStarted.
kNotStarted=125
run() {
  local log=$logs/$1.log status
  shift
  local left=$((limit_s - SECONDS))
  [[ -z $interrupted && $left -gt 0 ]] || return $kNotStarted
  timeout --kill-after=10 "$left" "$@" > "$log" 2>&1 &
  child=$!
  wait "$child"
  status=$?
  # A signal to this script ends the wait, not the child.
  [[ -z $interrupted ]] || wait "$child"
  child=''
  return $status
}

# ended NAME SECONDS STATUS: the row of a run that did not pass.
ended() {
  local why="status $3"
  case $3 in
    "$kNotStarted")
      row "$1" 'not run' '' "$([[ -n $interrupted ]] && echo interrupted || echo no time was left)"
      cut_off=yes
      return
      ;;
    124 | 137) ((SECONDS < limit_s)) || why='stopped, no time was left' ;;
  esac
  row "$1" FAILED "$2" "${interrupted:+interrupted, }$why"
}

show() {
  grep -E 'Failure|FAILED|error|Error|ERROR|Invalid|Race|hazard' "$1" | head -40
  tail -5 "$1"
}

# check NAME COMMAND..: one row.
check() {
  local name=$1 start=$SECONDS status
  shift
  echo "== $name"
  run "$name" "$@"
  status=$?
  if ((status == 0)); then
    row "$name" passed $((SECONDS - start))
  else
    ended "$name" $((SECONDS - start)) $status
    ((status == kNotStarted)) || show "$logs/$name.log"
  fi
}

# "Suite.Test" of every test of the program; suites may have a prefix, "Shapes/Suite".
list_tests() {
  "$bundle/run" selfsame_gpu_test --gtest_list_tests |
    awk '/^[^ ]+\.( |$)/ { suite = $1 } /^  / { print suite $1 }'
}

run_tests() {
  local suite
  if ((${#tests[@]} == 0)); then
    row tests FAILED 0 'selfsame_gpu_test lists no tests'
    return
  fi
  while read -r suite; do
    check "${suite##*/}" "$bundle/run" selfsame_gpu_test "--gtest_filter=$suite.*"
  done < <(printf '%s\n' "${tests[@]}" | sed 's/\..*//' | uniq)
}

# serve NAME FLAG..: a row for each way of serving one model, and one for what they show together.
serve() {
  local name=$1 ways=one way result time note status failed='' start=$SECONDS
  local log="services-${1//[^A-Za-z0-9.-]/-}" # a folder too
  shift
  for way in small mps two canonical; do
    is_left_out "$way" "$name: $way" || ways+=,$way
  done
  echo "== services, $name"
  rm -f "$logs/$log/placements.tsv"
  run "$log" "$python" "$here/gpu_serve_test.py" "$bundle" "$logs/$log" --placements="$ways" \
    --allow_left_out "$@"
  status=$?
  while IFS=$'\t' read -r way result time note; do
    if [[ $result == 'not run' ]]; then
      missing "$name: $way" "$note"
    else
      row "$name: $way" "$result" "$time" "$note"
      [[ $result == passed ]] || failed=yes
    fi
  done < <(cat "$logs/$log/placements.tsv" 2> /dev/null)
  if ((status != 0)); then
    [[ -n $failed ]] || ended "$name" $((SECONDS - start)) $status
    ((status == kNotStarted)) || tail -40 "$logs/$log.log"
  fi
}

run_services() {
  local tiny
  if [[ -n $synthetic ]]; then
    serve "$synthetic" --synthetic="$synthetic"
  fi
  if [[ -n $model ]]; then
    # Few kv heads: the fast path splits attention in other ways only from some 44 sequences on.
    serve "$(basename "$model")" --model="$model" --tokens=256 --class_slack=0 \
      --phases=2:0.5,16:0,64:0.5,128:0.9 --decoder_flags=--max_batch_size=128
  fi
  if [[ -z $model$synthetic ]]; then
    tiny=$(mktemp -d)
    "$bundle/run" selfsame-tiny-model "$tiny"
    serve random --model="$tiny" --phases=2:0.25,128:0.9 --tokens=160 --kv_size_mb=2048 \
      --class_slack=0 --decoder_flags=--max_batch_size=128
    rm -rf "$tiny"
  fi
}

run_transformers() {
  local problem
  if ! problem=$("$python" -c 'import numpy, torch, transformers' 2>&1); then
    missing transformers "$(tail -1 <<< "$problem" | sed "s/.*No module named '\([^']*\)'.*/no \1/")"
    return
  fi
  check transformers env HF_HUB_DISABLE_PROGRESS_BARS=1 "$python" \
    "$here/../tests/gpu/compare_transformers.py" "$bundle" --models="$model"
}

# Kernels of this repository, each by a small case.
race_patterns=(
  'AttentionTest.PaddingRowsAreZero'
  '*/AttentionReferenceTest.WindowsOverStages*' # by warpgroups and by warps
  'GemmTest.ANormThatAddsSlices*'
  'GemmTest.PartialProducts*'
  'GemmProbeTest.*'
  'RowOpsTest.AddRmsNorm*'
  'RowOpsTest.EmbedAndGather*'
  'RowOpsTest.QkNorm*'
  'RowOpsTest.RmsNorm*'
  'RowOpsTest.RopeRotates*'
  'RowOpsTest.SiluMul*'
  'SamplingTest.AFewSlices*'
  'SyntheticTest.*'
  '*/StreamGemmTest.*'
)
# Also graphs and cuBLASLt, whose shared memory is not ours.
memory_patterns=("${race_patterns[@]}" 'PassGraphsTest.*' 'ProductGraphsTest.*' 'SamplingTest.TopP*')

# sanitize TOOL PATTERN..
sanitize() {
  local name=sanitizer-$1 tool=$1 pattern test found filter=''
  shift
  for pattern in "$@"; do
    found=''
    for test in "${tests[@]}"; do
      # shellcheck disable=SC2053 # a pattern
      [[ $test != $pattern ]] || found=yes
    done
    if [[ -z $found ]]; then
      row "$name" FAILED 0 "no test is called $pattern"
      return
    fi
    filter+=:$pattern
  done
  check "$name" "$bundle/run" --under "$sanitizer --tool $tool --error-exitcode 9" \
    selfsame_gpu_test "--gtest_filter=${filter#:}"
}

run_sanitizer() {
  local tool
  sanitizer=$(PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin command -v compute-sanitizer)
  if [[ -z $sanitizer ]]; then
    for tool in memcheck racecheck; do missing "sanitizer-$tool" 'no compute-sanitizer'; done
    return
  fi
  sanitize memcheck "${memory_patterns[@]}"
  sanitize racecheck "${race_patterns[@]}"
}

nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
mapfile -t tests < <(list_tests)
for part in tests services transformers sanitizer; do
  is_left_out "$part" || "run_$part"
done

printf '\n%-40s %-8s %7s\n' check result seconds
passed=0 failed=0 left_out=0
for i in "${!names[@]}"; do
  printf '%-40s %-8s %7s  %s\n' "${names[$i]}" "${results[$i]}" "${seconds[$i]}" "${notes[$i]}"
  case ${results[$i]} in
    passed) passed=$((passed + 1)) ;;
    'not run') left_out=$((left_out + 1)) ;;
    *) failed=$((failed + 1)) ;;
  esac
done
printf '\n%d passed, %d failed, %d not run, in %d s\n' $passed $failed $left_out $SECONDS
[[ -z $lacking ]] || echo 'FAILED: this machine lacks what a check needs; --allow_left_out allows that'
[[ -z $cut_off ]] || echo 'FAILED: cut off before everything was run'
[[ $failed -eq 0 && $passed -gt 0 && -z $lacking$cut_off$interrupted ]]
