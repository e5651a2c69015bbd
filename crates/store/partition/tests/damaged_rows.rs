//! A record whose row on disk is damaged takes no write that would be lost with it.
#![expect(clippy::unwrap_used, reason = "a test fails by it")]

mod common;

use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use common::context;
use samite_backend::memory_rows::MemoryRows;
use samite_backend::ordered::{OrderedMap, OrderedTarget};
use samite_backend::{Backend, RowChange, StoredPartition, WriteBatch};
use samite_partition::{AppliedOutcome, NoGrants, Partition};
use samite_types::{ClientId, DatasetId, ErrorKind, PartitionId, Seq};
use samite_wire::op::{Action, Operation, ValueData};

const DATASET: DatasetId = DatasetId(1);
const KEY: &[u8] = b"damaged";

fn open(rows: &Arc<MemoryRows>) -> Partition {
    let target = OrderedTarget::open(Arc::clone(rows) as Arc<dyn OrderedMap>, 8 << 20).unwrap();
    Partition::new(target.backend().open(DATASET, PartitionId(0)).unwrap())
}

fn apply(partition: &mut Partition, seq: u64, action: Action<'_>) -> Result<(), ErrorKind> {
    let mut operation = Operation::new(PartitionId(0), [action]);
    operation.seq = Seq(seq);
    match partition.apply(ClientId(1), &context(false), &operation, &mut NoGrants) {
        AppliedOutcome::Done(_) => Ok(()),
        AppliedOutcome::Failed { kind, .. } => Err(kind),
    }
}

fn put(value: &[u8]) -> Action<'_> {
    Action::Put { key: KEY, data: ValueData::Inline(value) }
}

fn write(offset: u32) -> Action<'static> {
    Action::Write { key: KEY, offset, data: ValueData::Inline(b"new") }
}

/// Flips a bit of the row of the record.
fn damage(rows: &MemoryRows, place: StoredPartition) {
    let mut found = Vec::new();
    let all = (Bound::Unbounded, Bound::Unbounded);
    rows.scan(place, all, false, &mut |key, row| {
        if key.ends_with(KEY) {
            found.push((key.to_vec(), row.to_vec()));
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(found.len(), 1);
    for (_, row) in &mut found {
        row[0] ^= 1;
    }
    let changes = found.into_iter().map(|(key, row)| (key, RowChange::Put(row)));
    let batch = WriteBatch { place, clears: false, rows: changes.collect() };
    rows.commit(&[batch]).unwrap();
}

#[test]
fn a_write_into_a_damaged_record_is_refused_until_it_is_put_anew() {
    let rows = Arc::<MemoryRows>::default();
    let mut partition = open(&rows);
    apply(&mut partition, 1, put(b"the old value")).unwrap();
    apply(&mut partition, 2, write(4)).unwrap();
    let commits = partition.commits().unwrap();
    let batch = commits.take_batch(Some(b"state"));
    rows.commit(std::slice::from_ref(&batch)).unwrap();
    commits.committed();
    drop(partition);
    damage(&rows, batch.place);

    let mut partition = open(&rows);
    let get = Action::Get { key: KEY, offset: 0, len: 100 };
    assert_eq!(apply(&mut partition, 3, write(4)), Err(ErrorKind::Corrupt));
    assert_eq!(apply(&mut partition, 4, write(0)), Err(ErrorKind::Corrupt));
    assert_eq!(apply(&mut partition, 0, get.clone()), Err(ErrorKind::Corrupt));
    apply(&mut partition, 5, put(b"another value")).unwrap();
    apply(&mut partition, 6, write(4)).unwrap();
    apply(&mut partition, 0, get).unwrap();
}
