//! Operations that count as done before they are applied: an obstacle to one action does not keep the others
//! from taking effect.
#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

use std::time::Duration;

use samite_backend::Backend;
use samite_backend::memory::MemoryBackend;
use samite_partition::Partition;
use samite_partition::limits::OPEN_REFERENCES_PER_CLIENT_MAX;
use samite_types::{ClientId, DatasetId, ErrorKind, PartitionId, Seq};
use samite_wire::op::{Action, Guard, Operation, ValueData};

const CLIENT: ClientId = ClientId(7);
const STAMP: &[u8] = b"mark";

fn partition() -> Partition {
    let mut backend = MemoryBackend::new(1 << 20, 1).unwrap();
    Partition::new(backend.open(DatasetId(1), PartitionId(0)).unwrap())
}

fn apply(partition: &mut Partition, operation: Operation<'_>) -> Result<(), ErrorKind> {
    partition.apply_certain(CLIENT, &Operation { seq: Seq(1), ..operation }, Duration::ZERO)
}

fn operation<'a>(actions: impl IntoIterator<Item = Action<'a>>) -> Operation<'a> {
    Operation::new(PartitionId(0), actions)
}

/// Makes a record that is new, and leaves a change stamp.
fn make(key: &[u8], token: u64) -> Operation<'_> {
    let put = Action::Put { key, data: ValueData::Inline(b"value") };
    let hold = Action::Hold { key, token };
    operation([put, stamp(5), hold]).guard(Guard::Absent(key))
}

fn stamp(to: i64) -> Action<'static> {
    Action::Advance { key: STAMP, offset: 0, count: 1, to, slack: u64::MAX }
}

fn is_there(partition: &Partition, key: &[u8]) -> bool {
    partition.would_run(&operation([]).guard(Guard::Exists(key)))
}

fn is_marked(partition: &Partition, at: i64) -> bool {
    let bytes = &at.to_le_bytes();
    partition.would_run(&operation([]).guard(Guard::BytesAre { key: STAMP, offset: 0, bytes }))
}

#[test]
fn all_of_it_takes_effect_or_nothing_where_a_guard_fails() {
    let mut partition = partition();
    assert_eq!(apply(&mut partition, make(b"a", 1)), Ok(()));
    assert!(is_there(&partition, b"a") && is_marked(&partition, 5));
    let again = operation([
        Action::Put { key: b"a", data: ValueData::Inline(b"other") },
        stamp(9),
        Action::Put { key: b"b", data: ValueData::Inline(b"") },
    ]);
    assert_eq!(apply(&mut partition, again.guard(Guard::Absent(b"a"))), Err(ErrorKind::Conflict));
    assert!(is_marked(&partition, 5) && !is_there(&partition, b"b"));
}

#[test]
fn a_damaged_change_stamp_keeps_no_record_from_going() {
    let mut partition = partition();
    apply(&mut partition, make(b"a", 1)).unwrap();
    apply(&mut partition, operation([Action::Release { token: 1 }])).unwrap();
    assert!(partition.rot(STAMP, 3));
    let unlink = Action::Detach { key: b"a", to: b"o" };
    let removal = operation([unlink, stamp(9)]).guard(Guard::Exists(b"a"));
    assert_eq!(apply(&mut partition, removal), Err(ErrorKind::Corrupt), "of the mark");
    assert!(!is_there(&partition, b"a") && !is_there(&partition, b"o"));
}

#[test]
fn a_damaged_record_stays_and_nothing_is_said_to_have_changed() {
    let mut partition = partition();
    apply(&mut partition, make(b"a", 1)).unwrap();
    assert!(partition.rot(b"a", 3));
    let guard = Guard::BytesAre { key: b"a", offset: 0, bytes: b"value" };
    let unlink = Action::Detach { key: b"a", to: b"o" };
    let removal = operation([unlink, stamp(9)]).guard(guard);
    assert_eq!(apply(&mut partition, removal), Err(ErrorKind::Corrupt));
    assert!(is_there(&partition, b"a") && is_marked(&partition, 5));
}

#[test]
fn too_many_open_references_keep_no_record_from_being_made() {
    let mut partition = partition();
    apply(&mut partition, make(b"a", 1)).unwrap();
    for token in 2..=OPEN_REFERENCES_PER_CLIENT_MAX as u64 {
        apply(&mut partition, operation([Action::Hold { key: b"a", token }])).unwrap();
    }
    assert_eq!(apply(&mut partition, make(b"b", u64::MAX)), Err(ErrorKind::TooManyOpen));
    assert!(is_there(&partition, b"b") && is_marked(&partition, 5));
}
