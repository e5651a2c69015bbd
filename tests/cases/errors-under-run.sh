#!/usr/bin/env bash
# What programs under `samite run` get for pointers that no program can have, for pathconf, and with
# very few descriptors has to be what they get on any file system; and who cuts an open file of theirs
# through /proc must not kill them.
#
#   tests/cases/errors-under-run.sh [--short | --help]
#
# Needs python3. SAMITE names the binary. Ends with 0: right, 1: wrong, 2: cannot run here.

set -u
# shellcheck source=tests/cases/common.sh
source "$(dirname "$0")/common.sh"
begin "$@"
needs python3

cat >"$scratch/calls.py" <<'PYTHON'
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
path = f"{sys.argv[1]}/f".encode()
fd = os.open(path, os.O_RDWR | os.O_CREAT)
os.write(fd, b"z" * 4096)
def tell(what, call):
    ctypes.set_errno(0)
    result = call()
    print(what, result, ctypes.get_errno(), flush=True)
def at(address):
    return ctypes.c_void_p(address)
for bad in (0, 2**64 - 4096):
    os.lseek(fd, 0, os.SEEK_SET)
    tell("read", lambda: libc.read(fd, at(bad), 10))
    tell("write", lambda: libc.write(fd, at(bad), 10))
    tell("pread", lambda: libc.pread(fd, at(bad), 10, 0))
    tell("fstat", lambda: libc.fstat(fd, at(bad)))
    tell("readv", lambda: libc.readv(fd, at(bad), 1))
    tell("writev", lambda: libc.writev(fd, at(bad), 1))
    tell("readlink", lambda: libc.readlink(path, at(bad), 10))
    tell("mkdir", lambda: libc.mkdir(at(bad), 0o777))
    tell("open", lambda: libc.open(at(bad), 0))
for bad in (16, 2**64 - 1):
    tell("chmod", lambda: libc.chmod(at(bad), 0))
    tell("utimensat", lambda: libc.utimensat(-100, path, at(bad), 0))
for number in range(20):
    tell(f"pathconf {number}", lambda: libc.pathconf(path, number))
    tell(f"pathconf {number} below a file", lambda: libc.pathconf(path + b"/x", number))
    tell(f"pathconf {number} of nothing", lambda: libc.pathconf(path + b"y", number))
    tell(f"fpathconf {number}", lambda: libc.fpathconf(fd, number))
PYTHON
cat >"$scratch/cut.sh" <<'BASH'
exec 5>>"$1/cut"
echo first >&5
sh -c ": >/proc/$$/fd/5" 2>/dev/null
echo second >&5
grep -c second "$1/cut"
BASH

wrong=0
# same WHAT: what the kernel's files and the store's answered.
same() {
  if diff "$scratch/right" "$scratch/got" >"$scratch/differ"; then
    echo "$1: as elsewhere"
  else
    echo "$1: < elsewhere, > under run"
    grep '^[<>]' "$scratch/differ" | head -n 12
    wrong=1
  fi
}

start --local 1 --memory 64M
mkdir "$scratch/plain"
"$python" "$scratch/calls.py" "$scratch/plain" >"$scratch/right"
timeout 60 "$binary" run -- "$python" "$scratch/calls.py" /samite >"$scratch/got" 2>&1
echo "ends with $?" >>"$scratch/got"
echo 'ends with 0' >>"$scratch/right"
same 'wild pointers and pathconf'

# Whether the file is cut is another matter.
timeout 60 "$binary" run -- bash "$scratch/cut.sh" /samite >"$scratch/got" 2>&1
echo "ends with $?" >>"$scratch/got"
printf '1\nends with 0\n' >"$scratch/right"
same 'cut through /proc'

(ulimit -n 12 && exec timeout 60 "$binary" run -- cat /samite/f >/dev/null 2>"$scratch/got")
grep -q 'Too many open files' "$scratch/got" || { echo "12 descriptors: $(tail -n 1 "$scratch/got")" && wrong=1; }
exit $wrong
