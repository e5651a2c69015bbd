//! A value: one part for each 64 KiB of it, each kept in the way that suits its length.
//!
//! A part knows how many of its bytes were ever written (its *valid* prefix); the rest reads as zeros and is never filled. So a
//! cut only lowers that number, a hole is a part with none, and no byte is zeroed that is about to be written.

use std::mem::{self, MaybeUninit};
use std::sync::Arc;

use samite_types::Result;
use samite_wire::limits::BLOCK_LEN;
use smallvec::SmallVec;

use super::space::{Space, heap_charge};
use crate::arena::{Extent, SLOT_LEN_MAX};
use crate::bytes::Bytes;
use crate::record::Piece;

/// Bytes of value that one part covers.
pub(super) const PART_LEN: u32 = BLOCK_LEN as u32;
/// Longest part that is kept on the heap, in bytes.
pub(super) const HEAP_LEN_MAX: u32 = 1024;

/// The value of a record.
#[derive(Debug, Default)]
pub(super) struct Value {
    len: u32,
    /// Parts from the first on; those that are missing at the end are holes.
    parts: SmallVec<[Part; 1]>,
}

/// 64 KiB of a value. `valid` is never more than what the storage holds.
#[derive(Debug, Default)]
enum Part {
    #[default]
    Hole,
    Heap {
        bytes: Arc<[u8]>,
        valid: u32,
    },
    Arena {
        extent: Extent,
        valid: u32,
    },
}

impl Part {
    const fn valid(&self) -> u32 {
        match self {
            Self::Hole => 0,
            Self::Heap { valid, .. } | Self::Arena { valid, .. } => *valid,
        }
    }

    const fn set_valid(&mut self, to: u32) {
        match self {
            Self::Hole => {}
            Self::Heap { valid, .. } | Self::Arena { valid, .. } => *valid = to,
        }
    }

    /// Bytes that its storage holds.
    fn capacity(&self) -> u32 {
        match self {
            Self::Hole => 0,
            Self::Heap { bytes, .. } => bytes.len() as u32,
            Self::Arena { extent, .. } => extent.len() as u32,
        }
    }

    /// The valid bytes.
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Hole => &[],
            Self::Heap { bytes, valid } => &bytes[..*valid as usize],
            Self::Arena { extent, valid } => &extent.as_slice()[..*valid as usize],
        }
    }

    /// Whether bytes up to `end` can be written where it is.
    fn takes(&self, end: u32) -> bool {
        let alone = match self {
            Self::Hole => end == 0,
            Self::Heap { bytes, .. } => Arc::strong_count(bytes) == 1,
            Self::Arena { extent, .. } => !extent.is_shared(),
        };
        alone && end <= self.capacity()
    }

    /// Whether `len` bytes can replace what it holds, where it is, without keeping much more memory than they need.
    fn is_good_for(&self, len: u32) -> bool {
        self.takes(len) && storage_len(len) * 2 >= self.capacity()
    }

    /// Gives its memory back.
    fn free(self, space: &mut Space) {
        if let Self::Heap { bytes, .. } = self {
            space.free_heap(heap_charge(bytes.len()));
        }
    }

    /// Runs `fill` on its storage; `false` if somebody shares it.
    fn change(&mut self, fill: impl FnOnce(&mut [u8])) -> bool {
        match self {
            Self::Hole => false,
            Self::Heap { bytes, .. } => Arc::get_mut(bytes).map(fill).is_some(),
            Self::Arena { extent, .. } => {
                extent.change().map(|mut change| fill(&mut change)).is_some()
            }
        }
    }

    /// New storage for at least `len` bytes, of which `fill` writes the first `valid`.
    fn new(space: &mut Space, len: u32, valid: u32, fill: impl FnOnce(&mut [u8])) -> Result<Self> {
        if len <= HEAP_LEN_MAX {
            space.charge_heap(heap_charge(len as usize))?;
            let mut bytes = Arc::<[u8]>::new_uninit_slice(len as usize);
            let storage = Arc::get_mut(&mut bytes).expect("just made");
            storage.fill(MaybeUninit::new(0));
            // SAFETY: every byte was written just now.
            let mut bytes = unsafe { bytes.assume_init() };
            fill(Arc::get_mut(&mut bytes).expect("just made"));
            return Ok(Self::Heap { bytes, valid });
        }
        let mut extent = space.extent(len)?;
        fill(&mut extent.change().expect("just made"));
        Ok(Self::Arena { extent, valid })
    }
}

