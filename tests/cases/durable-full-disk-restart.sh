#!/usr/bin/env bash
# A durable store on a small file system is filled until the disk is full; all nodes are killed. The
# next `samite up` has to bring back what was acknowledged, at least for reading, as the store served
# it before.
#
#   tests/cases/durable-full-disk-restart.sh [--short | --help]
#
# --short takes a smaller disk. Needs root, a loop device, mkfs.ext4 and python3. SAMITE names the
# binary. Ends with 0: right, 1: wrong, 2: cannot run here.

set -u
# shellcheck source=tests/cases/common.sh
source "$(dirname "$0")/common.sh"
begin "$@"
needs python3 mkfs.ext4 mount umount
[ "$(id -u)" = 0 ] || cannot root
disk=400M memory=400M length=400000 wait=30
if [ -n "$short" ]; then disk=200M memory=200M wait=15; fi

undo_last() {
  if mountpoint -q "$scratch/disk" 2>/dev/null; then umount "$scratch/disk"; fi
}

cat >"$scratch/fill.py" <<'PYTHON'
# Writes files until 20 calls have failed; says which were acknowledged.
import os, sys
data = b"x" * int(sys.argv[1])
errors = number = 0
while errors < 20:
    try:
        fd = os.open(f"/samite/w{number}", os.O_WRONLY | os.O_CREAT)
        written = os.write(fd, data)
        os.close(fd)
        if written == len(data):
            print(number)
    except OSError:
        errors += 1
    number += 1
PYTHON

truncate -s "$disk" "$scratch/image"
mkfs.ext4 -q "$scratch/image" || cannot ext4
mkdir "$scratch/disk"
mount -o loop "$scratch/image" "$scratch/disk" || cannot loop-device
store=(--local 2 --memory "$memory" --durable "$scratch/disk/store" --wait "$wait")
start "${store[@]}"
"$binary" run -- timeout 200 "$python" "$scratch/fill.py" "$length" >"$scratch/acknowledged"
files=$(wc -l <"$scratch/acknowledged")
[ "$files" -gt 0 ] || { echo 'no file was acknowledged' && exit 1; }
echo "$files files acknowledged, $(df --output=avail -m "$scratch/disk" | tail -n 1 | tr -d ' ') MB free"
[ "$(samite cat /w0 | wc -c)" = "$length" ] || { echo 'a file cannot be read on a full disk' && exit 1; }

mapfile -t nodes < <(samite status --json | grep -o '"pid":[0-9]*' | cut -d: -f2 | sort -u)
kill -KILL "${nodes[@]}" || exit 1
sleep 1
if ! samite up "${store[@]}" >"$scratch/up" 2>&1; then
  echo "the store does not start: $(grep -m1 '^samite' "$scratch/up" | cut -c 1-200)"
  exit 1
fi
whole=0
while read -r number; do
  if [ "$(samite cat "/w$number" | wc -c)" = "$length" ]; then whole=$((whole + 1)); fi
done <"$scratch/acknowledged"
echo "started again: $whole of $files files are whole"
[ "$whole" = "$files" ]
