//! The records of a partition by their keys: leaves in key order say where in a pool each one is; and where the last ones are is remembered, so that one
//! that is asked for again and again is searched for once.

use std::cell::Cell;
use std::ops::{Bound, ControlFlow};

use samite_types::Result;

use super::key::{RecordKey, key_hash};
use super::leaves::{LeafPosition, OrderedLeaves};
use super::pool::{PoolEntry, PoolPosition, PooledRecord, RecordPool};

/// Records by key.
#[derive(Debug, Default)]
pub(super) struct RecordTable {
    leaves: OrderedLeaves,
    pool: RecordPool,
    recent: RecentRecords,
}

impl RecordTable {
    pub(super) const fn len(&self) -> usize {
        self.pool.len()
    }

    fn place(&self, key: &[u8]) -> Option<PoolPosition> {
        if let Some(place) = self.recent.find(&self.pool, key) {
            return Some(place);
        }
        let place = self.leaves.seek(&self.pool, key).place?;
        self.recent.remember(key, place);
        Some(place)
    }

    /// Where the record at `key` probably is, if there is one: nothing there is looked at yet.
    pub(super) fn guess(&self, key: &[u8]) -> Option<&PoolEntry> {
        let place = self.leaves.guess(key)?;
        self.recent.remember(key, place);
        Some(self.pool.get(place))
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<&PooledRecord> {
        self.place(key).map(|place| &self.pool.get(place).record)
    }

    pub(super) fn get_mut(&mut self, key: &[u8]) -> Option<&mut PooledRecord> {
        self.place(key).map(|place| &mut self.pool.get_mut(place).record)
    }

    /// The record at `key`, or where it would be.
    pub(super) fn slot<'t>(&'t mut self, key: &'t [u8]) -> TableSlot<'t> {
        if let Some(place) = self.recent.find(&self.pool, key) {
            return TableSlot::Taken(&mut self.pool.get_mut(place).record);
        }
        let spot = self.leaves.seek(&self.pool, key);
        match spot.place {
            Some(place) => {
                self.recent.remember(key, place);
                TableSlot::Taken(&mut self.pool.get_mut(place).record)
            }
            None => TableSlot::Free(FreeSlot { table: self, key, spot }),
        }
    }

    /// Removes a record, which `empty` empties. Returns whether there was one.
    pub(super) fn remove(&mut self, key: &[u8], empty: impl FnOnce(&mut PooledRecord)) -> bool {
        let Some(place) = self.place(key) else { return false };
        self.leaves.remove(&mut self.pool, place);
        empty(&mut self.pool.get_mut(place).record);
        self.pool.give_back(place);
        true
    }

    /// Gives a record another key, which no record has.
    pub(super) fn rename(&mut self, key: &[u8], to: &[u8]) -> Option<&mut PooledRecord> {
        let place = self.place(key)?;
        self.leaves.remove(&mut self.pool, place);
        self.pool.get_mut(place).key = RecordKey::of(to).owned();
        let spot = self.leaves.seek(&self.pool, to);
        debug_assert!(spot.place.is_none());
        self.leaves.insert(&mut self.pool, spot, place);
        Some(&mut self.pool.get_mut(place).record)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.range((Bound::Unbounded, Bound::Unbounded)).map(|(key, _)| key)
    }

    /// Records in key order.
    pub(super) fn range<'t, 'b>(
        &'t self,
        bounds: (Bound<&'b [u8]>, Bound<&'b [u8]>),
    ) -> impl DoubleEndedIterator<Item = (&'t [u8], &'t PooledRecord)> + use<'t, 'b> {
        self.leaves.range(&self.pool, bounds).flatten().map(|place| {
            let PoolEntry { key, record, .. } = self.pool.get(*place);
            (key.as_slice(), record)
        })
    }

    /// Shows `visit` records in key order, until it says that it has enough.
    pub(super) fn visit_mut(
        &mut self,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
        mut visit: impl FnMut(&[u8], &mut PooledRecord) -> ControlFlow<()>,
    ) {
        let (first, to) = bounds;
        let mut from = first.map(|key| RecordKey::of(key).owned());
        loop {
            let bounds = (from.as_ref().map(RecordKey::as_slice), to);
            let Some(places) = self.leaves.first(&self.pool, bounds) else { return };
            for place in &places {
                let PoolEntry { key, record, .. } = self.pool.get_mut(*place);
                if visit(key.as_slice(), record).is_break() {
                    return;
                }
            }
            let Some(last) = places.last() else { return };
            from = Bound::Excluded(RecordKey::of(self.pool.key(*last)).owned());
        }
    }
}

/// Where a record is, or would be.
pub(super) enum TableSlot<'t> {
    Taken(&'t mut PooledRecord),
    Free(FreeSlot<'t>),
}

/// Where a record would be.
pub(super) struct FreeSlot<'t> {
    table: &'t mut RecordTable,
    key: &'t [u8],
    spot: LeafPosition,
}

impl FreeSlot<'_> {
    /// Puts there what `fill` makes of an empty record. When that fails, it must leave it empty.
    pub(super) fn fill(self, fill: impl FnOnce(&mut PooledRecord) -> Result<()>) -> Result<()> {
        let Self { table: RecordTable { leaves, pool, recent }, key, spot } = self;
        let place = pool.take();
        let entry = pool.get_mut(place);
        if let Err(error) = fill(&mut entry.record) {
            pool.give_back(place);
            return Err(error);
        }
        entry.key = RecordKey::of(key).owned();
        leaves.insert(pool, spot, place);
        recent.remember(key, place);
        Ok(())
    }
}

