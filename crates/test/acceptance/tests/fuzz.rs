//! The short form of the attack on a node's sockets; `make fuzz-socket` is the long one.
#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

mod common;

use std::time::Duration;

use samite_acceptance::fuzz::run;
use samite_acceptance::stage::TestWatchdog;

#[test]
fn garbage_harms_neither_the_node_nor_others() {
    // For the binary that it starts.
    common::helper();
    let _watchdog = TestWatchdog::new("fuzz", Duration::from_secs(180));
    let summary = run(Duration::from_secs(10), 7).unwrap();
    assert!(summary.frames > 1000 && summary.calls > 10, "{summary:?}");
    // Frames without the key never get past the handshake.
    assert!(summary.admitted > 10 && summary.admitted_frames > 200, "{summary:?}");
    println!("{summary:?}");
}
