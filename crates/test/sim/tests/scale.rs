//! The statements of docs/scale.md, at sizes that take seconds: balance, messages, and a rebuild
//! that falls as nodes are added.
#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

use samite_sim::scale::{ScaleMetrics, measure};

#[test]
fn more_nodes_share_load_and_rebuild_and_cost_no_messages() {
    let all: Vec<ScaleMetrics> = [4, 16, 64].map(|nodes| measure(nodes).unwrap()).into();
    for metrics in &all {
        assert!(metrics.primaries <= 1.1 && metrics.members <= 1.1, "{metrics:?}");
        // A partition that was idle asks its members for room when it is used again: two messages, once a second at most.
        let messages = metrics.messages_per_create;
        assert!((4.0..4.02).contains(&messages), "{metrics:?}");
        assert!(metrics.failover_ms < 1500, "{metrics:?}");
        // Changes are told, not everything: less than one whole map for each node.
        let whole = (metrics.map_kib + 1) * u64::from(metrics.nodes);
        assert!(metrics.rebuild_maps_kib <= whole, "{metrics:?}");
    }
    assert!(all.is_sorted_by(|few, many| few.rebuild_ms > many.rebuild_ms), "{all:?}");
    let last = all.last().unwrap();
    assert!(last.rebuild_ms <= last.rebuild_without_maps_ms * 5 / 4, "{last:?}");
}
