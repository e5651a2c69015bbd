//! Checkpoints: files that are there whole or not at all.
//!
//! ```text
//!  frame 1 │ frame 2 │ … │ frame n, which is empty and says that it was the last
//! ```
//!
//! Frames are those of the log, with numbers from 1. A checkpoint is written under another name,
//! synced, and then given its own; so a file with the name is complete, and any damage to it is
//! rot.

use std::sync::Arc;

use samite_types::{Error, ErrorKind, Result};

use crate::disk::{LogDisk, LogFile};
use crate::frame::{FRAME_LEN_MAX, FrameBatch, HEAD_LEN, framed_len, read, u32_at};

/// Suffix of a checkpoint that is being written.
pub const UNFINISHED: &str = ".new";

/// Bytes that are gathered before they are written.
const WRITE_LEN: usize = 1 << 20;

/// Checkpoints leave so much of the disk free, for files that have to be written when it is full:
/// small checkpoints above all, for they make logs shorter.
const LEAVE_LEN: u64 = 4 << 20;
/// Bytes of a small checkpoint.
const SMALL_LEN: u64 = 128 << 10;

/// A checkpoint that is being written. Dropped before [`finish`](Self::finish), it leaves a file to be removed.
#[derive(Debug)]
pub struct CheckpointWriter {
    disk: Arc<dyn LogDisk>,
    id: u64,
    name: String,
    file: Box<dyn LogFile>,
    batch: FrameBatch,
    /// Number of the first frame in `batch`, and where it goes.
    first: u64,
    end: u64,
}

impl CheckpointWriter {
    /// Begins the checkpoint `name` of the log `id`.
    ///
    /// # Errors
    /// The disk's.
    pub fn create(disk: Arc<dyn LogDisk>, id: u64, name: &str) -> Result<Self> {
        let unfinished = format!("{name}{UNFINISHED}");
        // Of an attempt that failed.
        let _ = disk.remove(&unfinished);
        let file = disk.create(&unfinished)?;
        let (batch, name) = (FrameBatch::default(), name.to_owned());
        Ok(Self { disk, id, name, file, batch, first: 1, end: 0 })
    }

    /// Adds a frame that is not empty.
    ///
    /// # Errors
    /// The disk's.
    pub fn add(&mut self, payload: &[u8]) -> Result<()> {
        debug_assert!(!payload.is_empty());
        self.batch.add(|out| out.extend_from_slice(payload));
        if self.batch.len() >= WRITE_LEN { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> Result<()> {
        let len = self.batch.len() as u64;
        if self.end + len > SMALL_LEN && self.disk.free()? < LEAVE_LEN + len {
            let words = format!("checkpoint {}: the last of the disk is kept free", self.name);
            return Err(Error::new(ErrorKind::NoSpace, words));
        }
        self.batch.finish(self.id, self.first, 0);
        self.file.write_at(self.end, self.batch.bytes())?;
        self.end += self.batch.len() as u64;
        self.first += self.batch.count();
        self.batch.clear(WRITE_LEN * 2);
        Ok(())
    }

    /// Gives it up, and the space that it has taken.
    ///
    /// # Errors
    /// The disk's.
    pub fn discard(self) -> Result<()> {
        self.disk.remove(&format!("{}{UNFINISHED}", self.name))
    }

    /// Completes it. Returns its bytes.
    ///
    /// # Errors
    /// The disk's.
    pub fn finish(mut self) -> Result<u64> {
        self.batch.add(|_| {});
        self.write()?;
        self.file.sync()?;
        self.disk.rename(&format!("{}{UNFINISHED}", self.name), &self.name)?;
        self.disk.sync()?;
        Ok(self.end)
    }
}

/// Reads the checkpoint `name` of the log `id` and hands out its frames. Returns its bytes.
///
/// # Errors
/// `Corrupt`, those of the disk, those of `visit`.
pub fn read_all(
    disk: &dyn LogDisk,
    id: u64,
    name: &str,
    visit: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<u64> {
    let file = disk.open(name)?;
    let len = file.len()?;
    // The caller that asks for a checkpoint names it.
    let corrupt = |at: u64| Error::new(ErrorKind::Corrupt, format!("damaged at byte {at}"));
    let (mut at, mut sequence) = (0, 1);
    let mut bytes = Vec::new();
    while at < len {
        let rest = usize::try_from(len - at).unwrap_or(usize::MAX);
        fill(&*file, at, WRITE_LEN.min(rest), &mut bytes)?;
        // A frame that is longer than what was read is read by itself.
        let first = u32_at(&bytes, 4).ok_or_else(|| corrupt(at))? as usize;
        if first > FRAME_LEN_MAX {
            return Err(corrupt(at));
        }
        if framed_len(first) > bytes.len() {
            fill(&*file, at, framed_len(first).min(rest), &mut bytes)?;
        }
        let mut end = 0;
        while let Some(frame) = read(id, &bytes, end, |found| found == sequence) {
            if frame.payload.is_empty() {
                let whole = at + (frame.end() as u64) == len;
                return if whole { Ok(len) } else { Err(corrupt(at + frame.end() as u64)) };
            }
            if frame.end() > bytes.len() {
                break;
            }
            visit(&bytes[frame.payload.clone()])?;
            end = frame.end();
            sequence += 1;
        }
        if end == 0 {
            return Err(corrupt(at));
        }
        at += end as u64;
    }
    Err(corrupt(len))
}

fn fill(file: &dyn LogFile, at: u64, len: usize, bytes: &mut Vec<u8>) -> Result<()> {
    bytes.resize(len.max(HEAD_LEN), 0);
    let read = file.read_at(at, bytes)?;
    bytes.truncate(read);
    Ok(())
}
