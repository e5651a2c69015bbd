//! Pages of a mapped file, and what the store has of them.
//!
//! Of each page the hash of the store's bytes is known, as of when they were last the same here and there. A page that
//! still has this hash is *clean*, any other was written to through a mapping. That is all the state there is:
//!
//! * reading from the store replaces clean pages only, and only where the store has other bytes than it had;
//! * writing to the store takes the others.
//!
//! An untouched page is a hole full of zeros, and 0 is the hash of zeros, so a new file needs nothing written.

use rustix::io::Errno;
use samite_fs::OpenFile;
use xxhash_rust::xxh3::xxh3_64;

use super::backing::{BackingFile, PAGE_LEN, read_all, write_all};
use crate::store::errno;

/// Pages are compared this many bytes at a time.
const WINDOW_LEN: usize = 1 << 20;

fn hash(page: &[u8]) -> u64 {
    const ZEROS: [u8; PAGE_LEN] = [0; PAGE_LEN];
    static OF_ZEROS: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
    xxh3_64(page) ^ OF_ZEROS.get_or_init(|| xxh3_64(&ZEROS))
}

const fn page_start(at: u64) -> u64 {
    at / PAGE_LEN as u64 * PAGE_LEN as u64
}

fn windows(at: u64, len: u64) -> impl Iterator<Item = (u64, usize)> {
    let end = (at + len).next_multiple_of(PAGE_LEN as u64);
    let start = page_start(at);
    (start..end)
        .step_by(WINDOW_LEN)
        .map(move |at| (at, usize::try_from(end - at).unwrap_or(WINDOW_LEN).min(WINDOW_LEN)))
}

/// The bytes of the file at `at`, with zeros where it ends.
fn read_store(file: &OpenFile, at: u64, len: usize) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; len];
    let mut done = 0;
    while done < len {
        match file.read_at(&mut bytes[done..], at + done as u64).map_err(|error| errno(&error))? {
            0 => break,
            read => done += read,
        }
    }
    Ok(bytes)
}

impl BackingFile {
    /// Reads the pages of a range from the store again, except pages with changes of this process.
    pub fn load(&self, file: &OpenFile, at: u64, len: u64) -> Result<(), Errno> {
        let size = file.attr().map_err(|error| errno(&error))?.size;
        let end = (at + len).min(size.next_multiple_of(PAGE_LEN as u64)).max(at);
        // A file of one window is asked for its bytes at once.
        let mut data = if end - at > WINDOW_LEN as u64 { None } else { Some(Some(at)) };
        for (at, len) in windows(at, end - at) {
            let window_end = at + len as u64;
            if data.is_none_or(|data| data.is_some_and(|data| data < at)) {
                data = Some(file.seek_data(at).map_err(|error| errno(&error))?);
            }
            let is_hole = data.flatten().is_none_or(|data| data >= window_end);
            if !is_hole || self.next_data(at, window_end)?.is_some() {
                self.load_window(file, at, len)?;
            }
        }
        Ok(())
    }

    // The lock is held while the store answers: bytes that were read before another process wrote the page back
    // must not replace those. It is one window's, and the store's deadline bounds the wait.
    fn load_window(&self, file: &OpenFile, at: u64, len: usize) -> Result<(), Errno> {
        let _locked = self.lock(at, len)?;
        let theirs = read_store(file, at, len)?;
        let mut hashes = self.hashes(at, len / PAGE_LEN)?;
        let is_hole = self.next_data(at, at + len as u64)?.is_none();
        let mut ours = vec![0; PAGE_LEN];
        let mut changed = false;
        for (index, page) in theirs.chunks(PAGE_LEN).enumerate() {
            let new = hash(page);
            if new == hashes[index] {
                continue;
            }
            let page_at = at + (index * PAGE_LEN) as u64;
            if !is_hole {
                read_all(self.file(), &mut ours, page_at)?;
            }
            if hash(&ours) == hashes[index] {
                write_all(self.file(), page, page_at)?;
                hashes[index] = new;
                changed = true;
            }
        }
        if changed { self.set_hashes(at, &hashes) } else { Ok(()) }
    }