/// What a write to one part brings.
pub(super) enum Change<'a> {
    /// Bytes.
    Bytes(&'a [u8]),
    /// Zeros.
    Zeros(u32),
}

impl Change<'_> {
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

impl Value {
    /// Length in bytes.
    pub(super) const fn len(&self) -> u32 {
        self.len
    }

    /// Sets the length. Bytes beyond it must be gone already ([`cut`](Self::cut)).
    pub(super) const fn set_len(&mut self, len: u32) {
        self.len = len;
    }

    /// Hands out `len` bytes from `offset`, fewer at the end.
    pub(super) fn read(&self, offset: u32, len: u32, out: &mut dyn FnMut(Piece)) {
        let end = offset.saturating_add(len).min(self.len);
        let mut at = offset;
        let mut zeros = 0;
        while at < end {
            let within = at % PART_LEN;
            let part = self.parts.get((at / PART_LEN) as usize).unwrap_or(&Part::Hole);
            let want = (PART_LEN - within).min(end - at);
            let have = part.valid().saturating_sub(within).min(want);
            if have > 0 {
                if zeros > 0 {
                    out(Piece::Zeros(mem::take(&mut zeros)));
                }
                out(match part {
                    Part::Heap { bytes, .. } => Piece::Bytes(Bytes::slice(bytes, within, have)),
                    Part::Arena { extent, .. } => {
                        Piece::Extent { extent: extent.clone(), offset: within, len: have }
                    }
                    Part::Hole => unreachable!("a hole has no valid bytes"),
                });
            }
            zeros += want - have;
            at += want;
        }
        if zeros > 0 {
            out(Piece::Zeros(zeros));
        }
    }

    /// The first bytes as one slice, if they lie in one and all of `len` are valid.
    pub(super) fn head(&self, len: u32) -> Option<&[u8]> {
        let len = len.min(self.len) as usize;
        match self.parts.first() {
            _ if len == 0 => Some(&[]),
            Some(part) => part.as_slice().get(..len),
            None => None,
        }
    }

    /// Drops the parts from `count` on.
    pub(super) fn keep_parts(&mut self, space: &mut Space, count: usize) {
        while self.parts.len() > count {
            if let Some(part) = self.parts.pop() {
                part.free(space);
            }
        }
    }

    /// Drops all valid bytes from `len` on. Storage that is mostly empty after that is given back, where the rest fits the heap.
    pub(super) fn cut(&mut self, space: &mut Space, len: u32) {
        let count = len.div_ceil(PART_LEN);
        self.keep_parts(space, count as usize);
        let within = len - count.saturating_sub(1) * PART_LEN;
        let Some(part) = self.parts.get_mut((count as usize).wrapping_sub(1)) else { return };
        if part.valid() <= within {
            return;
        }
        part.set_valid(within);
        if within <= HEAP_LEN_MAX && part.capacity() > HEAP_LEN_MAX {
            let keep: SmallVec<[u8; HEAP_LEN_MAX as usize]> = SmallVec::from_slice(part.as_slice());
            // When even this does not fit, it stays where it is.
            if let Ok(small) = Part::new(space, within, within, |out| out.copy_from_slice(&keep)) {
                mem::replace(part, small).free(space);
            }
        }
    }

    /// Gives all memory back.
    pub(super) fn free(mut self, space: &mut Space) {
        for part in self.parts.drain(..) {
            part.free(space);
        }
    }

