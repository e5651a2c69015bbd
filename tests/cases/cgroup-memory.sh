#!/usr/bin/env bash
# In a control group whose parent allows less memory than the machine has (a batch job, a container),
# `samite up` without --memory has to take no more than that leaves: the store is filled, and its
# nodes have to live. A --memory beyond the limit has to be refused, and the limit be named.
#
#   tests/cases/cgroup-memory.sh [--short | --help]
#
# --short has a smaller limit. Needs root and a memory controller of control groups, version 1 or 2.
# SAMITE names the binary. Ends with 0: right, 1: wrong, 2: cannot run here.

set -u
# shellcheck source=tests/cases/common.sh
source "$(dirname "$0")/common.sh"
begin "$@"
[ "$(id -u)" = 0 ] || cannot root
limit=$((512 << 20))
if [ -n "$short" ]; then limit=$((256 << 20)); fi
undo_last() { leave_group; }
memory_group $limit
mkdir "$group/inner" || cannot memory-controller

# In the group below the one with the limit.
inside() { sh -c 'echo $$ >"$1/inner/cgroup.procs" && shift && exec "$@"' sh "$group" timeout 60 "$@"; }

wrong=0
if inside "$binary" up --local 2 --memory 200M >"$scratch/up" 2>&1; then
  echo 'two nodes of 200 MiB: up, which is more than the limit'
  wrong=1
  samite down >/dev/null
elif grep -q 'memory.*limit_in_bytes\|memory.max' "$scratch/up"; then
  echo "two nodes of 200 MiB: refused: $(head -n 1 "$scratch/up" | cut -c 1-300)"
else
  echo "two nodes of 200 MiB: refused, the limit is not named: $(head -n 1 "$scratch/up")"
  wrong=1
fi

if ! inside "$binary" up --local 2 >"$scratch/up" 2>&1; then
  echo "without --memory: $(head -n 1 "$scratch/up")"
  exit 1
fi
echo "without --memory: $(head -n 1 "$scratch/up")"
inside "$binary" run -- dd if=/dev/zero of=/samite/fill bs=1M count=$((limit >> 19)) 2>&1 | tail -n 1
samite status >"$scratch/status" 2>&1
case $? in
  3 | 6)
    echo "filled: nodes have died: $(head -n 1 "$scratch/status")"
    exit 1
    ;;
esac
echo "filled: $(head -n 1 "$scratch/status")"
samite rm /fill && [ "$(samite kv put a b >/dev/null && samite kv get a)" = b ] || wrong=1
exit $wrong
