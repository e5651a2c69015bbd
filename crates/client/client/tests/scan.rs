//! Scans visit every record that stays as it is exactly once, whatever else happens.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Mutex;

use proptest::prelude::*;
use samite_client::scan::{ScanOptions, ScanScope, ScanToken, VisitedRecord};
use samite_client::{ClientOperation, ClientOptions, Dataset, TransportKind};
use samite_testkit::datasets::{TRANSPORTS, client, cluster, dataset, pattern, spec};
use samite_testkit::{LocalCluster, LocalOptions};
use samite_types::{ErrorKind, NodeId, PartitionId, Redundancy, Version};
use samite_wire::control::{DatasetSpec, ReadsKind};
use samite_wire::limits::KEY_LEN_MAX;
use samite_wire::op::{Action, Operation, ValueData};

fn apply(dataset: &Dataset, key: &[u8], action: Action<'_>) {
    let operation = Operation::new(dataset.partition_of(key), [action]);
    assert!(dataset.execute_one(ClientOperation::new(operation)).unwrap().is_done());
}

fn put(dataset: &Dataset, key: &[u8], value: &[u8]) {
    apply(dataset, key, Action::Put { key, data: ValueData::Inline(value) });
}

/// Records with values of every kind: none, in the record, on the heap, in slots and in blocks of
/// the arena, in several of them, with holes; and keys up to the longest.
fn records(dataset: &Dataset) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut all = BTreeMap::new();
    let lens = [0, 1, 100, 129, 1024, 1025, 4096, 20_000, 40_000, 65_536, 65_537, 300_000, 1 << 20];
    for (len, index) in lens.into_iter().zip(0_u64..) {
        for copy in 0..3 {
            let key = format!("plain/{index}/{copy}").into_bytes();
            let value = pattern(len, index * 3 + copy);
            put(dataset, &key, &value);
            all.insert(key, value);
        }
    }
    for (len, index) in [(10, 5_000), (70_000, 200_000), (1, 1 << 20)].into_iter().zip(0_u8..) {
        let (start, whole): (usize, usize) = len;
        let key = [b"holes/", &[index][..]].concat();
        let mut value = pattern(start, 9);
        put(dataset, &key, &value);
        value.resize(whole, 0);
        apply(dataset, &key, Action::Truncate { key: &key, len: whole as u32 });
        all.insert(key, value);
    }
    for index in 0..40_u8 {
        let mut key = vec![index; KEY_LEN_MAX];
        key[0] = b'k';
        let value = pattern(usize::from(index) * 100, 1);
        put(dataset, &key, &value);
        all.insert(key, value);
    }
    all
}

/// All records that a scan visits, of which none comes twice and keys come in order.
#[derive(Default)]
struct Visited {
    records: BTreeMap<Vec<u8>, (Version, Vec<u8>)>,
    last: BTreeMap<PartitionId, Vec<u8>>,
}

impl Visited {
    fn add(&mut self, record: &VisitedRecord<'_>) {
        let VisitedRecord { partition, key, version, len, value } = *record;
        assert!(value.is_empty() || value.len() == len as usize);
        let before = self.last.insert(partition, key.to_vec());
        assert!(before.is_none_or(|before| before.as_slice() < key), "out of order: {key:?}");
        let is_new = self.records.insert(key.to_vec(), (version, value.to_vec())).is_none();
        assert!(is_new, "visited twice: {key:?}");
    }

    fn values(self) -> BTreeMap<Vec<u8>, Vec<u8>> {
        self.records.into_iter().map(|(key, (_, value))| (key, value)).collect()
    }
}

fn scan(dataset: &Dataset, options: &ScanOptions) -> Visited {
    let scan = dataset.scan(options).unwrap();
    let (mut cursor, mut visited) = (scan.cursor(), Visited::default());
    while cursor.advance().unwrap() {
        visited.add(&cursor.record());
    }
    assert!(scan.token().is_done());
    visited
}