    fn part_mut(&mut self, index: usize) -> &mut Part {
        if self.parts.len() <= index {
            self.parts.resize_with(index + 1, Part::default);
        }
        &mut self.parts[index]
    }

    /// Makes `bytes` the whole of part `index`.
    pub(super) fn replace(&mut self, space: &mut Space, index: usize, bytes: &[u8]) -> Result<()> {
        let part = self.part_mut(index);
        let len = bytes.len() as u32;
        if part.is_good_for(len) {
            let changed = part.change(|out| out[..bytes.len()].copy_from_slice(bytes));
            debug_assert!(changed);
            part.set_valid(len);
            return Ok(());
        }
        let new = if len <= HEAP_LEN_MAX {
            space.charge_heap(heap_charge(bytes.len()))?;
            Part::Heap { bytes: Arc::from(bytes), valid: len }
        } else {
            Part::new(space, len, len, |out| out[..bytes.len()].copy_from_slice(bytes))?
        };
        mem::replace(part, new).free(space);
        Ok(())
    }

    /// Makes a granted block, of which `len` bytes are filled, the whole of part `index`. Nothing is copied.
    pub(super) fn adopt(&mut self, space: &mut Space, index: usize, mut extent: Extent, len: u32) {
        extent.close_from_client();
        mem::replace(self.part_mut(index), Part::Arena { extent, valid: len }).free(space);
    }

    /// Writes into part `index` at `at`, keeping what is around it.
    pub(super) fn write(
        &mut self,
        space: &mut Space,
        index: usize,
        at: u32,
        change: &Change<'_>,
    ) -> Result<()> {
        let end = at + change.len();
        if let Change::Zeros(_) = change
            && self.erase(space, index, at, end)
        {
            return Ok(());
        }
        let part = self.part_mut(index);
        let valid = part.valid().max(end);
        let old = part.valid();
        let merge = |out: &mut [u8]| {
            if at > old {
                out[old as usize..at as usize].fill(0);
            }
            change.copy_to(&mut out[at as usize..end as usize]);
        };
        if part.takes(valid) {
            let changed = part.change(merge);
            debug_assert!(changed);
            part.set_valid(valid);
            return Ok(());
        }
        let kept = part.as_slice();
        let new = Part::new(space, grown_len(part, valid), valid, |out| {
            out[..kept.len()].copy_from_slice(kept);
            merge(out);
        })?;
        mem::replace(part, new).free(space);
        Ok(())
    }

    /// Zeros `at .. end` of part `index` without touching a byte, if that can be done.
    fn erase(&mut self, space: &mut Space, index: usize, at: u32, end: u32) -> bool {
        let Some(part) = self.parts.get_mut(index) else { return true };
        if at < part.valid() && end < part.valid() {
            return false;
        }
        if at == 0 {
            mem::take(part).free(space);
        } else if at < part.valid() {
            part.set_valid(at);
        }
        true
    }

    /// Valid bytes of part `index`.
    pub(super) fn valid(&self, index: usize) -> u32 {
        self.parts.get(index).map_or(0, Part::valid)
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
        let valid = part.valid().max(end);
        if part.takes(valid) || (zeros && part.valid() <= end) { 0 } else { grown_len(part, valid) }
    }
}

/// Storage for `len` bytes: as many, but whole blocks for what no slot holds.
const fn storage_len(len: u32) -> u32 {
    if len > SLOT_LEN_MAX { PART_LEN } else { len }
}

/// Storage for a part that has grown to `valid` bytes: twice what it had, so that many small appends copy each byte about once.
fn grown_len(part: &Part, valid: u32) -> u32 {
    let doubled = part.capacity().saturating_mul(2).min(PART_LEN);
    let doubled = if valid <= HEAP_LEN_MAX { doubled.min(HEAP_LEN_MAX) } else { doubled };
    if part.capacity() < valid { storage_len(valid.max(doubled)) } else { storage_len(valid) }
}
