#!/usr/bin/env bash
# /dev/shm is small (64 MiB is what containers get), full, read-only or not there at all. A program
# under `samite run` that maps a larger file of the store, privately or shared, reads it and writes it,
# or gets an error from mmap; it is not killed by SIGBUS. Where there is room, processes share their
# mappings at once.
#
#   tests/cases/small-shm.sh [--short | --help]
#
# --short maps less. Needs root, unshare and python3. SAMITE names the binary.
# Ends with 0: right, 1: wrong, 2: cannot run here.

set -u
# shellcheck source=tests/cases/common.sh
source "$(dirname "$0")/common.sh"
begin "$@"
needs python3 unshare mount
[ "$(id -u)" = 0 ] || cannot root
unshare -m true 2>/dev/null || cannot namespaces
room=64 length=100
if [ -n "$short" ]; then room=4 length=8; fi

cat >"$scratch/private.py" <<'PYTHON'
import mmap, sys
with open(sys.argv[1], "rb") as file:
    mapped = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
    print(mapped[-1:])
PYTHON
cat >"$scratch/shared.py" <<'PYTHON'
import mmap, sys
file = open(sys.argv[1], "r+b")
mapped = mmap.mmap(file.fileno(), 0)
print(all(mapped[at] == 120 for at in range(0, len(mapped), 4096)))
mapped[len(mapped) - 1:] = b"z"
mapped.close()
file.seek(-1, 2)
print(file.read())
PYTHON
cat >"$scratch/hole.py" <<'PYTHON'
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT | os.O_TRUNC)
length = int(sys.argv[2]) << 20
os.ftruncate(fd, length)
try:
    mapped = mmap.mmap(fd, length)
except OSError as error:
    print("mmap:", error)
    sys.exit(0)
for at in range(0, length, 4096):
    mapped[at:at + 4] = b"abcd"
mapped.flush()
mapped.close()
print(os.pread(fd, length, 0).count(b"abcd") == length // 4096)
PYTHON
cat >"$scratch/together.py" <<'PYTHON'
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT | os.O_TRUNC)
os.ftruncate(fd, 1 << 20)
mapped = mmap.mmap(fd, 1 << 20)
def other(what):
    return f"import mmap, os; fd = os.open('{sys.argv[1]}', os.O_RDWR); m = mmap.mmap(fd, 1 << 20); {what}; os._exit(0)"
mapped[5:6] = b"a"
os.system(f"""{sys.executable} -c "{other("m[6:7] = m[5:6]")}" """)
print(mapped[6:7])
PYTHON

# expect WHAT EXPECTED COMMAND…
expect() {
  local what=$1 expected=$2 said
  shift 2
  said=$(timeout 60 "$binary" run -- "$python" "$@" 2>&1 | tail -n 2 | tr '\n' ' '; echo "${PIPESTATUS[0]}")
  if [ "$said" = "$expected 0" ]; then
    echo "$what: right"
  else
    echo "$what: $said"
    wrong=1
  fi
}

# mapped HOW: maps with /dev/shm as it is.
mapped() {
  expect "$1: mapped privately" "b'x'" "$scratch/private.py" /samite/big
  expect "$1: mapped" "True b'z'" "$scratch/shared.py" /samite/big
  printf x | dd of="$scratch/x" status=none
  timeout 60 "$binary" run -- dd if="$scratch/x" of=/samite/big bs=1 seek=$(((length << 20) - 1)) conv=notrunc status=none
  expect "$1: a hole mapped and written" True "$scratch/hole.py" /samite/hole "$length"
}

start --local 1 --memory 512M
# shellcheck disable=SC2016
timeout 60 "$binary" run -- bash -c 'head -c "$0" /dev/zero | tr "\0" x >/samite/big' $((length << 20))
export -f expect mapped
export binary python scratch length room
# shellcheck disable=SC2016
unshare -m bash -u -c '
  wrong=0
  mount -t tmpfs -o "size=${room}m" none /dev/shm || exit 2
  expect "two processes" "$1" "$scratch/together.py" /samite/together
  mapped small
  left=$(ls -A /dev/shm/samite-* 2>/dev/null)
  [ -z "$left" ] || { echo "left behind: $left"; wrong=1; }
  mount -o remount,ro /dev/shm && mapped read-only
  umount /dev/shm && mount -t tmpfs -o size=1m none /dev/shm
  dd if=/dev/zero of=/dev/shm/full bs=4k status=none 2>/dev/null
  mapped full
  exit $wrong' bash "b'a'"
