#!/usr/bin/env bash
# Programs under `samite run` that append records (O_APPEND, one write each) are killed at any
# moment; then, in a durable store, all nodes are. Every record in the file has to be whole
# (SEMANTICS.md: append-is-whole); zeros or torn records are wrong.
#
#   tests/cases/killed-append-zeros.sh [--short | --help]
#
# ROUNDS=N: how often three programs are killed for each length of records, 40 if not said; --short:
# 10, and two lengths less. All nodes are killed a fifth as often. Needs python3. SAMITE names the binary.
# Ends with 0: right, 1: wrong, 2: cannot run here.

set -u
# shellcheck source=tests/cases/common.sh
source "$(dirname "$0")/common.sh"
begin "$@"
needs python3
rounds=${ROUNDS:-40} lengths=(64 4096 16384 65536)
if [ -n "$short" ]; then rounds=${ROUNDS:-10} lengths=(64 16384); fi

cat >"$scratch/append.py" <<'PYTHON'
# Appends until it is killed, or until it has written a fair part of what the store holds.
import os, signal, sys
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
record = (b"%08d" % os.getpid()) * (int(sys.argv[2]) // 8 - 1) + b"the end\n"
open(sys.argv[3], "w").close()
for _ in range((30 << 20) // len(record)):
    os.write(fd, record)
signal.pause()
PYTHON
cat >"$scratch/check.py" <<'PYTHON'
import sys
length, file = int(sys.argv[2]), open(sys.argv[1], "rb")
records = zeros = torn = 0
places = []
while record := file.read(length):
    records += 1
    is_whole = len(record) == length and record == record[:8] * (length // 8 - 1) + b"the end\n"
    if not is_whole:
        if record.strip(b"\0"):
            torn += 1
        else:
            zeros += 1
        places.append(file.tell() - len(record))
print(f"{length} bytes each: {records} records, {zeros} of zeros, {torn} torn, at {places[:5]}")
sys.exit(1 if zeros + torn or not records else 0)
PYTHON

# append LENGTH ROUND: three programs begin, and are let run for up to a third of a second.
append() {
  local worker tries
  workers=()
  for worker in 1 2 3; do
    in_background "$python" "$scratch/append.py" "/samite/$1-$2" "$1" "$scratch/begun-$1-$2-$worker"
  done
  for ((tries = 0; tries < 200; tries++)); do
    [ "$(compgen -G "$scratch/begun-$1-$2-*" | wc -l)" = 3 ] && break
    sleep 0.02
  done
  sleep "0.$(printf %02d $((RANDOM % 30)))"
}

kill_workers() {
  kill -KILL "${workers[@]}" || wrong=1
  wait "${workers[@]}" 2>/dev/null
  workers=()
}

# check LENGTH ROUND
check() {
  "$binary" run -- timeout 100 "$python" "$scratch/check.py" "/samite/$1-$2" "$1" || wrong=1
  samite rm "/$1-$2" || wrong=1
}

start --local 2 --memory 700M
wrong=0
for length in "${lengths[@]}"; do
  for ((round = 1; round <= rounds; round++)); do
    append "$length" "$round"
    kill_workers
    check "$length" "$round"
  done
done
samite down --force >/dev/null || wrong=1

echo 'durable, all nodes killed:'
up=(--local 2 --memory 700M --durable "$scratch/flash")
start "${up[@]}"
for ((round = 1; round <= rounds / 5; round++)); do
  length=${lengths[round % ${#lengths[@]}]}
  append "$length" "power-$round"
  mapfile -t nodes < <(samite status --json | grep -o '"pid":[0-9]*' | cut -d: -f2 | sort -u)
  [ ${#nodes[@]} = 2 ] || { echo 'the nodes cannot be found' && exit 1; }
  kill -KILL "${nodes[@]}" || wrong=1
  kill_workers
  samite down --force >/dev/null 2>&1
  start "${up[@]}"
  check "$length" "power-$round"
done
exit $wrong