/// How many places are remembered.
const RECENT: usize = 32;

/// Where records are that were asked for lately, or may be, each with some bits of a hash of its key. Another one may have come there since.
#[derive(Debug, Default)]
struct RecentRecords([Cell<Option<(u32, PoolPosition)>>; RECENT]);

impl RecentRecords {
    /// Where the place of the record at `key` is remembered, if it is, and the bits that go with it.
    fn cell(&self, key: &[u8]) -> (&Cell<Option<(u32, PoolPosition)>>, u32) {
        let hash = key_hash(key);
        (&self.0[(hash >> 32) as usize % RECENT], (hash >> 37) as u32)
    }

    fn find(&self, pool: &RecordPool, key: &[u8]) -> Option<PoolPosition> {
        let (cell, bits) = self.cell(key);
        let (known, place) = cell.get()?;
        (known == bits && pool.has(place, key)).then_some(place)
    }

    fn remember(&self, key: &[u8], place: PoolPosition) {
        let (cell, bits) = self.cell(key);
        cell.set(Some((bits, place)));
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use samite_types::{Error, ErrorKind};

    use std::collections::BTreeMap;

    use samite_types::Version;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        /// Gives the record this version, which may make it.
        Set(u16, u64),
        /// Fails to make it, unless it is there.
        Fail(u16),
        Remove(u16),
        Ask(u16),
        /// Removes the records at so many keys after this one.
        RemoveMany(u16, u16),
        /// Makes it the other one, unless that is there.
        Rename(u16, u16),
        /// Visits those from one to the other, with them or without.
        Visit(u16, u16, bool),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let key = || prop_oneof![0..8_u16, 0..400_u16];
        let step = prop_oneof![
            8 => (key(), any::<u64>()).prop_map(|(key, version)| Step::Set(key, version)),
            1 => key().prop_map(Step::Fail),
            3 => key().prop_map(Step::Remove),
            4 => key().prop_map(Step::Ask),
            1 => (key(), 0..200_u16).prop_map(|(key, count)| Step::RemoveMany(key, count)),
            2 => (key(), key()).prop_map(|(key, to)| Step::Rename(key, to)),
            1 => (key(), key(), any::<bool>()).prop_map(|(from, to, with)| Step::Visit(from, to, with)),
        ];
        vec(step, 1..600)
    }

    /// Some are too long for the index itself, some differ in their first bytes alone, and some far behind what a leaf knows of them.
    fn key_of(number: u16) -> Vec<u8> {
        let mut key = Vec::new();
        if number.is_multiple_of(3) {
            key.resize(70, b'p');
        }
        key.extend(number.to_be_bytes());
        let len = if number.is_multiple_of(5) { 64 } else { 10 };
        key.resize(len.max(key.len()), b'x');
        key
    }

