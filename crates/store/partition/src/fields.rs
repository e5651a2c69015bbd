//! Fields of a partition's state in its exported form. Numbers are little-endian.

use samite_wire::{FieldDecoder, WireError};

/// Appends a number of 8 bytes.
pub(crate) fn put_u64(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(&number.to_le_bytes());
}

/// Appends a count of 4 bytes. Counts here are far below the range of a `u32`.
pub(crate) fn put_u32(out: &mut Vec<u8>, number: usize) {
    out.extend_from_slice(&(number as u32).to_le_bytes());
}

/// A count of at most `max`.
pub(crate) fn bounded(
    decoder: &mut FieldDecoder<'_>,
    max: usize,
    field: &'static str,
) -> Result<usize, WireError> {
    let count = decoder.u32(field)? as usize;
    if count > max { Err(WireError::OverLimit(field)) } else { Ok(count) }
}
