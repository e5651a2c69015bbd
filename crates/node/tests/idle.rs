//! Alone in its process, because it looks at the processor time of the whole of it.

mod common;

use std::time::Duration;

use common::{Raw, SHM, cluster};

#[test]
fn an_idle_cluster_uses_no_processor_time() {
    let cluster = cluster(2, 2);
    let raw = Raw::connect(&cluster, 0, SHM);
    raw.status();
    std::thread::sleep(Duration::from_millis(200));
    let spent = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        time.tv_sec * 1_000_000 + time.tv_nsec / 1000
    };
    let before = spent();
    std::thread::sleep(Duration::from_secs(1));
    let spent = spent() - before;
    assert!(spent < 30_000, "{spent} µs in a second of doing nothing");
}
