//! The records of a partition by their keys: a tree in key order says where in a pool each one is. Records stay there until they go, so nodes of the tree
//! are small; and where the last ones are is remembered, so that one that is asked for again and again is searched for once.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::collections::btree_map::{Entry, VacantEntry};
use std::ops::{Bound, ControlFlow};

use samite_types::{Result, Version};

use super::key::Key;
use super::value::Value;
use crate::record::RecordMeta;

#[derive(Debug, Default)]
pub(super) struct Record {
    pub(super) version: Version,
    pub(super) value: Value,
}

// What is charged for one counts on that.
const _: () = assert!(size_of::<Record>() <= 200);

impl Record {
    pub(super) const fn meta(&self) -> RecordMeta {
        RecordMeta { version: self.version, len: self.value.len() }
    }
}

/// Records by key.
#[derive(Debug, Default)]
pub(super) struct Table {
    places: BTreeMap<Key<'static>, Place>,
    pool: Pool,
    recent: Recent,
}

impl Table {
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    fn place(&self, key: &[u8]) -> Option<Place> {
        if let Some(place) = self.recent.find(key) {
            return Some(place);
        }
        let key = Key::of(key);
        // As a tree of keys that live as long as this one: a long one is not copied to be looked for.
        let places: &BTreeMap<Key<'_>, Place> = &self.places;
        let place = *places.get(&key)?;
        self.recent.remember(&key, place);
        Some(place)
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<&Record> {
        self.place(key).map(|place| self.pool.get(place))
    }

    pub(super) fn get_mut(&mut self, key: &[u8]) -> Option<&mut Record> {
        self.place(key).map(|place| self.pool.get_mut(place))
    }

    /// The record at `key`, or where it would be.
    pub(super) fn slot(&mut self, key: &[u8]) -> Slot<'_> {
        let Self { places, pool, recent } = self;
        if let Some(place) = recent.find(key) {
            return Slot::Taken(pool.get_mut(place));
        }
        match places.entry(Key::of(key).owned()) {
            Entry::Occupied(entry) => {
                recent.remember(entry.key(), *entry.get());
                Slot::Taken(pool.get_mut(*entry.get()))
            }
            Entry::Vacant(entry) => Slot::Free(FreeSlot { entry, pool, recent }),
        }
    }

    /// Removes a record, which `empty` empties. Returns whether there was one.
    pub(super) fn remove(&mut self, key: &[u8], empty: impl FnOnce(&mut Record)) -> bool {
        let Some(place) = self.places.remove(&Key::of(key).owned()) else { return false };
        self.recent.forget(key);
        empty(self.pool.get_mut(place));
        self.pool.give_back(place);
        true
    }

    /// Gives a record another key, which no record has.
    pub(super) fn rename(&mut self, key: &[u8], to: &[u8]) -> Option<&mut Record> {
        let place = self.places.remove(&Key::of(key).owned())?;
        self.recent.forget(key);
        let before = self.places.insert(Key::of(to).owned(), place);
        debug_assert!(before.is_none());
        Some(self.pool.get_mut(place))
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.places.keys().map(Key::as_slice)
    }

    /// Records in key order.
    pub(super) fn range(
        &self,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
    ) -> impl DoubleEndedIterator<Item = (&[u8], &Record)> {
        let range = self.places.range(keys(bounds));
        range.map(|(key, place)| (key.as_slice(), self.pool.get(*place)))
    }

    /// Shows `visit` records in key order, until it says that it has enough.
    pub(super) fn visit_mut(
        &mut self,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
        mut visit: impl FnMut(&[u8], &mut Record) -> ControlFlow<()>,
    ) {
        for (key, place) in self.places.range(keys(bounds)) {
            if visit(key.as_slice(), self.pool.get_mut(*place)).is_break() {
                break;
            }
        }
    }
}

/// The same bounds, as the tree compares them.
fn keys((from, to): (Bound<&[u8]>, Bound<&[u8]>)) -> (Bound<Key<'static>>, Bound<Key<'static>>) {
    let owned = |key| Key::of(key).owned();
    (from.map(owned), to.map(owned))
}

