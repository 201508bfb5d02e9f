#!/usr/bin/env bash
# Checks the protocol model with spin: that it is right at several small bounds, for safety and for
# progress, that the runs come to what matters, and that every mutant is found to be wrong. Needs
# spin and a C compiler.
#
# Usage: tests/protocol/run_spin.sh [--long]
#   --long  larger bounds as well: minutes, and up to 6 GB of memory
set -euo pipefail

model_dir="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
command -v spin >/dev/null || { echo "run_spin: spin is missing: deploy/install.sh" >&2; exit 1; }
work_dir="$(mktemp -d)"
trap 'rm -rf "$work_dir"' EXIT
cd "$work_dir"
cp "$model_dir"/*.pml .

failures=0
fail() {
  echo "FAILED: $1" >&2
  failures=$((failures + 1))
}

# search KIND MACROS...: the checker's report goes to ./report. KIND is safety (assertions and
# deadlocks) or progress (endless runs).
search() {
  local kind="$1" compile_flag=-DSAFETY run_flag=""
  shift
  if [[ "$kind" == progress ]]; then compile_flag=-DNP run_flag=-l; fi
  spin "$@" -a verification.pml >spin.log || { cat spin.log >&2; return 1; }
  "${CC:-cc}" -O0 -w "$compile_flag" -DCOLLAPSE -DVECTORSZ=2048 -DMEMLIM=6000 -o pan pan.c
  # A state counts as checked only within the depth limit, so running into it is an error (-b).
  ./pan $run_flag -b -m20000 -w20 >report
  cat report >>reports
}

errors() { sed -n 's/.*errors: \([0-9]*\)$/\1/p' report; }
states() { sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' report; }

holds() {
  search "$@"
  if [[ "$(errors)" == 0 ]] && grep -q "^Full statespace search" report &&
     ! grep -q "Search not completed" report; then
    echo "holds: $* ($(states) states)"
  else
    cat report
    fail "$*"
  fi
}

is_found() {
  search "$@"
  if [[ "$(errors)" -ge 1 ]]; then
    echo "found: $*: $(sed -n 's/^pan:1: //p' report | cut -c -60)"
  else
    fail "nothing was found wrong with $*"
  fi
}

holds safety -DTROUBLES=1
holds safety -DTROUBLES=2 -DTOKENS=3 -DVERIFIERS=1
holds safety -DTROUBLES=0 -DTOKENS=6 -DWINDOW=3 -DVERIFIERS=1
holds safety -DTROUBLES=0 -DREQUESTS=2 -DVERIFIERS=1 -DTOKENS=2
holds progress -DTROUBLES=1 -DTOKENS=3
if [[ "${1:-}" == --long ]]; then
  holds safety -DTROUBLES=2
  holds safety -DTROUBLES=3 -DTOKENS=3 -DVERIFIERS=1
  holds safety -DTROUBLES=1 -DTOKENS=5 -DWINDOW=3 -DCREDIT=3 -DVERIFIERS=1
  holds safety -DTROUBLES=1 -DREQUESTS=2 -DVERIFIERS=1 -DTOKENS=2 -DCREDIT=1
  holds progress -DTROUBLES=1
fi

while read -r event; do
  grep -qx "reached: $event" reports || fail "no run came to: $event"
done <<'EVENTS'
opening verdict
commit
rollback
rollback by the opening verdict
discarded window
window of a session that is gone
prefilled again
preempted
cancelled
closed
verdict refused
reopened with committed tokens
failed over with committed tokens
no verifier left
end by the verifier
end by a stop string
EVENTS

for mutant in LEAK CREDIT STALE EPOCH KV END STUCK; do
  is_found safety -DTOKENS=3 -DMUTANT_$mutant
done
is_found progress -DTOKENS=3 -DMUTANT_ENDLESS

if ((failures > 0)); then exit 1; fi
echo "run_spin: all holds"
