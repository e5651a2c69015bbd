//! A value: one part for each 64 KiB of it, each stored in the way that suits its length.
//!
//! A part knows how many of its bytes were ever written (its *valid* prefix); the rest reads as zeros and is never filled. So a
//! cut only lowers that number, a hole is a part with none, and no byte is zeroed that is about to be written.

use std::mem::{self, MaybeUninit};
use std::ops::Range;
use std::sync::Arc;

use samite_arena::node::{ArenaExtent, SLOT_LEN_MAX};
use samite_types::Result;
use samite_wire::limits::BLOCK_LEN;
use samite_wire::op::BlockRef;
use smallvec::SmallVec;

use super::space::{PartitionSpace, heap_charge};
use super::sums::PartSums;
use crate::bytes::SharedBytes;
use crate::value_piece::{ValuePiece, ValueView};

/// Bytes of value that one part covers.
pub(super) const PART_LEN: u32 = BLOCK_LEN as u32;
/// Longest part that is stored in the record itself, in bytes: an inode, a change stamp, a counter.
/// Nothing is charged for it beside the record.
pub(super) const NEAR_LEN_MAX: u32 = 128;
/// Longest part that is kept on the heap, in bytes.
pub(super) const HEAP_LEN_MAX: u32 = 1024;

/// The value of a record.
#[derive(Debug, Default)]
pub(super) struct RecordValue {
    len: u32,
    /// Parts from the first on; those that are missing at the end are holes.
    parts: SmallVec<[ValuePart; 1]>,
}

/// Some bytes are not what was written.
#[derive(Debug)]
pub(super) struct ValueDamage;

/// 64 KiB of a value.
#[derive(Debug, Default)]
struct ValuePart {
    storage: PartStorage,
    /// Never more than what the storage holds.
    valid: u32,
    sums: PartSums,
}

#[derive(Debug, Default)]
enum PartStorage {
    #[default]
    Hole,
    Near([u8; NEAR_LEN_MAX as usize]),
    Heap(Arc<[u8]>),
    Arena(ArenaExtent),
}

impl ValuePart {
    /// Bytes that its storage holds.
    fn capacity(&self) -> u32 {
        match &self.storage {
            PartStorage::Hole => 0,
            PartStorage::Near(bytes) => bytes.len() as u32,
            PartStorage::Heap(bytes) => bytes.len() as u32,
            PartStorage::Arena(extent) => extent.len() as u32,
        }
    }

    /// The valid bytes.
    fn as_slice(&self) -> &[u8] {
        let valid = self.valid as usize;
        match &self.storage {
            PartStorage::Hole => &[],
            PartStorage::Near(bytes) => &bytes[..valid],
            PartStorage::Heap(bytes) => &bytes[..valid],
            PartStorage::Arena(extent) => &extent.as_slice()[..valid],
        }
    }

    /// Lowers the number of valid bytes.
    fn cut(&mut self, valid: u32) {
        let mut sums = mem::take(&mut self.sums);
        sums.cut(self.as_slice(), valid);
        (self.sums, self.valid) = (sums, valid);
    }

    /// Whether bytes up to `end` can be written where it is.
    fn takes(&self, end: u32) -> bool {
        let alone = match &self.storage {
            PartStorage::Hole => end == 0,
            PartStorage::Near(_) => true,
            PartStorage::Heap(bytes) => Arc::strong_count(bytes) == 1,
            PartStorage::Arena(extent) => !extent.is_shared(),
        };
        alone && end <= self.capacity()
    }

    /// Whether `len` bytes can replace what it holds, where it is, without keeping much more memory than they need.
    fn is_good_for(&self, len: u32) -> bool {
        let is_near = matches!(self.storage, PartStorage::Near(_));
        self.takes(len) && (is_near || storage_len(len) * 2 >= self.capacity())
    }

    /// It is about to go: what was charged for its memory is given back.
    fn uncharge(&self, space: &mut PartitionSpace) {
        if let PartStorage::Heap(bytes) = &self.storage {
            space.free_heap(heap_charge(bytes.len()));
        }
    }

    fn replace_by(&mut self, new: Self, space: &mut PartitionSpace) {
        self.uncharge(space);
        *self = new;
    }

