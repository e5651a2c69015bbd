//! Changes that are completed without a request: only if their guards hold, and as an answer would
//! have left the records.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::collections::BTreeMap;

use proptest::prelude::*;
use samite_client::{ClientOperation, Dataset, OwnedOutcome, OwnedResult, TransportKind};
use samite_testkit::datasets::{client, cluster, dataset, pattern, spec};
use samite_types::{PartitionId, Version};
use samite_wire::op::{Action, Guard, Operation, ValueData};

const PARTITION: PartitionId = PartitionId(3);
const KEYS: [&[u8]; 3] = [b"a", b"b", b"c"];

fn read(dataset: &Dataset, key: &[u8]) -> Option<(Version, Vec<u8>)> {
    // Short enough to be a look-up, after which the node publishes it.
    let get = Action::Get { key, offset: 0, len: 512 };
    match dataset.execute_one(Operation::new(PARTITION, [get]).into()).unwrap() {
        OwnedOutcome::Done(results) => match results.into_iter().next() {
            Some(OwnedResult::Value { version, data, .. }) => Some((version, data)),
            other => panic!("{other:?}"),
        },
        OwnedOutcome::Failed(_) => None,
    }
}

fn is_completed(dataset: &Dataset, operation: Operation<'_>) -> bool {
    let mut op = ClientOperation::new(operation.clone());
    let completed = dataset.try_complete(&mut op).is_some();
    assert_eq!(op.operation, operation, "it can be sent as it was given");
    completed
}

fn put<'a>(key: &'a [u8], value: &'a [u8]) -> Operation<'a> {
    Operation::put(PARTITION, key, value)
}

#[test]
fn each_guard_is_a_precondition() {
    let cluster = cluster(1, 16);
    let near = client(&cluster, TransportKind::Shm);
    let (dataset, value) = (dataset(&near, "d"), pattern(200, 1));
    let seen = client(&cluster, TransportKind::Tcp).dataset("d").unwrap();
    let show = || {
        dataset.execute_one(put(b"k", &value).into()).unwrap().into_results("put").unwrap();
        read(&seen, b"k").unwrap().0
    };
    let first = &value[40..50];
    for (index, holds) in
        [false, true].iter().flat_map(|holds| (0..4).map(move |index| (index, *holds)))
    {
        let version = show();
        let guard = match (index, holds) {
            (0, true) => Guard::Exists(b"k"),
            (0, false) => Guard::Absent(b"k"),
            (1, _) => Guard::VersionIs(b"k", Version(version.get() + u64::from(!holds))),
            (2, _) => Guard::LenAtMost(b"k", 199 + u32::from(holds)),
            _ => Guard::BytesAre { key: b"k", offset: 39 + u32::from(holds), bytes: first },
        };
        let name = format!("{guard:?}");
        assert_eq!(is_completed(&dataset, put(b"k", b"new").guard(guard)), holds, "{name}");
        let expected: &[u8] = if holds { b"new" } else { &value };
        assert_eq!(read(&seen, b"k").unwrap().1, expected, "{name}");
    }
    // Bytes that are not published are not known.
    show();
    let far = Guard::BytesAre { key: b"k", offset: 150, bytes: &value[150..160] };
    assert!(!is_completed(&dataset, put(b"k", b"new").guard(far)));
    assert!(is_completed(&dataset, put(b"n", b"new").guard(Guard::Absent(b"n"))));
    assert_eq!(read(&seen, b"n").unwrap().1, b"new");
}

#[test]
fn what_only_the_node_can_tell_is_asked_for() {
    let cluster = cluster(1, 16);
    let near = client(&cluster, TransportKind::Shm);
    let (here, value) = (dataset(&near, "d"), pattern(200, 1));
    let long = pattern(600, 2);
    here.execute_one(put(b"k", &value).into()).unwrap().into_results("put").unwrap();
    read(&here, b"k").unwrap();
    let data = || ValueData::Inline(&value);
    for operation in [
        Operation::new(PARTITION, []),
        Operation::new(PARTITION, [Action::Get { key: b"k", offset: 0, len: 9 }]),
        Operation::new(PARTITION, [Action::Write { key: b"k", offset: 0, data: data() }]),
        Operation::new(PARTITION, [Action::DeletePrefix { prefix: b"k", limit: 1 }]),
        Operation::new(PARTITION, [Action::Delete { key: b"none" }]),
        Operation::new(PARTITION, [Action::Delete { key: b"k" }, Action::Delete { key: b"l" }]),
        Operation::new(
            PARTITION,
            [Action::Delete { key: b"k" }, Action::Hold { key: b"l", token: 5 }],
        ),
        put(b"k", &long),
        put(&long, b"key"),
        put(b"k", b"v").guard(Guard::PrefixEmpty(b"x")),
        put(b"k", b"v").guard(Guard::Exists(b"l")),
        put(b"k", b"v").guard(Guard::Absent(b"l")).guard(Guard::VersionIs(b"l", Version(1))),
    ] {
        let name = format!("{operation:?}");
        assert!(!is_completed(&here, operation), "{name}");
    }
    let null = near.create_dataset(&{
        let mut spec = spec("null");
        spec.backend.name = "null".into();
        spec
    });
    let null = null.unwrap();
    read(&null, b"k");
    assert!(
        !is_completed(&null, put(b"k", b"v").guard(Guard::Absent(b"k"))),
        "it publishes nothing"
    );
    assert_eq!(near.stats().early_completions, 0);
    assert_eq!(read(&here, b"k").unwrap().1, value);
}

