//! The reads that an operation is about to do, told to the store ahead of it.

use samite_backend::{PlannedRead, ReadAhead};
use samite_wire::op::{Action, Guard, Operation, TouchedRecords};
use smallvec::SmallVec;

use crate::Partition;
use crate::limits::{DELETE_PREFIX_MAX, REVEAL_LEN_MAX};
use crate::numbers::NUMBER_LEN;

type Reads<'a> = SmallVec<[PlannedRead<'a>; 4]>;

impl Partition {
    /// Work that brings what `operation` reads to where it is read without waiting for a disk;
    /// `None`: it is there.
    #[must_use]
    pub fn read_ahead(&self, operation: &Operation<'_>) -> Option<ReadAhead> {
        let mut reads = Reads::new();
        operation.guards.iter().for_each(|guard| of_guard(guard, operation.reveal_len, &mut reads));
        operation.actions.iter().for_each(|action| of_action(action, &mut reads));
        self.store.read_ahead(&reads)
    }
}

fn of_guard<'a>(guard: &Guard<'a>, reveal_len: u32, reads: &mut Reads<'a>) {
    match guard {
        Guard::PrefixEmpty(prefix) => reads.push(scan(prefix, 1, 0)),
        Guard::BytesAre { key, offset, bytes } => {
            // No longer than a frame.
            let len = bytes.len() as u32;
            reads.push(PlannedRead::Record { key, offset: *offset, len });
        }
        Guard::Exists(key)
        | Guard::Absent(key)
        | Guard::VersionIs(key, _)
        | Guard::LenAtMost(key, _) => reads.push(record(key, 0)),
    }
    if let Some(key) = guard.record().filter(|_| reveal_len > 0) {
        reads.push(record(key, reveal_len.min(REVEAL_LEN_MAX)));
    }
}

fn of_action<'a>(action: &Action<'a>, reads: &mut Reads<'a>) {
    let mut number = |key, offset: u32, count: u8| {
        let len = u32::from(count) * NUMBER_LEN;
        reads.push(PlannedRead::Record { key, offset, len });
    };
    match action {
        Action::Get { key, offset, len } => {
            reads.push(PlannedRead::Record { key, offset: *offset, len: *len });
        }
        Action::Add { key, offset, .. } | Action::Max { key, offset, .. } => {
            number(key, *offset, 1);
        }
        Action::Advance { key, offset, count, .. } => number(key, *offset, *count),
        Action::List { prefix, after, limit, reverse, value_len_max } => {
            let (limit, value_len) = (*limit, (*value_len_max).min(REVEAL_LEN_MAX));
            let reverse = *reverse;
            reads.push(PlannedRead::Scan { prefix, after, reverse, limit, value_len });
        }
        Action::Extents { prefix, after, limit } => {
            let (limit, value_len) = (*limit, u32::MAX);
            reads.push(PlannedRead::Scan { prefix, after, reverse: false, limit, value_len });
        }
        Action::DeletePrefix { prefix, limit } => {
            reads.push(scan(prefix, (*limit).min(DELETE_PREFIX_MAX), 0));
        }
        Action::Hold { key, .. } => reads.push(record(key, 0)),
        _ => match action.touched() {
            TouchedRecords::Key(key) => reads.push(record(key, 0)),
            TouchedRecords::Moved(from, to) => reads.extend([record(from, 0), record(to, 0)]),
            TouchedRecords::Nothing | TouchedRecords::Prefix(_) => {}
        },
    }
}

/// The first bytes of a record.
const fn record(key: &[u8], len: u32) -> PlannedRead<'_> {
    PlannedRead::Record { key, offset: 0, len }
}

const fn scan(prefix: &[u8], limit: u32, value_len: u32) -> PlannedRead<'_> {
    PlannedRead::Scan { prefix, after: &[], reverse: false, limit, value_len }
}
