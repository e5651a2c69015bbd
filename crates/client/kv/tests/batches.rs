//! The costs of a batch, counted in messages; and that the outcomes are those of its operations.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use samite_kv::{BatchOutcome, KvView};
use samite_testkit::datasets::{TRANSPORTS, client, cluster, dataset, pattern};

#[test]
fn a_thousand_puts_with_different_keys_are_one_request_per_node() {
    let cluster = cluster(2, 64);
    for transport in TRANSPORTS {
        let client = client(&cluster, transport);
        let kv = KvView::new(dataset(&client, "kv"));
        // The first request makes the connections.
        kv.list(b"", b"", 1).unwrap();
        let keys: Vec<String> = (0..1000).map(|index| format!("{transport} {index}")).collect();
        let value = pattern(100, 1);

        let before = client.stats();
        let mut batch = kv.batch();
        for key in &keys {
            batch.put(key.as_bytes(), &value);
        }
        let outcomes = batch.execute().unwrap();
        let cost = client.stats() - before;
        assert_eq!((cost.requests, cost.operations, cost.retries), (2, 1000, 0), "{transport}");
        assert_eq!(cost.controls, 0);
        assert!(outcomes.iter().all(|outcome| matches!(outcome, Ok(BatchOutcome::Put(_)))));

        let before = client.stats();
        let mut batch = kv.batch();
        for key in &keys {
            batch.get(key.as_bytes());
        }
        for outcome in batch.submit().unwrap().wait().unwrap() {
            let BatchOutcome::Got(Some(got)) = outcome.unwrap() else { panic!("no value") };
            assert_eq!(got.bytes, value);
        }
        assert_eq!((client.stats() - before).requests, 2);
    }
}

#[test]
fn a_batch_mixes_operations_and_sizes() {
    let cluster = cluster(2, 128);
    for transport in TRANSPORTS {
        let client = client(&cluster, transport);
        let kv = KvView::new(dataset(&client, &format!("mixed-{transport}")));
        let values: Vec<Vec<u8>> =
            [0, 1, 1000, 16 << 10, (16 << 10) + 1, 300_000, 1 << 20, (1 << 20) + 1]
                .iter()
                .map(|len| pattern(*len, *len as u64))
                .collect();
        let keys: Vec<Vec<u8>> = (0..values.len()).map(|index| vec![b'k', index as u8]).collect();
        let mut batch = kv.batch();
        for (key, value) in keys.iter().zip(&values) {
            batch.put(key, value);
        }
        batch.get(b"absent").delete(b"absent");
        let outcomes = batch.execute().unwrap();
        assert_eq!(outcomes.len(), values.len() + 2);
        assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
        assert_eq!(*outcomes[values.len()].as_ref().unwrap(), BatchOutcome::Got(None));
        assert_eq!(*outcomes[values.len() + 1].as_ref().unwrap(), BatchOutcome::Deleted(false));

        let mut batch = kv.batch();
        for key in &keys {
            batch.get(key);
        }
        for (outcome, value) in batch.execute().unwrap().into_iter().zip(&values) {
            let BatchOutcome::Got(Some(got)) = outcome.unwrap() else { panic!("no value") };
            assert!(got.bytes == *value, "{transport}: {} bytes", value.len());
        }
        for (outcome, value) in batch.submit().unwrap().wait().unwrap().into_iter().zip(&values) {
            let BatchOutcome::Got(Some(got)) = outcome.unwrap() else { panic!("no value") };
            assert!(got.bytes == *value, "{transport}: {} bytes", value.len());
        }
    }
}

#[test]
fn replies_that_no_frame_could_hold_come_in_several() {
    let cluster = cluster(1, 128);
    for transport in TRANSPORTS {
        let client = client(&cluster, transport);
        let kv = KvView::new(dataset(&client, &format!("large-{transport}")));
        let value = pattern(16 << 10, 7);
        let keys: Vec<Vec<u8>> = (0..1000u32).map(|index| index.to_be_bytes().to_vec()).collect();
        let mut batch = kv.batch();
        for key in &keys {
            batch.put(key, &value);
        }
        assert!(batch.execute().unwrap().iter().all(Result::is_ok));
        let mut batch = kv.batch();
        for key in &keys {
            batch.get(key);
        }
        for outcome in batch.execute().unwrap() {
            let BatchOutcome::Got(Some(got)) = outcome.unwrap() else { panic!("no value") };
            assert!(got.bytes == value);
        }
        client.drop_dataset(&format!("large-{transport}")).unwrap();
    }
}
