//! One file at a time: small ones whole, large ones in pieces that several threads take.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use samite_fs::FileKind;
use samite_types::{Error, ErrorKind, Result};

use crate::beside::{self, DraftFile};
use crate::progress::{CopyProgress, add};
use crate::queue::SharedFile;
use crate::tree::{ByteRange, FileMeta, FileTree, SmallFile};
use crate::{CopyOptions, verify};

/// Bytes that are read and written at a time: the largest chunk of a file in the store.
const BUFFER_LEN: usize = 1 << 20;
/// Unit in which zeros are looked for, and left out as holes.
const HOLE_LEN: usize = 64 << 10;
/// Bytes that a thread takes of a large file at a time.
const PIECE_LEN: u64 = 8 << 20;
/// A file of this length is worth sharing between threads.
const LARGE_LEN: u64 = 4 * PIECE_LEN;

/// After so many errors of one kind nothing more is copied.
const ERRORS_MAX: u32 = 10;

/// Memory of one copying thread.
pub struct CopyBuffer(Vec<u8>);

impl CopyBuffer {
    pub fn new() -> Self {
        Self(vec![0; BUFFER_LEN])
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

/// A thing to copy.
pub struct FileJob {
    pub from: Vec<u8>,
    pub to: Vec<u8>,
    pub meta: FileMeta,
}

/// A large file on its way.
pub struct LargeFile<S, D> {
    source: S,
    destination: DraftFile<D>,
    from: Vec<u8>,
    to: Vec<u8>,
    meta: FileMeta,
    /// First byte of the next piece to take.
    next: AtomicU64,
    /// Pieces not yet done.
    left: AtomicU64,
    /// The byte after the last that was written.
    written_end: AtomicU64,
    failed: AtomicBool,
}

impl<S: Send + Sync, D: Send + Sync> SharedFile for LargeFile<S, D> {
    fn has_pieces(&self) -> bool {
        self.next.load(Ordering::Relaxed) < self.meta.size
    }
}

/// One copy of a tree.
pub struct TreeCopy<'a, S, D> {
    pub source: &'a S,
    pub destination: &'a D,
    pub options: &'a CopyOptions,
    pub progress: &'a CopyProgress,
    pub on_error: &'a (dyn Fn(&Error) + Sync),
    /// A node cannot be reached: all that is left would wait for it in vain.
    pub lost: AtomicBool,
    /// How many errors of each kind there were.
    pub errors: Mutex<Vec<(ErrorKind, u32)>>,
    /// Code of the kind of which there were too many, or 0.
    pub too_many: AtomicU8,
}

impl<S: FileTree, D: FileTree> TreeCopy<'_, S, D> {
    /// Counts a failure, and tells it unless there were too many of its kind.
    pub fn failed(&self, error: &Error) {
        add(&self.progress.tally.errors, 1);
        let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        let at = errors.iter().position(|(kind, _)| *kind == error.kind()).unwrap_or(errors.len());
        if at == errors.len() {
            errors.push((error.kind(), 0));
        }
        errors[at].1 += 1;
        if errors[at].1 > ERRORS_MAX {
            return;
        }
        if errors[at].1 == ERRORS_MAX {
            self.too_many.store(error.kind().code(), Ordering::Relaxed);
        }
        if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout) {
            self.lost.store(true, Ordering::Relaxed);
        }
        (self.on_error)(error);
    }

    /// Whether there is no sense in going on.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// The kind of which there were so many errors that nothing more is copied, only counted.
    pub fn stopped_by(&self) -> Option<ErrorKind> {
        ErrorKind::from_code(self.too_many.load(Ordering::Relaxed))
    }

    /// Counts what is not copied any more.
    pub fn untried(&self, count: usize) {
        add(&self.progress.tally.untried, count as u64);
    }

    /// Makes a directory, open to its owner until all is in it. A directory that is there will do.
    pub fn directory(&self, job: &FileJob) -> Result<()> {
        match self.destination.mkdir(&job.to, job.meta.perm | 0o700) {
            Err(error) if error.kind() == ErrorKind::Exists => {
                if self.destination.meta(&job.to)?.kind == FileKind::Directory {
                    beside::sweep_dir(self.destination, &job.to);
                    Ok(())
                } else {
                    Err(Error::new(
                        ErrorKind::NotDirectory,
                        format!(
                            "{}: is there, and is no directory",
                            self.destination.show(&job.to)
                        ),
                    ))
                }
            }
            result => result,
        }
    }

    /// Makes a symbolic link; one with the same target will do.
    pub fn symlink(&self, job: &FileJob) -> Result<()> {
        let target = self.source.readlink(&job.from)?;
        let made = self.replacing(
            &job.to,
            || self.destination.symlink(&target, &job.to),
            |found| {
                found.kind == FileKind::Symlink
                    && self.destination.readlink(&job.to).is_ok_and(|there| there == target)
            },
        );
        made?;
        self.destination.set_meta(&job.to, &job.meta, self.options.keep_owner)
    }

    /// Makes a fifo, socket or device node.
    pub fn special(&self, job: &FileJob) -> Result<()> {
        let make = || self.destination.mknod(&job.to, &job.meta);
        self.replacing(&job.to, make, |found| {
            (found.kind, found.rdev) == (job.meta.kind, job.meta.rdev)
        })?;
        self.destination.set_meta(&job.to, &job.meta, self.options.keep_owner)
    }

    /// Makes a further name `job.to` of the file `first`.
    pub fn hard_link(&self, first: &[u8], job: &FileJob) -> Result<()> {
        let id = self.destination.meta(first)?.id;
        self.replacing(&job.to, || self.destination.link(first, &job.to), |found| found.id == id)
    }

    /// Makes something that must not exist; an existing file is left when it `will_do`, else
    /// removed first (no directory is).
    fn replacing(
        &self,
        path: &[u8],
        make: impl Fn() -> Result<()>,
        will_do: impl Fn(&FileMeta) -> bool,
    ) -> Result<()> {
        match make() {
            Err(error) if error.kind() == ErrorKind::Exists => {
                let found = self.destination.meta(path)?;
                if will_do(&found) {
                    return Ok(());
                }
                self.check_replaceable(path, &found)?;
                self.destination.unlink(path)?;
                make()
            }
            result => result,
        }
    }

    fn check_replaceable(&self, path: &[u8], found: &FileMeta) -> Result<()> {
        if found.kind == FileKind::Directory {
            return Err(Error::new(
                ErrorKind::IsDirectory,
                format!("{}: is there, and is a directory", self.destination.show(path)),
            ));
        }
        Ok(())
    }

    /// Copies a regular file. A large one is shown to `offer`, so that others can help.
    pub fn file(
        &self,
        job: &FileJob,
        buffer: &mut CopyBuffer,
        offer: impl FnOnce(Arc<LargeFile<S::File, D::File>>),
    ) {
        if let Err(error) = self.try_file(job, buffer, offer) {
            self.failed(&error);
            add(&self.progress.files_done, 1);
        }
    }

    /// Copies small files together. Files that are there already, or that turn out not to be small,
    /// are copied one by one.
    pub fn small_files(&self, jobs: &[FileJob], buffer: &mut CopyBuffer) {
        let from: Vec<&[u8]> = jobs.iter().map(|job| &*job.from).collect();
        let mut files = Vec::with_capacity(jobs.len());
        let mut batch = Vec::with_capacity(jobs.len());
        for (job, read) in jobs.iter().zip(self.source.read_small(&from)) {
            match read {
                Ok(Some((meta, data))) => {
                    files.push(SmallFile { path: &job.to, meta, data });
                    batch.push(job);
                }
                Ok(None) => self.file(job, buffer, |_| {}),
                Err(_) if self.is_lost() => {}
                Err(error) => self.small_failed(&error),
            }
        }
        let made = self.destination.create_small(&files, self.options.keep_owner);
        for ((job, file), made) in batch.into_iter().zip(&files).zip(made) {
            match made.and_then(|()| self.verify_if_asked(job, buffer)) {
                Ok(()) => {
                    let tally = &self.progress.tally;
                    add(&tally.files, 1);
                    add(&tally.bytes, file.meta.size);
                    add(&self.progress.bytes_done, file.meta.size);
                    add(&self.progress.files_done, 1);
                }
                // One error for a lost node is enough.
                Err(_) if self.is_lost() => {}
                Err(error) if matches!(error.kind(), ErrorKind::Exists | ErrorKind::Busy) => {
                    self.file(job, buffer, |_| {});
                }
                Err(error) => self.small_failed(&error),
            }
        }
    }

    fn small_failed(&self, error: &Error) {
        self.failed(error);
        add(&self.progress.files_done, 1);
    }

    fn verify_if_asked(&self, job: &FileJob, buffer: &mut CopyBuffer) -> Result<()> {
        if self.options.checksum {
            verify::compare(self, job, buffer)?;
            add(&self.progress.tally.verified, 1);
        }
        Ok(())
    }

    fn try_file(
        &self,
        job: &FileJob,
        buffer: &mut CopyBuffer,
        offer: impl FnOnce(Arc<LargeFile<S::File, D::File>>),
    ) -> Result<()> {
        let perm = job.meta.perm & 0o777;
        if self.is_there(job, buffer)? {
            return Ok(());
        }
        let created = DraftFile::create(self.destination, &job.to, perm)?;
        let opened = self.source.open(&job.from).and_then(|source| {
            let meta = self.source.file_meta(&source, &job.from)?;
            if meta.kind == FileKind::File {
                Ok((source, meta))
            } else {
                Err(self.changed(&job.from))
            }
        });
        let (source, meta) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                self.give_up(&created);
                return Err(error);
            }
        };
        let large = Arc::new(LargeFile {
            source,
            destination: created,
            from: job.from.clone(),
            to: job.to.clone(),
            meta,
            next: AtomicU64::new(0),
            left: AtomicU64::new(meta.size.div_ceil(PIECE_LEN).max(1)),
            written_end: AtomicU64::new(0),
            failed: AtomicBool::new(false),
        });
        if meta.size >= LARGE_LEN {
            offer(Arc::clone(&large));
        }
        if meta.size == 0 {
            self.end_piece(&large, buffer);
        }
        self.help(&large, buffer);
        Ok(())
    }

    /// Whether there is a file already, and it is the one to copy, whole. Anything else that is there, but no directory, is replaced.
    fn is_there(&self, job: &FileJob, buffer: &mut CopyBuffer) -> Result<bool> {
        let found = match self.destination.meta(&job.to) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            found => found?,
        };
        let is_copied = self.options.resume && job.meta.is_copied_as(&found);
        if is_copied && (!self.options.checksum || verify::compare(self, job, buffer).is_ok()) {
            self.destination.set_meta(&job.to, &job.meta, self.options.keep_owner)?;
            let tally = &self.progress.tally;
            add(&tally.verified, u64::from(self.options.checksum));
            add(&tally.skipped, 1);
            add(&self.progress.bytes_done, job.meta.size);
            add(&self.progress.files_done, 1);
            return Ok(true);
        }
        self.check_replaceable(&job.to, &found)?;
        Ok(false)
    }

    /// Takes pieces of a large file until none is left to take.
    pub fn help(&self, large: &Arc<LargeFile<S::File, D::File>>, buffer: &mut CopyBuffer) {
        loop {
            let start = large.next.fetch_add(PIECE_LEN, Ordering::Relaxed);
            if start >= large.meta.size {
                return;
            }
            let piece = ByteRange { start, end: large.meta.size.min(start + PIECE_LEN) };
            if self.is_lost() {
                large.failed.store(true, Ordering::Relaxed);
            }
            if !large.failed.load(Ordering::Relaxed)
                && let Err(error) = self.piece(large, piece, buffer.bytes())
                && !large.failed.swap(true, Ordering::Relaxed)
            {
                self.failed(&error);
            }
            add(&self.progress.bytes_done, piece.end - piece.start);
            self.end_piece(large, buffer);
        }
    }

    fn piece(
        &self,
        large: &LargeFile<S::File, D::File>,
        piece: ByteRange,
        buffer: &mut [u8],
    ) -> Result<()> {
        let mut at = piece.start;
        while at < piece.end {
            let rest = ByteRange { start: at, end: piece.end };
            let Some(data) = self.source.next_data(&large.source, &large.from, rest)? else {
                return Ok(());
            };
            at = data.start;
            while at < data.end {
                // Pieces of chunks that begin where chunks begin: each is one write to one record.
                let until = data.end.min((at / BUFFER_LEN as u64 + 1) * BUFFER_LEN as u64);
                let len = usize::try_from(until - at).unwrap_or(BUFFER_LEN).min(buffer.len());
                let part = &mut buffer[..len];
                read_full(self.source, &large.source, &large.from, part, at)?;
                self.write_but_zeros(large, part, at)?;
                at += len as u64;
            }
        }
        Ok(())
    }

    /// Writes what is not zeros. The file is new, so what is not written is a hole.
    fn write_but_zeros(
        &self,
        large: &LargeFile<S::File, D::File>,
        bytes: &[u8],
        offset: u64,
    ) -> Result<()> {
        let write = |start: usize, end: usize| {
            let (from, until) = (offset + start as u64, offset + end as u64);
            large.written_end.fetch_max(until, Ordering::Relaxed);
            self.destination.write_at(&large.destination.file, &large.to, &bytes[start..end], from)
        };
        let mut run_start = 0;
        let mut at = 0;
        while at < bytes.len() {
            let end = bytes.len().min(at + HOLE_LEN);
            // Short ends are written: a hole saves nothing there.
            if end - at == HOLE_LEN && is_zero(&bytes[at..end]) {
                if run_start < at {
                    write(run_start, at)?;
                }
                run_start = end;
            }
            at = end;
        }
        if run_start < bytes.len() { write(run_start, bytes.len()) } else { Ok(()) }
    }

    /// One piece is done; after the last one the file gets its length and attributes.
    fn end_piece(&self, large: &LargeFile<S::File, D::File>, buffer: &mut CopyBuffer) {
        if large.left.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        add(&self.progress.files_done, 1);
        let ended = if large.failed.load(Ordering::Relaxed) {
            self.give_up(&large.destination);
            Ok(())
        } else {
            self.end_file(large, buffer)
        };
        self.source.close(&large.source);
        if let Err(error) = ended {
            self.failed(&error);
        }
    }

    fn end_file(&self, large: &LargeFile<S::File, D::File>, buffer: &mut CopyBuffer) -> Result<()> {
        let (new, path) = (&large.destination, &large.to);
        let ended = (|| {
            if large.written_end.load(Ordering::Relaxed) < large.meta.size {
                // It ends with a hole.
                self.destination.set_len(&new.file, path, large.meta.size)?;
            }
            let after = self.source.file_meta(&large.source, &large.from)?;
            if !large.meta.is_copied_as(&after) {
                return Err(self.changed(&large.from));
            }
            self.destination.finish(&new.file, path, &large.meta, self.options.keep_owner)?;
            let (from, meta) = (large.from.clone(), large.meta);
            self.verify_if_asked(&FileJob { from, to: new.hidden.clone(), meta }, buffer)
        })();
        if let Err(error) = ended {
            self.give_up(new);
            return Err(error);
        }
        new.place(self.destination)?;
        let tally = &self.progress.tally;
        add(&tally.files, 1);
        add(&tally.bytes, large.meta.size);
        Ok(())
    }

    /// Leaves nothing half-copied behind; the error that led here is the one to tell.
    fn give_up(&self, new: &DraftFile<D::File>) {
        if self.is_lost() {
            // It would wait for the lost node once more. The next copy to this name removes the fragment.
            return;
        }
        new.give_up(self.destination);
    }

    fn changed(&self, from: &[u8]) -> Error {
        let message = format!("{}: changed while it was copied", self.source.show(from));
        Error::new(ErrorKind::Conflict, message)
    }
}

