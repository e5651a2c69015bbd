#!/usr/bin/env bash
# Two programs under `samite run` and two on a mount take turns with flock on one file of a mirrored
# store. A node is killed and started again, or stopped for 5 s, in turn. All four have to go on
# within 30 s (SEMANTICS.md: a-nodes-death-is-a-pause, locks-outlive-nodes).
#
#   tests/cases/lock-waiter-after-kill.sh [--short | --help]
#
# ROUNDS=N: how many nodes are killed or stopped, 8 if not said; --short: 3, all of them killed.
# MOUNTS=0 leaves the mount out. Needs python3 and, with the mount, /dev/fuse. SAMITE names the binary.
# Ends with 0: right, 1: wrong, 2: cannot run here.

set -u
# shellcheck source=tests/cases/common.sh
source "$(dirname "$0")/common.sh"
begin "$@"
needs python3
if [ "${MOUNTS:-1}" = 1 ] && ! [ -e /dev/fuse ]; then cannot /dev/fuse; fi
rounds=${ROUNDS:-8}
if [ -n "$short" ]; then rounds=${ROUNDS:-3}; fi

undo() {
  if [ -d "$scratch/mount" ]; then samite umount --lazy "$scratch/mount" >/dev/null 2>&1; fi
}

cat >"$scratch/lock.py" <<'PYTHON'
# Takes a lock again and again; how often, and what went wrong, is in plain files.
import fcntl, os, sys, time
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
count = 0
while True:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        count += 1
        time.sleep(0.001)
        fcntl.flock(fd, fcntl.LOCK_UN)
    except OSError as error:
        open(sys.argv[2] + ".errors", "a").write(f"{error}\n")
    with open(sys.argv[2] + ".new", "w") as file:
        file.write(str(count))
    os.rename(sys.argv[2] + ".new", sys.argv[2])
    time.sleep(0.003)
PYTHON

count() { cat "$scratch/$1" 2>/dev/null || echo 0; }

# all_go_on SECONDS: whether each of $all takes the lock again; sets $left to those that do not, and $waited.
all_go_on() {
  local -A before
  local one
  for one in "${all[@]}"; do before[$one]=$(count "$one"); done
  for ((waited = 1; waited <= $1; waited++)); do
    sleep 1
    left=()
    for one in "${all[@]}"; do
      if [ "$(count "$one")" = "${before[$one]}" ]; then left+=("$one"); fi
    done
    if ((${#left[@]} == 0)); then return; fi
  done
  return 1
}

# disturb NODE kill|pause: the node is back, or on its way, when it is done.
disturb() {
  local tries
  if [ "$2" = pause ]; then
    samite fault pause "$1" --for 5s >/dev/null
    sleep 6
    return
  fi
  samite fault kill "$1" >/dev/null || return 1
  sleep 2
  for ((tries = 0; tries < 5; tries++)); do
    samite node restart "$1" >/dev/null 2>&1 && return
    sleep 0.5
  done
  return 1
}

start --local 3 --memory 200M --mirror 2
all=(run1 run2)
for one in "${all[@]}"; do in_background "$python" "$scratch/lock.py" /samite/lock "$scratch/$one"; done
if [ "${MOUNTS:-1}" = 1 ]; then
  mkdir "$scratch/mount"
  samite mount "$scratch/mount" || exit 1
  for one in mount1 mount2; do
    "$python" "$scratch/lock.py" "$scratch/mount/lock" "$scratch/$one" &
    workers+=($!)
    all+=("$one")
  done
fi
all_go_on 20 || { echo "no lock at all for ${left[*]}" && exit 1; }

for ((round = 1; round <= rounds; round++)); do
  node=$(((round - 1) % 3)) how=kill
  if [ -z "$short" ] && ((round % 2 == 0)); then how=pause; fi
  disturb "$node" "$how" || { echo "round $round: n$node does not come back" && exit 1; }
  sleep 3
  if ! all_go_on 30; then
    echo "round $round, $how of n$node: after 30 s there is no lock for ${left[*]}"
    head -q -n 3 "$scratch"/*.errors 2>/dev/null
    exit 1
  fi
  echo "round $round, $how of n$node: all go on within $waited s"
done