#[test]
fn every_record_is_visited_with_its_value_on_every_transport() {
    for shards in [1, 2] {
        let options = LocalOptions { shards, memory_bytes: 128 << 20, ..LocalOptions::default() };
        let cluster = LocalCluster::start(1, options).unwrap();
        let all = records(&dataset(&client(&cluster, TransportKind::Shm), "d"));
        for transport in TRANSPORTS {
            let dataset = dataset(&client(&cluster, transport), "d");
            let found = scan(&dataset, &ScanOptions::default()).values();
            assert!(found == all, "{transport}, {shards} shards");
            let keys = scan(&dataset, &ScanOptions { values: false, ..ScanOptions::default() });
            assert!(keys.records.keys().eq(all.keys()));
            assert!(keys.records.values().all(|(_, value)| value.is_empty()));
            let prefix = b"holes/".to_vec();
            let found = scan(&dataset, &ScanOptions { prefix: prefix.clone(), ..<_>::default() });
            let with_prefix = all.iter().filter(|(key, _)| key.starts_with(&prefix));
            assert!(found.values().iter().eq(with_prefix), "{transport}, {shards} shards");
        }
    }
}

#[test]
fn threads_share_a_scan_and_one_partition_can_be_scanned_alone() {
    let cluster = cluster(2, 64);
    let dataset = dataset(&client(&cluster, TransportKind::Shm), "d");
    let all = records(&dataset);
    let visited = Mutex::new(Visited::default());
    let scan_all = dataset.scan(&ScanOptions::default()).unwrap();
    let is_whole = scan_all.run(3, |record| {
        visited.lock().unwrap().add(record);
        ControlFlow::Continue(())
    });
    assert!(is_whole.unwrap() && scan_all.token().is_done());
    assert!(visited.into_inner().unwrap().values() == all);

    let mut found = BTreeMap::new();
    for partition in (0..dataset.partitions()).map(PartitionId) {
        let scope = ScanScope::Partition(partition);
        let alone = scan(&dataset, &ScanOptions { scope, ..ScanOptions::default() });
        assert!(alone.last.keys().all(|visited| *visited == partition));
        found.append(&mut alone.values());
    }
    assert!(found == all);
    let scope = ScanScope::Partition(PartitionId(dataset.partitions()));
    let refused = dataset.scan(&ScanOptions { scope, ..ScanOptions::default() }).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
}