/// Where a record is, or would be.
pub(super) enum Slot<'t> {
    Taken(&'t mut Record),
    Free(FreeSlot<'t>),
}

/// Where a record would be.
pub(super) struct FreeSlot<'t> {
    entry: VacantEntry<'t, Key<'static>, Place>,
    pool: &'t mut Pool,
    recent: &'t Recent,
}

impl FreeSlot<'_> {
    /// Puts there what `fill` makes of an empty record. When that fails, it must leave it empty.
    pub(super) fn fill(self, fill: impl FnOnce(&mut Record) -> Result<()>) -> Result<()> {
        let place = self.pool.take();
        if let Err(error) = fill(self.pool.get_mut(place)) {
            self.pool.give_back(place);
            return Err(error);
        }
        self.recent.remember(self.entry.key(), place);
        self.entry.insert(place);
        Ok(())
    }
}

/// Where in the pool a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place(u32);

/// Records of one chunk, as many as a word has bits.
const CHUNK_LEN: u32 = u64::BITS;

type Records = Box<[Record; CHUNK_LEN as usize]>;

/// Memory for records, in chunks that come and go with them.
#[derive(Debug, Default)]
struct Pool {
    chunks: Vec<Chunk>,
    /// Numbers of the chunks that have free places.
    roomy: Vec<u32>,
    /// Records of a chunk that needs none now: the next one that does takes them.
    spare: Option<Records>,
}

#[derive(Debug)]
struct Chunk {
    /// `None`: all places are free.
    records: Option<Records>,
    /// One bit for each place that is free. The records there are empty.
    free: u64,
}

impl Place {
    const fn chunk(self) -> usize {
        (self.0 / CHUNK_LEN) as usize
    }

    const fn within(self) -> u32 {
        self.0 % CHUNK_LEN
    }
}

impl Pool {
    fn get(&self, place: Place) -> &Record {
        let records = self.chunks[place.chunk()].records.as_ref();
        &records.expect("a place that is taken")[place.within() as usize]
    }

    fn get_mut(&mut self, place: Place) -> &mut Record {
        let records = self.chunks[place.chunk()].records.as_mut();
        &mut records.expect("a place that is taken")[place.within() as usize]
    }

    /// Takes a place. The record there is empty.
    fn take(&mut self) -> Place {
        let number = self.roomy.last().copied().unwrap_or_else(|| {
            // A record has more bytes than a chunk has numbers for, by far.
            let number = self.chunks.len() as u32;
            self.chunks.push(Chunk { records: None, free: u64::MAX });
            self.roomy.push(number);
            number
        });
        let chunk = &mut self.chunks[number as usize];
        if chunk.records.is_none() {
            let new = || Box::new(std::array::from_fn(|_| Record::default()));
            chunk.records = Some(self.spare.take().unwrap_or_else(new));
        }
        let within = chunk.free.trailing_zeros();
        chunk.free &= chunk.free - 1;
        if chunk.free == 0 {
            self.roomy.pop();
        }
        Place(number * CHUNK_LEN + within)
    }

    /// Gives a place back. The record there must be empty.
    fn give_back(&mut self, place: Place) {
        let chunk = &mut self.chunks[place.chunk()];
        if chunk.free == 0 {
            self.roomy.push(place.chunk() as u32);
        }
        chunk.free |= 1 << place.within();
        if chunk.free == u64::MAX {
            self.spare = chunk.records.take();
        }
    }
}

/// How many places are remembered.
const RECENT: usize = 32;

