//! Listings: records of a partition in key order, with the first bytes of their values, or with
//! whole values, which are bytes or references into the arena.

use samite_types::Version;

use super::decode::{block_count, key};
use super::encode::{BLOCK_REF_LEN, tag};
use super::reader::BlockRefs;
use crate::codec::{FieldDecoder, WireError};
use crate::limits::{BLOCK_LEN, RECORD_LEN_MAX};

/// As `value_len_max` of [`Action::List`](super::Action::List): whole values are wanted. A client
/// that has mapped the arena gets references to those that lie there; a value that is too long for
/// the body of a frame is left for an [`Action::Get`](super::Action::Get).
pub const WHOLE_VALUES: u32 = u32::MAX;

/// Entries of a listing, decoded as they are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListingEntries<'a> {
    /// There is nothing after the last entry.
    pub complete: bool,
    /// How many entries there are.
    pub count: u32,
    /// Entries as encoded; iterate with [`ListingEntries::entries`].
    pub(crate) raw: &'a [u8],
}

/// One record in a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListEntry<'a> {
    /// Key.
    pub key: &'a [u8],
    /// Version.
    pub version: Version,
    /// Whole length of the value, in bytes.
    pub total_len: u32,
    /// The value, as far as it was asked for.
    pub value: ListedValue<'a>,
}

/// The value of a record in a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListedValue<'a> {
    /// Its first bytes, as many as were asked for.
    Bytes(&'a [u8]),
    /// Where all of it lies in the arena.
    Blocks(BlockRefs<'a>),
    /// It is not in the listing, although all of it was asked for.
    Left,
}

impl<'a> ListEntry<'a> {
    /// The first bytes of the value; none where the listing has no bytes of it.
    #[must_use]
    pub const fn bytes(&self) -> &'a [u8] {
        match self.value {
            ListedValue::Bytes(bytes) => bytes,
            ListedValue::Blocks(_) | ListedValue::Left => &[],
        }
    }
}

impl<'a> ListingEntries<'a> {
    /// Entries that were [checked](Self::checked) before, in the memory that they were copied to.
    #[must_use]
    pub const fn again(complete: bool, count: u32, raw: &'a [u8]) -> Self {
        Self { complete, count, raw }
    }

    /// Entries as they came.
    ///
    /// # Errors
    /// [`WireError`]: they are not as many as they should be, or make no sense.
    pub(super) fn checked(complete: bool, count: u32, raw: &'a [u8]) -> Result<Self, WireError> {
        let mut decoder = FieldDecoder::new(raw);
        for _ in 0..count {
            entry(&mut decoder)?;
        }
        decoder.finish("listing")?;
        Ok(Self { complete, count, raw })
    }

    /// The entries as they came.
    #[must_use]
    pub const fn raw(&self) -> &'a [u8] {
        self.raw
    }

    /// The entries, in the order of the listing.
    pub fn entries(&self) -> impl Iterator<Item = ListEntry<'a>> + use<'a> {
        let mut decoder = FieldDecoder::new(self.raw);
        // All entries were walked over when they came: none of them can fail here.
        std::iter::from_fn(move || entry(&mut decoder).ok())
    }

    /// The entry whose first byte is at `at` of the entries as they came, and where the next one
    /// begins; `None` at their end.
    #[must_use]
    pub fn entry_at(&self, at: usize) -> Option<(ListEntry<'a>, usize)> {
        let mut decoder = FieldDecoder::new(self.raw.get(at..)?);
        let entry = entry(&mut decoder).ok()?;
        Some((entry, self.raw.len() - decoder.rest().len()))
    }
}

fn entry<'a>(decoder: &mut FieldDecoder<'a>) -> Result<ListEntry<'a>, WireError> {
    let key = key(decoder)?;
    let version = Version(decoder.u64("version")?);
    let total_len = decoder.u32("value length")?;
    let value = match decoder.u8("listed value tag")? {
        tag::INLINE => {
            let len = decoder.u32("value prefix length")? as usize;
            ListedValue::Bytes(decoder.bytes(len, "value prefix")?)
        }
        tag::BLOCKS => {
            let len = block_count(decoder)? * BLOCK_REF_LEN;
            let blocks = BlockRefs::of(decoder.bytes(len, "block references")?);
            check_blocks(&blocks, total_len)?;
            ListedValue::Blocks(blocks)
        }
        tag::LEFT => ListedValue::Left,
        _ => return Err(WireError::Unknown("listed value tag")),
    };
    Ok(ListEntry { key, version, total_len, value })
}

/// References are to a whole value, which is no longer than a record can be.
fn check_blocks(blocks: &BlockRefs<'_>, total_len: u32) -> Result<(), WireError> {
    let mut len = 0_u64;
    for block in blocks.iter() {
        if block.len as usize > BLOCK_LEN {
            return Err(WireError::OverLimit("block length"));
        }
        len += u64::from(block.len);
    }
    if total_len as usize > RECORD_LEN_MAX {
        return Err(WireError::OverLimit("value length"));
    }
    if len == u64::from(total_len) { Ok(()) } else { Err(WireError::Unknown("block references")) }
}

/// The ranges of a value that are no holes, from the value of an entry that
/// [`Action::Extents`](super::Action::Extents) listed: first byte and the one after the last, in
/// order. Bytes that are no whole range are not looked at.
pub fn extents(value: &[u8]) -> impl Iterator<Item = (u32, u32)> {
    let (ranges, _) = value.as_chunks::<{ 2 * size_of::<u32>() }>();
    ranges.iter().map(|range| {
        let (halves, _) = range.as_chunks::<{ size_of::<u32>() }>();
        (u32::from_le_bytes(halves[0]), u32::from_le_bytes(halves[1]))
    })
}
