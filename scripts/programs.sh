# The programs of test-programs.sh: each function runs in an empty directory of the store ($store, also the working
# directory), may use the plain directory $plain, and fails when a result is wrong. Exit code 77: not on this machine; the last line begins with what is not.
# They run under `set -e`, which does not see a failure in `a && b` unless b is what fails: one command stands in a line, or `|| fail` behind them.
# shellcheck shell=bash disable=SC2154

fail() {
  echo "wrong: $*"
  exit 1
}

# same WHAT EXPECTED FOUND
same() { [ "$2" = "$3" ] || fail "$1: expected '$2', found '$3'"; }

needs() {
  local program
  for program in "$@"; do
    if ! command -v "$program" >/dev/null; then
      echo "$program is not on this machine"
      exit 77
    fi
  done
}

# leaves_out PROGRAM WHAT: a part of it is not tried, as WHAT is not on this machine.
leaves_out() {
  echo "skipped a part of $1: $2 is not on this machine"
  if [ -n "${SAMITE_SKIPS:-}" ]; then printf 'part\tprograms::%s\t%s\n' "$1" "$2" >>"$SAMITE_SKIPS"; fi
}

# The interpreter itself, whatever script is in front of it.
python() { "${PYTHON:=$(python3 -c 'import sys; print(sys.executable)')}" "$@"; }

# manifest DIR: kind, mode, links, size, time and target of everything below, in order; then the sums of the files.
manifest() {
  (
    cd "$1"
    find . -mindepth 1 \( -type d -printf '%y %m %P\n' -o -type l -printf '%y %P -> %l\n' -o -printf '%y %m %n %s %T@ %P\n' \) | sort
    find . -type f -print0 | sort -z | xargs -0 -r sha256sum
  )
}

