//! The short form of the chaos test; `make chaos` is the long one.
#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

mod common;

use std::time::Duration;

use samite_acceptance::chaos::driver::{ChaosCoordinator, ChaosFault, ChaosPlan, run};
use samite_acceptance::stage::TestWatchdog;

#[test]
fn nodes_of_a_mirrored_cluster_die_one_after_the_other_and_nobody_notices() {
    let _watchdog = TestWatchdog::new("chaos", Duration::from_secs(240));
    let coordinator = ChaosCoordinator::Replicated;
    let plan = ChaosPlan {
        nodes: 3,
        mirror: 2,
        coordinator,
        fault: ChaosFault::Kill,
        times: 2,
        seed: 20_261,
    };
    let keep = std::env::temp_dir().join("samite-chaos");
    let summary = run(&plan, &common::helper(), &keep).unwrap_or_else(|wrong| panic!("{wrong}"));
    assert!(summary.calls > 0);
}
