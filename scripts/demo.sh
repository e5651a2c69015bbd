#!/usr/bin/env bash
# Shows the store at work: starts one of two nodes, stages a real tree in, runs ordinary programs on it inside the store, stages
# what they made out, and compares every byte with what the same programs make of the original tree.
#
# Uses the binary that SAMITE names, or builds one. KEEP=1 leaves the working directory behind.
set -euo pipefail
export LC_ALL=C PYTHONDONTWRITEBYTECODE=1

FILES_MIN=5000
BYTES_MIN=$((200 << 20))
BYTES_MAX=$((400 << 20))
SORTED_BYTES=$((64 << 20))
NODES=2

# ----------------------------------------------------------------------------------------------------------------- the work

# Calls a command in each tree below $root.
in_each_tree() {
  local tree
  for tree in "$root"/*; do (cd "$tree/" && "$@"); done
}

list_files() { find . -type d -printf 'd %m %P\n' -o -printf '%y %m %s %T@ %P -> %l\n'; }
find_word() { grep -rIno 'licen[sc]e[a-z]*' . || [ $? = 1 ]; }
print_files() { find . -type f -print0 | sort -z | xargs -0 cat; }
sum_files() { find . -type f -print0 | sort -z | xargs -0 sha256sum; }
# The first bytes of all files; the programs before `head` may end by its closed pipe.
first_bytes() { (set +o pipefail; in_each_tree print_files 2>/dev/null | head -c "$SORTED_BYTES"); }

# work STEP ROOT OUT: one step on the trees below ROOT, into OUT. Runs as it is, and under `samite run` on the store.
work() {
  local step=$1 root=$2 out=$3
  case $step in
    find) in_each_tree list_files | sort >"$out/find" ;;
    grep) in_each_tree find_word | sort >"$out/grep" ;;
    sort) first_bytes | sort >"$out/sort" ;;
    sha256sum) in_each_tree sum_files >"$out/sha256sum" ;;
    tar)
      cd "$root"
      local trees=(*)
      tar --sort=name --format=gnu --owner=0 --group=0 --numeric-owner -cf "$out/tar" "${trees[@]/%//.}"
      ;;
    untar)
      mkdir "$out/untar"
      tar -C "$out/untar" -xf "$out/tar"
      ;;
    python) python3 - "$root" >"$out/python" <<'PYTHON' ;;
import collections, mmap, os, sys

# By the end of the name: files, bytes, lines; and the lengths of the longest lines, found in mapped files.
files, sizes, lines, longest = (collections.Counter() for _ in range(4))
for tree in sorted(os.listdir(sys.argv[1])):
    for directory, _, names in os.walk(os.path.join(sys.argv[1], tree, "")):
        for name in names:
            path = os.path.join(directory, name)
            if os.path.islink(path) or not os.path.isfile(path):
                continue
            end = os.path.splitext(name)[1]
            with open(path, "rb") as file:
                data = file.read()
                assert len(data) == os.stat(path).st_size, path
                files[end] += 1
                sizes[end] += len(data)
                lines[end] += data.count(b"\n")
                if data:
                    with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
                        assert mapped[:] == data, path
                        longest[end] = max(longest[end], mapped.find(b"\n"))
for end in sorted(files):
    print(end or "-", files[end], sizes[end], lines[end], longest[end])
PYTHON
  esac
}

if [ "${1:-}" = --work ]; then
  shift
  work "$@"
  exit
fi

# ---------------------------------------------------------------------------------------------------------- what is worked on

tree_files=0
tree_bytes=0
trees=()

# measure DIR: sets found_files and found_bytes.
measure() {
  read -r found_files found_bytes < <(find "$1" -type f -printf '%s\n' 2>/dev/null | awk '{ b += $1 } END { printf "%d %.0f\n", NR, b }')
}

is_enough() { ((tree_files >= FILES_MIN && tree_bytes >= BYTES_MIN)); }

# take DIR DEPTH: takes the tree, or if it is too large what is in it, down to DEPTH levels.
take() {
  local dir=$1 depth=$2 below
  if is_enough || ! [ -d "$dir" ] || ! [ -r "$dir" ]; then return; fi
  measure "$dir"
  if ((found_files == 0)); then return; fi
  if ((tree_bytes + found_bytes <= BYTES_MAX)); then
    trees+=("$dir")
    tree_files=$((tree_files + found_files))
    tree_bytes=$((tree_bytes + found_bytes))
  elif ((depth > 0)); then
    for below in "$dir"/*/; do take "${below%/}" $((depth - 1)); done
  fi
}

# leaves_out PART WHAT: the machine lacks it. For scripts/test.sh, which has a list of what may be skipped.
leaves_out() {
  echo "demo: skipped a part, $1: no $2" >&2
  if [ -n "${SAMITE_SKIPS:-}" ]; then printf 'part\t%s\t%s\n' "$1" "$2" >>"$SAMITE_SKIPS"; fi
}

