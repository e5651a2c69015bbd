#!/usr/bin/env bash
# The file in which a durable store keeps its cluster map is damaged. The next `samite up` has to end
# at once and to name the file, and not to wait for what cannot come. The directory that the user gave
# as SAMITE_RUNTIME_DIR has to stay when the store is down.
#
#   tests/cases/coordinator-damaged.sh [--short | --help]
#
# Needs nothing but the binary, which SAMITE names.
# Ends with 0: right, 1: wrong, 2: cannot run here.

set -u
# shellcheck source=tests/cases/common.sh
source "$(dirname "$0")/common.sh"
begin "$@"

mkdir -m 700 "$SAMITE_RUNTIME_DIR"
store=(--local 1 --memory 64M --durable "$scratch/flash" --wait 15)
start "${store[@]}"
samite down >/dev/null || { echo 'the store does not end' && exit 1; }
wrong=0
[ -d "$SAMITE_RUNTIME_DIR" ] || { echo 'down has removed SAMITE_RUNTIME_DIR' && wrong=1; }

printf 'garbage' | dd of="$scratch/flash/n0/coordinator" bs=1 seek=20 conv=notrunc status=none || exit 1
SECONDS=0
if samite up "${store[@]}" >"$scratch/up" 2>&1; then
  echo 'up over a damaged cluster map'
  exit 1
fi
echo "refused after $SECONDS s: $(head -n 1 "$scratch/up" | cut -c 1-200)"
grep -q "$scratch/flash/n0/coordinator" "$scratch/up" || { echo 'the file is not named' && wrong=1; }
((SECONDS < 8)) || wrong=1
exit $wrong
