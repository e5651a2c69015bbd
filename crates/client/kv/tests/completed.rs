//! Changes of keys that take no request on the node's host: all clients see them at once, and what
//! is not certain is asked for.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::collections::BTreeMap;

use proptest::prelude::*;
use samite_client::{Client, TransportKind};
use samite_kv::KvView;
use samite_testkit::datasets::{client, cluster, dataset, pattern};
use samite_types::ErrorKind;

fn completed(client: &Client) -> u64 {
    client.stats().early_completions
}

#[test]
fn values_are_set_and_deleted_without_requests_and_seen_by_all() {
    let cluster = cluster(1, 64);
    let near = client(&cluster, TransportKind::Shm);
    let other = client(&cluster, TransportKind::Unix);
    let (kv, seen) = (KvView::new(dataset(&near, "kv")), KvView::new(dataset(&other, "kv")));
    // The first request makes the connection.
    kv.list(b"", b"", 1).unwrap();
    let value = pattern(200, 1);
    let keys: Vec<Vec<u8>> = (0..300u32).map(|index| index.to_be_bytes().to_vec()).collect();
    let before = near.stats();
    for key in &keys {
        kv.set(key, &value).unwrap();
        assert_eq!(seen.get(key).unwrap().unwrap().bytes, value);
    }
    let cost = near.stats() - before;
    assert!(cost.early_completions > 200 && cost.requests < 100, "{cost:?}");
    let before = near.stats();
    for key in &keys {
        assert!(kv.delete(key).unwrap(), "it was there");
        assert_eq!(seen.get(key).unwrap(), None);
    }
    let cost = near.stats() - before;
    assert!(cost.early_completions > 200 && cost.requests < 100, "{cost:?}");
    assert!(!kv.delete(&keys[0]).unwrap());
    assert!(seen.list(b"", b"", 10).unwrap().entries.is_empty());
}

#[test]
fn what_is_not_certain_is_asked_for() {
    let cluster = cluster(1, 64);
    let near = client(&cluster, TransportKind::Shm);
    let far = client(&cluster, TransportKind::Tcp);
    let kv = KvView::new(dataset(&near, "kv"));
    kv.list(b"", b"", 1).unwrap();
    let before = completed(&near);
    let large = pattern(3 << 20, 2);
    kv.put(b"large", &large).unwrap();
    kv.set(b"large", b"short").unwrap();
    assert_eq!(kv.get(b"large").unwrap().unwrap().bytes, b"short");
    kv.put(b"large", &large).unwrap();
    assert!(kv.delete(b"large").unwrap());
    kv.set(b"long", &large[..4096]).unwrap();
    assert_eq!(kv.get(b"long").unwrap().unwrap().bytes, large[..4096]);
    assert!(!kv.delete(b"none").unwrap());
    assert_eq!(kv.set(b"", b"no key").unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(completed(&near), before);
    let elsewhere = KvView::new(dataset(&far, "kv"));
    elsewhere.set(b"far", &large[..200]).unwrap();
    assert!(elsewhere.delete(b"far").unwrap());
    assert_eq!(completed(&far), 0);
}

#[test]
fn a_change_comes_after_those_of_the_same_key_that_nobody_has_waited_for() {
    let cluster = cluster(1, 64);
    let near = client(&cluster, TransportKind::Shm);
    let kv = KvView::new(dataset(&near, "kv"));
    kv.list(b"", b"", 1).unwrap();
    for round in 0..200u32 {
        let pending = kv.submit_put(b"key", &pattern(200, 1)).unwrap();
        kv.set(b"key", &round.to_be_bytes()).unwrap();
        pending.wait().unwrap();
        assert_eq!(kv.get(b"key").unwrap().unwrap().bytes, round.to_be_bytes());
    }
}

#[derive(Clone, Debug)]
enum Step {
    Set(u8, usize),
    Delete(u8),
    Put(u8, usize),
    Get(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let len = || prop_oneof![0..300usize, Just(100_000)];
    prop_oneof![
        4 => (0..6u8, len()).prop_map(|(key, len)| Step::Set(key, len)),
        4 => (0..6u8).prop_map(Step::Delete),
        1 => (0..6u8, len()).prop_map(|(key, len)| Step::Put(key, len)),
        2 => (0..6u8).prop_map(Step::Get),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// Whichever of two clients of the host takes a step, keys are those of a map.
    #[test]
    fn any_steps_of_two_clients_do_what_a_map_does(
        steps in proptest::collection::vec((any::<bool>(), step()), 1..80),
    ) {
        let cluster = cluster(1, 64);
        let clients = [(); 2].map(|()| client(&cluster, TransportKind::Shm));
        let views = [0, 1].map(|index| KvView::new(dataset(&clients[index], "kv")));
        let mut model = BTreeMap::new();
        for (seed, (is_second, step)) in steps.into_iter().enumerate() {
            let kv = &views[usize::from(is_second)];
            match step {
                Step::Set(key, len) => {
                    kv.set(&[key], &pattern(len, seed as u64)).unwrap();
                    model.insert(key, pattern(len, seed as u64));
                }
                Step::Put(key, len) => {
                    kv.put(&[key], &pattern(len, seed as u64)).unwrap();
                    model.insert(key, pattern(len, seed as u64));
                }
                Step::Delete(key) => {
                    prop_assert_eq!(kv.delete(&[key]).unwrap(), model.remove(&key).is_some());
                }
                Step::Get(key) => {
                    let got = kv.get(&[key]).unwrap().map(|value| value.bytes);
                    prop_assert_eq!(got.as_ref(), model.get(&key));
                }
            }
        }
        let kept = views[0].list(b"", b"", 100).unwrap().entries;
        let kept: Vec<u8> = kept.iter().map(|entry| entry.key[0]).collect();
        prop_assert_eq!(kept, model.keys().copied().collect::<Vec<_>>());
    }
}
