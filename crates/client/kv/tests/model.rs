//! The key-value view against a model, and its limits.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use samite_kv::KvView;
use samite_testkit::LocalCluster;
use samite_testkit::datasets::{TRANSPORTS, client, cluster, dataset, pattern, records};
use samite_types::{ErrorKind, Version};

/// Each case has a dataset of its own, so that a failed one leaves nothing to the next.
static CASE: AtomicU64 = AtomicU64::new(0);
static CLUSTER: LazyLock<LocalCluster> = LazyLock::new(|| cluster(2, 256));

fn kv(transport: samite_client::TransportKind, name: &str) -> KvView {
    KvView::new(dataset(&client(&CLUSTER, transport), name))
}

#[derive(Clone, Debug)]
enum Step {
    Put(u8, usize),
    PutIfAbsent(u8, usize),
    Swap(u8, usize, bool),
    Delete(u8),
    Append(u8, usize),
    Write(u8, usize, usize),
    Read(u8, usize, usize),
}

fn len() -> impl Strategy<Value = usize> {
    prop_oneof![
        4 => 0usize..2000,
        2 => 60_000usize..70_000,
        1 => 1_000_000usize..1_100_000,
        1 => 2_000_000usize..2_500_000,
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let key = 0u8..4;
    prop_oneof![
        3 => (key.clone(), len()).prop_map(|(key, len)| Step::Put(key, len)),
        1 => (key.clone(), len()).prop_map(|(key, len)| Step::PutIfAbsent(key, len)),
        2 => (key.clone(), len(), any::<bool>()).prop_map(|(key, len, hit)| Step::Swap(key, len, hit)),
        1 => key.clone().prop_map(Step::Delete),
        2 => (key.clone(), len()).prop_map(|(key, len)| Step::Append(key, len)),
        3 => (key.clone(), len(), len()).prop_map(|(key, at, len)| Step::Write(key, at, len)),
        2 => (key, len(), len()).prop_map(|(key, at, len)| Step::Read(key, at, len)),
    ]
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn check_step(kv: &KvView, model: &mut Model, step: &Step, seed: u64) {
    let name = |key: u8| format!("key {key}").into_bytes();
    match *step {
        Step::Put(key, len) => {
            kv.put(&name(key), &pattern(len, seed)).unwrap();
            model.insert(name(key), pattern(len, seed));
        }
        Step::PutIfAbsent(key, len) => {
            let done = kv.put_if_absent(&name(key), &pattern(len, seed));
            match model.get(&name(key)) {
                Some(_) => assert_eq!(done.unwrap_err().kind(), ErrorKind::Exists),
                None => {
                    done.unwrap();
                    model.insert(name(key), pattern(len, seed));
                }
            }
        }
        Step::Swap(key, len, hit) => {
            let there = kv.stat(&name(key)).unwrap();
            assert_eq!(
                there.map(|(len, _)| len),
                model.get(&name(key)).map(|old| old.len() as u64)
            );
            let current = there.map_or(Version(7), |(_, version)| version);
            let expected = if hit { current } else { Version(current.get() + 1) };
            let done = kv.compare_and_swap(&name(key), expected, &pattern(len, seed));
            if hit && there.is_some() {
                done.unwrap();
                model.insert(name(key), pattern(len, seed));
            } else {
                assert_eq!(done.unwrap_err().kind(), ErrorKind::Conflict);
            }
        }
        Step::Delete(key) => {
            assert_eq!(kv.delete(&name(key)).unwrap(), model.remove(&name(key)).is_some());
        }
        Step::Append(key, len) => {
            let value = model.entry(name(key)).or_default();
            value.extend(pattern(len, seed));
            assert_eq!(kv.append(&name(key), &pattern(len, seed)).unwrap(), value.len() as u64);
        }
        Step::Write(key, at, len) => {
            let value = model.entry(name(key)).or_default();
            value.resize(value.len().max(at + len), 0);
            value[at..at + len].copy_from_slice(&pattern(len, seed));
            let after = kv.write_range(&name(key), at as u64, &pattern(len, seed)).unwrap();
            assert_eq!(after, value.len() as u64);
        }
        Step::Read(key, at, len) => {
            let mut dest = vec![0xee; len];
            let got = kv.read_range(&name(key), at as u64, &mut dest).unwrap();
            let value = model.get(&name(key));
            let expected = value.map(|value| {
                &value[at.min(value.len())..(at + len).min(value.len()).max(at.min(value.len()))]
            });
            assert_eq!(got, expected.map(<[u8]>::len));
            assert!(expected.is_none_or(|expected| dest[..expected.len()] == *expected));
        }
    }
}

fn check_all(kv: &KvView, model: &Model) {
    for (key, value) in model {
        assert!(kv.get(key).unwrap().unwrap().bytes == *value);
    }
    let page = kv.list(b"", b"", 100).unwrap();
    let listed: Vec<_> = page.entries.iter().map(|entry| (entry.key.clone(), entry.len)).collect();
    let expected: Vec<_> =
        model.iter().map(|(key, value)| (key.clone(), value.len() as u64)).collect();
    assert_eq!(listed, expected);
    assert!(page.complete);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, max_shrink_iters: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_steps_do_what_a_map_does(
        steps in proptest::collection::vec(step(), 1..12),
        transport in proptest::sample::select(TRANSPORTS.to_vec()),
        grouped in any::<bool>(),
    ) {
        let name = format!("model-{}", CASE.fetch_add(1, Ordering::Relaxed));
        let mut kv = kv(transport, &name);
        if grouped {
            kv = kv.group(b"place").unwrap();
        }
        let mut model = Model::new();
        for (seed, step) in steps.iter().enumerate() {
            check_step(&kv, &mut model, step, seed as u64);
        }
        check_all(&kv, &model);
        for key in model.keys() {
            prop_assert!(kv.delete(key).unwrap());
        }
        check_all(&kv, &Model::new());
        // All chunks that there were are gone with their values.
        prop_assert_eq!(records(kv.dataset()), Vec::<Box<[u8]>>::new());
        kv.dataset().client().drop_dataset(&name).unwrap();
    }
}

#[test]
fn races_for_a_version_have_one_winner_each() {
    const ROUNDS: u64 = 100;
    let cluster = cluster(1, 64);
    let kvs =
        TRANSPORTS.map(|transport| KvView::new(dataset(&client(&cluster, transport), "race")));
    kvs[0].put(b"counter", &0u64.to_le_bytes()).unwrap();
    std::thread::scope(|scope| {
        for kv in &kvs {
            scope.spawn(move || {
                let mut won = 0;
                while won < ROUNDS {
                    let value = kv.get(b"counter").unwrap().unwrap();
                    let count = u64::from_le_bytes(value.bytes.try_into().unwrap());
                    let next = (count + 1).to_le_bytes();
                    match kv.compare_and_swap(b"counter", value.version, &next) {
                        Ok(_) => won += 1,
                        Err(error) => assert_eq!(error.kind(), ErrorKind::Conflict),
                    }
                }
            });
        }
    });
    let value = kvs[0].get(b"counter").unwrap().unwrap();
    assert_eq!(value.bytes, (3 * ROUNDS).to_le_bytes());
}

#[test]
fn groups_change_several_keys_together() {
    let cluster = cluster(2, 64);
    let kv = KvView::new(dataset(&client(&cluster, TRANSPORTS[0]), "groups"));
    let group = kv.group(b"account 7").unwrap();
    let versions =
        group.atomic().expect_absent(b"a").put(b"a", b"1").put(b"b", b"2").commit().unwrap();
    assert_eq!(versions.len(), 2);
    assert_eq!(kv.get(b"a").unwrap(), None);
    assert_eq!(group.get(b"b").unwrap().unwrap().bytes, b"2");

    let stale = Version(versions[0].get() + 1);
    let error = group.atomic().expect_version(b"a", stale).delete(b"b").commit().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(group.get(b"b").unwrap().is_some());

    group
        .atomic()
        .expect_version(b"a", versions[0])
        .append(b"a", b"!")
        .delete(b"b")
        .commit()
        .unwrap();
    assert_eq!(group.get(b"a").unwrap().unwrap().bytes, b"1!");
    assert_eq!(group.get(b"b").unwrap(), None);
    assert_eq!(group.list(b"", b"", 10).unwrap().entries.len(), 1);
    assert_eq!(kv.list(b"", b"", 10).unwrap().entries.len(), 0);

    group.put(b"large", &pattern(3 << 20, 1)).unwrap();
    let error = group.atomic().put(b"large", b"x").put(b"a", b"y").commit().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let error = group.atomic().expect_absent(b"z").commit().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_eq!(kv.group(&[0; 61]).unwrap_err().kind(), ErrorKind::TooLarge);
}

#[test]
fn keys_have_one_to_4096_bytes_of_any_kind() {
    let cluster = cluster(2, 64);
    for transport in TRANSPORTS {
        let kv = KvView::new(dataset(&client(&cluster, transport), "keys"));
        for key in [&[0u8][..], b"../../x", b"\xff\n\0", &[b'k'; 4096]] {
            kv.put(key, key).unwrap();
            assert_eq!(kv.get(key).unwrap().unwrap().bytes, key);
            assert!(kv.group(&[b'p'; 60]).unwrap().put(key, b"").is_ok());
        }
        for result in [kv.put(&[b'k'; 4097], b"").map(drop), kv.get(&[b'k'; 4097]).map(drop)] {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::TooLarge);
            assert!(
                error.message().contains("4097") && error.message().contains("4096"),
                "{error}"
            );
        }
        assert_eq!(kv.put(b"", b"").unwrap_err().kind(), ErrorKind::Invalid);
        let error = kv.write_range(b"k", 1 << 30, b"x").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooLarge);
    }
}

