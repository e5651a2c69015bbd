//! Parts of values.

use std::ops::Range;

use super::row::{PART_LEN, PARTS_MAX, ValueLayout};

/// Bytes within one part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PartSpan {
    pub(super) part: usize,
    /// The first one's offset in the part.
    pub(super) at: u32,
    /// Where they are among all the bytes.
    pub(super) bytes: Range<usize>,
    pub(super) len: usize,
}

/// Cuts `len` bytes at `offset` at the bounds of parts.
pub(super) fn spans(offset: u32, len: usize) -> impl Iterator<Item = PartSpan> {
    let (offset, mut done) = (u64::from(offset), 0);
    std::iter::from_fn(move || {
        let place = offset + done as u64;
        let at = (place % u64::from(PART_LEN)) as u32;
        let span = ((PART_LEN - at) as usize).min(len - done);
        done += span;
        let part = (place / u64::from(PART_LEN)) as usize;
        (span > 0).then_some(PartSpan { part, at, bytes: done - span..done, len: span })
    })
}

/// The bytes of each part that a value takes.
pub(super) fn stored_lens(layout: &ValueLayout<'_>) -> [u32; PARTS_MAX] {
    match layout {
        ValueLayout::Inline(bytes, _) => {
            let mut lens = [0; PARTS_MAX];
            lens[0] = bytes.len() as u32;
            lens
        }
        ValueLayout::Parts(table) => table.lens,
    }
}