/// Where records are that were asked for lately. Long keys are not remembered.
#[derive(Debug)]
struct Recent(RefCell<[Option<(Key<'static>, Place)>; RECENT]>);

impl Default for Recent {
    fn default() -> Self {
        Self(RefCell::new(std::array::from_fn(|_| None)))
    }
}

impl Recent {
    /// Where the place of the record at `key` is remembered, if it is. Keys mostly differ in their last bytes.
    fn index(key: &[u8]) -> usize {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        let last = key.last_chunk().map_or(0, |last| u64::from_le_bytes(*last));
        ((last ^ key.len() as u64).wrapping_mul(ODD) >> 32) as usize % RECENT
    }

    fn find(&self, key: &[u8]) -> Option<Place> {
        let known = self.0.borrow();
        let (remembered, place) = known[Self::index(key)].as_ref()?;
        (remembered.as_slice() == key).then_some(*place)
    }

    fn remember(&self, key: &Key<'_>, place: Place) {
        if let Key::Short { len, bytes } = *key {
            let kept = Key::Short { len, bytes };
            self.0.borrow_mut()[Self::index(key.as_slice())] = Some((kept, place));
        }
    }

    /// The record at `key` is not there any more.
    fn forget(&mut self, key: &[u8]) {
        let known = &mut self.0.get_mut()[Self::index(key)];
        known.take_if(|(remembered, _)| remembered.as_slice() == key);
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use samite_types::{Error, ErrorKind};

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        /// Gives the record this version, which may make it.
        Set(u16, u64),
        /// Fails to make it, unless it is there.
        Fail(u16),
        Remove(u16),
        Ask(u16),
        /// Removes what is there of so many records after this one.
        RemoveMany(u16, u16),
        /// Makes it the other one, unless that is there.
        Rename(u16, u16),
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
        ];
        vec(step, 1..600)
    }

    /// Some are too long for the tree itself, and some differ in their first bytes alone.
    fn key_of(number: u16) -> Vec<u8> {
        let len = if number.is_multiple_of(5) { 64 } else { 10 };
        let mut key = number.to_be_bytes().to_vec();
        key.resize(len, b'x');
        key
    }

    fn set(table: &mut Table, key: &[u8], to: u64) {
        let version = Version(to);
        match table.slot(key) {
            Slot::Taken(record) => record.version = version,
            Slot::Free(slot) => {
                let fill = |record: &mut Record| {
                    assert_eq!(record.version, Version(0), "left by another one");
                    record.version = version;
                    Ok(())
                };
                slot.fill(fill).unwrap();
            }
        }
    }

    fn remove(table: &mut Table, number: u16) -> Option<u64> {
        let mut version = None;
        let was_there = table.remove(&key_of(number), |record| {
            version = Some(std::mem::take(&mut record.version).get());
        });
        assert_eq!(was_there, version.is_some());
        version
    }

    fn check(table: &Table, model: &BTreeMap<Vec<u8>, u64>) {
        assert_eq!(table.len(), model.len());
        let all = (Bound::Unbounded, Bound::Unbounded);
        let found = table.range(all).map(|(key, record)| (key.to_vec(), record.version.get()));
        assert!(found.eq(model.iter().map(|(key, version)| (key.clone(), *version))));
        let chunks = &table.pool.chunks;
        let places: u32 = chunks.iter().map(|chunk| chunk.free.count_zeros()).sum();
        assert_eq!(places as usize, model.len());
        let is_right = |chunk: &Chunk| chunk.records.is_some() == (chunk.free != u64::MAX);
        assert!(chunks.iter().all(is_right), "memory for nothing, or none");
        let roomy = chunks.iter().filter(|chunk| chunk.free != 0).count();
        assert_eq!(table.pool.roomy.len(), roomy);
    }

    proptest! {
        #[test]
        fn it_is_a_map(steps in steps()) {
            let (mut table, mut model) = (Table::default(), BTreeMap::new());
            for step in steps {
                match step {
                    Step::Set(number, to) => {
                        set(&mut table, &key_of(number), to);
                        model.insert(key_of(number), to);
                    }
                    Step::Fail(number) => match table.slot(&key_of(number)) {
                        Slot::Taken(_) => assert!(model.contains_key(&key_of(number))),
                        Slot::Free(slot) => {
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
