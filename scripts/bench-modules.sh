#!/usr/bin/env bash
# Tools beside the data, and GNU's on the same bytes in memory: medians of interleaved rounds, in MB/s.
# SIZE=2G ROUNDS=5 NODES=1 scripts/bench-modules.sh
set -euo pipefail

size=$(numfmt --from=iec "${SIZE:-2G}")
rounds=${ROUNDS:-5} nodes=${NODES:-1}
samite=$(realpath "${SAMITE:-target/release/samite}")
records=$((size / 100))
size=$((records * 100))
work=$(mktemp -d /dev/shm/samite-bench-modules.XXXXXX)
export SAMITE_RUNTIME_DIR=$work/run SAMITE_CLUSTER=bench-modules LC_ALL=C
results=$work/results

end() {
    "$samite" down --force --quiet > /dev/null 2>&1 || true
    rm -rf "$work"
}
trap end EXIT

# Runs the words after $1, and writes down the seconds that they took.
timed() {
    local name=$1 begin end
    shift
    begin=$(date +%s%N)
    "$@" > "$work/out" 2> "$work/err" || { [ $? -eq 1 ] || { cat "$work/err" >&2; exit 1; }; }
    end=$(date +%s%N)
    echo "$name $(((end - begin) / 1000))" >> "$results"
}

# The file is there once for each side, and the sort's result and what lies between.
"$samite" up --local "$nodes" --memory "$((size * 5 / nodes / 1048576 + 256))M" > /dev/null
for ((round = 0; round < rounds; round++)); do
    timed 'gen samite' "$samite" gen -a "$records" /records
    [ $round -gt 0 ] || "$samite" get /records "$work/records"
    timed 'grep-AAAAAA samite' "$samite" grep -c AAAAAA /records
    timed 'grep-AAAAAA gnu' grep -c AAAAAA "$work/records"
    timed 'grep-rare samite' "$samite" grep -c xyzzyxyzzy /records
    timed 'grep-rare gnu' grep -c xyzzyxyzzy "$work/records"
    timed 'grep-class samite' "$samite" grep -Ec '^[A-F]{3}[0-9]' /records
    timed 'grep-class gnu' grep -Ec '^[A-F]{3}[0-9]' "$work/records"
    if command -v rg > /dev/null; then
        timed 'grep-AAAAAA rg' rg -c --no-config AAAAAA "$work/records"
        timed 'grep-rare rg' rg -c --no-config xyzzyxyzzy "$work/records"
        timed 'grep-class rg' rg -c --no-config '^[A-F]{3}[0-9]' "$work/records"
    fi
    timed 'wc-w samite' "$samite" wc -w /records
    timed 'wc-w gnu' wc -w "$work/records"
    timed 'sort samite' "$samite" sort --record 100 --key 0:10 -o /sorted /records
    timed 'sort-lines samite' "$samite" sort -o /sorted-lines /records
    timed 'sort-lines gnu' sort --parallel=2 -T "$work" -o "$work/sorted" "$work/records"
    cmp <("$samite" cat /sorted-lines) "$work/sorted"
    timed 'valsort samite' "$samite" valsort /sorted
    grep -q SUCCESS "$work/out"
    "$samite" rm /sorted /sorted-lines
    rm -f "$work/sorted"
    [ $round -eq $((rounds - 1)) ] || "$samite" rm /records
done

echo "$nodes node(s), $size bytes, medians of $rounds rounds"
sort "$results" | awk -v size="$size" '
    function tell() {
        printf "%-22s %9.2f s %9.0f MB/s\n", last, times[int((count + 1) / 2)] / 1e6, size / times[int((count + 1) / 2)]
    }
    { name = $1 " " $2 }
    name != last { if (count) tell(); count = 0; last = name }
    { at = ++count; while (at > 1 && times[at - 1] > $3) { times[at] = times[at - 1]; at-- } times[at] = $3 }
    END { if (count) tell() }'