/// Reads exactly `buf.len()` bytes.
pub fn read_full<T: FileTree>(
    tree: &T,
    file: &T::File,
    path: &[u8],
    buf: &mut [u8],
    offset: u64,
) -> Result<()> {
    let mut done = 0;
    while done < buf.len() {
        match tree.read_at(file, path, &mut buf[done..], offset + done as u64)? {
            0 => {
                return Err(Error::new(
                    ErrorKind::Conflict,
                    format!("read {}: became shorter while it was copied", tree.show(path)),
                ));
            }
            len => done += len,
        }
    }
    Ok(())
}

fn is_zero(bytes: &[u8]) -> bool {
    // The first bytes tell for nearly all data; the rest is compared with itself, shifted, at the speed of memcmp.
    bytes.len() > 16 && bytes[..16] == [0; 16] && bytes[..bytes.len() - 16] == bytes[16..]
}

#[cfg(test)]
mod tests {
    use super::is_zero;

    #[test]
    fn zeros_are_told_from_data() {
        let mut block = vec![0; 64 << 10];
        assert!(is_zero(&block));
        for at in [0, 15, 16, 17, 40_000, block.len() - 1] {
            block[at] = 1;
            assert!(!is_zero(&block), "at {at}");
            block[at] = 0;
        }
    }
}
