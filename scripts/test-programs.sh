#!/usr/bin/env bash
# Ordinary programs on the store, with checks on what they made.
#
#   scripts/test-programs.sh run|mount NODES [--short] [PROGRAM…]
#
# `run` starts them under `samite run`, `mount` on a directory where `samite mount` has mounted the store. --short uses
# smaller trees and files. Without names all programs are tried; a program that is not on the machine is skipped with a
# message. MIRROR=N keeps each record on N nodes; with KILL=SECONDS one of them is killed and started again every so often. Uses the binary that SAMITE names, or builds one. KEEP=1 leaves the working directory behind.
set -euo pipefail
export LC_ALL=C
here=$(realpath "$(dirname "$0")")
# shellcheck source=scripts/programs.sh
source "$here/programs.sh"
# shellcheck source=scripts/programs-python.sh
source "$here/programs-python.sh"
# shellcheck source=scripts/disturb.sh
source "$here/disturb.sh"

# Inside: one program, in directory $2 of the store, with $3 as a plain directory beside it.
if [ "${1:-}" = --inside ]; then
  program=$2 store=$3 plain=$4
  mkdir -p "$store" "$plain"
  cd "$store"
  "program_$program"
  exit
fi

usage() {
  sed -n '4s/^# *//p' "$0" >&2
  exit 2
}

access=${1:-} nodes=${2:-}
case $access in run | mount) ;; *) usage ;; esac
case $nodes in '' | *[!0-9]*) usage ;; esac
shift 2
export SHORT=''
wanted=()
for word in "$@"; do
  case $word in
    --short) SHORT=1 ;;
    *) wanted+=("$word") ;;
  esac
done
if [ ${#wanted[@]} = 0 ]; then mapfile -t wanted < <(declare -F | sed -n 's/^declare -f program_//p'); fi
for program in "${wanted[@]}"; do
  if ! declare -F "program_$program" >/dev/null; then
    echo "no program '$program'; there are: $(declare -F | sed -n 's/^declare -f program_//p' | tr '\n' ' ')" >&2
    exit 2
  fi
done

if [ -z "${SAMITE:-}" ]; then
  (cd "$here/.." && cargo build --release --quiet --package samite-cli --package samite-preload)
  SAMITE=${CARGO_TARGET_DIR:-$here/../target}/release/samite
fi
samite=$(realpath "$SAMITE")
scratch=$(mktemp -d "${TMPDIR:-/tmp}/samite-programs.XXXXXX")
export SAMITE_RUNTIME_DIR=$scratch/run SAMITE_CLUSTER=programs SCRATCH=$scratch ACCESS=$access
unset SAMITE_MOUNT SAMITE_TRANSPORT
# A program that takes longer hangs.
SECONDS_MAX=${SECONDS_MAX:-300}

clean_up() {
  kill "${disturber:-}" 2>/dev/null || true
  if [ "$access" = mount ]; then
    timeout 20 "$samite" umount "$scratch/mnt" 2>/dev/null || umount -l "$scratch/mnt" 2>/dev/null || true
  fi
  if [ -d "$SAMITE_RUNTIME_DIR/programs" ]; then timeout 60 "$samite" down --force >/dev/null || true; fi
  if [ -n "${KEEP:-}" ]; then echo "kept $scratch"; else rm -rf --one-file-system "$scratch"; fi
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

timeout 60 "$samite" up --local "$nodes" --memory $((3072 / nodes))M ${MIRROR:+--mirror "$MIRROR"} ${COORDINATOR:+--coordinator "$COORDINATOR"} >/dev/null
case $access in
  run) root=/samite ;;
  mount)
    root=$scratch/mnt
    mkdir "$root"
    timeout 30 "$samite" mount "$root"
    ;;
esac

# in_store PROGRAM: runs it through the access path.
in_store() {
  local inside=(bash "$here/test-programs.sh" --inside "$1" "$root/$1" "$scratch/plain/$1")
  if [ "$access" = run ]; then inside=("$samite" run --at "$root" -- "${inside[@]}"); fi
  timeout --kill-after=10 "$SECONDS_MAX" "${inside[@]}" >"$scratch/log" 2>&1 </dev/null
}

if [ -n "${KILL:-}" ]; then begin_disturbing "$nodes" "$KILL" "$scratch/disturb.log"; fi
passed=0 failed=0
for program in "${wanted[@]}"; do
  from=$SECONDS status=0
  in_store "$program" || status=$?
  if [ $status = 77 ]; then
    why=$(tail -n 1 "$scratch/log")
    echo "skipped $program: $why"
    # For scripts/test.sh, which has a list of what may be skipped.
    if [ -n "${SAMITE_SKIPS:-}" ]; then printf 'part\tprograms::%s\t%s\n' "$program" "${why%% *}" >>"$SAMITE_SKIPS"; fi
  elif [ $status = 0 ]; then
    passed=$((passed + 1))
    echo "ok      $program ($((SECONDS - from)) s)"
  else
    failed=$((failed + 1))
    why="exit code $status"
    if [ $status = 124 ] || [ $status = 137 ]; then why="not done after $SECONDS_MAX s"; fi
    echo "FAILED  $program ($((SECONDS - from)) s): $why"
    tail -n 15 "$scratch/log" | cut -c 1-300 | sed 's/^/        /'
  fi
done
if [ -n "${KILL:-}" ]; then end_disturbing || failed=$((failed + 1)); fi
echo "programs through $access on $nodes node(s): $passed passed, $failed failed"
if [ "$passed" = 0 ]; then echo 'no program was tried' >&2; fi
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