#[test]
fn listings_go_on_where_they_ended() {
    let cluster = cluster(2, 64);
    let kv = KvView::new(dataset(&client(&cluster, TRANSPORTS[1]), "list"));
    let keys: Vec<String> = (0..2500).map(|index| format!("dir/{index:05}")).collect();
    let mut batch = kv.batch();
    for key in &keys {
        batch.put(key.as_bytes(), b"value");
    }
    batch.put(b"other", b"").put(b"dir", b"").put(b"dis", b"");
    assert!(batch.execute().unwrap().iter().all(Result::is_ok));
    for limit in [7, 100, 5000] {
        let mut found: Vec<Vec<u8>> = Vec::new();
        loop {
            let after = found.last().cloned().unwrap_or_default();
            let page = kv.list(b"dir/", &after, limit).unwrap();
            assert!(page.entries.len() <= limit);
            assert!(page.entries.iter().all(|entry| entry.len == 5));
            found.extend(page.entries.into_iter().map(|entry| entry.key));
            if page.complete {
                break;
            }
        }
        assert!(found.iter().map(Vec::as_slice).eq(keys.iter().map(String::as_bytes)), "{limit}");
    }
}

#[test]
fn a_value_of_64_mib_is_replaced_whole() {
    let cluster = cluster(2, 160);
    for transport in TRANSPORTS {
        let kv = KvView::new(dataset(&client(&cluster, transport), "large"));
        let value = pattern(64 << 20, 3);
        kv.put(b"large", &value).unwrap();
        assert!(kv.get(b"large").unwrap().unwrap().bytes == value);
        kv.put(b"large", b"small").unwrap();
        assert_eq!(kv.get(b"large").unwrap().unwrap().bytes, b"small");
        kv.put(b"large", &value[1..]).unwrap();
        assert!(kv.get(b"large").unwrap().unwrap().bytes == value[1..]);
        assert!(kv.delete(b"large").unwrap());
        assert_eq!(kv.get(b"large").unwrap(), None);
    }
}

