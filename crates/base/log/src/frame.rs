//! Frames: the unit that is there whole or not at all.

use std::ops::Range;

use crc_fast::{CrcAlgorithm, Digest};

/// Longest payload of a frame, in bytes: more than the longest operation with all of its data.
pub const FRAME_LEN_MAX: usize = 32 << 20;
/// Bytes before the payload.
pub(crate) const HEAD_LEN: usize = 24;
/// Frames begin at multiples of this.
pub(crate) const ALIGN: usize = 8;

/// Bytes that a frame with a payload of `len` bytes takes.
pub(crate) const fn framed_len(len: usize) -> usize {
    HEAD_LEN + len.next_multiple_of(ALIGN)
}

/// CRC-32C of `bytes`, begun with the id of the log that they belong to.
pub(crate) fn checksum(id: u64, bytes: &[u8]) -> u32 {
    let seed = (id >> 32) as u32 ^ id as u32;
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!seed));
    digest.update(bytes);
    // The polynomial has 32 bits; so has what the digest gives.
    digest.finalize() as u32
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// Frames that are to be written together.
#[derive(Debug, Default)]
pub struct FrameBatch {
    bytes: Vec<u8>,
    count: u64,
    /// Bytes of the frames that are on flash already.
    written: usize,
}

impl FrameBatch {
    /// Adds a frame; `write` appends its payload. Returns the bytes that the frame takes.
    ///
    /// # Panics
    /// The payload is longer than [`FRAME_LEN_MAX`]: the caller bounds what it logs.
    pub fn add(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> usize {
        let start = self.bytes.len();
        self.bytes.resize(start + HEAD_LEN, 0);
        write(&mut self.bytes);
        let len = self.bytes.len() - start - HEAD_LEN;
        assert!(len <= FRAME_LEN_MAX, "a frame of {len} bytes");
        self.bytes[start + 4..start + 8].copy_from_slice(&(len as u32).to_le_bytes());
        self.bytes.resize(start + framed_len(len), 0);
        self.count += 1;
        framed_len(len)
    }

    /// Frames.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.bytes.len()
    }

    /// No frames.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Bytes of the frames that are on flash already: where the others begin.
    pub(crate) const fn written(&self) -> usize {
        self.written
    }

    /// The first `len` bytes of the frames that are not on flash yet are.
    pub(crate) const fn advance(&mut self, len: usize) {
        self.written += len;
    }

    /// Forgets the frames; keeps up to `keep` bytes of memory for others.
    pub(crate) fn clear(&mut self, keep: usize) {
        self.bytes.clear();
        self.bytes.shrink_to(keep);
        (self.count, self.written) = (0, 0);
    }

    /// Numbers the frames that are not on flash yet from `first` on and completes them. Everything below `synced` is on flash.
    pub(crate) fn finish(&mut self, id: u64, first: u64, synced: u64) {
        let (mut at, mut sequence) = (self.written, first);
        while let Some(len) = u32_at(&self.bytes, at + 4) {
            let end = at + HEAD_LEN + len as usize;
            self.bytes[at + 8..at + 16].copy_from_slice(&sequence.to_le_bytes());
            self.bytes[at + 16..at + 24].copy_from_slice(&synced.to_le_bytes());
            let crc = checksum(id, &self.bytes[at + 4..end]);
            self.bytes[at..at + 4].copy_from_slice(&crc.to_le_bytes());
            at += framed_len(len as usize);
            sequence += 1;
        }
    }

    /// Bytes that the frame at byte `at` takes.
    pub(crate) fn frame_len(&self, at: usize) -> usize {
        framed_len(u32_at(&self.bytes, at + 4).unwrap_or(0) as usize)
    }

    /// How many of the frames from byte `at` on, and how many bytes of them, fit `room` bytes.
    pub(crate) fn fitting(&self, at: usize, room: usize) -> (u64, usize) {
        let (mut frames, mut bytes) = (0, 0);
        while let Some(len) = u32_at(&self.bytes, at + bytes + 4) {
            let more = framed_len(len as usize);
            if bytes + more > room {
                break;
            }
            bytes += more;
            frames += 1;
        }
        (frames, bytes)
    }
}

/// A frame that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogFrame {
    pub(crate) sequence: u64,
    /// Everything below it was on flash when this frame was written.
    pub(crate) synced: u64,
    pub(crate) payload: Range<usize>,
}

impl LogFrame {
    /// Where the next one begins.
    pub(crate) const fn end(&self) -> usize {
        self.payload.start + (self.payload.end - self.payload.start).next_multiple_of(ALIGN)
    }
}

/// The frame that begins at byte `at`, if there is a whole one of log `id` whose sequence number `fits`.
pub(crate) fn read(
    id: u64,
    bytes: &[u8],
    at: usize,
    fits: impl FnOnce(u64) -> bool,
) -> Option<LogFrame> {
    let sequence = u64_at(bytes, at + 8)?;
    let synced = u64_at(bytes, at + 16)?;
    let len = u32_at(bytes, at + 4)? as usize;
    if !fits(sequence) || synced > sequence || len > FRAME_LEN_MAX {
        return None;
    }
    let payload = at + HEAD_LEN..at + HEAD_LEN + len;
    let covered = bytes.get(at + 4..payload.end)?;
    (u32_at(bytes, at)? == checksum(id, covered)).then_some(LogFrame { sequence, synced, payload })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_back_and_a_changed_bit_is_seen() {
        let mut batch = FrameBatch::default();
        for payload in [&b""[..], b"a", b"12345678", &[7; 1000]] {
            batch.add(|out| out.extend_from_slice(payload));
        }
        batch.finish(99, 5, 3);
        let bytes = batch.bytes().to_vec();
        let (mut at, mut lens) = (0, Vec::new());
        while let Some(frame) = read(99, &bytes, at, |sequence| sequence == 5 + lens.len() as u64) {
            assert_eq!(frame.synced, 3);
            lens.push(frame.payload.len());
            at = frame.end();
        }
        assert_eq!((lens, at), (vec![0, 1, 8, 1000], bytes.len()));
        assert!(read(98, &bytes, 0, |_| true).is_none(), "another log's");
        for bit in 0..HEAD_LEN * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(read(99, &bad, 0, |_| true).is_none(), "bit {bit}");
        }
    }
}