pick_trees() {
  local sysroot python=''
  sysroot=$(rustc --print sysroot 2>/dev/null) || sysroot=/nonexistent
  if command -v python3 >/dev/null; then
    python=$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')
  fi
  local place
  for place in "$sysroot/lib/rustlib/src" "$sysroot/share/doc" "$python" /usr/include /usr/share/doc /usr/share /usr/lib; do
    [ -z "$place" ] || take "$place" 4
  done
  if ! is_enough; then
    echo "demo: this machine has only $tree_files files with $((tree_bytes >> 20)) MiB to show" >&2
    leaves_out demo::size enough-files
  fi
}

# ------------------------------------------------------------------------------------------------------------------ the show

cd "$(dirname "$0")/.."
if [ -z "${SAMITE:-}" ]; then
  cargo build --release --quiet --package samite-cli --package samite-preload
  SAMITE=${CARGO_TARGET_DIR:-target}/release/samite
fi
samite=$(realpath "$SAMITE")
demo=$(realpath "$0")
scratch=$(mktemp -d "${TMPDIR:-/tmp}/samite-demo.XXXXXX")
export SAMITE_RUNTIME_DIR=$scratch/run SAMITE_CLUSTER=demo
unset SAMITE_MOUNT SAMITE_TRANSPORT

clean_up() {
  if [ -d "$SAMITE_RUNTIME_DIR/demo" ]; then "$samite" down --force --quiet || true; fi
  if [ -n "${KEEP:-}" ]; then echo "demo: kept $scratch"; else rm -rf "$scratch"; fi
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

now() { echo "$((${EPOCHREALTIME/[.,]/}))"; }

rows=()
different=0
# row STEP FILES BYTES MICROSECONDS MICROSECONDS-OF-THE-ORIGINAL yes|NO|-
row() {
  if [ "$6" = NO ]; then different=$((different + 1)); fi
  rows+=("$(awk -v step="$1" -v files="$2" -v bytes="$3" -v us="$4" -v native="$5" -v same="$6" 'BEGIN {
    printf "%-12s %8s %8s %9.2f %9s %11s  %s", step, files, bytes == "-" ? "-" : sprintf("%.1f", bytes / 1e6), us / 1e6,
      bytes == "-" ? "-" : sprintf("%.1f", bytes / (us ? us : 1)), native == "-" ? "-" : sprintf("%.2f", native / 1e6), same }')")
}

pick_trees
mkdir "$scratch/original" "$scratch/expected"
for i in "${!trees[@]}"; do ln -s "${trees[$i]}" "$scratch/original/$((i + 1))-$(basename "${trees[$i]}")"; done
echo "demo: $tree_files files, $((tree_bytes >> 20)) MiB from ${#trees[@]} tree(s): ${trees[*]:0:4}$( ((${#trees[@]} <= 4)) || echo ' …')"

start=$(now)
"$samite" up --local "$NODES"
row "up" - - $(($(now) - start)) - -

"$samite" mkdir /in /out
start=$(now)
for tree in "$scratch"/original/*; do "$samite" stage in "$tree" "/in/$(basename "$tree")"; done
row "stage in" "$tree_files" "$tree_bytes" $(($(now) - start)) - -

steps=(find grep sort sha256sum tar untar)
if command -v python3 >/dev/null; then steps+=(python); else leaves_out demo::python python3; fi
declare -A took expected_took
for step in "${steps[@]}"; do
  echo "demo: $step"
  start=$(now)
  "$samite" run -- bash "$demo" --work "$step" /samite/in /samite/out
  took[$step]=$(($(now) - start))
  start=$(now)
  work_dir=$PWD
  bash "$demo" --work "$step" "$scratch/original" "$scratch/expected"
  expected_took[$step]=$(($(now) - start))
  cd "$work_dir"
done

start=$(now)
"$samite" stage out --checksum /out "$scratch/results"
out_took=$(($(now) - start))

for step in "${steps[@]}"; do
  same=NO
  if diff -r --no-dereference "$scratch/expected/$step" "$scratch/results/$step" >"$scratch/diff" 2>&1; then same=yes; fi
  case $step in
    sort) files=- bytes=$(stat -c %s "$scratch/expected/sort") ;;
    *) files=$tree_files bytes=$tree_bytes ;;
  esac
  row "$step" "$files" "$bytes" "${took[$step]}" "${expected_took[$step]}" "$same"
  if [ $same = NO ]; then
    echo "demo: $step differs:" >&2
    head -n 10 "$scratch/diff" | cut -c 1-300 >&2
  fi
done
measure "$scratch/results"
# The steps were compared above; nothing else may have come out.
same=NO
names() { (cd "$1" && find . -printf '%y %m %P\n' | sort); }
if ((different == 0)) && cmp -s <(names "$scratch/expected") <(names "$scratch/results"); then same=yes; fi
row "stage out" "$found_files" "$found_bytes" "$out_took" - "$same"

start=$(now)
"$samite" down
row "down" - - $(($(now) - start)) - -

echo
printf '%-12s %8s %8s %9s %9s %11s  %s\n' step files MB seconds MB/s 'original s' 'same as original'
printf '%s\n' "${rows[@]}"
echo
if ((different > 0)); then
  echo "demo: $different step(s) differ from the original" >&2
  exit 1
fi
echo "demo: every byte is right"
