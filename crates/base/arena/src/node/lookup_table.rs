//! The node's side of the [shared look-up table](crate::lookup): publishes records to clients
//! of the host, retracts them, and says which there are.
//!
//! Nothing is read back from shared memory: of each part's index the node has a copy of its own,
//! and knows the hash of the record in each slot. A part is that of one shard, so its lock is
//! hardly ever waited for.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use samite_cpu::prefetch_to_write;
use samite_types::{Epoch, Version};
use zerocopy::IntoBytes;

use super::mapping::ArenaMapping;
use crate::layout::ArenaLayout;
use crate::lookup::{
    BUCKET_WORDS, GENERATION_OFFSET, LookupSlot, MORE, NAME_SPACE_OFFSET, RecordId,
    SEQUENCE_OFFSET, SLOT_LEN, VALID_ALWAYS, VALID_OFFSET, index_word, indexed_slot, known_word,
};

/// A look-up table, as its node writes it.
pub(super) struct LookupTable {
    mapping: Arc<ArenaMapping>,
    layout: ArenaLayout,
    parts: Box<[LookupPart]>,
    generation: AtomicU32,
}

/// The part that one shard writes.
struct LookupPart {
    /// Words of all buckets, as clients see them. Written by the thread that holds the lock of the
    /// slots.
    index: Box<[AtomicU64]>,
    /// Hash of the record in each slot; 0: none. Written as the index is.
    owners: Box<[AtomicU64]>,
    slots: Mutex<LookupSlots>,
}

/// The slots of a part.
#[derive(Default)]
struct LookupSlots {
    /// Slots that were ever used: the first ones.
    used: u32,
    /// Slots that were used and are not, the last one first: it was looked at lately.
    free: Vec<u32>,
    /// The slot to be taken next from its record, when all have one.
    hand: u32,
    /// How many records no word of a bucket speaks of, by the bucket's offset: those buckets have a word for [`MORE`].
    more: HashMap<usize, u32>,
}

/// Where a record is, or would be, in the index of a part.
struct LookupPlace<'b> {
    bucket: &'b [AtomicU64],
    owners: &'b [AtomicU64],
    /// Offset of the bucket that clients see, in bytes.
    offset: usize,
}

impl LookupPlace<'_> {
    fn position(&self, says: impl Fn(u64) -> bool) -> Option<usize> {
        self.bucket.iter().position(|word| says(word.load(Ordering::Relaxed)))
    }

    /// Words that speak of records of this hash, or of others with the same word, and slots that show them.
    fn shown(&self, hash: u64) -> impl Iterator<Item = (usize, u32)> {
        let words = self.bucket.iter().enumerate();
        words.filter_map(move |(at, word)| {
            Some((at, indexed_slot(word.load(Ordering::Relaxed), hash)?))
        })
    }

    /// The word that speaks of the slot of the record of this hash.
    fn find(&self, hash: u64) -> Option<(usize, u32)> {
        self.shown(hash)
            .find(|(_, slot)| self.owners[*slot as usize].load(Ordering::Relaxed) == hash)
    }

    /// A word that speaks of some record and may be used for another one.
    fn victim(&self, random: u64) -> usize {
        let at = random as usize % BUCKET_WORDS;
        if self.bucket[at].load(Ordering::Relaxed) == MORE { (at + 1) % BUCKET_WORDS } else { at }
    }
}

impl LookupSlots {
    /// The slot that the next record gets which has none, if there are so many.
    fn next(&self, count: u32) -> u32 {
        let other = if self.used < count { self.used } else { self.hand };
        self.free.last().copied().unwrap_or(other)
    }
}

impl LookupTable {
    pub(super) fn new(mapping: Arc<ArenaMapping>, layout: &ArenaLayout) -> Self {
        let words = layout.lookup_part_buckets() as usize * BUCKET_WORDS;
        let slots = layout.lookup_part_slots() as usize;
        let zeros = |count| (0..count).map(|_| AtomicU64::new(0)).collect();
        let part =
            |_| LookupPart { index: zeros(words), owners: zeros(slots), slots: Mutex::default() };
        let parts = (0..layout.shards()).map(part).collect();
        let table = Self { mapping, layout: *layout, parts, generation: AtomicU32::new(0) };
        table.wipe();
        table.set_valid_until(VALID_ALWAYS);
        table
    }