#[test]
fn readers_of_a_large_value_see_one_or_the_other() {
    let cluster = cluster(2, 128);
    let writer = KvView::new(dataset(&client(&cluster, TRANSPORTS[0]), "swap"));
    writer.put(b"k", &vec![0; 3 << 20]).unwrap();
    std::thread::scope(|scope| {
        let readers: Vec<_> = TRANSPORTS
            .iter()
            .map(|transport| {
                let kv = KvView::new(dataset(&client(&cluster, *transport), "swap"));
                scope.spawn(move || {
                    for _ in 0..15 {
                        let bytes = kv.get(b"k").unwrap().unwrap().bytes;
                        assert!(bytes.iter().all(|byte| *byte == bytes[0]));
                    }
                })
            })
            .collect();
        let mut round = 0u8;
        while readers.iter().any(|reader| !reader.is_finished()) {
            round = round.wrapping_add(1);
            writer
                .put(b"k", &vec![round; if round.is_multiple_of(2) { 3 << 20 } else { 900_000 }])
                .unwrap();
        }
    });
}

#[test]
#[ignore = "takes 1 GiB of memory twice"]
fn a_value_of_1_gib_is_the_most() {
    let cluster = cluster(2, 1100);
    let kv = KvView::new(dataset(&client(&cluster, TRANSPORTS[0]), "gib"));
    let value = pattern(1 << 30, 9);
    kv.put(b"k", &value).unwrap();
    assert!(kv.get(b"k").unwrap().unwrap().bytes == value);
    assert_eq!(kv.append(b"k", b"x").unwrap_err().kind(), ErrorKind::TooLarge);
}

#[test]
fn a_full_target_says_so_and_stays_healthy() {
    let cluster = cluster(1, 32);
    for transport in TRANSPORTS {
        let kv = KvView::new(dataset(&client(&cluster, transport), "full"));
        kv.put(b"kept", b"value").unwrap();
        let error = kv.put(b"large", &pattern(64 << 20, 1)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
        assert_eq!(kv.get(b"large").unwrap(), None);
        assert_eq!(kv.get(b"kept").unwrap().unwrap().bytes, b"value");
        // The chunks that the failed put had stored already are free again.
        kv.put(b"large", &pattern(16 << 20, 1)).unwrap();
        assert!(kv.delete(b"large").unwrap());
    }
}
