#!/usr/bin/env bash
# A million files in one directory of three nodes: made by several processes, listed, looked up and removed, through
# interposition and, where FUSE is there, the mount. bench/million.sh [FILES]
set -euo pipefail

files=${1:-1000000}
processes=4
# What a listing may cost beside the program itself, however long it is.
memory_max=$((64 << 20))
here=$(cd "$(dirname "$0")" && pwd)
SAMITE=${SAMITE:-$(command -v samite)}
name=bench-million-$$
work=$(mktemp -d)
failed=0

clean() {
  if mountpoint -q "$work/mount"; then "$SAMITE" umount "$work/mount" || umount -l "$work/mount"; fi > /dev/null 2>&1
  "$SAMITE" down --name "$name" > /dev/null 2>&1 || true
  rm -rf "$work"
}
trap clean EXIT

"$SAMITE" up --local 3 --name "$name" --memory $((files * 300 + (256 << 20))) > "$work/up.log" 2>&1 || { cat "$work/up.log" >&2; exit 1; }
access_paths=run
if [ -w /dev/fuse ] && "$SAMITE" mount --help > /dev/null 2>&1; then
  mkdir "$work/mount"
  "$SAMITE" mount --name "$name" "$work/mount"
  access_paths='run mount'
fi

# step ACCESS_PATH WHAT DIR FIRST LAST: one process
step() {
  local access_path=$1
  shift
  if [ "$access_path" = run ]; then
    timeout 1200 "$SAMITE" run --name "$name" -- python3 "$here/million.py" "$@"
  else
    timeout 1200 python3 "$here/million.py" "$@"
  fi
}

# together ACCESS_PATH WHAT DIR: all processes, each its part; prints files a second
together() {
  local i pids=() from=$EPOCHREALTIME
  for ((i = 0; i < processes; i++)); do
    step "$1" "$2" "$3" $((files * i / processes)) $((files * (i + 1) / processes)) > /dev/null &
    pids+=($!)
  done
  for i in "${pids[@]}"; do wait "$i"; done
  awk -v from="$from" -v to="$EPOCHREALTIME" -v n="$files" -v what="$2" -v access_path="$1" \
    'BEGIN { printf "%-6s %-8s %12.0f a second\n", access_path, what, n / (to - from) }'
}

field() { sed -E "s/.*\"$1\": ([0-9.]+).*/\1/"; }

least() { printf '%s\n' "$@" | sort -g | head -n 1; }

# expect WHAT CONDITION: awk decides
expect() {
  if awk "BEGIN { exit !($2) }"; then echo "       ok       $1"; else echo "       FAILED   $1 ($2)"; failed=1; fi
}

for access_path in $access_paths; do
  root=$([ "$access_path" = run ] && echo /samite || echo "$work/mount")
  "$SAMITE" run --name "$name" -- mkdir "/samite/$access_path-many" "/samite/$access_path-few"
  many=$root/$access_path-many few=$root/$access_path-few
  together "$access_path" create "$many"
  step "$access_path" create "$few" 0 2000 > /dev/null
  # In turns, as the machine's speed changes; the fastest of each counts.
  empty=() full=()
  for _ in 1 2 3 4 5; do
    "$SAMITE" run --name "$name" -- mkdir "/samite/$access_path-empty"
    empty+=("$(step "$access_path" create "$root/$access_path-empty" 0 2000 | field seconds)")
    full+=("$(step "$access_path" create "$many" "$files" $((files + 2000)) | field seconds)")
    "$SAMITE" run --name "$name" -- rm -r "/samite/$access_path-empty"
    step "$access_path" remove "$many" "$files" $((files + 2000)) > /dev/null
  done
  empty_least=$(least "${empty[@]}") full_least=$(least "${full[@]}")
  expect "a create among $files costs what it costs in an empty directory: $full_least and $empty_least s for 2000" \
    "$full_least < 1.5 * $empty_least"

  short=$(step "$access_path" list "$few" 0 2000)
  long=$(step "$access_path" list "$many" 0 "$files")
  echo "$access_path  list $long"
  expect "every name came once" "$(field count <<< "$long") == $files"
  expect "the listing took little memory" "$(field memory <<< "$long") < $(field memory <<< "$short") + $memory_max"
  expect "the listing is linear" \
    "$(field seconds <<< "$long") / $files < 4 * $(field seconds <<< "$short") / 2000"
  look=$(step "$access_path" stat "$many" 0 "$files")
  echo "$access_path  stat $look"
  expect "every file was looked up" "$(field count <<< "$look") == $files"
  together "$access_path" remove "$many"
  expect "nothing is left" "$(step "$access_path" list "$many" 0 "$files" | field count) == 0"
  "$SAMITE" run --name "$name" -- rmdir "/samite/$access_path-many"
done
exit $failed