    /// Writes the pages of a range that were written to here; bytes past the end of the file have nowhere to go. Whether there were any.
    pub fn write_back(&self, file: &OpenFile, at: u64, len: u64) -> Result<bool, Errno> {
        let end = at.saturating_add(len);
        let mut next = self.next_data(at, end)?;
        if next.is_none() {
            return Ok(false);
        }
        let size = file.attr().map_err(|error| errno(&error))?.size;
        let end = end.min(size.next_multiple_of(PAGE_LEN as u64));
        let mut wrote = false;
        while let Some(at) = next.filter(|at| *at < end) {
            let len = usize::try_from(end - at).unwrap_or(WINDOW_LEN).min(WINDOW_LEN);
            let len = len.next_multiple_of(PAGE_LEN);
            wrote |= self.write_back_window(file, at, len, size)?;
            next = self.next_data(at + len as u64, end)?;
        }
        Ok(wrote)
    }

    // As for `load_window`: two who write a page back must do so in the order in which they saw it.
    fn write_back_window(
        &self,
        file: &OpenFile,
        at: u64,
        len: usize,
        size: u64,
    ) -> Result<bool, Errno> {
        let _locked = self.lock(at, len)?;
        let mut ours = vec![0; len];
        read_all(self.file(), &mut ours, at)?;
        let mut hashes = self.hashes(at, len / PAGE_LEN)?;
        let mut wrote = false;
        let mut index = 0;
        while index < hashes.len() {
            // Changed pages that follow each other go in one write.
            let first = index;
            while index < hashes.len() {
                let now = hash(&ours[index * PAGE_LEN..][..PAGE_LEN]);
                if now == hashes[index] {
                    break;
                }
                hashes[index] = now;
                index += 1;
            }
            if index > first {
                let from = at + (first * PAGE_LEN) as u64;
                let until = (at + (index * PAGE_LEN) as u64).min(size);
                let bytes = &ours[first * PAGE_LEN..][..until.saturating_sub(from) as usize];
                write_store(file, bytes, from)?;
                wrote = true;
            } else {
                index += 1;
            }
        }
        if wrote {
            self.set_hashes(at, &hashes)?;
        }
        Ok(wrote)
    }

    /// The program wrote `bytes` at `at` to the store, past the mapping.
    pub fn wrote(&self, bytes: &[u8], at: u64) -> Result<(), Errno> {
        for (window, len) in windows(at, bytes.len() as u64) {
            let _locked = self.lock(window, len)?;
            let mut pages = vec![0; len];
            read_all(self.file(), &mut pages, window)?;
            let mut hashes = self.hashes(window, len / PAGE_LEN)?;
            let clean: Vec<bool> = pages
                .chunks(PAGE_LEN)
                .zip(&hashes)
                .map(|(page, known)| hash(page) == *known)
                .collect();
            let from = at.max(window);
            let until = (at + bytes.len() as u64).min(window + len as u64);
            let part = &bytes[(from - at) as usize..(until - at) as usize];
            pages[(from - window) as usize..][..part.len()].copy_from_slice(part);
            write_all(self.file(), part, from)?;
            for (index, page) in pages.chunks(PAGE_LEN).enumerate() {
                if clean[index] {
                    hashes[index] = hash(page);
                }
            }
            self.set_hashes(window, &hashes)?;
        }
        Ok(())
    }

    /// The file was cut to `len` bytes, or grew to it.
    pub fn cut(&self, len: u64) -> Result<(), Errno> {
        let start = page_start(len);
        if start == len {
            return self.punch_from(len);
        }
        self.punch_from(start + PAGE_LEN as u64)?;
        let rest = vec![0; PAGE_LEN - (len - start) as usize];
        self.wrote(&rest, len)
    }
}

fn write_store(file: &OpenFile, mut bytes: &[u8], mut at: u64) -> Result<(), Errno> {
    while !bytes.is_empty() {
        let len = file.write_at(bytes, at).map_err(|error| errno(&error))?;
        if len == 0 {
            return Err(Errno::IO);
        }
        bytes = &bytes[len..];
        at += len as u64;
    }
    Ok(())
}
