#!/usr/bin/env bash
# Lines are appended to files over tcp while frames are damaged and lost, and connections are reset at random and, all
# of them, every 100 ms: by `samite kv append`, by programs under `samite run`, and on a mount where there can be one;
# without mirrors and with them. Every line is there once, and nobody sees an error.
#
#   tests/cases/corrupt-appends.sh [--short | --help]
#
# LINES=N: how many by each way, 400 if not said; --short: 60. Without mirrors nothing is dropped, as what is lost without
# the end of its connection is asked for again after seconds. Needs python3. SAMITE names the binary.
# Ends with 0: right, 1: wrong, 2: cannot run here.

set -u
# shellcheck source=tests/cases/common.sh
source "$(dirname "$0")/common.sh"
begin "$@"
needs python3
lines=${LINES:-400}
if [ -n "$short" ]; then lines=${LINES:-60}; fi

undo() { if [ -n "${mounted:-}" ]; then samite umount "$scratch/mnt" >/dev/null 2>&1; fi; }

cat >"$scratch/append.py" <<'PYTHON'
# Appends lines, one write each, by an open of its own for every tenth.
import os, sys
path, count = sys.argv[1], int(sys.argv[2])
fd = -1
for line in range(count):
    if line % 10 == 0:
        if fd >= 0:
            os.close(fd)
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    text = b"%06d\n" % line
    if os.write(fd, text) != len(text):
        sys.exit(f"line {line}: a short write")
os.close(fd)
PYTHON
seq -f '%06.0f' 0 $((lines - 1)) >"$scratch/expected"

# faults MIRROR: resets for a few ms out of each 100, for a minute.
faults() {
  printf '%s\n' 'corrupt 5% * *' 'reset 1% * *'
  if [ "$1" -gt 1 ]; then echo 'drop 5% * *'; fi
  local at
  for ((at = 100; at < 60000; at += 100)); do echo "reset 100% * * ${at}ms $((at + 2))ms"; done
}

# same WHAT FILE
same() {
  if cmp -s "$scratch/expected" "$2"; then
    echo "  $1: $lines lines, each once"
  else
    echo "  $1: wrong: $(wc -l <"$2") lines of $lines, $(sort "$2" | uniq -d | wc -l) of them twice"
    wrong=1
  fi
}

# one MIRROR
one() {
  echo "mirror $1:"
  start --local 3 --mirror "$1" --memory 64M
  export SAMITE_TRANSPORT=tcp
  mounted=''
  if [ -e /dev/fuse ] && mkdir -p "$scratch/mnt" && samite mount "$scratch/mnt" >/dev/null 2>&1; then mounted=1; fi
  faults "$1" >"$scratch/table"
  samite fault load "$scratch/table" >/dev/null || wrong=1
  local line
  for ((line = 0; line < lines / 10; line++)); do
    samite kv append lines "$(sed -n $((line + 1))p "$scratch/expected") " >/dev/null || wrong=1
  done
  CALL_SECONDS=300 samite run -- "$python" "$scratch/append.py" /samite/by-run "$lines" || wrong=1
  if [ -n "$mounted" ]; then timeout 300 "$python" "$scratch/append.py" "$scratch/mnt/by-mount" "$lines" || wrong=1; fi
  samite fault clear >/dev/null || wrong=1
  samite kv get lines | tr -d '\n' | tr ' ' '\n' >"$scratch/by-kv"
  head -n $((lines / 10)) "$scratch/expected" | cmp -s - "$scratch/by-kv" || { echo '  kv: wrong' && wrong=1; }
  samite cat /by-run >"$scratch/by-run"
  same run "$scratch/by-run"
  if [ -n "$mounted" ]; then
    samite cat /by-mount >"$scratch/by-mount"
    same mount "$scratch/by-mount"
    samite umount "$scratch/mnt" >/dev/null || wrong=1
    mounted=''
  fi
  unset SAMITE_TRANSPORT
  samite down --force >/dev/null || wrong=1
}

wrong=0
one 1
one 2
exit $wrong
