#!/usr/bin/env bash
# A node is started with a soft limit of 512 descriptors, as batch systems set one; the hard limit is
# higher. One program locks more files than that, each of which takes a connection. It has to get
# them, and others have to be served meanwhile. Where the hard limit is as low, who comes too late has
# to be told so, the node must live, and serve again when there are descriptors.
#
#   tests/cases/node-descriptors.sh [--short | --help]
#
# --short locks fewer files. Needs python3. SAMITE names the binary.
# Ends with 0: right, 1: wrong, 2: cannot run here.

set -u
# shellcheck source=tests/cases/common.sh
source "$(dirname "$0")/common.sh"
begin "$@"
needs python3
count=3000
if [ -n "$short" ]; then count=700; fi
hard=$(ulimit -Hn)
[ "$hard" = unlimited ] || [ "$hard" -ge $((2 * count)) ] || cannot descriptors

cat >"$scratch/lock.py" <<'PYTHON'
# Locks so many files, says how many, and holds them until it is told to end.
import fcntl, os, resource, sys
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
held = []
try:
    for number in range(int(sys.argv[1])):
        file = open(f"/samite/l{number}", "w")
        fcntl.flock(file, fcntl.LOCK_EX)
        held.append(file)
    print("locked", len(held), flush=True)
except OSError as error:
    print("after", len(held), os.strerror(error.errno), flush=True)
sys.stdin.read()
PYTHON

# lock WORDS FILE: has a program lock the files, and waits until the file has these words. It holds them until $hold is closed.
lock() {
  rm -f "$scratch/said" "$scratch/hold"
  mkfifo "$scratch/hold"
  "$binary" run -- "$python" "$scratch/lock.py" $count <"$scratch/hold" >"$scratch/said" &
  workers+=($!)
  exec {hold}>"$scratch/hold"
  local tries
  for ((tries = 0; tries < 300; tries++)); do
    grep -q "$1" "$2" && break
    sleep 0.1
  done
}

unlock() {
  exec {hold}>&-
  wait "${workers[@]}" 2>/dev/null
  workers=()
}

served() { CALL_SECONDS=20 samite kv put a b >"$scratch/kv" 2>&1; }

wrong=0
(ulimit -Sn 512 && exec "$binary" up --local 1 --memory 128M >"$scratch/up" 2>&1) || { cat "$scratch/up" && exit 1; }
lock . "$scratch/said"
echo "soft limit of 512: the program: $(cat "$scratch/said")"
[ "$(cat "$scratch/said")" = "locked $count" ] || wrong=1
served || { echo "another one meanwhile: $(head -n 1 "$scratch/kv")" && wrong=1; }
unlock
samite down --force >/dev/null

(ulimit -n 256 && exec "$binary" up --local 1 --memory 128M >"$scratch/up" 2>&1) || { cat "$scratch/up" && exit 1; }
log=$SAMITE_RUNTIME_DIR/case/n0.log
lock 'refused a connection' "$log"
lines=$(grep -c 'refused a connection' "$log")
echo "hard limit of 256: the log of the node says $lines times that it refused connections"
((lines > 0 && lines <= 60)) || wrong=1
# The program connects again and again, too: who comes may wait behind it, and is not told each time before his time is over.
for ((tries = 0; tries < 10; tries++)); do
  samite kv put --timeout 2 a b >"$scratch/kv" 2>&1
  grep -q 'too many connections' "$scratch/kv" && break
done
echo "another one meanwhile: $(head -n 1 "$scratch/kv")"
grep -q 'too many connections' "$scratch/kv" || wrong=1
kill -KILL "${workers[@]}"
unlock
served || { echo "not served afterwards: $(head -n 1 "$scratch/kv")" && wrong=1; }
exit $wrong
