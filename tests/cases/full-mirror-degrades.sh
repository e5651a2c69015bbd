#!/usr/bin/env bash
# A mirrored store is written to until it is full. Nobody dies, so every group has to stay healthy:
# a write that does not fit on both members has to fail with ENOSPC, and is not acknowledged with
# one copy. Every file that was acknowledged has to be there, also after one node is killed and has
# started again.
#
#   tests/cases/full-mirror-degrades.sh [--short | --help]
#
# --short uses less memory, and kills nobody. Needs python3. SAMITE names the binary.
# Ends with 0: right, 1: wrong, 2: cannot run here.

set -u
# shellcheck source=tests/cases/common.sh
source "$(dirname "$0")/common.sh"
begin "$@"
needs python3

cat >"$scratch/fill.py" <<'PYTHON'
# Writes files into a directory until many calls have failed; a line for each that was acknowledged.
import hashlib, os, sys
directory, log = sys.argv[1], open(sys.argv[2], "w")
os.makedirs(directory)
errors = number = 0
while errors < int(sys.argv[3]):
    path = f"{directory}/{number}"
    data = hashlib.sha256(str(number).encode()).digest() * ([100, 9000, 70000, 300000][number % 4] // 32)
    try:
        with open(path, "wb", buffering=0) as file:
            written = file.write(data)
        if written == len(data):
            print(number, written, file=log)
    except OSError:
        errors += 1
        try:
            os.unlink(path)
        except OSError:
            pass
    number += 1
print(f"{number} files tried, {errors} errors")
PYTHON
cat >"$scratch/check.py" <<'PYTHON'
# Reads what was acknowledged.
import hashlib, sys
directory, log = sys.argv[1:3]
gone = wrong = errors = files = 0
for line in open(log):
    number, length = map(int, line.split())
    files += 1
    try:
        data = open(f"{directory}/{number}", "rb").read()
        wrong += data != hashlib.sha256(str(number).encode()).digest() * (length // 32)
    except FileNotFoundError:
        gone += 1
    except OSError:
        errors += 1
print(f"{files} acknowledged files: {gone} gone, {wrong} wrong, {errors} errors")
sys.exit(1 if gone + wrong + errors or not files else 0)
PYTHON

is_healthy() { samite status | grep '^mirrored' | grep -q ' 0 degraded, 0 waiting'; }

# Whether all groups are healthy within 10 s; says what they are.
healthy_soon() {
  local tries
  for ((tries = 0; tries < 20; tries++)); do
    is_healthy && return
    sleep 0.5
  done
  samite status | grep '^mirrored'
  return 1
}

check_all() {
  local writer
  for writer in "${writers[@]}"; do
    "$binary" run -- timeout 100 "$python" "$scratch/check.py" "/samite/$writer" "$scratch/$writer" || wrong=1
  done
}

writers=(one two three)
memory=100M errors=300
if [ -n "$short" ]; then memory=64M errors=60; fi
wrong=0
start --local 3 --memory "$memory" --mirror 2
for writer in "${writers[@]}"; do
  in_background timeout 200 "$python" "$scratch/fill.py" "/samite/$writer" "$scratch/$writer" "$errors"
done
for worker in "${workers[@]}"; do wait "$worker" || wrong=1; done
healthy_soon || { echo 'full: groups are degraded though no node died' && wrong=1; }
check_all
if [ -z "$short" ]; then
  samite fault kill 2 >/dev/null || wrong=1
  sleep 3
  samite node restart 2 >/dev/null || wrong=1
  healthy_soon || { echo 'n2 killed and started again: groups stay degraded' && wrong=1; }
  check_all
fi
exit $wrong