    /// Runs `fill` on its storage; `false` if somebody shares it.
    fn change(&mut self, fill: impl FnOnce(&mut [u8])) -> bool {
        match &mut self.storage {
            PartStorage::Hole => false,
            PartStorage::Near(bytes) => {
                fill(bytes);
                true
            }
            PartStorage::Heap(bytes) => Arc::get_mut(bytes).map(fill).is_some(),
            PartStorage::Arena(extent) => {
                extent.change().map(|mut change| fill(&mut change)).is_some()
            }
        }
    }

    /// New storage for at least `len` bytes, of which `fill` writes the first `valid`. It has no sums.
    fn new(
        space: &mut PartitionSpace,
        len: u32,
        valid: u32,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<Self> {
        let sums = PartSums::default();
        if len <= NEAR_LEN_MAX {
            let mut bytes = [0; NEAR_LEN_MAX as usize];
            fill(&mut bytes[..len as usize]);
            return Ok(Self { storage: PartStorage::Near(bytes), valid, sums });
        }
        if len <= HEAP_LEN_MAX {
            space.charge_heap(heap_charge(len as usize))?;
            let mut bytes = Arc::<[u8]>::new_uninit_slice(len as usize);
            let storage = Arc::get_mut(&mut bytes).expect("just made");
            storage.fill(MaybeUninit::new(0));
            // SAFETY: every byte was written just now.
            let mut bytes = unsafe { bytes.assume_init() };
            fill(Arc::get_mut(&mut bytes).expect("just made"));
            return Ok(Self { storage: PartStorage::Heap(bytes), valid, sums });
        }
        let mut extent = space.extent(len)?;
        fill(&mut extent.change().expect("just made"));
        Ok(Self { storage: PartStorage::Arena(extent), valid, sums })
    }

    /// Whether bytes `range` are what was written, as far as that is known. `round`: bytes that
    /// were verified in this round need not be read again.
    fn check(&self, range: Range<u32>, round: Option<u16>) -> bool {
        match (&self.storage, round) {
            (PartStorage::Arena(extent), Some(round)) if extent.is_block() => {
                self.sums.check_once(self.as_slice(), round)
            }
            _ => self.sums.check(self.as_slice(), range),
        }
    }
}

/// The bytes that a write brings to one part.
pub(super) enum PartChange<'a> {
    /// Bytes.
    Bytes(&'a [u8]),
    /// Zeros.
    Zeros(u32),
}

impl PartChange<'_> {
    const fn len(&self) -> u32 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u32,
            Self::Zeros(len) => *len,
        }
    }

    fn copy_to(&self, out: &mut [u8]) {
        match self {
            Self::Bytes(bytes) => out.copy_from_slice(bytes),
            Self::Zeros(_) => out.fill(0),
        }
    }
}

/// Bytes of a value, one after the other.
enum ValueStretch<'v> {
    /// `len` valid bytes of a part, from its byte `within` on.
    Valid { part: &'v ValuePart, within: u32, len: u32 },
    /// This many that were never written.
    Zeros(u32),
}

impl<'v> ValueStretch<'v> {
    const fn len(&self) -> u32 {
        match self {
            Self::Valid { len, .. } | Self::Zeros(len) => *len,
        }
    }

    /// The bytes that are valid.
    fn bytes(&self) -> &'v [u8] {
        match self {
            Self::Valid { part, within, len } => {
                &part.as_slice()[*within as usize..][..*len as usize]
            }
            Self::Zeros(_) => &[],
        }
    }
}

impl RecordValue {
    /// Length in bytes.
    pub(super) const fn len(&self) -> u32 {
        self.len
    }

    /// Sets the length. Bytes beyond it must be gone already ([`cut`](Self::cut)).
    pub(super) const fn set_len(&mut self, len: u32) {
        self.len = len;
    }

    /// Hands out `len` bytes from `offset`, fewer at the end; `false`: some of them are damaged. With a `round`, whole blocks that were found right in
    /// this round are not looked at.
    pub(super) fn read(
        &self,
        offset: u32,
        len: u32,
        round: Option<u16>,
        out: &mut dyn FnMut(ValuePiece),
    ) -> bool {
        self.walk((offset, len), round, |stretch| {
            let ValueStretch::Valid { part, within, len } = stretch else {
                return out(ValuePiece::Zeros(stretch.len()));
            };
            match &part.storage {
                PartStorage::Heap(bytes) => {
                    out(ValuePiece::Bytes(SharedBytes::slice(bytes, within, len)))
                }
                PartStorage::Arena(extent) => {
                    out(ValuePiece::Extent { extent: extent.clone(), offset: within, len });
                }
                PartStorage::Near(_) | PartStorage::Hole => {
                    out(ValuePiece::Bytes(stretch.bytes().into()))
                }
            }
        })
    }

