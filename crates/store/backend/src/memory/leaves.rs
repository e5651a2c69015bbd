//! The order of the records of a partition: leaves of a few dozen places each, and a tree that says
//! which leaf has a key.
//!
//! It is a B⁺-tree whose upper part is the library's. The data that every change of a record looks
//! for are in the leaves: they have a tag of each key, some bits of a hash that lie together, so
//! that a look-up of a key that is there looks at that one alone; and eight bytes of each key,
//! those that follow the common prefix of all keys of the leaf, which say where a key that is not
//! there would be. A record knows its leaf, and leaves it without another search. Leaves that are
//! empty go; full ones are split, but for one that is filled from its end on. It costs little that
//! few of the leaves between are merged (Johnson and Shasha, "B-trees with inserts and deletes: why
//! free-at-empty is better than merge-at-half").

use std::collections::BTreeMap;
use std::ops::{Bound, Range};

use smallvec::SmallVec;

use super::key::{RecordKey, key_hash};
use super::pool::{PoolPosition, RecordPool};

/// Places of a leaf.
pub(super) const LEAF_LEN: usize = 32;
/// A leaf that has come down to so many takes those of the next one, if together they leave room.
const MERGED_LEN: usize = LEAF_LEN / 8;
const MERGED_LEN_MAX: usize = LEAF_LEN / 2;
/// Most bytes of the common prefix of a leaf's keys that are left out.
const PREFIX_LEN_MAX: usize = 56;

/// Which leaf.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LeafId(u32);

/// Some bits of the hash of a key.
type Tag = u16;

fn tag(key: &[u8]) -> Tag {
    (key_hash(key) >> (u64::BITS - Tag::BITS)) as Tag
}

/// Some records in key order. Fields that are read first lie together.
#[derive(Debug)]
#[repr(C, align(64))]
struct RecordLeaf {
    len: u8,
    prefix_len: u8,
    /// Common prefix of all keys.
    prefix: [u8; PREFIX_LEN_MAX],
    tags: [Tag; LEAF_LEN],
    places: [PoolPosition; LEAF_LEN],
    /// The bytes of each key that follow the common prefix.
    heads: [u64; LEAF_LEN],
}

// The charge of a record counts on that.
const _: () = assert!(size_of::<RecordLeaf>() == 512);

/// Bytes of a key from `skip` on, and zeros, as a number: of keys with the same beginning, the order of these numbers is that of the keys, unless they are
/// the same.
fn head(key: &[u8], skip: usize) -> u64 {
    let rest = key.get(skip..).unwrap_or_default();
    let first = rest.first_chunk().copied().unwrap_or_else(|| {
        let mut first = [0; size_of::<u64>()];
        first[..rest.len()].copy_from_slice(rest);
        first
    });
    u64::from_be_bytes(first)
}

