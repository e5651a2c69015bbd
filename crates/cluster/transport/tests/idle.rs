//! A node with nothing to do uses no processor. Alone in its file, for it measures the whole process.

#![allow(clippy::unwrap_used, reason = "a test may end with a panic")]

#[allow(dead_code)]
mod common;

use std::time::Duration;

use common::{Node, client, key, soon};
use rustix::time::{ClockId, clock_gettime};
use samite_transport::client::{NodeLink, OutgoingRequest};
use samite_transport::server::LoopOptions;
use samite_wire::frame::FrameKind;

fn used() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn an_idle_node_sleeps() {
    let node = Node::start_with(LoopOptions::default());
    let links: Vec<_> = node
        .addresses()
        .into_iter()
        .map(|address| NodeLink::connect(address, key(), client(), soon()).unwrap())
        .collect();
    for link in &links {
        let request = OutgoingRequest { kind: FrameKind::Request, body: &[0], payload: &[] };
        link.call(request, soon(), |_| ()).unwrap();
    }
    std::thread::sleep(Duration::from_millis(150));
    let before = used();
    std::thread::sleep(Duration::from_millis(500));
    let used = used().saturating_sub(before);
    assert!(used < Duration::from_millis(10), "{used:?} of processor time in 500 ms");
}