#[test]
fn a_scan_that_is_stopped_goes_on_with_the_next_record() {
    let cluster = cluster(1, 64);
    let here = dataset(&client(&cluster, TransportKind::Shm), "d");
    let all = records(&here);
    let visited = Mutex::new(Visited::default());
    let mut from = None;
    let mut parts = 0;
    // Every part by another client, from the bytes of the token.
    while parts == 0 || from.is_some() {
        parts += 1;
        let dataset = dataset(&client(&cluster, TRANSPORTS[parts % 3]), "d");
        let scan = dataset.scan(&ScanOptions { from, ..ScanOptions::default() }).unwrap();
        let left = Mutex::new(7);
        let is_whole = scan.run(2, |record| {
            visited.lock().unwrap().add(record);
            let mut left = left.lock().unwrap();
            *left -= 1;
            if *left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let token = scan.token();
        assert_eq!(is_whole.unwrap(), token.is_done());
        let next = ScanToken::from_bytes(&token.to_bytes()).unwrap();
        from = Some(next).filter(|token| !token.is_done());
    }
    assert!(parts > 5);
    assert!(visited.into_inner().unwrap().values() == all);
}

/// Values that were on a page change in place after it came: they are asked for.
#[test]
fn what_has_changed_since_its_page_came_is_asked_for() {
    let cluster = cluster(1, 64);
    for transport in TRANSPORTS {
        let dataset = dataset(&client(&cluster, transport), &format!("d-{transport}"));
        let keys: Vec<Vec<u8>> = (0..200_u8).map(|index| vec![b'k', index]).collect();
        let len_of = |index: usize| [2000, 5000, 40_000, 100_000][index % 4];
        for (key, index) in keys.iter().zip(0..) {
            put(&dataset, key, &vec![1; len_of(index)]);
        }
        let scan = dataset.scan(&ScanOptions::default()).unwrap();
        let (mut cursor, mut visited) = (scan.cursor(), Visited::default());
        assert!(cursor.advance().unwrap());
        visited.add(&cursor.record());
        for (key, index) in keys.iter().zip(0..) {
            match index % 5 {
                0 => apply(&dataset, key, Action::Delete { key }),
                1 => {}
                _ => put(&dataset, key, &vec![2; len_of(index)]),
            }
        }
        while cursor.advance().unwrap() {
            visited.add(&cursor.record());
        }
        let found = visited.values();
        for (key, index) in keys.iter().zip(0..) {
            let Some(value) = found.get(key) else {
                assert_eq!(index % 5, 0, "{transport}: a record that was not removed is missing");
                continue;
            };
            let is_whole = value.len() == len_of(index) && value.iter().all(|one| *one == value[0]);
            assert!(is_whole, "{transport}: a mixture of values");
            assert!(index % 5 != 1 || value[0] == 1);
        }
        if transport == TransportKind::Shm {
            let new = found.values().filter(|value| value[0] == 2).count();
            assert!(new > 100, "only {new} of 120 values that changed in place are the new ones");
        }
    }
}

#[test]
fn the_partitions_at_hand_are_those_that_this_host_answers() {
    let options = LocalOptions { apart: true, ..LocalOptions::default() };
    let cluster = LocalCluster::start(3, options).unwrap();
    let client = cluster.client(ClientOptions::default()).unwrap();
    let spec = |name: &str, redundancy, reads| DatasetSpec {
        redundancy: Redundancy(redundancy),
        reads,
        ..spec(name)
    };
    let specs = [
        spec("alone", 1, ReadsKind::Primary),
        spec("primary", 2, ReadsKind::Primary),
        spec("any", 2, ReadsKind::Any),
    ];
    for spec in specs {
        let dataset = client.create_dataset(&spec).unwrap();
        let keys: Vec<String> = (0..300).map(|index| format!("k{index}")).collect();
        keys.iter().for_each(|key| put(&dataset, key.as_bytes(), key.as_bytes()));
        let map = client.refresh_map().unwrap();
        let is_here = |key: &str| {
            let partition = dataset.partition_of(key.as_bytes());
            let group = map.group(spec.redundancy, partition).unwrap();
            let count = if spec.reads == ReadsKind::Any { 2 } else { 1 };
            group.members[..count]
                .iter()
                .any(|one| map.node_of_target(one.target) == Some(NodeId(0)))
        };
        let here: BTreeSet<Vec<u8>> =
            keys.iter().filter(|key| is_here(key)).map(|key| key.clone().into_bytes()).collect();
        assert!(here.len() > 30 && here.len() < 290);
        let options = ScanOptions { scope: ScanScope::OnHost, ..ScanOptions::default() };
        let found: BTreeSet<Vec<u8>> = scan(&dataset, &options).values().into_keys().collect();
        assert!(found == here, "{}", spec.name);
    }
}

#[test]
fn a_primary_that_dies_in_the_middle_is_a_pause() {
    for transport in TRANSPORTS {
        let mut cluster = cluster(2, 64);
        let client = client(&cluster, transport);
        let spec = DatasetSpec { redundancy: Redundancy(2), ..spec("d") };
        let dataset = client.create_dataset(&spec).unwrap();
        let all = records(&dataset);
        let scan = dataset.scan(&ScanOptions::default()).unwrap();
        let (mut cursor, mut visited) = (scan.cursor(), Visited::default());
        for _ in 0..20 {
            assert!(cursor.advance().unwrap());
            visited.add(&cursor.record());
        }
        cluster.stop_node(NodeId(1)).unwrap();
        while cursor.advance().unwrap() {
            visited.add(&cursor.record());
        }
        assert!(visited.values() == all, "{transport}");
    }
}

#[test]
fn records_that_died_with_their_node_are_told_and_the_rest_is_left() {
    let mut cluster = cluster(2, 64);
    let client = client(&cluster, TransportKind::Shm);
    let dataset = dataset(&client, "d");
    let all = records(&dataset);
    cluster.stop_node(NodeId(1)).unwrap();
    cluster.restart_node(NodeId(1)).unwrap();
    while client.refresh_map().unwrap().lost_partitions(dataset.id()).is_empty() {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let scan = dataset.scan(&ScanOptions::default()).unwrap();
    let (mut visited, mut errors) = (Visited::default(), 0);
    while errors < 3 {
        let mut cursor = scan.cursor();
        loop {
            match cursor.advance() {
                Ok(true) => visited.add(&cursor.record()),
                Ok(false) => panic!("what is lost was not told"),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Lost);
                    assert!(!cursor.advance().unwrap(), "an error ends a cursor");
                    break;
                }
            }
        }
        errors += 1;
    }
    assert!(!scan.token().is_done());
    let found = visited.values();
    assert!(found.iter().all(|(key, value)| all.get(key) == Some(value)));
}

#[derive(Clone, Debug)]
enum Step {
    /// Visits so many records.
    Visit(u8),
    /// Ends the cursor; with `true` the scan too, which goes on from its token.
    Stop(bool),
    Put(u8, u32),
    Delete(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..60_u8).prop_map(Step::Visit),
        2 => any::<bool>().prop_map(Step::Stop),
        3 => (any::<u8>(), prop::sample::select(vec![0, 100, 3000, 70_000]))
            .prop_map(|(key, len)| Step::Put(key, len)),
        2 => any::<u8>().prop_map(Step::Delete),
    ]
}