fn common_len(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

impl RecordLeaf {
    const EMPTY: Self = Self {
        len: 0,
        prefix_len: 0,
        prefix: [0; PREFIX_LEN_MAX],
        tags: [0; LEAF_LEN],
        places: [PoolPosition::NONE; LEAF_LEN],
        heads: [0; LEAF_LEN],
    };

    fn len(&self) -> usize {
        usize::from(self.len)
    }

    fn prefix(&self) -> &[u8] {
        &self.prefix[..usize::from(self.prefix_len)]
    }

    fn heads(&self) -> &[u64] {
        &self.heads[..self.len()]
    }

    fn places(&self) -> &[PoolPosition] {
        &self.places[..self.len()]
    }

    /// Where the places of the keys with this tag are.
    fn tagged(&self, tag: Tag) -> impl Iterator<Item = usize> {
        let all = self.tags.iter().enumerate();
        let mut bits = all.fold(0, |bits, (at, other)| bits | u32::from(*other == tag) << at);
        // Behind the last one are tags of keys that are gone.
        bits &= ((1_u64 << self.len) - 1) as u32;
        std::iter::from_fn(move || {
            let at = bits.trailing_zeros() as usize;
            let is_there = bits != 0;
            bits &= bits.wrapping_sub(1);
            is_there.then_some(at)
        })
    }

    /// Where the place of `key` is, or would be.
    fn search(&self, pool: &RecordPool, key: &[u8]) -> Result<usize, usize> {
        let is_meant = |at: &usize| pool.key(self.places[*at]) == key;
        self.tagged(tag(key)).find(is_meant).ok_or_else(|| self.search_order(pool, key))
    }

    /// Where the place of `key` would be, which has none.
    fn search_order(&self, pool: &RecordPool, key: &[u8]) -> usize {
        let prefix = self.prefix();
        if !key.starts_with(prefix) {
            return if key < prefix { 0 } else { self.len() };
        }
        let head = head(key, prefix.len());
        let first = self.heads().partition_point(|other| *other < head);
        let same = self.heads()[first..].iter().take_while(|other| **other == head).count();
        let same = &self.places[first..first + same];
        first + same.partition_point(|place| pool.key(*place) < key)
    }

    /// The place of `key`, or of another one with its tag.
    fn guess(&self, key: &[u8]) -> Option<PoolPosition> {
        self.tagged(tag(key)).next().map(|at| self.places[at])
    }

    /// Has all keys begin with as much of `key` as they do.
    fn admit(&mut self, pool: &RecordPool, key: &[u8]) {
        if self.len == 0 {
            let len = key.len().min(PREFIX_LEN_MAX);
            self.prefix[..len].copy_from_slice(&key[..len]);
            self.prefix_len = len as u8;
        } else if !key.starts_with(self.prefix()) {
            self.set_prefix_len(pool, common_len(key, self.prefix()));
        }
    }

    fn set_prefix_len(&mut self, pool: &RecordPool, len: usize) {
        self.prefix_len = len as u8;
        for (other, place) in self.heads.iter_mut().zip(&self.places[..usize::from(self.len)]) {
            *other = head(pool.key(*place), len);
        }
    }

    /// Puts a place in, for which there is room, and tells its record.
    fn insert(&mut self, pool: &mut RecordPool, (own, at): (LeafId, usize), place: PoolPosition) {
        let key = pool.key(place);
        self.admit(pool, key);
        let len = self.len();
        self.tags.copy_within(at..len, at + 1);
        self.places.copy_within(at..len, at + 1);
        self.heads.copy_within(at..len, at + 1);
        self.tags[at] = tag(key);
        self.places[at] = place;
        self.heads[at] = head(key, usize::from(self.prefix_len));
        self.len += 1;
        pool.get_mut(place).leaf = own;
    }

    fn remove(&mut self, at: usize) {
        let len = self.len();
        self.tags.copy_within(at + 1..len, at);
        self.places.copy_within(at + 1..len, at);
        self.heads.copy_within(at + 1..len, at);
        self.len -= 1;
    }

    /// A leaf with these places, which are in order, and whose records are told.
    fn of(pool: &mut RecordPool, own: LeafId, places: &[PoolPosition]) -> Self {
        let mut leaf = Self::EMPTY;
        leaf.len = places.len() as u8;
        for (at, place) in places.iter().enumerate() {
            let entry = pool.get_mut(*place);
            entry.leaf = own;
            (leaf.places[at], leaf.tags[at]) = (*place, tag(entry.key.as_slice()));
        }
        if let (Some(first), Some(last)) = (places.first(), places.last()) {
            let first = pool.key(*first);
            // The keys between begin with that, too.
            let len = common_len(first, pool.key(*last)).min(PREFIX_LEN_MAX);
            leaf.prefix[..len].copy_from_slice(&first[..len]);
            leaf.set_prefix_len(pool, len);
        }
        leaf
    }
}

/// Where a record is, or would be.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeafPosition {
    leaf: LeafId,
    at: usize,
    /// Its place, if there is one.
    pub(super) place: Option<PoolPosition>,
}

/// The places of records in key order.
#[derive(Debug)]
pub(super) struct OrderedLeaves {
    /// The least key that each leaf may have. The first one may have any.
    index: BTreeMap<RecordKey<'static>, LeafId>,
    leaves: Vec<Option<Box<RecordLeaf>>>,
    /// Numbers of leaves that are not there.
    free: Vec<LeafId>,
}

impl Default for OrderedLeaves {
    fn default() -> Self {
        let first = Some(Box::new(RecordLeaf::EMPTY));
        let index = BTreeMap::from([(RecordKey::default(), LeafId(0))]);
        Self { index, leaves: vec![first], free: Vec::new() }
    }
}

