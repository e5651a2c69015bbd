#!/usr/bin/env bash
# pjdfstest over the mounted store, and on tmpfs beside it: every test passes on both, and both run equally many.
#
#   scripts/test-posix.sh [GROUP…]       groups of the suite such as rename or chown/07.t; all of them unless given
#
# PJDFSTEST=DIR   the suite, built (https://github.com/pjd/pjdfstest); ../pjdfstest unless given
# SAMITE=PATH     the binary
# NODES=N         nodes of the store; 1 unless given
# MIRROR=N        targets that hold each record; 1 unless given
# COORDINATOR=…   as of `samite up`
# KILL=SECONDS    every so often one node is killed and started again, while the suite runs on the store
# LIMIT=SECONDS   after which the run is over; 3600 unless given
set -euo pipefail
here=$(realpath "$(dirname "$0")")
# shellcheck source=scripts/disturb.sh
source "$here/disturb.sh"

suite=$(realpath -m "${PJDFSTEST:-$here/../../pjdfstest}")
samite=$(realpath "${SAMITE:-target/release/samite}")
if [ ! -x "$suite/pjdfstest" ]; then
    echo "skipped: no pjdfstest in $suite; build it from https://github.com/pjd/pjdfstest and set PJDFSTEST to its directory"
    exit 0
fi
[ "$(id -u)" = 0 ] || { echo "pjdfstest changes users, so it needs root" >&2; exit 1; }
[ -e /dev/fuse ] || { echo "skipped: no /dev/fuse"; exit 0; }
command -v prove > /dev/null || { echo "needs prove (package perl)" >&2; exit 1; }

scratch=$(mktemp -d)
export SAMITE_RUNTIME_DIR="$scratch/run"
finish() {
    cd /
    kill "${disturber:-}" 2> /dev/null || true
    "$samite" down --force --quiet 2> /dev/null || true
    umount -l "$scratch/store" 2> /dev/null || true
    umount -l "$scratch/tmpfs" 2> /dev/null || true
    rm -rf "$scratch"
}
trap finish EXIT
# Other users must get to the directories below.
chmod 755 "$scratch"
mkdir "$scratch/store" "$scratch/tmpfs"
mount -t tmpfs none "$scratch/tmpfs"
"$samite" up --local "${NODES:-1}" --memory 1G ${MIRROR:+--mirror "$MIRROR"} ${COORDINATOR:+--coordinator "$COORDINATOR"} \
    > "$scratch/up.log"
"$samite" mount --allow-other "$scratch/store"

groups=("${@/#/$suite/tests/}")
[ $# -gt 0 ] || groups=("$suite/tests")

# Runs the suite in a directory, and leaves its summary in a file.
check() {
    local where=$1
    echo "== $where"
    (cd "$scratch/$where" && timeout "${LIMIT:-3600}" prove --recurse "${groups[@]}" > "$scratch/$where.log" 2>&1) || {
        grep -v ' ok$' "$scratch/$where.log" | tail -n 60
        echo "pjdfstest: failed on $where" >&2
        return 1
    }
    grep '^Files=' "$scratch/$where.log"
}
check tmpfs
if [ -n "${KILL:-}" ]; then begin_disturbing "${NODES:-1}" "$KILL" "$scratch/disturb.log"; fi
check store
if [ -n "${KILL:-}" ]; then end_disturbing; fi
count() { sed -n 's/^Files=\([0-9]*\), Tests=\([0-9]*\),.*/\1 files, \2 tests/p' "$scratch/$1.log"; }
if [ "$(count tmpfs)" != "$(count store)" ]; then
    echo "tmpfs: $(count tmpfs); the store: $(count store)" >&2
    exit 1
fi
echo "pjdfstest: all pass, as on tmpfs: $(count store)"
