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
        let usage = rustix::process::getrusage(rustix::process::GetRusageWho::Self_);
        let time = |t: rustix::time::Timeval| t.tv_sec * 1_000_000 + i64::from(t.tv_usec);
        time(usage.ru_utime) + time(usage.ru_stime)
    };
    let before = spent();
    std::thread::sleep(Duration::from_secs(1));
    let spent = spent() - before;
    assert!(spent < 30_000, "{spent} µs in a second of doing nothing");
}
