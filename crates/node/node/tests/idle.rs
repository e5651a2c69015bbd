//! Alone in its process, because it looks at the processor time of the whole of it.

mod common;

use std::time::Duration;

use common::{Raw, SHM, cluster};

#[test]
fn an_idle_cluster_uses_no_processor_time() {
    let cluster = cluster(2, 2);
    let nodes = [Raw::connect(&cluster, 0, SHM), Raw::connect(&cluster, 1, SHM)];
    // The arenas' memory is put in place in the background first.
    let populated = || nodes.iter().map(|raw| raw.status().populated_bytes).sum::<u64>();
    let mut before = 0;
    for _ in 0..100 {
        let now = populated();
        if now == before {
            break;
        }
        before = now;
        std::thread::sleep(Duration::from_millis(100));
    }
    let spent = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        time.tv_sec * 1_000_000 + time.tv_nsec / 1000
    };
    let before = spent();
    std::thread::sleep(Duration::from_secs(1));
    let spent = spent() - before;
    assert!(spent < 30_000, "{spent} µs in a second of doing nothing");
}
