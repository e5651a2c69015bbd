//! Copying a range of one file to another, within the store.

use samite_types::{ErrorKind, Result};

use crate::records::store::fail;
use crate::{FILE_LEN_MAX, FileKind, FileSystem, OpenFile};

/// Bytes read and written at once: one request per node each.
const PIECE_LEN: u64 = 4 << 20;

/// Holes are asked for over ranges of this length.
const WINDOW_LEN: u64 = 1 << 30;

impl FileSystem {
    /// Copies `len` bytes of `from` at `from_at` to `to` at `to_at`, as far as `from` has them; returns how many. Holes stay
    /// holes. The two may be one file, if the ranges do not overlap (`copy_file_range`).
    ///
    /// # Errors
    /// `BadDescriptor`: not open for reading and writing, or `to` for appending; `IsDirectory`, `Invalid`: not two regular files;
    /// `Invalid`: the ranges overlap; `FileTooLarge`; as of [`OpenFile::read_at`] and [`OpenFile::write_at`] when nothing was
    /// copied.
    pub fn copy_range(
        &self,
        from: &OpenFile,
        from_at: u64,
        to: &OpenFile,
        to_at: u64,
        len: u64,
    ) -> Result<u64> {
        from.context("copy range of", || {
            check_ends(from, to)?;
            let (size, node) = from.size_now()?;
            let len = len.min(size.saturating_sub(from_at));
            let ends = (from_at.checked_add(len), to_at.checked_add(len));
            let (Some(from_end), Some(to_end)) = ends else {
                return Err(fail(ErrorKind::FileTooLarge));
            };
            if to_end > FILE_LEN_MAX {
                return Err(fail(ErrorKind::FileTooLarge));
            }
            if from.ino() == to.ino() && from_at < to_end && to_at < from_end {
                return Err(fail(ErrorKind::Invalid));
            }
            let mut copied = 0;
            let has_holes = node.is_chunked() && node.inode.sparse;
            while copied < len {
                let window = (len - copied).min(WINDOW_LEN);
                let result = if has_holes {
                    copy_window(from, from_at + copied, to, to_at + copied, window)
                } else {
                    copy_data(from, from_at + copied, to, to_at + copied, window)
                };
                match result {
                    // Cut in the meantime.
                    Ok(0) => break,
                    Ok(more) => copied += more,
                    Err(error) if copied == 0 => return Err(error),
                    Err(_) => break,
                }
            }
            // Where holes were copied, nothing was written.
            to.strip_set_id()?;
            Ok(copied)
        })
    }
}

fn check_ends(from: &OpenFile, to: &OpenFile) -> Result<()> {
    for file in [from, to] {
        match file.kind() {
            FileKind::File => {}
            FileKind::Directory => return Err(fail(ErrorKind::IsDirectory)),
            _ => return Err(fail(ErrorKind::Invalid)),
        }
    }
    let flags = to.flags();
    if !from.flags().read || !flags.write || flags.append {
        return Err(fail(ErrorKind::BadDescriptor));
    }
    Ok(())
}

/// Copies a range that may have holes, which become holes.
fn copy_window(from: &OpenFile, from_at: u64, to: &OpenFile, to_at: u64, len: u64) -> Result<u64> {
    let tail = from.node()?.tail();
    let (first, last) = (tail.start.max(from_at), tail.end.min(from_at + len));
    let mut ranges = from.fs.store().data_within(from.ino(), from_at, from_at + len)?;
    if first < last {
        // The bytes of chunks there are on their way out of the tail.
        let around = |(from, to): (u64, u64)| [(from, to.min(first)), (from.max(last), to)];
        ranges = ranges.into_iter().flat_map(around).filter(|(from, to)| from < to).collect();
        ranges.push((first, last));
        ranges.sort_unstable();
    }
    let mut done = 0;
    for (start, end) in ranges {
        let (start, end) = (start - from_at, end - from_at);
        if start > done {
            to.punch(to_at + done, to_at + start)?;
        }
        let copied = copy_data(from, from_at + start, to, to_at + start, end - start)?;
        done = start + copied;
        if done < end {
            return Ok(done);
        }
    }
    if done < len {
        to.punch(to_at + done, to_at + len)?;
        to.set_len(to_at + len, true)?;
    }
    Ok(len)
}

/// Copies a range byte by byte, up to where the source ends.
fn copy_data(from: &OpenFile, from_at: u64, to: &OpenFile, to_at: u64, len: u64) -> Result<u64> {
    // Chunks are copied as wholes where the source's bounds allow it.
    let mut room = vec![0; len.min(PIECE_LEN) as usize];
    let mut done = 0;
    while done < len {
        let at = from_at + done;
        let piece = (PIECE_LEN - at % PIECE_LEN).min(len - done) as usize;
        let read = from.read_at(&mut room[..piece], at)?;
        let written = to.write_at(&room[..read], to_at + done)?;
        done += written as u64;
        if written < piece {
            break;
        }
    }
    Ok(done)
}
