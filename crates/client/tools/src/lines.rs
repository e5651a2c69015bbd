//! Lines and records of a piece, where a task reads on behind it.
//!
//! A line belongs to the piece in which the byte before it lies, so that a piece is known to have
//! it without a look at what is before the piece. A record belongs to that in which it begins.

use samite_types::{Error, ErrorKind, Result};
use samite_worker::input::TaskInput;

/// A piece of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PieceRange {
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// Bytes of the file.
    pub(crate) size: u64,
}

impl PieceRange {
    fn end(self) -> u64 {
        self.offset + self.len
    }

    fn is_last(self) -> bool {
        self.end() >= self.size
    }
}

/// Hands the lines of the piece to `visit`: many at a time, whole, each with its newline but the last
/// of a file that has none.
pub(crate) fn each_lines(
    input: &mut TaskInput,
    piece: PieceRange,
    visit: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let mut in_head = piece.offset > 0;
    let mut carried: Vec<u8> = Vec::new();
    loop {
        let bytes = input.read()?;
        if bytes.is_empty() {
            break;
        }
        let mut rest = bytes;
        if in_head {
            let Some(end) = memchr::memchr(b'\n', rest) else { continue };
            in_head = false;
            rest = &rest[end + 1..];
        }
        if !carried.is_empty() {
            let end = memchr::memchr(b'\n', rest).map(|end| end + 1);
            carried.extend_from_slice(&rest[..end.unwrap_or(rest.len())]);
            rest = &rest[end.unwrap_or(rest.len())..];
            if end.is_some() {
                visit(&carried)?;
                carried.clear();
            }
        }
        let whole = memchr::memrchr(b'\n', rest).map_or(0, |last| last + 1);
        if whole > 0 {
            visit(&rest[..whole])?;
        }
        carried.extend_from_slice(&rest[whole..]);
    }
    while !in_head && !piece.is_last() {
        let bytes = input.read_past()?;
        if bytes.is_empty() {
            break;
        }
        let end = memchr::memchr(b'\n', bytes);
        carried.extend_from_slice(&bytes[..end.map_or(bytes.len(), |end| end + 1)]);
        if end.is_some() {
            break;
        }
    }
    if carried.is_empty() { Ok(()) } else { visit(&carried) }
}

/// Hands the records of the piece to `visit`: many at a time, whole.
pub(crate) fn each_records(
    input: &mut TaskInput,
    piece: PieceRange,
    record_len: usize,
    visit: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let len = record_len as u64;
    if !piece.size.is_multiple_of(len) {
        let words = format!("a file of {} bytes has no whole records of {len}", piece.size);
        return Err(Error::new(ErrorKind::Invalid, words));
    }
    let mut skipped = piece.offset.next_multiple_of(len) - piece.offset;
    let mut carried: Vec<u8> = Vec::new();
    loop {
        let bytes = input.read()?;
        if bytes.is_empty() {
            break;
        }
        let skip = bytes.len().min(usize::try_from(skipped).unwrap_or(bytes.len()));
        skipped -= skip as u64;
        let mut rest = &bytes[skip..];
        if !carried.is_empty() {
            let missing = (record_len - carried.len()).min(rest.len());
            carried.extend_from_slice(&rest[..missing]);
            rest = &rest[missing..];
            if carried.len() == record_len {
                visit(&carried)?;
                carried.clear();
            }
        }
        let whole = rest.len() / record_len * record_len;
        if whole > 0 {
            visit(&rest[..whole])?;
        }
        carried.extend_from_slice(&rest[whole..]);
    }
    while !carried.is_empty() && carried.len() < record_len {
        let bytes = input.read_past()?;
        if bytes.is_empty() {
            return Err(Error::new(ErrorKind::Corrupt, "the file ends in a record"));
        }
        let missing = (record_len - carried.len()).min(bytes.len());
        carried.extend_from_slice(&bytes[..missing]);
    }
    if carried.is_empty() { Ok(()) } else { visit(&carried) }
}