    /// The same, of the bytes where they are.
    pub(super) fn look(&self, offset: u32, len: u32, see: &mut dyn FnMut(ValueView<'_>)) -> bool {
        self.walk((offset, len), None, |stretch| match stretch {
            ValueStretch::Valid { .. } => see(ValueView::Bytes(stretch.bytes())),
            ValueStretch::Zeros(len) => see(ValueView::Zeros(len)),
        })
    }

    fn walk(
        &self,
        (offset, len): (u32, u32),
        round: Option<u16>,
        mut visit: impl FnMut(ValueStretch<'_>),
    ) -> bool {
        let end = offset.saturating_add(len).min(self.len);
        let (mut at, mut zeros, mut is_right) = (offset, 0, true);
        while at < end {
            let within = at % PART_LEN;
            let want = (PART_LEN - within).min(end - at);
            let part = self.parts.get((at / PART_LEN) as usize);
            let have = part.map_or(0, |part| part.valid.saturating_sub(within).min(want));
            if let Some(part) = part.filter(|_| have > 0) {
                if zeros > 0 {
                    visit(ValueStretch::Zeros(mem::take(&mut zeros)));
                }
                is_right &= part.check(within..within + have, round);
                visit(ValueStretch::Valid { part, within, len: have });
            }
            zeros += want - have;
            at += want;
        }
        if zeros > 0 {
            visit(ValueStretch::Zeros(zeros));
        }
        is_right
    }

    /// The first bytes, as many as `len`; where they do not lie in one place, they are gathered.
    ///
    /// # Errors
    /// Some of them are damaged.
    pub(super) fn first_bytes<'v>(
        &'v self,
        len: u32,
        gathered: &'v mut Vec<u8>,
    ) -> std::result::Result<&'v [u8], ValueDamage> {
        if let Some(head) = self.head(len) {
            return Ok(head);
        }
        gathered.clear();
        match self.look(0, len, &mut |seen| seen.append_to(gathered)) {
            true => Ok(gathered),
            false => Err(ValueDamage),
        }
    }

    /// The first bytes as one slice, if they lie in one, all of `len` are valid, and right.
    fn head(&self, len: u32) -> Option<&[u8]> {
        let len = len.min(self.len);
        match self.parts.first() {
            _ if len == 0 => Some(&[]),
            Some(part) if len <= part.valid && part.check(0..len, None) => {
                part.as_slice().get(..len as usize)
            }
            _ => None,
        }
    }

    /// Prefetch: references to its bytes will be asked for soon.
    pub(super) fn expect(&self) {
        if let Some(ValuePart { storage: PartStorage::Arena(extent), .. }) = self.parts.first() {
            extent.expect();
        }
    }

    /// Gives `blocks` references to all bytes, if there are any and all of them lie in the arena;
    /// whether that is so. Parts that were found right in this `round` are not looked at.
    ///
    /// # Errors
    /// Some of them are damaged.
    pub(super) fn refer(
        &self,
        round: u16,
        blocks: &mut impl Extend<BlockRef>,
    ) -> std::result::Result<bool, ValueDamage> {
        let starts = (0..self.len).step_by(PART_LEN as usize);
        let parts = || self.parts.iter().zip(starts.clone());
        let is_there = |(part, start): (&ValuePart, u32)| {
            matches!(part.storage, PartStorage::Arena(_))
                && part.valid >= (self.len - start).min(PART_LEN)
        };
        if self.parts.len() < starts.len() || self.len == 0 || !parts().all(is_there) {
            return Ok(false);
        }
        for (part, start) in parts() {
            let PartStorage::Arena(extent) = &part.storage else { return Ok(false) };
            if !part.sums.check_once(part.as_slice(), round) {
                return Err(ValueDamage);
            }
            let len = (self.len - start).min(PART_LEN);
            blocks.extend([extent.block_ref(0..len)]);
        }
        Ok(true)
    }

