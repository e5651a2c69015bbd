//! Segments: files of consecutive frames.

use samite_types::{Error, ErrorKind, Result};

use crate::disk::{LogDisk, LogFile};
use crate::frame::{ALIGN, checksum, read, u32_at, u64_at};

const MAGIC: &[u8; 8] = b"samiteL1";
/// Bytes of a segment's header.
pub(crate) const HEADER_LEN: usize = 32;
const PREFIX: &str = "log-";
/// Name of a segment that is being made. It has no frames.
pub(crate) const SPARE: &str = "spare";

/// A segment that is complete, or in use.
#[derive(Clone, Debug)]
pub(crate) struct LogSegment {
    /// Sequence number of its first frame.
    pub(crate) first: u64,
    /// Bytes set aside for it.
    pub(crate) len: u64,
}

impl LogSegment {
    pub(crate) fn name(first: u64) -> String {
        format!("{PREFIX}{first:016x}")
    }

    /// The first sequence number in a name that a segment has.
    pub(crate) fn first_of(name: &str) -> Option<u64> {
        let first = u64::from_str_radix(name.strip_prefix(PREFIX)?, 16).ok()?;
        (Self::name(first) == name).then_some(first)
    }
}

/// The header of the segment that begins with `first`.
pub(crate) fn header(id: u64, first: u64) -> [u8; HEADER_LEN] {
    let mut bytes = [0; HEADER_LEN];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..16].copy_from_slice(&id.to_le_bytes());
    bytes[16..24].copy_from_slice(&first.to_le_bytes());
    let crc = checksum(id, &bytes[..28]);
    bytes[28..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// Result of reading a segment.
#[derive(Debug)]
pub(crate) struct SegmentContents {
    /// Sequence number after the last frame.
    pub(crate) next: u64,
    /// Bytes up to there.
    pub(crate) end: u64,
    /// Bytes of the file.
    pub(crate) len: u64,
    /// Bytes of it up to the last that is not 0.
    pub(crate) used: u64,
}

/// Reads the segment that begins with sequence number `first`, and hands out its frames. `last`: there is no segment after it, so
/// it may end in a torn batch, or not be complete at all.
///
/// # Errors
/// `Corrupt`, and where; those of the disk; those of `visit`.
pub(crate) fn scan(
    (disk, id): (&dyn LogDisk, u64),
    first: u64,
    (last, len_max): (bool, u64),
    visit: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
) -> Result<SegmentContents> {
    let name = LogSegment::name(first);
    let file = disk.open(&name)?;
    let bytes = read_whole(&*file, &name, len_max)?;
    let len = bytes.len() as u64;
    let rot = |at: usize, what: &str| Err(corrupt(&name, at, what));
    if bytes.get(..HEADER_LEN) != Some(&header(id, first)) {
        if u64_at(&bytes, 8).is_some_and(|other| other != id) && is_header(&bytes) {
            return rot(0, "it belongs to another log");
        }
        return rot(0, "the header is damaged");
    }
    let (mut at, mut next) = (HEADER_LEN, first);
    while let Some(frame) = read(id, &bytes, at, |sequence| sequence == next) {
        at = frame.end();
        visit(next, &bytes[frame.payload])?;
        next += 1;
    }
    // A later frame that was written when this place was on flash already proves that there was something here.
    let proof = |synced| !last || synced > next;
    if let Some(later) = find_after(id, &bytes, next, proof) {
        return rot(at, &format!("frame {next} cannot be read, and {later} comes after it"));
    }
    let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u64 + 1);
    Ok(SegmentContents { next, end: at as u64, len, used })
}

fn is_header(bytes: &[u8]) -> bool {
    let Some(header) = bytes.first_chunk::<HEADER_LEN>() else { return false };
    let id = u64_at(header, 8).unwrap_or_default();
    header.starts_with(MAGIC) && u32_at(header, 28) == Some(checksum(id, &header[..28]))
}

/// The first frame with a number above `sequence` that was written when `synced` was on flash.
fn find_after(id: u64, bytes: &[u8], sequence: u64, synced: impl Fn(u64) -> bool) -> Option<u64> {
    /// A log does not grow by more frames than this in one segment.
    const REACH: u64 = 1 << 32;
    let near = |found: u64| found > sequence && found - sequence < REACH;
    // Mostly there are zeros: only where a number could be that of a frame it is worth a look.
    let (words, _) = bytes.get(HEADER_LEN..)?.as_chunks::<ALIGN>();
    words.iter().skip(1).enumerate().find_map(|(index, word)| {
        if !near(u64::from_le_bytes(*word)) {
            return None;
        }
        let frame = read(id, bytes, HEADER_LEN + index * ALIGN, near)?;
        synced(frame.synced).then_some(frame.sequence)
    })
}

fn read_whole(file: &dyn LogFile, name: &str, len_max: u64) -> Result<Vec<u8>> {
    let len = file.len()?;
    if len > len_max {
        return Err(corrupt(name, 0, &format!("it has {len} bytes, more than any segment")));
    }
    let mut bytes = vec![0; len as usize];
    let len = file.read_at(0, &mut bytes)?;
    bytes.truncate(len);
    Ok(bytes)
}

pub(crate) fn corrupt(name: &str, at: usize, what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("log segment {name}, byte {at}: {what}"))
}
