#!/usr/bin/env bash
# The real mdtest and IOR on the store and on what it is measured by, in turns in one run; medians and ratios.
# bench/posix.sh --help says how; docs/bench.md what the figures mean.
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: bench/posix.sh [--rounds N] [--access-paths LIST] [--tests LIST] [--results FILE] [--report FILE] [--json]

  --rounds N      turns over all access paths and tests (3)
  --access-paths LIST
                  of tmpfs,run,temporary,mount,passthrough,uncached (all that are here)
                  run: samite run; temporary: the same in a directory with these semantics; mount: samite mount;
                  passthrough: libfuse's passthrough_hp over tmpfs; uncached: the same with its caching off, and data through the
                  daemon, not from file to file in the kernel (FUSE passthrough), which no store whose data are elsewhere can do
  --tests LIST    of mdtest,ior,verify (all)
  --results FILE  add the figures to this file, one a line, instead of a temporary one
  --report FILE   measure nothing, report what is in FILE
  --json          one JSON object a line

Environment: SAMITE (the binary), IOR_DIR (where ior and mdtest are), PASSTHROUGH_HP (the binary), MPIRUN (with its options),
FILES (20000, for each process), FUSE_FILES (6000, where they go through FUSE; half as many uncached), BLOCK (256m, data of each process), MEMORY (2G, of the node), TMPFS (/dev/shm).
TEXT
}

die() { echo "bench/posix.sh: $*" >&2; exit 2; }

rounds=3 access_paths='' tests=mdtest,ior,verify results='' report='' json=''
while [ $# -gt 0 ]; do
  case $1 in
    --json) json=yes; shift; continue ;;
    --help) usage; exit ;;
    --rounds | --access-paths | --tests | --results | --report) [ $# -ge 2 ] || die "$1 wants a value" ;;
    *) usage >&2; exit 2 ;;
  esac
  case $1 in
    --rounds) rounds=$2 ;;
    --access-paths) access_paths=$2 ;;
    --tests) tests=$2 ;;
    --results) results=$2 ;;
    --report) report=$2 ;;
  esac
  shift 2
done
here=$(cd "$(dirname "$0")" && pwd)
report() { awk -v json="$json" -f "$here/posix.awk" "$1"; }
if [ -n "$report" ]; then report "$report"; exit; fi

SAMITE=${SAMITE:-$(command -v samite || true)}
[ -x "$SAMITE" ] || die "no samite: set SAMITE to its path (make build makes it)"
IOR_DIR=${IOR_DIR:-$(dirname "$(command -v mdtest || echo /)")}
for program in mdtest ior; do
  [ -x "$IOR_DIR/$program" ] || die "no $program: build https://github.com/hpc/ior and set IOR_DIR to where its programs are"
done
MPIRUN=${MPIRUN:-mpirun --allow-run-as-root --oversubscribe --mca btl self,vader}
command -v "${MPIRUN%% *}" > /dev/null || die "no ${MPIRUN%% *}: install Open MPI, or set MPIRUN"
PASSTHROUGH_HP=${PASSTHROUGH_HP:-$(command -v passthrough_hp || true)}
FILES=${FILES:-20000} FUSE_FILES=${FUSE_FILES:-6000} BLOCK=${BLOCK:-256m} MEMORY=${MEMORY:-2G} TMPFS=${TMPFS:-/dev/shm}

has() { case ",$2," in *,"$1",*) return 0 ;; esac; return 1; }
command_is_there() { "$SAMITE" "$1" --help > /dev/null 2>&1; }
if [ -z "$access_paths" ]; then
  access_paths=tmpfs,run
  if command_is_there set; then access_paths+=,temporary; fi
  if [ -w /dev/fuse ]; then
    if command_is_there mount; then access_paths+=,mount; fi
    if [ -x "$PASSTHROUGH_HP" ]; then access_paths+=,passthrough,uncached; fi
  fi
fi
! has passthrough "$access_paths" || [ -x "$PASSTHROUGH_HP" ] || die "no passthrough_hp: set PASSTHROUGH_HP to the built example of libfuse"

work=$(mktemp -d)
floor=$(mktemp -d "$TMPFS/samite-bench.XXXXXX")
name=bench-posix-$$
read -ra mpirun <<< "$MPIRUN"
results=${results:-$work/results}
clean() {
  for at in mount passthrough uncached; do
    if mountpoint -q "$work/$at"; then
      if [ $at = mount ]; then "$SAMITE" umount "$work/$at" || umount -l "$work/$at"; else umount -l "$work/$at"; fi
    fi
  done > /dev/null 2>&1
  "$SAMITE" down --name "$name" > /dev/null 2>&1 || true
  rm -rf "$work" "$floor"
}
trap clean EXIT
# passthrough_hp keeps a descriptor for each file.
ulimit -n "$(ulimit -Hn)"

# The directory of an access path, and the words in front of a command that goes through it.
place() {
  case $1 in
    tmpfs) echo "$floor" ;;
    run) echo /samite/bench ;;
    temporary) echo /samite/temporary ;;
    *) echo "$work/$1/bench" ;;
  esac
}
through() {
  local access_path=$1
  shift
  case $access_path in
    run | temporary) "$SAMITE" run --name "$name" -- "$@" ;;
    *) "$@" ;;
  esac
}

