//! The short form of the stress test; `make stress` is the long one.
#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

mod common;

use std::time::Duration;

use samite_acceptance::stage::{StagePath, TestWatchdog};
use samite_acceptance::stress::driver::{StressPlan, run};

#[test]
fn eight_processes_by_both_access_paths_agree_with_the_model() {
    let _watchdog = TestWatchdog::new("stress", Duration::from_secs(240));
    let plan = StressPlan {
        nodes: 2,
        mirror: 1,
        workers: [StagePath::Preload, StagePath::Mount].repeat(4),
        length: Duration::from_secs(20),
        round: Duration::from_millis(1500),
        seed: 20_260,
    };
    let summary =
        run(&plan, &common::helper(), &mut |_| {}).unwrap_or_else(|wrong| panic!("{wrong}"));
    assert!(summary.rounds > 1, "{summary:?}");
}
