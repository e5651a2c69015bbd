#!/usr/bin/env bash
# Copies (`put`, `get`, `stage in`, `stage out`, `object put`, `kv put` of large values) are killed at
# any moment, with SIGKILL and with SIGINT. The target has to be the old one or the new one, whole, each
# time; and after the next copy to it nothing else is left: in its directory, or of records.
#
#   tests/cases/killed-copies.sh [--short | --help]
#
# ROUNDS=N: how often each is killed, 200 if not said; --short: 10. KINDS: put get in out object kv, or
# some of them. SAMITE names the binary.
# Ends with 0: right, 1: wrong, 2: cannot run here.

set -u
# shellcheck source=tests/cases/common.sh
source "$(dirname "$0")/common.sh"
begin "$@"
needs cmp timeout
rounds=${ROUNDS:-200}
if [ -n "$short" ]; then rounds=${ROUNDS:-10}; fi

cd "$scratch" || exit 2
mkdir a b out
head -c 20M /dev/urandom >a/f
head -c 20M /dev/urandom >b/f
head -c 5000 /dev/urandom >a/small
head -c 5000 /dev/urandom >b/small

# copy KIND DIR: the command of that kind that makes the target what DIR has.
copy() {
  case $1 in
    put) command=(put "$2/f" /put/f) ;;
    get) command=(get "/from-$2/f" out/get/f) ;;
    in) command=(stage in --quiet "$2" /in) ;;
    out) command=(stage out --quiet "/from-$2" out/out) ;;
    object) command=(object put o "$2/f") ;;
    kv) command=(kv put k --file "$2/f") ;;
  esac
}

# fetch KIND: has the directory with the targets as ./now.
fetch() {
  rm -rf now
  case $1 in
    put | in)
      mkdir now
      samite cat "/$1/f" >now/f || return
      if [ "$1" = in ]; then samite cat /in/small >now/small || return; fi
      ;;
    get | out) cp -r "out/$1" now ;;
    object | kv)
      mkdir now
      if [ "$1" = kv ]; then samite kv get k >now/f; else samite object get o now/f; fi
      ;;
  esac
}

# names KIND: all that is in the directory with the targets; how many records the nodes have.
names() {
  case $1 in
    put | in) samite run -- ls -A "/samite/$1" ;;
    get | out) ls -A "out/$1" ;;
    # The first is the node's; what a scrub has looked at comes behind it.
    object | kv) samite status --json | grep -o '"records":[0-9]*' | head -n 1 ;;
  esac | tr '\n' ' '
}

wrong=0
say() {
  echo "$*"
  wrong=1
}

# kill_one KIND ROUND: one copy is killed, and the same is carried out to its end.
kill_one() {
  local from=a signal=KILL left
  local -a command
  if (($2 % 2)); then from=b; fi
  if (($2 % 3 == 0)); then signal=INT; fi
  copy "$1" "$from"
  "$binary" "${command[@]}" >/dev/null 2>&1 &
  workers=($!)
  sleep "$(printf 0.%06d $((RANDOM * micros / 32768)))"
  kill "-$signal" "${workers[@]}" 2>/dev/null
  wait "${workers[@]}" 2>/dev/null && whole=$((whole + 1))
  workers=()
  if ! fetch "$1"; then
    say "$1, round $2: the target is gone"
  else
    for left in now/*; do
      cmp -s "$left" "a/${left#now/}" || cmp -s "$left" "b/${left#now/}" ||
        say "$1, round $2: $left is neither the old one nor the new one"
    done
  fi
  samite "${command[@]}" >/dev/null || say "$1, round $2: the next copy fails"
  fetch "$1"
  cmp -s now/f "$from/f" || say "$1, round $2: the next copy is not what it was to be"
  left=$(names "$1")
  case $1 in
    put | get) [ "$left" = 'f ' ] || say "$1, round $2: there is $left" ;;
    object | kv) [ "$left" = "$whole_names" ] || say "$1, round $2: $left; $whole_names before" ;;
    *) [ "$left" = 'f small ' ] || say "$1, round $2: there is $left" ;;
  esac
}

# Little enough that fragments which keep their space are noticed.
start --local 1 --memory "${MEMORY:-256M}"
samite mkdir /put || exit 1
mkdir out/get
samite stage in --quiet a /from-a >/dev/null && samite stage in --quiet b /from-b >/dev/null || exit 1
# First what the nodes keep: what killed `put` and `stage in` leave open is removed only some seconds later.
read -ra kinds <<<"${KINDS:-object kv put get in out}"
for kind in "${kinds[@]}"; do
  copy "$kind" b
  samite "${command[@]}" >/dev/null || exit 1
  whole_names=$(names "$kind")
  copy "$kind" a
  micros=${EPOCHREALTIME/./}
  samite "${command[@]}" >/dev/null || exit 1
  # Killed within the time that one takes.
  micros=$((${EPOCHREALTIME/./} - micros))
  if ((micros > 900000)); then micros=900000; fi
  whole=0
  for ((round = 1; round <= rounds; round++)); do kill_one "$kind" "$round"; done
  echo "$kind: killed $rounds times, of these after it was done: $whole"
done
exit $wrong
