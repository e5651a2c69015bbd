//! A store one of whose calls fails: an operation takes effect whole, or it fails and nothing has
//! happened, or the partition says that it has failed itself. Nothing is told that is not so.

mod common;

use std::ops::ControlFlow;

use common::context;
use samite_backend::Backend;
use samite_backend::failing::{CallFailure, FailingBackend};
use samite_backend::memory::MemoryBackend;
use samite_partition::{AppliedOutcome, NoGrants, Partition};
use samite_types::{ClientId, DatasetId, ErrorKind, PartitionId, Seq};
use samite_wire::op::{Action, Guard, Operation, ValueData};

/// More calls than any of these operations makes.
const CALLS_MAX: u64 = 40;

fn partition() -> (Partition, CallFailure) {
    let failure = CallFailure::default();
    let memory = MemoryBackend::new(4 << 20, 1).expect("a target");
    let mut backend = FailingBackend::new(Box::new(memory), failure.clone());
    let store = backend.open(DatasetId(1), PartitionId(0)).expect("a store");
    let mut partition = Partition::new(store);
    for (seq, key) in [(1, b"a"), (2, b"b"), (3, b"c")] {
        let done = apply(&mut partition, put(key, b"12345678"), seq, false);
        assert!(matches!(done, AppliedOutcome::Done(_)), "{done:?}");
    }
    (partition, failure)
}

fn one<'o>(actions: impl IntoIterator<Item = Action<'o>>) -> Operation<'o> {
    Operation::new(PartitionId(0), actions)
}

fn put<'o>(key: &'o [u8], value: &'o [u8]) -> Operation<'o> {
    one([Action::Put { key, data: ValueData::Inline(value) }])
}

fn apply(
    partition: &mut Partition,
    mut operation: Operation<'_>,
    seq: u64,
    is_retry: bool,
) -> AppliedOutcome {
    operation.seq = Seq(if operation.is_mutation() { seq } else { 0 });
    partition.apply(ClientId(1), &context(is_retry), &operation, &mut NoGrants)
}

/// All records, and the clients with open references.
fn content(partition: &Partition) -> Vec<u8> {
    let (mut content, mut keys) = (Vec::new(), Vec::new());
    let visited = partition.visit_records(b"", &mut |key, meta| {
        content.extend_from_slice(&meta.version.get().to_le_bytes());
        keys.push(key.to_vec());
        ControlFlow::Continue(())
    });
    visited.expect("no call fails");
    for key in keys {
        content.extend_from_slice(&key);
        let found = partition.read_record(&key).expect("no call fails").expect("it is there");
        found.1.iter().for_each(|piece| piece.append_to(&mut content));
    }
    content.extend(partition.holders().flat_map(|client| client.get().to_le_bytes()));
    content
}

fn operations() -> Vec<Operation<'static>> {
    let new = |key| Action::Put { key, data: ValueData::Inline(b"new") };
    let mut guarded = one([new(b"d"), Action::Delete { key: b"a" }]);
    guarded.guards.push(Guard::Absent(b"d"));
    guarded.guards.push(Guard::Exists(b"b"));
    vec![
        put(b"a", b"other"),
        guarded,
        one([Action::Add { key: b"a", offset: 0, delta: 5 }, new(b"b"), new(b"e")]),
        one([Action::DeletePrefix { prefix: b"", limit: 9 }]),
        one([Action::Detach { key: b"a", to: b"b" }, new(b"c")]),
        one([Action::Hold { key: b"a", token: 1 }, Action::Hold { key: b"b", token: 2 }]),
        one([Action::Get { key: b"a", offset: 0, len: 9 }, new(b"f")]),
        one([
            Action::Truncate { key: b"a", len: 2 },
            Action::Punch { key: b"b", offset: 0, len: 3 },
        ]),
    ]
}

#[test]
fn an_operation_is_done_or_fails_without_effect_or_the_partition_has_failed() {
    let mut seen = [0; 3];
    for operation in operations() {
        for number in 1..CALLS_MAX {
            let (mut partition, failure) = partition();
            let before = content(&partition);
            failure.set(number);
            let outcome = apply(&mut partition, operation.clone(), 4, false);
            failure.set(0);
            match outcome {
                _ if partition.failed().is_some() => {
                    seen[0] += 1;
                    assert!(matches!(
                        outcome,
                        AppliedOutcome::Failed { kind: ErrorKind::Unavailable, .. }
                    ));
                    let more = apply(&mut partition, put(b"a", b"more"), 5, false);
                    assert!(matches!(
                        more,
                        AppliedOutcome::Failed { kind: ErrorKind::Unavailable, .. }
                    ));
                }
                AppliedOutcome::Done(_) => seen[1] += 1,
                AppliedOutcome::Failed { kind, .. } => {
                    seen[2] += 1;
                    assert_eq!(kind, ErrorKind::Io, "{operation:?}, call {number}");
                    assert_eq!(content(&partition), before, "{operation:?}, call {number}");
                }
            }
        }
    }
    assert!(seen.iter().all(|times| *times > 5), "failed, done, refused: {seen:?}");
}

/// The network doubles a sending, and its second copy comes when the client was told of the error.
#[test]
fn a_change_that_was_told_to_have_failed_does_not_take_effect_later() {
    for is_retry in [false, true] {
        let (mut partition, failure) = partition();
        let before = content(&partition);
        failure.set(1);
        let told = apply(&mut partition, put(b"a", b"other"), 4, is_retry);
        assert!(matches!(told, AppliedOutcome::Failed { kind: ErrorKind::Io, .. }), "{told:?}");
        let late = apply(&mut partition, put(b"a", b"other"), 4, false);
        assert!(matches!(late, AppliedOutcome::Failed { kind: ErrorKind::Io, .. }), "{late:?}");
        assert_eq!(content(&partition), before);
    }
}

#[test]
fn a_store_that_does_not_answer_says_nothing_of_records_that_may_be_lost() {
    let get = one([Action::Get { key: b"z", offset: 0, len: 1 }]);
    let list =
        Action::List { prefix: b"z", after: b"", limit: 9, reverse: false, value_len_max: 0 };
    for operation in [put(b"z", b"new"), get, one([list])] {
        for number in 1..CALLS_MAX {
            let (mut partition, failure) = partition();
            let before = content(&partition);
            failure.set(number);
            let mut operation = operation.clone();
            operation.seq = Seq(if operation.is_mutation() { 4 } else { 0 });
            let outcome =
                partition.apply_lost(ClientId(1), &context(false), &operation, &mut NoGrants);
            failure.set(0);
            let AppliedOutcome::Failed { kind, .. } = outcome else {
                panic!("call {number}: {outcome:?}");
            };
            assert!(matches!(kind, ErrorKind::Lost | ErrorKind::Io), "{kind:?}");
            assert_eq!((content(&partition), partition.failed()), (before, None));
        }
    }
}