impl OrderedLeaves {
    fn leaf(&self, id: LeafId) -> &RecordLeaf {
        self.leaves[id.0 as usize].as_ref().expect("a leaf that is there")
    }

    fn leaf_mut(&mut self, id: LeafId) -> &mut RecordLeaf {
        self.leaves[id.0 as usize].as_mut().expect("a leaf that is there")
    }

    /// The leaf that may have `key`, and the least key that it may have.
    fn leaf_for<'k>(&'k self, key: &'k [u8]) -> (&'k RecordKey<'k>, LeafId) {
        // As a tree of keys that live as long as this one: a long one is not copied to be looked for.
        let key = RecordKey::of(key);
        let range = self.index.range::<RecordKey<'_>, _>((Bound::Unbounded, Bound::Included(&key)));
        let (least, id) = range.last().expect("the first leaf may have any key");
        (least, *id)
    }

    /// Where the record at `key` is, or would be.
    pub(super) fn seek(&self, pool: &RecordPool, key: &[u8]) -> LeafPosition {
        let (_, leaf) = self.leaf_for(key);
        let found = self.leaf(leaf).search(pool, key);
        let place = found.ok().map(|at| self.leaf(leaf).places[at]);
        LeafPosition { leaf, at: found.unwrap_or_else(|at| at), place }
    }

    /// The place of the record at `key`, or of another one that is much like it.
    pub(super) fn guess(&self, key: &[u8]) -> Option<PoolPosition> {
        let (_, leaf) = self.leaf_for(key);
        self.leaf(leaf).guess(key)
    }

    /// The record of `place` has a key now: puts it where a search has found that there is none.
    pub(super) fn insert(
        &mut self,
        pool: &mut RecordPool,
        spot: LeafPosition,
        place: PoolPosition,
    ) {
        let LeafPosition { leaf: id, at, .. } = spot;
        let leaf = self.leaf_mut(id);
        if leaf.len() < LEAF_LEN {
            return leaf.insert(pool, (id, at), place);
        }
        // A caller that puts one in at the end probably goes on so.
        let from = if at == LEAF_LEN { at } else { LEAF_LEN / 2 };
        let mut places = [PoolPosition::NONE; LEAF_LEN];
        let moved = LEAF_LEN - from;
        places[..moved].copy_from_slice(&leaf.places[from..]);
        leaf.len = from as u8;
        let new = self.add(|own| RecordLeaf::of(pool, own, &places[..moved]));
        let (id, at) = if at >= from { (new, at - from) } else { (id, at) };
        self.leaf_mut(id).insert(pool, (id, at), place);
        let least = RecordKey::of(pool.key(self.leaf(new).places[0])).owned();
        self.index.insert(least, new);
    }

    fn add(&mut self, make: impl FnOnce(LeafId) -> RecordLeaf) -> LeafId {
        let id = self.free.pop().unwrap_or_else(|| {
            self.leaves.push(None);
            // Fewer than records.
            LeafId(self.leaves.len() as u32 - 1)
        });
        self.leaves[id.0 as usize] = Some(Box::new(make(id)));
        id
    }

    /// Takes out the place of a record, which has its key still.
    pub(super) fn remove(&mut self, pool: &mut RecordPool, place: PoolPosition) {
        let id = pool.get(place).leaf;
        let leaf = self.leaf_mut(id);
        let at = leaf.places().iter().position(|other| *other == place);
        leaf.remove(at.expect("a record is in its leaf"));
        match leaf.len() {
            0 => self.drop_empty(pool.key(place)),
            MERGED_LEN => self.merge(pool, id),
            _ => {}
        }
    }

    /// Lets go of the leaf of this key, which is empty, unless it is the first.
    fn drop_empty(&mut self, key: &[u8]) {
        let (least, id) = self.leaf_for(key);
        if !least.as_slice().is_empty() {
            let least = RecordKey::of(least.as_slice()).owned();
            self.drop_leaf(&least, id);
        }
    }

    fn drop_leaf(&mut self, least: &RecordKey<'static>, id: LeafId) {
        self.index.remove(least);
        self.leaves[id.0 as usize] = None;
        self.free.push(id);
    }

    /// Moves the places of the next leaf here, if there is room for them.
    fn merge(&mut self, pool: &mut RecordPool, id: LeafId) {
        let leaf = self.leaf(id);
        let Some(last) = leaf.places().last() else { return };
        let last = RecordKey::of(pool.key(*last)).owned();
        let mut after = self.index.range((Bound::Excluded(last), Bound::Unbounded));
        let Some((least, next_id)) = after.next() else { return };
        let next = self.leaf(*next_id);
        let len = leaf.len() + next.len();
        if len > MERGED_LEN_MAX {
            return;
        }
        let (least, next_id) = (RecordKey::of(least.as_slice()).owned(), *next_id);
        let mut places = [PoolPosition::NONE; LEAF_LEN];
        places[..leaf.len()].copy_from_slice(leaf.places());
        places[leaf.len()..len].copy_from_slice(next.places());
        *self.leaf_mut(id) = RecordLeaf::of(pool, id, &places[..len]);
        self.drop_leaf(&least, next_id);
    }

    /// Places in key order, leaf by leaf.
    pub(super) fn range<'l, 'b>(
        &'l self,
        pool: &'l RecordPool,
        (from, to): (Bound<&'b [u8]>, Bound<&'b [u8]>),
    ) -> impl DoubleEndedIterator<Item = &'l [PoolPosition]> + use<'l, 'b> {
        let first = match from {
            Bound::Included(key) | Bound::Excluded(key) => self.leaf_for(key).0,
            Bound::Unbounded => &RecordKey::default(),
        };
        let last = match to {
            Bound::Included(key) | Bound::Excluded(key) => {
                Bound::Included(RecordKey::of(key).owned())
            }
            Bound::Unbounded => Bound::Unbounded,
        };
        let first = Bound::Included(RecordKey::of(first.as_slice()).owned());
        self.index.range((first, last)).map(move |(_, id)| {
            let leaf = self.leaf(*id);
            &leaf.places()[leaf.within(pool, (from, to))]
        })
    }

    /// The first places between these keys, those of one leaf; `None`: there are none.
    pub(super) fn first(
        &self,
        pool: &RecordPool,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
    ) -> Option<SmallVec<[PoolPosition; LEAF_LEN]>> {
        self.range(pool, bounds).find(|places| !places.is_empty()).map(SmallVec::from_slice)
    }
}

