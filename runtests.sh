cd /tmp/w/f; export SAMITE_PRELOAD=${SAMITE_PRELOAD:-/tmp/w/f/target/debug/deps/libsamite_preload.so}
for t in ${@:-shell coreutils python programs}; do b=$(ls -t target/debug/deps/$t-* | grep -v '\.d$' | head -1); timeout 500 $b --test-threads 2 2>&1 | cut -c1-400 | grep -v "^stack\|^   [ 0-9]" | head -${N:-70}; done