# tree DIR FILES: files of many lengths and modes in nested directories, with symbolic and hard links, old times and odd names.
tree() {
  python - "$1" "$2" <<'PYTHON'
import os, random, sys
root, count = sys.argv[1], int(sys.argv[2])
rng = random.Random(7)
dirs = [root]
os.makedirs(root)
for i in range(count // 50):
    d = os.path.join(rng.choice(dirs), f"dir {i}")
    os.mkdir(d)
    dirs.append(d)
files = []
for i in range(count):
    path = os.path.join(rng.choice(dirs), rng.choice(["plain", "with space", "n\u00e4me", "-dash", "new\nline"]) + f".{i}")
    kind = rng.random()
    if kind < 0.05:
        os.symlink(rng.choice(["nowhere", "../up", "/etc/hosts", "plain.1"]), path)
    elif kind < 0.10 and files:
        os.link(rng.choice(files), path)
    else:
        length = rng.choice([0, 1, 100, 4096, 8191, 8192, 8193, 20000]) if i % 400 else 1500000
        with open(path, "wb") as f:
            f.write(rng.randbytes(length))
        os.chmod(path, rng.choice([0o644, 0o600, 0o755, 0o400, 0o4755]))
        t = rng.randrange(10**9, 16 * 10**8) * 10**9 + rng.randrange(10**9)
        os.utime(path, ns=(t, t))
        files.append(path)
PYTHON
}

files_of_tree() { if [ -n "$SHORT" ]; then echo 1000; else echo 10000; fi; }

program_git() {
  needs git
  export HOME=$plain GIT_CONFIG_NOSYSTEM=1
  git config --global user.name Tester
  git config --global user.email tester@example.org
  git config --global init.defaultBranch main
  mkdir repo
  cd repo
  git init -q
  local i
  for i in {1..60}; do
    mkdir -p "d$((i % 7))"
    seq "$i" $((i * 20)) >"d$((i % 7))/f$i"
  done
  git add .
  git commit -qm first
  git checkout -qb side
  echo side >side
  git add side
  git commit -qm side
  git checkout -q main
  echo more >>d1/f1
  git commit -qam more
  git merge -q --no-edit side
  git mv d1/f1 moved
  git rm -q d2/f2
  git commit -qm moved
  git tag -a v1 -m v1
  echo dirty >>moved
  git stash -q
  git stash pop -q
  git checkout -q moved
  git gc -q --aggressive
  git fsck --strict --full
  cd ..
  git clone -q repo copy
  git clone -q --bare repo bare.git
  git clone -q "file://$PWD/bare.git" wire
  git -C copy fsck --strict
  git -C wire fsck --strict
  diff -r --exclude=.git repo copy
  diff -r --exclude=.git repo wire
  same 'commits' 5 "$(git -C wire rev-list --count main)"
  cd wire
  echo pushed >pushed
  git add pushed
  git commit -qm pushed
  git push -q
  git -C ../bare.git fsck --strict
  same 'status' '' "$(git status --porcelain)"
  git -C ../repo pull -q ../bare.git main
  cmp ../repo/pushed pushed
}

# sqlite MODE: 4 processes add rows to one database, and transfer between accounts.
sqlite() {
  needs sqlite3
  local rows=${SHORT:+40} worker row
  rows=${rows:-200}
  same 'journal mode' "$1" "$(sqlite3 db "PRAGMA journal_mode=$1;")"
  sqlite3 db 'CREATE TABLE t(worker INT, n INT, UNIQUE(worker, n)); CREATE TABLE a(id INTEGER PRIMARY KEY, v INT);
    INSERT INTO a VALUES (1, 1000), (2, 1000);'
  local workers=()
  for worker in 1 2 3 4; do
    for ((row = 0; row < rows; row++)); do
      echo "BEGIN IMMEDIATE; INSERT INTO t VALUES ($worker, $row); UPDATE a SET v = v - 1 WHERE id = 1; UPDATE a SET v = v + 1 WHERE id = 2; COMMIT;"
    done | sqlite3 -bail -cmd '.timeout 60000' db &
    workers+=($!)
  done
  for worker in "${workers[@]}"; do wait "$worker" || fail "a sqlite3 ended with $?"; done
  same 'integrity' ok "$(sqlite3 db 'PRAGMA integrity_check;')"
  same 'rows' $((4 * rows)) "$(sqlite3 db 'SELECT count(*) FROM t;')"
  same 'accounts' "$((1000 - 4 * rows))|$((1000 + 4 * rows))" "$(sqlite3 -separator '|' db 'SELECT (SELECT v FROM a WHERE id=1), (SELECT v FROM a WHERE id=2);')"
  sqlite3 db 'BEGIN; DELETE FROM t; ROLLBACK; VACUUM;'
  same 'rows after a rollback' $((4 * rows)) "$(sqlite3 db 'SELECT count(*) FROM t;')"
  sqlite3 db .dump >"$plain/dump"
  sqlite3 copy.db <"$plain/dump"
  same 'integrity of the copy' ok "$(sqlite3 copy.db 'PRAGMA integrity_check;')"
}

program_sqlite_rollback() { sqlite delete; }
program_sqlite_wal() { sqlite wal; }

program_gcc_make() {
  needs gcc make ar
  local i
  mkdir -p src lib test
  for i in {1..8}; do
    printf '#include "all.h"\nint part%d(int x) { return x + %d; }\n' "$i" "$i" >"lib/part$i.c"
    echo "int part$i(int x);"
  done >lib/all.h
  cat >src/main.c <<'C'
#include <stdio.h>
#include "../lib/all.h"
int main(void) { printf("%d\n", part1(part2(part3(part4(part5(part6(part7(part8(0))))))))); return 0; }
C
  cat >test/test.c <<'C'
#include <assert.h>
#include "../lib/all.h"
int main(void) { assert(part3(4) == 7); return 0; }
C
  cat >Makefile <<'MAKE'
CFLAGS = -O1 -Wall -Werror -fPIC -g
PARTS = $(patsubst %.c,%.o,$(wildcard lib/*.c))
all: main shared
lib/%.o: lib/%.c lib/all.h
	$(CC) $(CFLAGS) -c -o $@ $<
libparts.a: $(PARTS)
	$(AR) rcs $@ $^
libparts.so: $(PARTS)
	$(CC) -shared -o $@ $^
main: src/main.c libparts.a
	$(CC) $(CFLAGS) -o $@ $^
shared: src/main.c libparts.so
	$(CC) $(CFLAGS) -o $@ src/main.c -L. -lparts -Wl,-rpath,'$$ORIGIN'
check: test/test.c libparts.a
	$(CC) $(CFLAGS) -o test/test $^ && test/test
clean:
	rm -f lib/*.o *.a *.so main shared test/test
.PHONY: all check clean
MAKE
  make -j4
  make check
  same 'output' 36 "$(./main)"
  # The loader of a program is in nobody's hands but the kernel's: it sees a mount only.
  [ "$ACCESS" = run ] || same 'output with a shared library' 36 "$(LD_LIBRARY_PATH=$PWD ./shared)"
  make | grep 'Nothing to be done' >/dev/null || fail 'make would build again'
  sleep 0.02 && touch lib/part3.c && make | grep 'part3.o' >/dev/null || fail 'make did not see a touched file'
  make -n | grep 'Nothing to be done' >/dev/null || fail 'make is never done'
  make clean
  same 'objects after clean' '' "$(find . -name '*.o')"
}

program_cargo_build() {
  needs cargo
  cargo init -q --name tiny --vcs none .
  echo 'pub fn twice(x: u32) -> u32 { 2 * x } #[cfg(test)] mod tests { #[test] fn two() { assert_eq!(super::twice(1), 2); } }' >src/lib.rs
  echo 'fn main() { println!("{}", tiny::twice(21)); }' >src/main.rs
  unset CARGO_TARGET_DIR
  cargo build -q --offline
  same 'output' 42 "$(target/debug/tiny)"
  cargo test -q --offline
  echo 'fn main() { println!("{}", tiny::twice(4)); }' >src/main.rs
  same 'output after a change' 8 "$(cargo run -q --offline)"
}

program_tar() {
  needs tar
  tree "$plain/tree" "$(files_of_tree)"
  manifest "$plain/tree" >"$plain/expected"
  tar -C "$plain" --format=pax -cf - tree | tar -xpf -
  manifest tree >"$plain/found"
  diff "$plain/expected" "$plain/found"
  local how=(--sort=name --format=pax --pax-option=delete=atime,delete=ctime --owner=0 --group=0 --numeric-owner -cf)
  tar "${how[@]}" archive.tar tree
  mkdir "$plain/out"
  tar -xpf archive.tar -C "$plain/out"
  manifest "$plain/out/tree" >"$plain/found"
  diff "$plain/expected" "$plain/found"
  tar -czf archive.tgz tree
  tar -tzf archive.tgz | wc -l >"$plain/count"
  same 'entries' "$(find "$plain/tree" -printf x | wc -c)" "$(cat "$plain/count")"
  tar -df archive.tar
  rm -r tree
  [ ! -e tree ]
}

program_rsync() {
  needs rsync
  tree "$plain/tree" "$(files_of_tree)"
  rsync -aH "$plain/tree/" tree/
  manifest "$plain/tree" >"$plain/expected"
  manifest tree >"$plain/found"
  diff "$plain/expected" "$plain/found"
  same 'what rsync would do again' '' "$(rsync -aHin --checksum "$plain/tree/" tree/)"
  find "$plain/tree" -name 'plain.*' -delete
  echo new >"$plain/tree/new file"
  rsync -aH --delete "$plain/tree/" tree/
  diff -r --no-dereference "$plain/tree" tree
  rsync -aH --inplace tree/ "$plain/back/"
  diff -r --no-dereference "$plain/tree" "$plain/back"
  find tree -depth -delete
  [ ! -e tree ]
}

program_editors() {
  needs vim python3
  printf 'one\ntwo\nthree\n' >text
  chmod 640 text
  vim -es -u NONE -c '%s/two/2/' -c 'normal Gofour' -c 'wq' text </dev/null
  same 'text after vim' $'one\n2\nthree\nfour' "$(cat text)"
  same 'mode after vim' 640 "$(stat -c %a text)"
  vim -es -u NONE -c 'set backup backupcopy=no backupskip=' -c 'g/three/d' -c 'x' text </dev/null
  same 'text after vim with a backup' $'one\n2\nfour' "$(cat text)"
  same 'backup' $'one\n2\nthree\nfour' "$(cat text~)"
  if ! command -v nano >/dev/null; then
    leaves_out editors nano
    return
  fi
  TERM=xterm python - <<'PYTHON'
# nano wants a terminal: types a line, saves, leaves.
import os, pty, select, time
pid, fd = pty.fork()
if pid == 0:
    os.execvp("nano", ["nano", "--ignorercfiles", "text"])
def drain(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if select.select([fd], [], [], 0.05)[0]:
            try:
                if not os.read(fd, 65536): return
            except OSError: return
drain(1.5)
for keys in (b"zero\r", b"\x0f", b"\r", b"\x18"):
    os.write(fd, keys); drain(0.7)
assert os.waitpid(pid, 0)[1] == 0
PYTHON
  same 'text after nano' $'zero\none\n2\nfour' "$(cat text)"
}

program_bash() {
  cat >here <<HERE
shell $((1 + 1))
HERE
  same 'here-document' 'shell 2' "$(cat here)"
  local i line
  for i in {1..200}; do echo "line $i" >>lines; done
  same 'lines' 200 "$(wc -l <lines)"
  i=0
  while read -r line; do
    i=$((i + 1))
    same 'line' "line $i" "$line"
  done <lines
  for i in {1..100}; do
    echo "$i" >one
    same 'file' "$i" "$(<one)"
  done
  exec 7>seven
  echo a >&7
  echo b >&7
  exec 7>&-
  same 'descriptor' $'a\nb' "$(cat seven)"
  exec 8<>seven
  read -r line <&8
  echo B >&8
  exec 8>&-
  same 'read and write' $'a\nB' "$(cat seven)"
  {
    echo out
    echo err >&2
  } >both 2>&1
  same 'both' $'out\nerr' "$(cat both)"
  (set -o noclobber && ! echo x >both) 2>/dev/null || fail 'noclobber'
  (
    umask 027
    : >masked
    same 'umask' 640 "$(stat -c %a masked)"
  )
  sort -r lines | tee sorted | head -n 1 >first
  same 'pipe' 'line 99' "$(cat first)"
  sort lines >lines.sorted
  sort sorted >sorted.sorted
  diff lines.sorted sorted.sorted
  printf 'b\na\n' >x
  sort -o x x
  same 'sort in place' $'a\nb' "$(cat x)"
  sed -i s/a/A/ x
  same 'sed -i' $'A\nb' "$(cat x)"
  mkdir -p t/{a,b,c}/{d,e}
  touch t/{a,b,c}/{d,e}/{1..20}.{tmp,txt}
  find t -name '*.tmp' -delete
  same 'after find -delete' 120 "$(find t -type f | wc -l)"
  cp -a t u
  diff -r t u
  mv u t/a/u
  rm -r t/a/u t
  [ ! -e t ]
  truncate -s 4M holes
  printf end >>holes
  cp --sparse=always holes copy
  cmp holes copy
  dd if=/dev/urandom of=noise bs=64K count=40 status=none
  cp --sparse=auto noise noise2
  cmp noise noise2
  cp --reflink=auto noise noise3
  cmp noise noise3
  ((SECONDS < 240)) || fail 'slow'
  mkdir empty && rmdir empty && ! rmdir t 2>/dev/null || fail 'rmdir of nothing'
  mkfifo pipe
  echo through >pipe &
  same 'fifo' through "$(cat pipe)"
  wait
  [ -x /bin/true ]
  printf '#!/bin/sh\necho "$0 ran"\n' >script
  chmod +x script
  same 'script' './script ran' "$(./script)"
  df . >/dev/null
  ls -la --full-time >/dev/null
  stat -f . >/dev/null
}

# What other file systems of this kind have been seen to get wrong.
program_known_traps() {
  needs python3
  echo 1 >r
  echo 2 >>r
  same 'redirections' $'1\n2' "$(cat r)"
  python -c 'open("r", "a").write("3\n")'
  same 'append from python' $'1\n2\n3' "$(cat r)"
  echo old >to
  echo new >from
  mv from to
  same 'rename over a file' new "$(cat to)"
  [ ! -e from ]
  mkdir -p d/e
  echo x >d/e/f
  mv d D
  same 'renamed directory' x "$(cat D/e/f)"
  [ ! -e d ]
  rm D/e/f
  rmdir D/e D
  [ ! -e D ]
  exec 5<r
  rm r
  same 'read after unlink' 1 "$(head -n 1 <&5)"
  exec 5<&-
  truncate -s 100000 hole
  same 'a hole' "$(head -c 100000 /dev/zero | sha256sum)" "$(sha256sum <hole)"
  echo l >l1
  ln l1 l2
  ln -s l1 l3
  same 'links' 2 "$(stat -c %h l2)"
  same 'symbolic link' l "$(cat l3)"
  same 'readlink' l1 "$(readlink l3)"
  rm l1 && same 'hard link' l "$(cat l2)" && ! cat l3 2>/dev/null || fail 'a dangling link can be read'
  chmod 4711 l2
  same 'chmod' 4711 "$(stat -c %a l2)"
  touch -d '2001-02-03 04:05:06.123456789 UTC' l2
  same 'times' '981173106.123456789' "$(stat -c %.9Y l2)"
  (
    umask 077
    mkdir private
    same 'umask' 700 "$(stat -c %a private)"
  )
  mkdir many
  (
    cd many
    for i in {1..300}; do : >"$i"; done
  )
  same 'ls' 300 "$(ls many | wc -l)"
  ls -l many >/dev/null
  rm -r many
  python - <<'PYTHON'
import errno, fcntl, mmap, os
open("m", "wb").write(b"a" * 10000)
with open("m", "r+b") as f, mmap.mmap(f.fileno(), 0) as m:
    assert m[9999:10000] == b"a"; m[0:1] = b"b"
assert open("m", "rb").read(1) == b"b"
fd = os.open("forked", os.O_CREAT | os.O_RDWR)
pid = os.fork()
if pid == 0:
    os.write(fd, b"child "); os._exit(0)
os.waitpid(pid, 0); os.write(fd, b"parent")
assert os.pread(fd, 20, 0) == b"child parent"
wins = []
for i in range(50):
    kids = []
    for _ in range(3):
        pid = os.fork()
        if pid == 0:
            try: os.open(f"x{i}", os.O_CREAT | os.O_EXCL | os.O_WRONLY); os._exit(0)
            except FileExistsError: os._exit(1)
        kids.append(pid)
    wins.append(sum(os.waitpid(k, 0)[1] == 0 for k in kids))
assert wins == [1] * 50, wins
# A lock that is reported as taken is taken.
for lock, what in ((fcntl.flock, "flock"), (fcntl.lockf, "fcntl")):
    fd = os.open("locked", os.O_CREAT | os.O_RDWR)
    lock(fd, fcntl.LOCK_EX)
    pid = os.fork()
    if pid == 0:
        other = os.open("locked", os.O_RDWR)
        try: lock(other, fcntl.LOCK_EX | fcntl.LOCK_NB); os._exit(1)
        except OSError as e: os._exit(0 if e.errno in (errno.EAGAIN, errno.EACCES) else 2)
    assert os.waitpid(pid, 0)[1] == 0, what
    os.close(fd)
    fd = os.open("locked", os.O_RDWR); lock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB); os.close(fd)
assert os.statvfs(".").f_blocks > 0 and os.statvfs(".").f_bavail <= os.statvfs(".").f_blocks
PYTHON
  df . | tail -n 1 | awk '{ exit !($2 > 0) }' || fail 'df'
}

program_locks() {
  needs flock
  : >lock
  echo 0 >count
  local i workers=()
  for i in 1 2 3 4; do
    for _ in {1..25}; do flock lock bash -c 'read -r n <count; echo $((n + 1)) >count'; done &
    workers+=($!)
  done
  for i in "${workers[@]}"; do wait "$i"; done
  same 'count under flock' 100 "$(cat count)"
  flock lock sleep 30 &
  local holder=$!
  sleep 0.5
  ! flock -n lock true || fail 'a lock is held twice'
  flock -s -w 0.3 lock true && fail 'a shared lock beside an exclusive one'
  # The child holds the open file too: both must go.
  pkill -KILL -P "$holder" || true
  kill -KILL "$holder" && wait "$holder" 2>/dev/null || true
  flock -w 20 lock true || fail 'a dead process keeps its lock'
}

# fio_with ENGINE [OPTION…]
fio_with() {
  needs fio
  local size=${SHORT:+4M}
  size=${size:-32M}
  fio --name="$1" --ioengine="$1" --directory="$PWD" --size="$size" --rw=randrw --bsrange=4k-64k --verify=crc32c --verify_fatal=1 \
    --do_verify=1 --numjobs=2 --thread=0 --group_reporting --fallocate=none "${@:2}" >"$plain/fio.log" 2>&1 || { tail -n 30 "$plain/fio.log"; fail "fio $1"; }
  fio --name="seq-$1" --ioengine="$1" --directory="$PWD" --size="$size" --rw=write --bs=128k --verify=crc32c --verify_fatal=1 --do_verify=1 "${@:2}" \
    >"$plain/fio.log" 2>&1 || { tail -n 30 "$plain/fio.log"; fail "fio $1, in order"; }
}

program_fio_psync() { fio_with psync; }
program_fio_libaio() { fio_with libaio --iodepth=8; }
program_fio_mmap() { fio_with mmap; }