impl RecordLeaf {
    /// Which of its places lie between these keys.
    fn within(&self, pool: &RecordPool, (from, to): (Bound<&[u8]>, Bound<&[u8]>)) -> Range<usize> {
        // The first one that is not before `key`, or with `beyond` the first one after it.
        let first = |key: &[u8], beyond: bool| match self.search(pool, key) {
            Ok(at) => at + usize::from(beyond),
            Err(at) => at,
        };
        let start = match from {
            Bound::Included(key) => first(key, false),
            Bound::Excluded(key) => first(key, true),
            Bound::Unbounded => 0,
        };
        let end = match to {
            Bound::Included(key) => first(key, true),
            Bound::Excluded(key) => first(key, false),
            Bound::Unbounded => self.len(),
        };
        start..end.max(start)
    }
}

#[cfg(test)]
impl OrderedLeaves {
    /// Fails unless all that it knows of its records is so.
    pub(super) fn check(&self, pool: &RecordPool) {
        let mut least: Vec<&[u8]> = self.index.keys().map(RecordKey::as_slice).collect();
        assert!(least[0].is_empty());
        let mut len = 0;
        for (at, id) in self.index.values().enumerate() {
            let leaf = self.leaf(*id);
            assert!(at == 0 || leaf.len() > 0, "an empty leaf");
            assert!(leaf.heads().is_sorted());
            for (within, (head_of, place)) in leaf.heads().iter().zip(leaf.places()).enumerate() {
                let key = pool.key(*place);
                assert_eq!(leaf.tags[within], tag(key));
                assert!(key.starts_with(leaf.prefix()));
                assert_eq!(*head_of, head(key, leaf.prefix().len()));
                assert_eq!(pool.get(*place).leaf, *id);
                assert!(key >= least[at] && least.get(at + 1).is_none_or(|next| key < *next));
                len += 1;
            }
        }
        assert_eq!(len, pool.len());
        least.dedup();
        let there = self.leaves.iter().flatten().count();
        assert_eq!((there, self.leaves.len()), (least.len(), there + self.free.len()));
    }
}
