#!/usr/bin/env bash
# Copies (`put`, `get`, `stage in`, `stage out`, `object put`, `kv put` of large values) are killed at
# any moment, with SIGKILL and with SIGINT. The target has to be the old one or the new one, whole, each
# time; and after the next copy to it nothing else is left: in its directory, or of records.
#
#   tests/cases/killed-copies.sh [--short | --help]
#
# ROUNDS=N: how often each is killed while it copies, 200 if not said; --short: 10. Kills that come after
# its end, or before its first byte, are not counted, and as many more follow. KIND_SECONDS=N: the time
# that one kind may take, 20 s for each round if not said. KINDS: put get in out object kv, or some of
# them. SAMITE names the binary.
# Ends with 0: right, 1: wrong, 2: cannot run here.

set -u
# shellcheck source=tests/cases/common.sh
source "$(dirname "$0")/common.sh"
begin "$@"
needs cmp timeout
[ -r /proc/self/io ] || cannot /proc/PID/io
rounds=${ROUNDS:-200}
if [ -n "$short" ]; then rounds=${ROUNDS:-10}; fi
kind_seconds=${KIND_SECONDS:-$((rounds * 20))}

cd "$scratch" || exit 2
mkdir a b out
mebibytes=20
head -c ${mebibytes}M /dev/urandom >a/f
head -c ${mebibytes}M /dev/urandom >b/f
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
    object | kv) records ;;
  esac | tr '\n' ' '
}

# A node of a busy machine may take longer than `status` waits. The first number is the node's; what a
# scrub has looked at comes behind it.
records() {
  local tries
  for ((tries = 0; tries < 5; tries++)); do
    samite status --json | grep -o '"records":[0-9]*' | head -n 1 | grep . && return
  done
}

wrong=0
say() {
  echo "$*"
  wrong=1
}

# To pause without a process of its own: nobody ever writes to it.
mkfifo never
exec {never}<>never
pause() {
  local seconds
  printf -v seconds '%d.%06d' $(($1 / 1000000)) $(($1 % 1000000))
  read -rt "$seconds" -u "$never"
}

# moved PID: sets $moved to the bytes that a process has read and written; false when it is gone.
moved() {
  local name value is_there=''
  moved=0
  while read -r name value; do
    is_there=1
    case $name in rchar: | wchar:) moved=$((moved + value)) ;; esac
  done 2>/dev/null <"/proc/$1/io"
  [ -n "$is_there" ]
}

# kill_copying SIGNAL COMMAND…: kills a copy at some point of its way, some bytes and some time from its
# beginning. Sets $met: early (it had not moved any data), hit, or late (it was done).
kill_copying() {
  local signal=$1 pid status from=$SECONDS point=$((RANDOM % (mebibytes + 1) << 20)) data=65536
  shift
  # Its own job, or the shell has it ignore SIGINT.
  set -m
  "$binary" "$@" >/dev/null 2>&1 &
  set +m
  pid=$!
  workers=("$pid")
  while moved "$pid" && ((moved < point && SECONDS - from < 60)); do pause 1000; done
  pause $((RANDOM * pause_max / 32768))
  moved "$pid"
  kill "-$signal" "$pid" 2>/dev/null
  wait "$pid" 2>/dev/null
  status=$?
  workers=()
  case $status in
    0) met=late ;;
    130 | 137) if ((moved < data)); then met=early; else met=hit; fi ;;
    *) met=late && say "${*:1:2}: ends with $status" ;;
  esac
  # Some four of five are to come in time, however busy the machine is.
  case $met in
    late) pause_max=$((pause_max * 7 / 10 + 1000)) ;;
    *) pause_max=$((pause_max * 11 / 10)) ;;
  esac
}

# kill_one KIND ROUND: one copy is killed, and the same is carried out to its end.
kill_one() {
  local from=a signal=KILL left
  local -a command
  if (($2 % 2)); then from=b; fi
  if (($2 % 3 == 0)); then signal=INT; fi
  copy "$1" "$from"
  kill_copying "$signal" "${command[@]}"
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
  samite "${command[@]}" >/dev/null || exit 1
  hit=0 late=0 early=0 pause_max=100000
  SECONDS=0
  for ((round = 1; hit < rounds && SECONDS < kind_seconds; round++)); do
    kill_one "$kind" "$round"
    case $met in
      hit) hit=$((hit + 1)) ;;
      late) late=$((late + 1)) ;;
      early) early=$((early + 1)) ;;
    esac
  done
  echo "$kind: killed $hit times while it copied, $late times after its end, $early before its first byte ($SECONDS s)"
  ((hit == rounds)) || say "$kind: only $hit of $rounds times within $kind_seconds s"
done
exit $wrong