    fn set(table: &mut RecordTable, key: &[u8], to: u64) {
        let version = Version(to);
        match table.slot(key) {
            TableSlot::Taken(record) => record.version = version,
            TableSlot::Free(slot) => {
                let fill = |record: &mut PooledRecord| {
                    assert_eq!(record.version, Version(0), "left by another one");
                    record.version = version;
                    Ok(())
                };
                slot.fill(fill).unwrap();
            }
        }
    }

    fn remove(table: &mut RecordTable, number: u16) -> Option<u64> {
        let mut version = None;
        let was_there = table.remove(&key_of(number), |record| {
            version = Some(std::mem::take(&mut record.version).get());
        });
        assert_eq!(was_there, version.is_some());
        version
    }

    fn visit(
        table: &mut RecordTable,
        model: &BTreeMap<Vec<u8>, u64>,
        (from, to, with): (u16, u16, bool),
    ) {
        let (from, to) = (key_of(from.min(to)), key_of(from.max(to)));
        if from > to {
            return;
        }
        let bound = |key| if with { Bound::Included(key) } else { Bound::Excluded(key) };
        // Nothing is excluded on both sides.
        let upto = if from == to { Bound::Included(&to[..]) } else { bound(&to[..]) };
        let bounds = (bound(&from[..]), upto);
        let there: Vec<&Vec<u8>> = model.range::<[u8], _>(bounds).map(|(key, _)| key).collect();
        assert!(table.range(bounds).map(|(key, _)| key).eq(there.iter().copied()));
        assert!(table.range(bounds).rev().map(|(key, _)| key).eq(there.iter().rev().copied()));
        let mut seen = 0;
        let most = there.len().div_ceil(2);
        table.visit_mut(bounds, |key, record| {
            assert_eq!((key, record.version.get()), (&there[seen][..], model[key]));
            seen += 1;
            if seen == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert_eq!(seen, most);
    }

    fn check(table: &RecordTable, model: &BTreeMap<Vec<u8>, u64>) {
        assert_eq!(table.len(), model.len());
        let all = (Bound::Unbounded, Bound::Unbounded);
        let found = table.range(all).map(|(key, record)| (key.to_vec(), record.version.get()));
        assert!(found.eq(model.iter().map(|(key, version)| (key.clone(), *version))));
        assert!(table.pool.is_tight(), "memory for nothing, or none");
        table.leaves.check(&table.pool);
    }

    proptest! {
        #[test]
        fn it_is_a_map(steps in steps()) {
            let (mut table, mut model) = (RecordTable::default(), BTreeMap::new());
            for step in steps {
                match step {
                    Step::Set(number, to) => {
                        set(&mut table, &key_of(number), to);
                        model.insert(key_of(number), to);
                    }
                    Step::Fail(number) => match table.slot(&key_of(number)) {
                        TableSlot::Taken(_) => assert!(model.contains_key(&key_of(number))),
                        TableSlot::Free(slot) => {
                            slot.fill(|_| Err(Error::from(ErrorKind::NoSpace))).unwrap_err();
                        }
                    },
                    Step::Remove(number) => {
                        assert_eq!(remove(&mut table, number), model.remove(&key_of(number)));
                    }
                    Step::Ask(number) => {
                        let found = table.get(&key_of(number)).map(|record| record.version.get());
                        assert_eq!(found, model.get(&key_of(number)).copied());
                    }
                    Step::Rename(number, to) => {
                        if !model.contains_key(&key_of(to)) {
                            let renamed = table.rename(&key_of(number), &key_of(to));
                            let before = model.remove(&key_of(number));
                            assert_eq!(renamed.map(|record| record.version.get()), before);
                            model.extend(before.map(|version| (key_of(to), version)));
                        }
                    }
                    Step::Visit(from, to, with) => visit(&mut table, &model, (from, to, with)),
                    Step::RemoveMany(first, count) => {
                        for number in first..first.saturating_add(count) {
                            assert_eq!(remove(&mut table, number), model.remove(&key_of(number)));
                        }
                    }
                }
            }
            check(&table, &model);
        }
    }
}
