# Nodes that die while something else runs, sourced by test-posix.sh and test-programs.sh. $samite is the binary.
# shellcheck shell=bash disable=SC2154

# Kills one node of $1 after the other, every $2 seconds, and starts it again; the next one only when every group is whole.
disturb() {
    local nodes=$1 pause=$2 node=0 tries
    while sleep "$pause"; do
        node=$(((node + 1) % nodes))
        timeout 60 "$samite" fault kill "n$node" || { echo "n$node cannot be killed"; return 1; }
        sleep 2
        timeout 120 "$samite" node restart "n$node" || { echo "n$node does not start again"; return 1; }
        for ((tries = 0; ; tries++)); do
            if timeout 60 "$samite" status | grep -q ' 0 degraded, 0 waiting, 0 moving; 0 members'; then break; fi
            if [ $tries -ge 240 ]; then
                echo "n$node: the groups are not whole after two minutes"
                timeout 60 "$samite" status
                return 1
            fi
            sleep 0.5
        done
        echo "n$node was killed and came back"
    done
}

# Begins to disturb $1 nodes every $2 seconds; what it does is written to the file $3.
begin_disturbing() {
    disturb "$1" "$2" > "$3" 2>&1 &
    disturber=$! disturbed=$3
}

# Ends it, and says how often a node died. Fails when it had ended by itself, since a node or a group did not come back.
end_disturbing() {
    local times
    if ! kill "$disturber" 2> /dev/null; then
        cat "$disturbed" >&2
        return 1
    fi
    wait "$disturber" 2> /dev/null || true
    times=$(grep -c 'came back' "$disturbed" || true)
    echo "$times times a node was killed and came back meanwhile"
}
