#!/usr/bin/env bash
# Runs every case of tests/cases in its short form: sequences of events that went wrong once.
#
#   scripts/cases.sh [CASE…]
#
# A case is the name of its script, without .sh. All of them together may take SECONDS_MAX, 300 if
# not said (180 while there were 6; the 14 take some 120 s on an idle machine of two cores). Uses the
# binary that SAMITE names, or builds one. What cannot run here is skipped by name.
# Ends with 1 when a case is wrong, takes too long, or nothing was tried.
set -uo pipefail
here=$(realpath "$(dirname "$0")")
cases=$here/../tests/cases
seconds_max=${SECONDS_MAX:-300}

wanted=("$@")
if [ ${#wanted[@]} = 0 ]; then
  for script in "$cases"/*.sh; do
    name=$(basename "$script" .sh)
    [ "$name" = common ] || wanted+=("$name")
  done
fi
for name in "${wanted[@]}"; do
  if ! [ -x "$cases/$name.sh" ]; then
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
    exit 2
  fi
done
if [ -z "${SAMITE:-}" ]; then
  (cd "$here/.." && cargo build --release --quiet --package samite-cli --package samite-preload) || exit 1
  SAMITE=${CARGO_TARGET_DIR:-$here/../target}/release/samite
fi
SAMITE=$(realpath "$SAMITE") || exit 1
export SAMITE
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT

passed=0 failed=0 skipped=0
SECONDS=0
for name in "${wanted[@]}"; do
  from=$SECONDS status=0
  left=$((seconds_max - SECONDS))
  if ((left <= 0)); then
    failed=$((failed + 1))
    echo "FAILED  $name: not tried, the ones before it took $SECONDS s"
    continue
  fi
  timeout --kill-after=30 "$left" "$cases/$name.sh" --short >"$log" 2>&1 </dev/null || status=$?
  case $status in
    0)
      passed=$((passed + 1))
      echo "ok      $name ($((SECONDS - from)) s)"
      ;;
    2)
      skipped=$((skipped + 1))
      why=$(tail -n 1 "$log")
      echo "skipped $name: $why"
      # For scripts/test.sh, which has a list of what may be skipped.
      if [ -n "${SAMITE_SKIPS:-}" ]; then printf 'part\tcases::%s\t%s\n' "$name" "${why##* }" >>"$SAMITE_SKIPS"; fi
      ;;
    *)
      failed=$((failed + 1))
      why="exit code $status"
      if [ $status = 124 ] || [ $status = 137 ]; then why="not done within $left s"; fi
      echo "FAILED  $name ($((SECONDS - from)) s): $why"
      tail -n 15 "$log" | cut -c 1-300 | sed 's/^/        /'
      ;;
  esac
done
echo "cases: $passed passed, $failed failed, $skipped skipped"
if ((passed + failed == 0)); then echo 'no case was tried' >&2; fi
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
