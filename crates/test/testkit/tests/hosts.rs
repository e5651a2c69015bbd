//! Hosts for tests: nothing of them outlives them.

use std::path::Path;
use std::time::Duration;

use samite_testkit::TestHosts;

/// Processes that `pid` has started, and those that these have.
fn started_by(pid: u32) -> Vec<u32> {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let mut all = Vec::new();
    for thread in threads.flatten() {
        let children = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        for child in children.split_whitespace().filter_map(|pid| pid.parse().ok()) {
            all.push(child);
            all.extend(started_by(child));
        }
    }
    all
}

#[test]
fn nothing_of_hosts_is_left() {
    let binary = std::env::current_exe().expect("a path");
    let Some(hosts) = TestHosts::new(&["a", "b"], &binary) else { return };
    let all = started_by(std::process::id());
    assert!(all.len() >= 6, "{all:?}");
    drop(hosts);
    let is_there = |pid: &&u32| Path::new(&format!("/proc/{pid}")).exists();
    for _ in 0..500 {
        if !all.iter().any(|pid| is_there(&pid)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{:?} are left", all.iter().filter(is_there).collect::<Vec<_>>());
}
