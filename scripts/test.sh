#!/usr/bin/env bash
# The whole suite, cheapest first. Every step runs even if one before it failed. A step begins with
# its number, what it does and how long it takes the first time on two cores; the last line counts.
# What this machine cannot run is named and counts as skipped. It is a failure unless
# tests/skips.txt has it, and so are fewer tests than tests/floor.txt says.
set -uo pipefail
cd "$(dirname "$0")/.."

passed=0
failed=0
tests=0
broken=()
# Tests, and steps of this script, write there what they leave out.
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
export SAMITE_SKIPS=$scratch/skips
: >"$SAMITE_SKIPS"

# Steps: the lines of this script that begin one.
steps=$(grep -cE '^(step|cargo_tests)( |$)' scripts/test.sh)
begun=0

# begin NAME TIME WHAT: says which step begins. TIME: with nothing built before, on two cores.
# Nobody has timed docs, programs and demo alone: they share the rest of the 37 to 42 min of all.
begin() {
  begun=$((begun + 1))
  echo "[$begun/$steps] $1: $3; $2"
}

# step NAME TIME WHAT COMMAND… : runs the command and counts it as one test.
step() {
  local name=$1 from=$SECONDS
  begin "$1" "$2" "$3"
  shift 3
  if "$@"; then
    passed=$((passed + 1))
    echo "ok      $name ($((SECONDS - from)) s)"
  else
    failed=$((failed + 1))
    broken+=("$name")
    echo "FAILED  $name ($((SECONDS - from)) s)"
  fi
}

# Runs cargo's tests and counts each of them.
cargo_tests() {
  local log=$scratch/log status p f
  begin 'cargo test' 'the first time about 25 min' \
    'the tests of all crates'
  cargo test --workspace --no-fail-fast 2>&1 | tee "$log" | grep -Ev '^test .* ok$|^$|^running 0|^ *(Compiling|Doc-tests)| 0 passed; 0 failed'
  status=${PIPESTATUS[0]}
  # test result: ok. 15 passed; 0 failed; …
  read -r p f < <(sed -n 's/^test result: .* \([0-9]*\) passed; \([0-9]*\) failed.*/\1 \2/p' "$log" |
    awk '{ p += $1; f += $2 } END { print p + 0, f + 0 }')
  tests=$((p + f))
  passed=$((passed + p))
  failed=$((failed + f))
  # A test program that dies or does not compile has no counts of its own.
  if [ "$status" != 0 ] && [ "$f" = 0 ]; then failed=$((failed + 1)); fi
  [ "$status" = 0 ] || broken+=("cargo test")
}

# Whether as many tests ran, or were skipped by name, as there were before.
enough_tests() {
  local floor
  floor=$(grep -v '^#' tests/floor.txt)
  if ! [[ $floor =~ ^[0-9]+$ ]]; then
    echo "tests/floor.txt has no number" >&2
    return 1
  fi
  if ((tests < floor)); then
    echo "cargo ran $tests tests; there were $floor (tests/floor.txt)" >&2
    return 1
  fi
}

samite=${CARGO_TARGET_DIR:-target}/release/samite
programs=(env SAMITE="$samite" scripts/test-programs.sh)

step format seconds 'rustfmt has nothing to change' cargo fmt --all --check
step tidy 'the first time about 1.5 min' 'layers, lengths, dependencies, words' cargo xtask tidy
step clippy 'the first time about 4 min' 'warnings are errors' \
  cargo clippy --workspace --all-targets --quiet -- -D warnings
step build 'the first time about 3.5 min' 'the release build of samite and its preloaded library' \
  cargo build --release --quiet --package samite-cli --package samite-preload
cargo_tests
step docs 'about 0.5 min' 'links and commands of the pages work' cargo xtask docs
step 'programs, run' 'about 1 min' 'ordinary programs under samite run' \
  "${programs[@]}" run 1 --short
step 'programs, mount' 'about 1 min' 'ordinary programs on a mount' \
  "${programs[@]}" mount 1 --short
step 'programs, 3 nodes' '10 s' 'three programs on a store of three nodes' \
  "${programs[@]}" run 3 --short bash known_traps sqlite_rollback
step cases 'about 2.5 min' 'sequences of events that went wrong once' \
  env SAMITE="$samite" scripts/cases.sh
step demo 'about 1.5 min' 'what make run shows, every byte compared' \
  env SAMITE="$samite" scripts/demo.sh
step skips seconds 'what was skipped is listed in tests/skips.txt' cargo xtask skips "$SAMITE_SKIPS"
step floor seconds 'as many tests ran as tests/floor.txt says' enough_tests

# A test that was skipped returned, and cargo counts it as passed. One that left out a part stays
# what it was.
skipped=$(sed -n 's/^test\t\([^\t]*\)\t.*/\1/p' "$SAMITE_SKIPS" | sort -u | wc -l)
passed=$((passed - skipped))
echo "took $((SECONDS / 60)) min $((SECONDS % 60)) s (the first time 37 to 42 min on two cores)"
if [ "$failed" != 0 ]; then printf 'failed: %s\n' "${broken[@]}"; fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
