#!/usr/bin/env bash
# Nodes of an older build are replaced by this one's, one after the other, while programs of both work.
#
#   scripts/test-upgrade.sh [COMMIT]
#
# COMMIT is what the cluster starts with, built in a directory of its own: by default the one in tests/upgrade-from.txt.
# BEFORE=PATH names its `samite` instead, if it is built. SAMITE names this build's, or it is built. Needs git. Three nodes,
# mirrored, default coordinator. All the time a git repository grows under `samite run`, and keys are put, read and
# compared, by both builds. KEEP=1 leaves the working directory behind.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
scratch=$(mktemp -d)
export SAMITE_RUNTIME_DIR=$scratch/run HOME=$scratch/home SAMITE_CLUSTER=upgrade
mkdir -p "$HOME"
git config --global user.email upgrade@localhost
git config --global user.name upgrade
git config --global init.defaultBranch main

if [ -z "${SAMITE:-}" ]; then
  cargo build --quiet --manifest-path "$here/Cargo.toml" --package samite-cli --package samite-preload
  SAMITE=$here/target/debug/samite
fi
if [ -z "${BEFORE:-}" ]; then
  commit=${1:-$(sed -n '1s/ .*//p' "$here/tests/upgrade-from.txt")}
  source=$here/target/upgrade/$commit
  if [ ! -d "$source" ]; then
    git clone --quiet "$here" "$source.part"
    git -C "$source.part" checkout --quiet "$commit"
    mv "$source.part" "$source"
  fi
  cargo build --quiet --manifest-path "$source/Cargo.toml" --package samite-cli --package samite-preload
  BEFORE=$source/target/debug/samite
fi
echo "from $("$BEFORE" --version) to $("$SAMITE" --version)"

workers=()
finish() {
  local status=$?
  touch "$scratch/stop"
  wait "${workers[@]}" || status=1
  "$SAMITE" down --force >/dev/null 2>&1 || true
  if [ "$status" != 0 ]; then tail -n 20 "$scratch"/*.said >&2; fi
  if [ -z "${KEEP:-}" ]; then rm -rf "$scratch"; fi
  exit "$status"
}
trap finish EXIT

# Each ends with an error at the first thing that is wrong; `done.NAME` counts what was right.
keys() { # NAME SAMITE
  local i=0
  while [ ! -e "$scratch/stop" ]; do
    i=$((i + 1))
    "$2" kv put "$1-$((i % 50))" "value $i" >/dev/null
    [ "$("$2" kv get "$1-$((i % 50))")" = "value $i" ] || { echo "$1: key $i is wrong"; return 1; }
    echo "$i" >"$scratch/now.$1"
    mv "$scratch/now.$1" "$scratch/done.$1"
  done
}
commits() { # NAME SAMITE: one program all the time, with children
  "$2" run -- bash -euc '
    cd /samite
    git init -q "$1" && cd "$1"
    i=0
    while [ ! -e "$2/stop" ]; do
      i=$((i + 1))
      seq "$i" $((i + 500)) >"file-$((i % 20))"
      git add . && git commit -qm "commit $i"
      [ "$(git rev-list --count HEAD)" = "$i" ]
      echo "$i" >"$2/now.$1"
      mv "$2/now.$1" "$2/done.$1"
    done
    git fsck --strict' commits "$1" "$scratch"
}
count() { cat "$scratch/done.$1" 2>/dev/null || echo 0; }
start() { # NAME FUNCTION SAMITE
  "$2" "$1" "$3" >"$scratch/$1.said" 2>&1 &
  workers+=("$!")
}
# Everybody gets further by so many steps.
further() {
  local name from
  for name in "$@"; do
    from=$(count "$name")
    for _ in $(seq 1200); do
      [ "$(count "$name")" -le $((from + 2)) ] || continue 2
      sleep 0.05
    done
    echo "$name stands still" && return 1
  done
}

"$BEFORE" up --local 3 --mirror 2 --memory 256M --name upgrade
all=(old-keys old-git new-keys new-git)
start old-keys keys "$BEFORE"
start old-git commits "$BEFORE"
start new-keys keys "$SAMITE"
start new-git commits "$SAMITE"
further "${all[@]}"
for node in 0 1 2; do
  "$SAMITE" node upgrade "$node"
  echo "n$node is upgraded: $(for name in "${all[@]}"; do echo -n "$name $(count "$name")  "; done)"
  further "${all[@]}"
done
start late-git commits "$SAMITE"
further late-git
touch "$scratch/stop"
for worker in "${workers[@]}"; do
  wait "$worker"
done
workers=()
"$SAMITE" status
for name in old-git new-git late-git; do
  [ "$("$SAMITE" run -- git -C "/samite/$name" rev-list --count HEAD)" = "$(count "$name")" ]
done
echo "upgraded: no error, $(count old-keys) and $(count new-keys) keys, $(count old-git), $(count new-git) and $(count late-git) commits"
