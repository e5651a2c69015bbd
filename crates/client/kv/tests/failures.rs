//! Nodes that are gone: their keys fail at once, by name, and the others go on.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::time::{Duration, Instant};

use samite_kv::KvView;
use samite_testkit::datasets::{TRANSPORTS, client, cluster, dataset};
use samite_types::{ErrorKind, NodeId, Redundancy};

#[test]
fn a_dead_node_is_named_at_once_and_the_others_go_on() {
    for transport in TRANSPORTS {
        let mut cluster = cluster(2, 64);
        let client = client(&cluster, transport);
        let kv = KvView::new(dataset(&client, "kv"));
        let map = client.map().unwrap();
        let on = |node| {
            (0u32..)
                .map(|index| index.to_be_bytes())
                .find(|key| map.node_of(Redundancy(1), map.partition_of(key)) == Some(NodeId(node)))
                .unwrap()
        };
        let (here, there) = (on(0), on(1));
        kv.put(&here, b"1").unwrap();
        kv.put(&there, b"1").unwrap();
        cluster.stop_node(NodeId(1)).unwrap();

        let start = Instant::now();
        for _ in 0..2 {
            let error = kv.put(&there, b"2").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{transport}: {error}");
            assert!(error.message().contains("n1"), "{transport}: {error}");
            let error = kv.get(&there).unwrap_err();
            assert!(error.message().contains("get") && error.message().contains("n1"), "{error}");
        }
        let mut batch = kv.batch();
        batch.get(&here).get(&there);
        assert!(batch.execute().unwrap_err().message().contains("n1"));
        assert!(start.elapsed() < Duration::from_secs(10), "{transport}: {:?}", start.elapsed());
        assert_eq!(kv.get(&here).unwrap().unwrap().bytes, b"1");
    }
}
