#!/usr/bin/env bash
# A program in a control group with a limit on memory writes far more than that to a store which runs
# outside the group. The memory is the nodes', so the program has to get through. When it is charged
# for pages of the store that it touches first, it is killed for want of memory.
#
#   tests/cases/cgroup-client-oom.sh [--short | --help]
#
# --short writes less. Needs root, a memory controller of control groups, version 1 or 2, and memory.
# SAMITE names the binary. Ends with 0: right, 1: wrong, 2: cannot run here.

set -u
# shellcheck source=tests/cases/common.sh
source "$(dirname "$0")/common.sh"
begin "$@"
[ "$(id -u)" = 0 ] || cannot root
memory=6144 written=2500 limit=100
if [ -n "$short" ]; then memory=700 written=450 limit=64; fi
available=$(awk '/^MemAvailable:/ { print int($2 / 1024) }' /proc/meminfo)
[ "$available" -gt $((memory + 500)) ] || cannot memory
undo_last() { leave_group; }
memory_group $((limit << 20))
mkdir "$group/inner" || cannot memory-controller

start --local 1 --memory "${memory}M"
# At once: a node puts its memory in place in the background, too.
sh -c 'echo $$ >"$1/inner/cgroup.procs" && shift && exec "$@"' sh "$group" \
  timeout 100 "$binary" run -- dd if=/dev/zero of=/samite/big bs=1M count=$written status=none
status=$?
echo "dd of $written MiB in a group of $limit MiB ends with $status"
length=$(samite stat --json /big | grep -o '"size": *[0-9]*' | grep -o '[0-9]*$')
echo "the file has $length bytes"
[ $status = 0 ] && [ "$length" = $((written << 20)) ]