    fn place(&self, part: u32, hash: u64) -> LookupPlace<'_> {
        let first = self.layout.lookup_bucket(hash) * BUCKET_WORDS;
        let LookupPart { index, owners, .. } = &self.parts[part as usize];
        let bucket = &index[first..first + BUCKET_WORDS];
        LookupPlace { bucket, owners, offset: self.layout.lookup_bucket_offset(part, hash) }
    }

    fn slots(&self, part: u32) -> MutexGuard<'_, LookupSlots> {
        self.parts[part as usize].slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn owner(&self, part: u32, slot: u32) -> &AtomicU64 {
        &self.parts[part as usize].owners[slot as usize]
    }

    /// Prefetch: a record of this hash will be retracted or published. Both touch memory that the
    /// processor has not seen for long, words of the index and then [the slot](Self::expect_slot)
    /// that they tell of.
    pub(super) fn expect(&self, part: u32, hash: u64) {
        let place = self.place(part, hash);
        prefetch_to_write(place.bucket.as_ptr().cast(), size_of_val(place.bucket));
        self.mapping.prefetch_to_write(place.offset, size_of_val(place.bucket));
    }

    /// The same of the slot, a little later.
    pub(super) fn expect_slot(&self, part: u32, hash: u64) {
        let place = self.place(part, hash);
        match place.shown(hash).next() {
            Some((_, slot)) => {
                let owner = std::ptr::from_ref(&place.owners[slot as usize]);
                prefetch_to_write(owner.cast(), size_of::<u64>());
            }
            None => {
                let slot = self.slots(part).next(self.layout.lookup_part_slots());
                if let Some(start) = self.layout.lookup_slot_offset(part, slot) {
                    self.mapping.prefetch_to_write(start, SLOT_LEN);
                }
            }
        }
    }

    /// A record has come into being.
    pub(super) fn insert_name(&self, id: &RecordId<'_>) {
        let hash = id.hash();
        let part = self.layout.lookup_part(id.partition);
        let place = self.place(part, hash);
        let mut slots = self.slots(part);
        if let Some(at) = place.position(|word| word == 0) {
            return self.set_word(&place, at, known_word(hash));
        }
        let more = slots.more.entry(place.offset).or_default();
        *more += 1;
        if *more == 1 {
            *more += 1;
            let at = place.victim(hash);
            self.forget(part, &place, at, &mut slots);
            self.set_word(&place, at, MORE);
        }
    }

    /// A record exists no more: takes its slot and its word.
    pub(super) fn remove_name(&self, id: &RecordId<'_>) {
        let hash = id.hash();
        let part = self.layout.lookup_part(id.partition);
        let place = self.place(part, hash);
        let mut slots = self.slots(part);
        let shown = place.find(hash);
        if let Some((_, slot)) = shown {
            self.free(part, slot, &mut slots);
        }
        let known = || place.position(|word| word == known_word(hash));
        match shown.map(|(at, _)| at).or_else(known) {
            Some(at) => self.set_word(&place, at, 0),
            None => self.one_less(&place, &mut slots),
        }
    }

    /// Of the records that no word of a bucket speaks of, one is gone, or has a word now.
    fn one_less(&self, place: &LookupPlace<'_>, slots: &mut LookupSlots) {
        let Some(more) = slots.more.get_mut(&place.offset) else {
            debug_assert!(false, "a record that has never entered");
            return;
        };
        *more -= 1;
        if *more == 0 {
            slots.more.remove(&place.offset);
            if let Some(at) = place.position(|word| word == MORE) {
                self.set_word(place, at, 0);
            }
        }
    }

    /// Retracts a record of this hash. A reader that looks after this returned does not find it.
    pub(super) fn retract(&self, id: &RecordId<'_>) {
        let hash = id.hash();
        let part = self.layout.lookup_part(id.partition);
        let place = self.place(part, hash);
        if place.shown(hash).next().is_none() {
            // Only the record's own shard publishes it: it cannot come there meanwhile.
            return;
        }
        let mut slots = self.slots(part);
        if let Some((at, slot)) = place.find(hash) {
            self.free(part, slot, &mut slots);
            self.set_word(&place, at, known_word(hash));
        }
    }

    /// Publishes a record with `value`, the first bytes of its value.
    pub(super) fn publish(
        &self,
        id: &RecordId<'_>,
        version: Version,
        total_len: u32,
        value: &[u8],
    ) {
        let generation = self.generation.load(Ordering::Relaxed);
        let Some(new) = LookupSlot::new(id, generation, version, total_len, value) else { return };
        let hash = id.hash();
        let part = self.layout.lookup_part(id.partition);
        let place = self.place(part, hash);
        let mut slots = self.slots(part);
        if let Some((_, slot)) = place.find(hash) {
            return self.write(part, slot, &new);
        }
        let slot = self.take_slot(part, &mut slots);
        let known = place.position(|word| word == known_word(hash));
        let at = known.or_else(|| {
            let free = place.position(|word| word == 0)?;
            self.one_less(&place, &mut slots);
            Some(free)
        });
        let at = at.unwrap_or_else(|| {
            // From now on a word speaks of it, and of another record none. The version makes it another one each time.
            let at = place.victim(version.get());
            self.forget(part, &place, at, &mut slots);
            at
        });
        place.owners[slot as usize].store(hash, Ordering::Relaxed);
        self.write(part, slot, &new);
        self.set_word(&place, at, index_word(hash, slot));
    }

    /// A word will speak of something else: the slot that it speaks of has no record any more.
    fn forget(&self, part: u32, place: &LookupPlace<'_>, at: usize, slots: &mut LookupSlots) {
        let word = place.bucket[at].load(Ordering::Relaxed);
        if let Some(slot) = indexed_slot(word, word) {
            self.free(part, slot, slots);
        }
    }

    /// A slot that has no record, or no longer.
    fn take_slot(&self, part: u32, slots: &mut LookupSlots) -> u32 {
        let count = self.layout.lookup_part_slots();
        let slot = slots.next(count);
        if slots.free.pop().is_some() {
            return slot;
        }
        if slot == slots.used {
            slots.used += 1;
            return slot;
        }
        let owner = self.owner(part, slot).load(Ordering::Relaxed);
        let place = self.place(part, owner);
        if let Some((at, _)) = place.shown(owner).find(|(_, found)| *found == slot) {
            self.set_word(&place, at, known_word(owner));
        }
        slots.hand = (slot + 1) % count;
        slot
    }

    fn set_word(&self, place: &LookupPlace<'_>, at: usize, word: u64) {
        place.bucket[at].store(word, Ordering::Relaxed);
        let shown = self.mapping.long_word(place.offset + at * size_of::<u64>());
        shown.store(word.to_le(), Ordering::Release);
    }

    /// Frees a slot of which no word will speak, for the next record. Its bytes stay there: a
    /// reader that has read the word before takes them for the record as it was then.
    fn free(&self, part: u32, slot: u32, slots: &mut LookupSlots) {
        self.owner(part, slot).store(0, Ordering::Relaxed);
        slots.free.push(slot);
    }

    /// Wipes the table.
    pub(super) fn wipe(&self) {
        let generation = self.generation.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
        let offset = self.layout.lookup_offset() as usize + GENERATION_OFFSET;
        self.mapping.word(offset).store(generation, Ordering::SeqCst);
    }

    /// From now on only clients with name-space generation `epoch` or a newer one may use the
    /// table.
    pub(super) fn require_lease(&self, epoch: Epoch) {
        let offset = self.layout.lookup_offset() as usize + NAME_SPACE_OFFSET;
        self.mapping.long_word(offset).fetch_max(epoch.get(), Ordering::SeqCst);
    }

    /// The table may be used until then, on the host's monotonic clock.
    pub(super) fn set_valid_until(&self, nanos: u64) {
        let offset = self.layout.lookup_offset() as usize + VALID_OFFSET;
        self.mapping.long_word(offset).store(nanos, Ordering::SeqCst);
    }

    /// Writes a slot; the lock of its part is held.
    fn write(&self, part: u32, slot: u32, new: &LookupSlot) {
        let Some(start) = self.layout.lookup_slot_offset(part, slot) else { return };
        let sequence = self.mapping.word(start + SEQUENCE_OFFSET);
        // A client that garbles the number garbles what it reads itself.
        let before = sequence.load(Ordering::Relaxed) & !1;
        sequence.store(before.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        let rest = &new.as_bytes()[size_of::<u32>()..];
        let dest = self.mapping.at((start + size_of::<u32>()) as u64, rest.len());
        // SAFETY: the slot lies within the mapping, as the layout says; no other thread of the node writes to it, for this one
        // has the lock of its part; readers throw away what they copied while the number was odd or changed.
        unsafe { std::ptr::copy_nonoverlapping(rest.as_ptr(), dest.as_ptr(), rest.len()) };
        // A reader that hears of what follows from this hears of this before.
        sequence.store(before.wrapping_add(2), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use crate::lookup::{HEAD_LEN, may_know};
    use proptest::prelude::*;
    use samite_types::{DatasetId, PartitionId};
    use zerocopy::FromBytes;

    use super::*;

    fn table(blocks: u32, shards: usize) -> LookupTable {
        let layout = ArenaLayout::new(blocks, shards).unwrap();
        LookupTable::new(Arc::new(ArenaMapping::create(&layout).unwrap()), &layout)
    }

    fn id(number: u32, key: &[u8; 4]) -> RecordId<'_> {
        RecordId { dataset: DatasetId(1), partition: PartitionId(number % 4), key }
    }

    /// The record that a client finds, which knows the shared memory alone.
    fn found(table: &LookupTable, id: &RecordId<'_>) -> Option<(Version, Vec<u8>)> {
        let (layout, mapping) = (&table.layout, &table.mapping);
        let (part, hash) = (layout.lookup_part(id.partition), id.hash());
        let bucket = layout.lookup_bucket_offset(part, hash);
        (0..BUCKET_WORDS).find_map(|at| {
            let word = mapping.long_word(bucket + at * size_of::<u64>()).load(Ordering::Acquire);
            let slot = indexed_slot(u64::from_le(word), hash)?;
            let start = mapping.at(layout.lookup_slot_offset(part, slot)? as u64, SLOT_LEN);
            // SAFETY: a slot of the mapping, which nobody writes to meanwhile.
            let raw = unsafe { std::slice::from_raw_parts(start.as_ptr(), SLOT_LEN) };
            let slot = LookupSlot::read_from_bytes(raw).unwrap();
            let mut dest = [0; HEAD_LEN];
            let head = slot.publish(id, table.generation.load(Ordering::Relaxed), &mut dest)?;
            Some((head.version, dest[..head.len].to_vec()))
        })
    }

    /// Whether a client that does not find it has to ask for it.
    fn may_be_there(table: &LookupTable, id: &RecordId<'_>) -> bool {
        let (part, hash) = (table.layout.lookup_part(id.partition), id.hash());
        let bucket = table.layout.lookup_bucket_offset(part, hash);
        (0..BUCKET_WORDS).any(|at| {
            let word = table.mapping.long_word(bucket + at * size_of::<u64>());
            may_know(u64::from_le(word.load(Ordering::Acquire)), hash)
        })
    }

    #[derive(Clone, Debug)]
    enum Deed {
        /// Makes it, if it is not there, and publishes it.
        Show(u32),
        Make(u32),
        Remove(u32),
        Hide(u32),
        Expect(u32),
        Wipe,
    }

    fn deeds(numbers: u32) -> impl Strategy<Value = Vec<Deed>> {
        let deed = prop_oneof![
            20 => (0..numbers).prop_map(Deed::Show),
            10 => (0..numbers).prop_map(Deed::Make),
            10 => (0..numbers).prop_map(Deed::Remove),
            10 => (0..numbers).prop_map(Deed::Hide),
            5 => (0..numbers).prop_map(Deed::Expect),
            1 => Just(Deed::Wipe),
        ];
        proptest::collection::vec(deed, 0..400)
    }

    /// Carries out deeds beside a model. The table shows what was published last and not retracted
    /// since, and a client that is told that there is no record is told so rightly; says how many
    /// records the table has lost by itself, and how often it did not know that there is none.
    fn lost(table: &LookupTable, numbers: u32, deeds: &[Deed]) -> (usize, usize) {
        let keys: Vec<[u8; 4]> = (0..numbers).map(u32::to_le_bytes).collect();
        let id = |number: &u32| id(*number, &keys[*number as usize]);
        let mut model = HashMap::new();
        let mut there = vec![false; numbers as usize];
        let (mut lost, mut unsure) = (0, 0);
        for (version, deed) in (1..).zip(deeds) {
            match deed {
                Deed::Show(number) | Deed::Make(number) => {
                    let id = id(number);
                    if !std::mem::replace(&mut there[*number as usize], true) {
                        table.insert_name(&id);
                    }
                    if matches!(deed, Deed::Show(_)) {
                        let value = [version as u8; HEAD_LEN];
                        table.publish(&id, Version(version), 500, &value);
                        assert_eq!(found(table, &id), Some((Version(version), value.to_vec())));
                        model.insert(*number, (Version(version), value.to_vec()));
                    }
                }
                Deed::Hide(number) => {
                    table.retract(&id(number));
                    model.remove(number);
                }
                Deed::Remove(number) => {
                    if std::mem::replace(&mut there[*number as usize], false) {
                        table.remove_name(&id(number));
                    }
                    model.remove(number);
                }
                Deed::Expect(number) => {
                    let id = id(number);
                    let part = table.layout.lookup_part(id.partition);
                    table.expect(part, id.hash());
                    table.expect_slot(part, id.hash());
                }
                Deed::Wipe => {
                    table.wipe();
                    model.clear();
                }
            }
            for number in 0..numbers {
                match found(table, &id(&number)) {
                    None => lost += usize::from(model.contains_key(&number)),
                    found => assert_eq!(found.as_ref(), model.get(&number), "record {number}"),
                }
                match (there[number as usize], may_be_there(table, &id(&number))) {
                    (true, knows) => assert!(knows, "record {number} is there"),
                    (false, knows) => unsure += usize::from(knows),
                }
            }
        }
        for number in (0..numbers).filter(|number| there[*number as usize]) {
            table.remove_name(&id(&number));
        }
        let may_be = (0..numbers).filter(|number| may_be_there(table, &id(number)));
        assert_eq!(may_be.count(), 0, "nothing is there, and nothing is said of it");
        (lost, unsure)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Many records for few slots: the table forgets some, and is never wrong.
        #[test]
        fn what_is_found_is_what_was_shown_last(deeds in deeds(64), shards in 1_usize..4) {
            // 8 slots and 2 buckets for each shard.
            lost(&table(1, shards), 64, &deeds);
        }

        /// While there is room, everything is found.
        #[test]
        fn nothing_is_lost_while_there_is_room(deeds in deeds(40)) {
            let table = table(64, 1);
            prop_assert_eq!(table.layout.lookup_part_slots(), 1024);
            prop_assert_eq!(lost(&table, 40, &deeds), (0, 0));
        }
    }

    #[test]
    fn slots_are_used_in_order_and_again() {
        let table = table(64, 1);
        let keys: Vec<[u8; 4]> = (0..100_u32).map(u32::to_le_bytes).collect();
        let show = |number: u32| {
            table.insert_name(&id(number, &keys[number as usize]));
            table.publish(&id(number, &keys[number as usize]), Version(1), 500, &[1; HEAD_LEN]);
        };
        (0..50).for_each(show);
        assert_eq!(table.slots(0).next(1024), 50);
        let seventh = id(7, &keys[7]);
        table.retract(&seventh);
        assert_eq!(table.slots(0).next(1024), 7);
        (50..100).for_each(show);
        assert_eq!(table.slots(0).next(1024), 99);
    }
}
