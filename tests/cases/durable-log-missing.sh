#!/usr/bin/env bash
# A durable store of two nodes is ended in order. Then the log of one node is removed; it is cut to
# half of what is used; the directory of a node is empty, as when its disk is not mounted; it is an
# older copy of itself, as after a backup was put back. Each time
# the next `samite up` has to refuse and to say what is wrong (docs/durability.md), and must not
# serve without the data.
#
#   tests/cases/durable-log-missing.sh [--short | --help]
#
# --short writes fewer files. Needs python3. SAMITE names the binary.
# Ends with 0: right, 1: wrong, 2: cannot run here.

set -u
# shellcheck source=tests/cases/common.sh
source "$(dirname "$0")/common.sh"
begin "$@"
needs python3
files=200
if [ -n "$short" ]; then files=50; fi
flash=$scratch/flash

up() { samite up --local 2 --memory 200M --durable "$flash" --wait 20 >"$scratch/up" 2>&1; }

# judge WHAT: starts the store over what is there, and puts back what was.
judge() {
  if ! up; then
    if grep -q '^samite: ' "$scratch/up"; then
      echo "$1: refused: $(grep -m1 '^samite: ' "$scratch/up" | cut -c 1-160)"
    else
      echo "$1: refused without a word"
      wrong=1
    fi
  elif "$binary" run -- bash -c "cd /samite && timeout 50 sha256sum -c --quiet '$scratch/sums'" >"$scratch/checked" 2>&1; then
    echo "$1: up, and everything is there"
  else
    echo "$1: up without a word, $(grep -c 'FAILED' "$scratch/checked") of $files files are gone or wrong"
    wrong=1
  fi
  samite down --force >/dev/null 2>&1
  rm -rf "$flash"
  cp -r "$scratch/whole" "$flash"
}

wrong=0
start --local 2 --memory 200M --durable "$flash" --wait 20
# shellcheck disable=SC2016
"$binary" run -- bash -c 'cd /samite
  for ((i = 1; i <= $0; i++)); do head -c $((i * 300)) /dev/zero | tr "\0" x >f$i; done
  sha256sum f*' "$files" >"$scratch/sums"
[ "$(wc -l <"$scratch/sums")" = "$files" ] || { echo 'the files cannot be written' && exit 1; }
samite down >/dev/null || { echo 'the store does not end' && exit 1; }
cp -r "$flash" "$scratch/whole"
judge 'nothing missing'
[ $wrong = 0 ] || exit 1

rm "$flash"/n0/shard-0/log-*
judge 'the log of n0 is missing'

logs=("$flash"/n0/shard-0/log-*)
used=$(python3 -c 'import sys; print(len(open(sys.argv[1], "rb").read().rstrip(b"\0")))' "${logs[0]}")
truncate -s $((used / 2)) "${logs[0]}"
judge 'the log of n0 is cut to half'

rm -rf "$flash/n1"
mkdir "$flash/n1"
judge 'the directory of n1 is empty'

# The same store as before, served once more: what was copied is older now.
cp -r "$flash/n1" "$scratch/older"
up || { echo 'the store does not come back' && exit 1; }
# shellcheck disable=SC2016
"$binary" run -- bash -c 'cd /samite && for f in f*; do date >>$f; done; sha256sum f*' >"$scratch/sums"
samite down >/dev/null || { echo 'the store does not end' && exit 1; }
rm -rf "$scratch/whole"
cp -r "$flash" "$scratch/whole"
rm -rf "$flash/n1"
cp -r "$scratch/older" "$flash/n1"
judge 'the directory of n1 is an older copy'
exit $wrong