/// Keys of records that change: among those of the others in the order of keys.
fn other_key(index: u8) -> Vec<u8> {
    format!("k{:03}-other", u16::from(index) % 40 * 7).into_bytes()
}

#[test]
fn whatever_else_changes_and_wherever_it_is_stopped_every_other_record_comes_once() {
    let cluster = cluster(1, 128);
    let datasets: Vec<Dataset> = [TransportKind::Shm, TransportKind::Tcp]
        .iter()
        .map(|transport| dataset(&client(&cluster, *transport), "d"))
        .collect();
    // Enough of them for several pages over a socket.
    let kept: BTreeMap<Vec<u8>, Vec<u8>> = (0..300_u64)
        .map(|index| {
            let len = [0, 50, 900, 1500, 4096, 30_000, 66_000][index as usize % 7];
            (format!("k{index:03}").into_bytes(), pattern(len, index))
        })
        .collect();
    kept.iter().for_each(|(key, value)| put(&datasets[0], key, value));
    let config = ProptestConfig { cases: 24, ..ProptestConfig::default() };
    proptest!(config, |(steps in prop::collection::vec(step(), 1..25), which in 0..2_usize)| {
        let dataset = &datasets[which];
        let mut visited = Visited::default();
        // A record that changes may come a second time only if it was removed and made again.
        let mut add = |record: &VisitedRecord<'_>| {
            if kept.contains_key(record.key) {
                visited.add(record);
            } else {
                assert!(record.value.iter().all(|byte| *byte == record.value[0]));
            }
        };
        let mut scan = dataset.scan(&ScanOptions::default()).unwrap();
        for step in steps {
            match step {
                Step::Put(index, len) => put(dataset, &other_key(index), &vec![9; len as usize]),
                Step::Delete(index) => {
                    let key = other_key(index);
                    apply(dataset, &key, Action::Delete { key: &key });
                }
                Step::Visit(count) => {
                    let mut cursor = scan.cursor();
                    for change in 0..count {
                        if !cursor.advance().unwrap() {
                            break;
                        }
                        add(&cursor.record());
                        // Slots beside those that are referred to change meanwhile.
                        if change % 8 == 0 {
                            put(dataset, &other_key(change), &[change; 3000]);
                        }
                    }
                }
                Step::Stop(is_resumed) if is_resumed => {
                    let from = Some(ScanToken::from_bytes(&scan.token().to_bytes()).unwrap());
                    scan = dataset.scan(&ScanOptions { from, ..ScanOptions::default() }).unwrap();
                }
                Step::Stop(_) => drop(scan.cursor()),
            }
        }
        let mut cursor = scan.cursor();
        while cursor.advance().unwrap() {
            add(&cursor.record());
        }
        prop_assert!(visited.values() == kept);
    });
}
