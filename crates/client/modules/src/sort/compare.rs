//! What orders have in common.

use std::cmp::Ordering;

/// An order of items.
pub trait SortOrder {
    /// Compares two items.
    fn compare(&self, one: &[u8], other: &[u8]) -> Ordering;

    /// A number that decides where it differs: of two items, the lower number comes first.
    fn prefix(&self, item: &[u8]) -> u64;

    /// Whether only the first of equal items stays, `-u`.
    fn is_unique(&self) -> bool;
}

/// The first eight bytes, as a number; zeros are behind those that are fewer.
pub(super) fn first_bytes(bytes: &[u8]) -> u64 {
    if let Some(first) = bytes.first_chunk::<8>() {
        return u64::from_be_bytes(*first);
    }
    let mut first = [0; 8];
    first[..bytes.len()].copy_from_slice(bytes);
    u64::from_be_bytes(first)
}

pub(super) fn is_blank(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}

/// How many blanks `bytes` begins with.
pub(super) fn blanks(bytes: &[u8]) -> usize {
    bytes.iter().position(|byte| !is_blank(*byte)).unwrap_or(bytes.len())
}
