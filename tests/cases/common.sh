# What all cases share; they source it. A case ends with 0: right, 1: wrong, 2: cannot run here.
# shellcheck shell=bash

# begin ARG…: reads a case's arguments, and makes it a place for a store of its own. Sets $short, $binary and $scratch.
begin() {
  short=''
  case ${1:-} in
    '') ;;
    --short) short=1 ;;
    --help)
      sed -n '2,/^$/s/^# \{0,1\}//p' "$0"
      exit 0
      ;;
    *)
      echo "usage: $0 [--short | --help]" >&2
      exit 2
      ;;
  esac
  local root
  root=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
  binary=$(realpath "${SAMITE:-${CARGO_TARGET_DIR:-$root/target}/release/samite}" 2>/dev/null) || cannot samite
  scratch=$(mktemp -d "${TMPDIR:-/tmp}/samite-case.XXXXXX") || exit 2
  export SAMITE_RUNTIME_DIR=$scratch/run SAMITE_CLUSTER=case
  unset SAMITE_MOUNT SAMITE_TRANSPORT
  workers=()
  trap end EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
}

# What runs when the case is over, however it ends. A case that mounts something defines `undo`.
end() {
  if ((${#workers[@]})); then kill -KILL "${workers[@]}" 2>/dev/null; fi
  if declare -F undo >/dev/null; then undo; fi
  if [ -d "$SAMITE_RUNTIME_DIR" ]; then samite down --force >/dev/null 2>&1; fi
  if declare -F undo_last >/dev/null; then undo_last; fi
  rm -rf --one-file-system "$scratch"
}

# cannot WHAT: this machine lacks it.
cannot() {
  echo "cannot run here: no $1"
  exit 2
}

# needs PROGRAM…
needs() {
  local program
  for program in "$@"; do command -v "$program" >/dev/null || cannot "$program"; done
  # The interpreter itself, whatever script is in front of it: that is what is killed.
  case " $* " in *' python3 '*) python=$(python3 -c 'import sys; print(sys.executable)') ;; esac
}

# A command of the store, which never takes longer than that.
samite() { timeout --kill-after=5 "${CALL_SECONDS:-60}" "$binary" "$@"; }

# start WHAT…: starts the store. Where that fails, nothing was tried: the case is wrong.
start() {
  samite up "$@" >"$scratch/up" 2>&1 && return
  echo 'the store does not start:'
  head -n 5 "$scratch/up"
  exit 1
}

# Starts a program under `samite run` in the background; its process is the last of $workers.
in_background() {
  "$binary" run -- "$@" &
  workers+=($!)
}

# memory_group BYTES: makes a control group with a limit on memory, $group, of version 1 or 2.
memory_group() {
  local top=/sys/fs/cgroup/memory file=memory.limit_in_bytes
  if ! [ -d $top ]; then
    top=/sys/fs/cgroup file=memory.max
    echo +memory >$top/cgroup.subtree_control 2>/dev/null
  fi
  group=$top/samite-case.$$
  mkdir "$group" 2>/dev/null || cannot memory-controller
  if [ $file = memory.max ]; then echo +memory >"$group/cgroup.subtree_control" 2>/dev/null; fi
  echo "$1" 2>/dev/null >"$group/$file" || cannot memory-controller
  if [ -e "$group/memory.swap.max" ]; then echo 0 >"$group/memory.swap.max"; fi
}

# Removes the group. What was killed there is gone a moment later.
leave_group() {
  local tries
  for ((tries = 0; tries < 50; tries++)); do
    rmdir "$group/inner" 2>/dev/null
    rmdir "$group" 2>/dev/null && return
    [ -d "$group" ] || return
    sleep 0.1
  done
}