#[derive(Clone, Debug)]
enum GuardKind {
    Exists,
    Absent,
    Version(bool),
    Len(u32),
    Bytes(u32, bool),
}

#[derive(Clone, Debug)]
struct Step {
    is_second: bool,
    key: usize,
    put: Option<usize>,
    guards: Vec<(usize, GuardKind)>,
    looks: bool,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let kind = prop_oneof![
        Just(GuardKind::Exists),
        Just(GuardKind::Absent),
        any::<bool>().prop_map(GuardKind::Version),
        (100..400u32).prop_map(GuardKind::Len),
        (0..200u32, any::<bool>()).prop_map(|(at, is_right)| GuardKind::Bytes(at, is_right)),
    ];
    let guards = proptest::collection::vec((prop_oneof![4 => Just(0), 1 => 1..3usize], kind), 0..3);
    let step =
        (any::<bool>(), 0..KEYS.len(), proptest::option::of(0..300usize), guards, any::<bool>());
    let step = step.prop_map(|(is_second, key, put, guards, looks)| Step {
        is_second,
        key,
        put,
        guards,
        looks,
    });
    proptest::collection::vec(step, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    /// A change is completed only if its guards hold, whichever client of the host has made the
    /// records what they are, and leaves what an answer would have left.
    #[test]
    fn only_what_a_node_would_do_is_completed(steps in steps()) {
        let cluster = cluster(1, 16);
        let clients = [(); 2].map(|()| client(&cluster, TransportKind::Shm));
        let seen = client(&cluster, TransportKind::Unix);
        let made = dataset(&seen, "d");
        let views = [0, 1].map(|index| clients[index].dataset("d").unwrap());
        let mut model: BTreeMap<&[u8], Vec<u8>> = BTreeMap::new();
        for (seed, step) in steps.iter().enumerate() {
            let (dataset, key) = (&views[usize::from(step.is_second)], KEYS[step.key]);
            if step.looks {
                prop_assert_eq!(read(dataset, key).map(|(_, value)| value), model.get(key).cloned());
            }
            let value = pattern(step.put.unwrap_or(0), seed as u64);
            let bytes: Vec<[u8; 1]> = step.guards.iter().map(|(other, kind)| {
                let record = model.get(KEYS[(step.key + other) % KEYS.len()]);
                match kind {
                    GuardKind::Bytes(at, is_right) => {
                        let byte = record.and_then(|value| value.get(*at as usize)).unwrap_or(&0);
                        [byte ^ u8::from(!is_right)]
                    }
                    _ => [0],
                }
            }).collect();
            let mut operation = match step.put {
                Some(_) => put(key, &value),
                None => Operation::new(PARTITION, [Action::Delete { key }]),
            };
            let mut holds = true;
            for ((other, kind), byte) in step.guards.iter().zip(&bytes) {
                let key = KEYS[(step.key + other) % KEYS.len()];
                let record = model.get(key);
                let (guard, is_true) = match *kind {
                    GuardKind::Exists => (Guard::Exists(key), record.is_some()),
                    GuardKind::Absent => (Guard::Absent(key), record.is_none()),
                    GuardKind::Version(is_right) => {
                        let version = read(&made, key).map_or(Version(0), |(version, _)| version);
                        let version = Version(version.get() + u64::from(!is_right));
                        (Guard::VersionIs(key, version), is_right && record.is_some())
                    }
                    GuardKind::Len(len) => (
                        Guard::LenAtMost(key, len),
                        record.is_none_or(|value| value.len() <= len as usize),
                    ),
                    GuardKind::Bytes(offset, _) => (
                        Guard::BytesAre { key, offset, bytes: byte },
                        record.is_some_and(|value| value.get(offset as usize) == Some(&byte[0])),
                    ),
                };
                operation = operation.guard(guard);
                holds &= is_true;
            }
            let completed = is_completed(dataset, operation.clone());
            prop_assert!(holds || !completed, "{:?}", operation);
            let is_done = completed || dataset.execute_one(operation.into()).unwrap().is_done();
            prop_assert_eq!(is_done, holds);
            if is_done && step.put.is_some() {
                model.insert(key, value.clone());
            } else if is_done {
                model.remove(key);
            }
            prop_assert_eq!(read(&made, key).map(|(_, value)| value), model.get(key).cloned());
        }
    }
}