"$SAMITE" up --local 1 --name "$name" --memory "$MEMORY" > "$work/up.log" 2>&1 || die "samite up: $(cat "$work/up.log")"
"$SAMITE" run --name "$name" -- mkdir /samite/bench /samite/temporary
if has temporary "$access_paths"; then "$SAMITE" set --name "$name" /temporary semantics=temporary; fi
if has mount "$access_paths"; then
  mkdir "$work/mount"
  "$SAMITE" mount --name "$name" "$work/mount"
fi
# Older ones have no passthrough that could be turned off.
uncached=(--nocache)
if has uncached "$access_paths" && "$PASSTHROUGH_HP" --help 2>&1 | grep -q -- --nopassthrough; then uncached+=(--nopassthrough); fi
for access_path in passthrough uncached; do
  has $access_path "$access_paths" || continue
  mkdir -p "$work/$access_path" "$floor/$access_path/bench"
  options=()
  if [ $access_path = uncached ]; then options=("${uncached[@]}"); fi
  "$PASSTHROUGH_HP" "${options[@]}" "$floor/$access_path" "$work/$access_path" > "$work/$access_path.log" 2>&1 &
done
# A node puts its memory in place in the background, which takes a core for a while.
figure() { "$SAMITE" status --name "$name" --json | sed -E "s/.*\"$1\":([0-9]+).*/\1/"; }
for ((wait = 0; wait < ${SETTLE:-60}; wait++)); do
  if [ "$(figure populated_bytes)" -ge "$(figure capacity_bytes)" ]; then break; fi
  sleep 1
done

note() { printf '%s\t%s\t%s\t%s\n' "$@" >> "$results"; }

# mdtest prints: "   File creation  MAX  MIN  MEAN  STDDEV"
metadata() {
  local access_path=$1 processes=$2 kind=$3 flag=$4 log=$work/log files=$FILES
  # 3000 are looked up within 7 ms, in which a thread that waits for its core counts for much; what takes longer than 2 s to make, the mount has the kernel forget.
  case $access_path in
    mount | passthrough) files=$FUSE_FILES ;;
    uncached) files=$((FUSE_FILES / 2)) ;;
  esac
  if ! through "$access_path" timeout 120 "${mpirun[@]}" -np "$processes" "$IOR_DIR/mdtest" -F -C -T -E -r $flag \
    -n "$files" -d "$(place "$access_path")/md" > "$log" 2>&1; then
    echo "bench/posix.sh: mdtest $kind, $processes processes, through $access_path:" >&2
    tail -n 5 "$log" >&2
    return
  fi
  sed -nE 's/^ +File (creation|stat|read|removal) +([0-9.]+).*/\1 \2/p' "$log" | while read -r metric value; do
    note "$access_path" "mdtest $kind np=$processes" "${metric/creation/create}" "$value"
  done
}

# IOR prints: "write  MIB_A_SECOND  …"
data() {
  local access_path=$1 kind=$2 flag=$3 size=$4 log=$work/log
  if ! through "$access_path" timeout 120 "${mpirun[@]}" -np 2 "$IOR_DIR/ior" -a POSIX -w -r -C -e $flag -t "$size" -b "$BLOCK" \
    -o "$(place "$access_path")/ior" > "$log" 2>&1; then
    echo "bench/posix.sh: ior $kind of $size through $access_path:" >&2
    tail -n 5 "$log" >&2
    return
  fi
  sed -nE 's/^(write|read) +([0-9.]+) .*/\1 \2/p' "$log" | while read -r metric value; do
    note "$access_path" "ior $kind $size" "$metric" "$value"
  done
}

# Checks every byte, each rank those of another, and counts what was wrong.
verify() {
  local access_path=$1 kind=$2 flag=$3 size=$4 log=$work/log wrong=0
  through "$access_path" timeout 120 "${mpirun[@]}" -np 2 "$IOR_DIR/ior" -a POSIX -w -W -r -R -C -e $flag -t "$size" -b 32m \
    -o "$(place "$access_path")/ior" > "$log" 2>&1 || wrong=1
  if grep -qiE 'errors? (found|detected)|data mismatch|incorrect' "$log"; then wrong=1; fi
  if [ $wrong != 0 ]; then tail -n 5 "$log" >&2; fi
  note "$access_path" "ior verify $kind $size" wrong "$wrong"
}

for ((round = 0; round < rounds; round++)); do
  for processes in 1 2; do
    for kind in own shared; do
      has mdtest "$tests" || continue
      flag=$([ $kind = shared ] || echo -u)
      for access_path in ${access_paths//,/ }; do metadata "$access_path" $processes $kind "$flag"; done
    done
  done
  for size in 128k 1m; do
    for kind in shared own; do
      flag=$([ $kind = shared ] || echo -F)
      for access_path in ${access_paths//,/ }; do
        [ $access_path != temporary ] || continue
        if has ior "$tests"; then data "$access_path" $kind "$flag" $size; fi
        if has verify "$tests" && [ $round = 0 ]; then verify "$access_path" $kind "$flag" $size; fi
      done
    done
  done
done
[ -e "$results" ] || die "nothing was measured"
report "$results"