    /// Checks all bytes, and makes the sums that are missing. Returns a digest of the bytes, and
    /// their positions; `None`: it is damaged.
    pub(super) fn stamp(&mut self) -> Option<u64> {
        let mut digest = u64::from(self.len);
        for (part, index) in self.parts.iter_mut().zip(0u64..) {
            if part.valid == 0 {
                continue;
            }
            let mut sums = mem::take(&mut part.sums);
            let found = sums.stamp(part.as_slice());
            part.sums = sums;
            digest = (digest.rotate_left(17) ^ found? ^ index).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
        Some(digest)
    }

    /// Bytes that are stored.
    pub(super) fn stored_len(&self) -> u64 {
        self.parts.iter().map(|part| u64::from(part.valid)).sum()
    }

    /// Changes bit `bit` of its stored bytes behind the back of its sums; `false`: it has none, or somebody shares them.
    pub(super) fn rot(&mut self, bit: u64) -> bool {
        let Some(bit) = bit.checked_rem(self.stored_len() * 8) else { return false };
        let mut at = bit / 8;
        for part in &mut self.parts {
            if at < u64::from(part.valid) {
                return part.change(|bytes| bytes[at as usize] ^= 1 << (bit % 8));
            }
            at -= u64::from(part.valid);
        }
        false
    }

    /// Drops the parts from `count` on.
    pub(super) fn keep_parts(&mut self, space: &mut PartitionSpace, count: usize) {
        for part in self.parts.iter().skip(count) {
            part.uncharge(space);
        }
        self.parts.truncate(count);
    }

    /// Drops all valid bytes from `len` on. Storage that is mostly empty after that is given back, where the rest fits the heap.
    pub(super) fn cut(&mut self, space: &mut PartitionSpace, len: u32) {
        let count = len.div_ceil(PART_LEN);
        self.keep_parts(space, count as usize);
        let within = len - count.saturating_sub(1) * PART_LEN;
        let Some(part) = self.parts.get_mut((count as usize).wrapping_sub(1)) else { return };
        if part.valid <= within {
            return;
        }
        part.cut(within);
        if within <= HEAP_LEN_MAX && part.capacity() > HEAP_LEN_MAX {
            let keep: SmallVec<[u8; HEAP_LEN_MAX as usize]> = SmallVec::from_slice(part.as_slice());
            // When even this does not fit, it stays where it is.
            if let Ok(mut small) =
                ValuePart::new(space, within, within, |out| out.copy_from_slice(&keep))
            {
                small.sums = mem::take(&mut part.sums);
                part.replace_by(small, space);
            }
        }
    }

    /// Makes it empty, and gives all memory back.
    pub(super) fn clear(&mut self, space: &mut PartitionSpace) {
        self.keep_parts(space, 0);
        *self = Self::default();
    }

    fn part_mut(&mut self, index: usize) -> &mut ValuePart {
        if self.parts.len() <= index {
            self.parts.resize_with(index + 1, ValuePart::default);
        }
        &mut self.parts[index]
    }

    /// Makes `bytes` the whole of part `index`.
    pub(super) fn replace(
        &mut self,
        space: &mut PartitionSpace,
        index: usize,
        bytes: &[u8],
    ) -> Result<()> {
        let part = self.part_mut(index);
        let len = bytes.len() as u32;
        if part.is_good_for(len) {
            let changed = part.change(|out| out[..bytes.len()].copy_from_slice(bytes));
            debug_assert!(changed);
            (part.valid, part.sums) = (len, PartSums::of(bytes));
            return Ok(());
        }
        let mut new = if NEAR_LEN_MAX < len && len <= HEAP_LEN_MAX {
            space.charge_heap(heap_charge(bytes.len()))?;
            ValuePart {
                storage: PartStorage::Heap(Arc::from(bytes)),
                valid: len,
                sums: PartSums::default(),
            }
        } else {
            ValuePart::new(space, len, len, |out| out[..bytes.len()].copy_from_slice(bytes))?
        };
        new.sums = PartSums::of(bytes);
        part.replace_by(new, space);
        Ok(())
    }

    /// Makes a granted block, of which `len` bytes are filled, the whole of part `index`. Nothing is copied, and nothing read: it has no sums yet.
    pub(super) fn adopt(
        &mut self,
        space: &mut PartitionSpace,
        index: usize,
        mut extent: ArenaExtent,
        len: u32,
    ) {
        extent.close_from_client();
        let part = ValuePart {
            storage: PartStorage::Arena(extent),
            valid: len,
            sums: PartSums::default(),
        };
        self.part_mut(index).replace_by(part, space);
    }

    /// Writes into part `index` at `at`, keeping the bytes around it.
    pub(super) fn write(
        &mut self,
        space: &mut PartitionSpace,
        index: usize,
        at: u32,
        change: &PartChange<'_>,
    ) -> Result<()> {
        let end = at + change.len();
        if let PartChange::Zeros(_) = change
            && self.erase(space, index, at, end)
        {
            return Ok(());
        }
        let part = self.part_mut(index);
        let (valid, old) = (part.valid.max(end), part.valid);
        let before = part.sums.before(part.as_slice(), at, end);
        let mut sums = mem::take(&mut part.sums);
        let merge = |out: &mut [u8]| {
            if at > old {
                out[old as usize..at as usize].fill(0);
            }
            change.copy_to(&mut out[at as usize..end as usize]);
        };
        if part.takes(valid) {
            let changed = part.change(merge);
            debug_assert!(changed);
            part.valid = valid;
        } else {
            let kept = part.as_slice();
            let new = ValuePart::new(space, grown_len(part, valid), valid, |out| {
                out[..kept.len()].copy_from_slice(kept);
                merge(out);
            });
            match new {
                Ok(new) => part.replace_by(new, space),
                Err(error) => {
                    part.sums = sums;
                    return Err(error);
                }
            }
        }
        sums.after(part.as_slice(), before);
        part.sums = sums;
        Ok(())
    }

    /// Zeros `at .. end` of part `index` without touching a byte, if that can be done.
    fn erase(&mut self, space: &mut PartitionSpace, index: usize, at: u32, end: u32) -> bool {
        let Some(part) = self.parts.get_mut(index) else { return true };
        if at < part.valid && end < part.valid {
            return false;
        }
        if at == 0 {
            part.replace_by(ValuePart::default(), space);
        } else if at < part.valid {
            part.cut(at);
        }
        true
    }

    /// Valid bytes of part `index`.
    pub(super) fn valid(&self, index: usize) -> u32 {
        self.parts.get(index).map_or(0, |part| part.valid)
    }

    /// Length of the storage that [`replace`](Self::replace) with `len` bytes takes; 0 for none.
    pub(super) fn replace_needs(&self, index: usize, len: u32) -> u32 {
        match self.parts.get(index) {
            Some(part) if part.is_good_for(len) => 0,
            _ => storage_len(len),
        }
    }

    /// Length of the storage that [`write`](Self::write) up to `end` of part `index` takes; 0 for none.
    pub(super) fn write_needs(&self, index: usize, end: u32, zeros: bool) -> u32 {
        let Some(part) = self.parts.get(index) else {
            return if zeros { 0 } else { storage_len(end) };
        };
        let valid = part.valid.max(end);
        if part.takes(valid) || (zeros && part.valid <= end) { 0 } else { grown_len(part, valid) }
    }
}

/// Storage for `len` bytes: as many, but whole blocks for lengths that no slot holds.
const fn storage_len(len: u32) -> u32 {
    if len > SLOT_LEN_MAX { PART_LEN } else { len }
}

/// Storage for a part that has grown to `valid` bytes: twice what it had, so that many small appends copy each byte about once.
fn grown_len(part: &ValuePart, valid: u32) -> u32 {
    let doubled = part.capacity().saturating_mul(2).min(PART_LEN);
    let doubled = if valid <= HEAP_LEN_MAX { doubled.min(HEAP_LEN_MAX) } else { doubled };
    if part.capacity() < valid { storage_len(valid.max(doubled)) } else { storage_len(valid) }
}

/// Cuts `len` bytes at `offset` at the bounds of parts: the part, where in it, and which of the bytes.
pub(super) fn spans(
    offset: u32,
    len: u32,
) -> impl Iterator<Item = (usize, u32, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done;
        let within = at % PART_LEN;
        let span = (PART_LEN - within).min(len - done);
        done += span;
        let bytes = (done - span) as usize..done as usize;
        (span > 0).then_some(((at / PART_LEN) as usize, within, bytes))
    })
}
