#!/usr/bin/env bash
# Who is not root and changes a set-user-id or set-group-id file takes these bits from it, also when
# the file was open before it got them. And chmod of a directory by its owner, who is not in its
# group, leaves out the set-group-id bit. Under `samite run` that has to be as on tmpfs.
#
#   tests/cases/setid-kept-under-run.sh [--short | --help]
#
# Needs root, setpriv and python3. SAMITE names the binary.
# Ends with 0: right, 1: wrong, 2: cannot run here.

set -u
# shellcheck source=tests/cases/common.sh
source "$(dirname "$0")/common.sh"
begin "$@"
needs python3 setpriv mount umount
[ "$(id -u)" = 0 ] || cannot root
user=65534

undo_last() {
  if mountpoint -q "$scratch/tmpfs" 2>/dev/null; then umount "$scratch/tmpfs"; fi
}

chmod 711 "$scratch"
# A binary that only root can reach is of no use to the user.
cp "$binary" "$scratch/samite"
cp "$(dirname "$binary")/libsamite_preload.so" "$scratch/"
chmod 755 "$scratch/samite" "$scratch/libsamite_preload.so"
binary=$scratch/samite
mkdir -m 700 "$scratch/user"
chown $user:$user "$scratch/user"
as_user=(setpriv "--reuid=$user" "--regid=$user" --clear-groups env "SAMITE_RUNTIME_DIR=$scratch/user")
undo() { "${as_user[@]}" timeout 60 "$binary" down --force >/dev/null 2>&1; }
# Nor is an interpreter in root's home.
for python in /usr/bin/python3 "$python" ''; do
  [ -n "$python" ] || cannot python3
  "${as_user[@]}" "$python" -c '' 2>/dev/null && break
done
mkdir "$scratch/tmpfs"
mount -t tmpfs -o mode=1777 none "$scratch/tmpfs" || cannot tmpfs

cat >"$scratch/files.py" <<'PYTHON'
import os, sys
root, number = sys.argv[1], 0
def try_out(what, change):
    global number
    number += 1
    path = f"{root}/f{number}"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.write(fd, b"z" * 20000)
    os.chmod(path, 0o6777)
    change(path, fd)
    print(f"{what}: {os.fstat(fd).st_mode & 0o7777:o}")
try_out("write", lambda path, fd: os.write(fd, b"x"))
try_out("pwrite of 100 KB", lambda path, fd: os.pwrite(fd, b"y" * 100000, 0))
try_out("ftruncate", lambda path, fd: os.ftruncate(fd, 0))
try_out("truncate", lambda path, fd: os.truncate(path, 5))
try_out("O_TRUNC", lambda path, fd: os.open(path, os.O_WRONLY | os.O_TRUNC))
try_out("fallocate", lambda path, fd: os.posix_fallocate(fd, 0, 200000))
try_out("append", lambda path, fd: os.write(os.open(path, os.O_WRONLY | os.O_APPEND), b"a"))
try_out("copy_file_range", lambda path, fd: os.copy_file_range(os.open(path, os.O_RDONLY), fd, 100, 0, 300))
# Another process sets them, and one that inherits the descriptor writes.
path = f"{root}/inherited"
fd = os.open(path, os.O_RDWR | os.O_CREAT)
os.write(fd, b"z" * 20000)
os.system(f"chmod 6777 {path}")
os.dup2(fd, 7)
os.system("echo x >&7")
print(f"another process: {os.stat(path).st_mode & 0o7777:o}")
os.system(f"chmod 6777 {path}")
os.write(fd, b"x")
print(f"and this one: {os.stat(path).st_mode & 0o7777:o}")
PYTHON
cat >"$scratch/directory.py" <<'PYTHON'
import os, sys
path = f"{sys.argv[1]}/d"
os.mkdir(path)
os.chown(path, 65534, 12345)
os.setgroups([65534])
os.setegid(65534)
os.seteuid(65534)
os.chmod(path, 0o3777)
os.seteuid(0)
print(f"directory: {os.stat(path).st_mode & 0o7777:o}")
PYTHON
chmod 644 "$scratch"/*.py

wrong=0
# same WHAT: what tmpfs and the store answered.
same() {
  if diff "$scratch/right" "$scratch/got" >"$scratch/differ"; then
    echo "$1: as on tmpfs"
  else
    echo "$1: < tmpfs, > under run"
    grep '^[<>]' "$scratch/differ"
    wrong=1
  fi
}

"${as_user[@]}" timeout 60 "$binary" up --local 1 --memory 100M >"$scratch/up" || exit 1
"${as_user[@]}" "$python" "$scratch/files.py" "$scratch/tmpfs" >"$scratch/right"
"${as_user[@]}" timeout 60 "$binary" run -- "$python" "$scratch/files.py" /samite >"$scratch/got"
same 'files of a user'

start --local 1 --memory 100M
"$python" "$scratch/directory.py" "$scratch/tmpfs" >"$scratch/right"
timeout 60 "$binary" run -- "$python" "$scratch/directory.py" /samite >"$scratch/got"
same 'a directory'
exit $wrong
