//! Files made in directories with [`FileSemantics::Temporary`]: a process keeps them to itself until there are many, then sends them together.
//!
//! A new file with what is written to it from its start waits here until [`FILES_MAX`] files do.
//! They leave in one request per node, and while the nodes work the next ones gather and leave
//! ([`FLIGHTS_MAX`]), so that a node finds the next request when it has answered one. All are sent
//! and waited for when they have [`DATA_LEN_MAX`] bytes, or the process does anything else with the
//! file system ([`FileSystem::store`] sends them first), or asks for it ([`FileSystem::flush`],
//! `fsync`). So this process itself never sees a difference. Others see the files when they are
//! sent. A process that is killed loses the files that were not sent.
//!
//! Whether the name was free shows only then. An existing file is opened then as it would have been before, with what was written.
//! Failures are told to the handle (`fsync`, `close`, the next call), and if it is closed already, kept for
//! [`FileSystem::late_failures`].

pub mod pending;
mod waiting;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use samite_client::{ClientOperation, OwnedOutcome, PendingOperations};
use samite_types::{Error, ErrorKind, Result, Version};
use samite_wire::op::{Action, Operation};

use crate::names::cache::permits;
use crate::names::make::NewInode;
use crate::names::walk::{PathWalk, READ, SEARCH, WRITE};
use crate::records::inode::{INODE_LEN, Inode, at};
use crate::records::key::{self, Key};
use crate::records::lookup::LOOKUPS_MAX;
use crate::records::release_queue::ReferenceRelease;
use crate::records::store::{FoundInode, fail, malformed};
use crate::{
    CallerContext, FileAttributes, FileKind, FileSemantics, FileSystem, INLINE_LEN_MAX, OpenFile,
    OpenFlags, Timestamp,
};
use pending::DeferredSurprise;
use waiting::{FILES_MAX, FilePlace, UnsentFile, WaitingFiles, with_operations};

/// Requests to a node under way at most, of so many files each.
const FLIGHTS_MAX: usize = 2;

/// Bytes of data that wait here at most.
const DATA_LEN_MAX: usize = 256 << 10;

impl FileSystem {
    /// Lets this process keep new files in directories with [`FileSemantics::Temporary`] to itself
    /// for a while. A process that turns it on calls [`FileSystem::flush`] before `fork`, `exec`
    /// and the end of the process.
    pub fn defer_files(&self, is_on: bool) {
        self.inner.deferred.allow(is_on);
    }

    /// Sends the files that this process has kept to itself.
    ///
    /// # Errors
    /// The first failure that was not told to a handle; the others are in [`FileSystem::late_failures`].
    pub fn flush(&self) -> Result<()> {
        self.send_early();
        self.inner.deferred.first_failure().map_or(Ok(()), Err)
    }

    /// Sends them without a word: a failure is told by [`FileSystem::flush`] and the handles.
    pub fn send_early(&self) {
        if !self.inner.deferred.is_empty() {
            self.send_deferred();
        }
    }

    /// Failures after the handle was closed; forgets them.
    #[must_use]
    pub fn late_failures(&self) -> Vec<Error> {
        self.inner.deferred.take_failures()
    }

    /// Makes a file here and tells nobody, if that is allowed where the walk has come to. `None`: it is not.
    pub(crate) fn defer(
        &self,
        ctx: &CallerContext,
        walk: &PathWalk<'_>,
        new: &NewInode<'_>,
        flags: OpenFlags,
    ) -> Result<Option<OpenFile>> {
        let (deferred, dir) = (&self.inner.deferred, walk.dir());
        let is_allowed = dir.semantics == FileSemantics::Temporary
            && deferred.is_allowed()
            && flags.write
            && dir.permits(ctx, WRITE | SEARCH);
        if !is_allowed {
            return Ok(None);
        }
        let location = walk.entry();
        let mut waiting = deferred.waiting();
        if waiting.has(&location) {
            return Ok(None);
        }
        let is_full = waiting.files.all.len() >= FILES_MAX;
        let place = match waiting.place(dir.ino, walk.epoch, ctx) {
            Some(place) => place,
            None => waiting.start_place(FilePlace {
                dir: dir.ino,
                dir_location: walk.directory_location(),
                tombstone: key::tombstone(dir.ino),
                epoch: walk.epoch,
                ctx: ctx.clone(),
            }),
        };
        drop(waiting);
        if is_full {
            self.let_fly();
        }
        let inode = self.new_inode(ctx, dir, new, Timestamp::now())?;
        let open_reference = self.token();
        let node = FoundInode {
            location: location.clone(),
            inode,
            data_len: 0,
            version: Version(0),
            target: None,
            open_reference,
        };
        let file = OpenFile::new(self, node, flags, None);
        file.deferred.store(true, Ordering::Release);
        let value = inode.encode().to_vec();
        let unsent = UnsentFile {
            ino: inode.ino,
            location,
            place,
            value,
            flags,
            open_reference,
            is_open: true,
            is_held: false,
        };
        deferred.add(unsent);
        Ok(Some(file))
    }

    /// Sends the waiting files and does not wait for the answer, except for the answer to an
    /// earlier flight.
    fn let_fly(&self) {
        let deferred = &self.inner.deferred;
        let mut sending = deferred.sending();
        let quiet = Self { sends_deferred: false, ..self.clone() };
        let mut files = deferred.take_waiting();
        let epoch = files.all.first().map(|file| file.place.epoch);
        let is_one = files.all.iter().all(|file| Some(file.place.epoch) == epoch);
        let sent = match epoch {
            Some(epoch) if is_one => with_operations(&files.all, |operations| {
                self.inner.store.dataset.submit_under(&operations, epoch).ok()
            }),
            _ => None,
        };
        match sent {
            Some(sent) => {
                files.all.iter_mut().for_each(|file| file.is_held = file.is_open);
                deferred.waiting().flying.push_back(files);
                sending.push_back(sent);
            }
            // It can still be sent the slow way.
            None => quiet.send_all(files.all),
        }
        while sending.len() > FLIGHTS_MAX {
            quiet.land(&mut sending);
        }
    }

    /// Sends what waits, and waits until all is there; notes what went wrong.
    #[cold]
    pub(crate) fn send_deferred(&self) {
        let mut sending = self.inner.deferred.sending();
        let quiet = Self { sends_deferred: false, ..self.clone() };
        while !sending.is_empty() {
            quiet.land(&mut sending);
        }
        quiet.send_all(self.inner.deferred.take_waiting().all);
    }

    /// Waits for the answer to the first flight.
    fn land(&self, sending: &mut VecDeque<PendingOperations>) {
        let Some(pending) = sending.pop_front() else { return };
        let outcomes = pending.wait_by(self.client().deadline());
        let flight = self.inner.deferred.waiting().flying.pop_front();
        let files = flight.unwrap_or_default().all;
        let count = files.len();
        let again = self.judge_all(files, outcomes);
        self.send_files(again);
        self.inner.deferred.finished(count);
    }

    fn send_all(&self, files: Vec<UnsentFile>) {
        let count = files.len();
        self.send_files(files);
        self.inner.deferred.finished(count);
    }

    fn send_files(&self, mut files: Vec<UnsentFile>) {
        for _ in 0..LOOKUPS_MAX {
            if files.is_empty() {
                return;
            }
            let outcomes = with_operations(&files, |operations| {
                let pairs = operations.into_iter().zip(&files);
                let mut ops: Vec<ClientOperation<'_>> = pairs
                    .map(|(operation, file)| {
                        ClientOperation::new(operation).under_lease(file.place.epoch)
                    })
                    .collect();
                self.inner.store.run_each(&mut ops)
            });
            files = self.judge_all(files, outcomes);
        }
        files.iter().for_each(|file| self.note(file, &fail(ErrorKind::Busy)));
    }

    /// Sees to the end of files; returns those to be sent again.
    fn judge_all(
        &self,
        mut files: Vec<UnsentFile>,
        outcomes: Result<Vec<OwnedOutcome>>,
    ) -> Vec<UnsentFile> {
        let outcomes = match outcomes {
            Ok(outcomes) if outcomes.len() == files.len() => outcomes,
            outcomes => {
                let error = outcomes.err().unwrap_or_else(malformed);
                files.iter().for_each(|file| self.note(file, &error));
                return Vec::new();
            }
        };
        let mut outcomes = outcomes.into_iter();
        files.retain_mut(|file| {
            let judged = outcomes.next().map_or(Ok(true), |outcome| self.judge(file, outcome));
            judged.map(|is_done| !is_done).unwrap_or_else(|error| {
                self.note(file, &error);
                false
            })
        });
        files
    }

    /// Sees to the end of one file. False: it is to be sent again.
    fn judge(&self, file: &mut UnsentFile, outcome: OwnedOutcome) -> Result<bool> {
        let is_held = std::mem::take(&mut file.is_held);
        let OwnedOutcome::Failed(failure) = outcome else {
            if is_held && !file.is_open {
                // It was closed while it flew. The file is made; an open reference that cannot be
                // ended now ends with this process at the latest.
                let (partition, token, ino) =
                    (file.location.partition, file.open_reference, file.ino);
                let release = ReferenceRelease { partition, token, ino, is_urgent: false };
                let _ = self.inner.store.release(release);
            }
            return Ok(true);
        };
        match (failure.kind, failure.index) {
            (ErrorKind::Conflict, 0) => self.open_existing(file),
            (ErrorKind::Conflict, _) => {
                self.outlast_tombstone(file.place.dir, file.location.partition)?;
                self.find_directory(file)
            }
            (ErrorKind::StaleLease, _) => self.find_directory(file),
            _ => Err(failure.into_error("make")),
        }
    }

    /// Cached directories were out of date: the file's own must still be there, wherever it is by now.
    fn find_directory(&self, file: &mut UnsentFile) -> Result<bool> {
        let store = &self.inner.store;
        let epoch = store.dataset.name_space_generation();
        let dir = file.place.dir;
        let is_it = |node: &FoundInode| node.inode.ino == dir;
        let mut found =
            self.store().lookup_location(&file.place.dir_location, epoch)?.filter(is_it);
        if found.is_none() {
            let pointer = store.location(key::location(dir));
            if let Some((_, entry)) = store.value(&pointer)? {
                let location = store.location(Key::from_slice(&entry));
                found = self.store().lookup_location(&location, epoch)?.filter(is_it);
            }
        }
        let found = found.ok_or_else(|| fail(ErrorKind::NotFound))?;
        let FilePlace { tombstone, ctx, .. } = &*file.place;
        let (tombstone, ctx, dir_location) = (tombstone.clone(), ctx.clone(), found.location);
        file.place = Arc::new(FilePlace { dir, dir_location, tombstone, epoch, ctx });
        Ok(false)
    }

    /// The name was taken: repeats on the file of that name the calls on the one that was made.
    fn open_existing(&self, file: &UnsentFile) -> Result<bool> {
        let Some(node) = self.store().lookup_location(&file.location, file.place.epoch)? else {
            return Ok(false);
        };
        let inode = node.inode;
        match inode.kind {
            _ if file.flags.excl => return Err(fail(ErrorKind::Exists)),
            FileKind::File => {}
            FileKind::Directory => return Err(fail(ErrorKind::IsDirectory)),
            _ => return Err(fail(ErrorKind::Exists)),
        }
        let mask = if file.flags.read { READ | WRITE } else { WRITE };
        if !permits(&file.place.ctx, inode.perm, inode.uid, inode.gid, false, mask) {
            return Err(fail(ErrorKind::Denied));
        }
        if file.is_open {
            let (key, token) = (&node.location.key, file.open_reference);
            let open_reference =
                Operation::new(node.location.partition, [Action::Hold { key, token }]);
            if !self.inner.store.run(open_reference)?.is_done() {
                return Ok(false);
            }
        }
        let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
        let existing = OpenFile::new(self, node.clone(), flags, None);
        if file.flags.truncate {
            existing.cut(0)?;
        }
        let data = &file.value[INODE_LEN..];
        if file.flags.append && !data.is_empty() {
            existing.append(data)?;
        } else if !data.is_empty() {
            existing.write_at(data, 0)?;
        }
        existing.close()?;
        if file.is_open {
            let surprise = DeferredSurprise::Existed(Box::new(node));
            self.inner.deferred.surprise(file.ino, surprise);
        }
        Ok(true)
    }

    fn note(&self, file: &UnsentFile, error: &Error) {
        let name = key::parse_entry(&file.location.key).map_or(&b""[..], |(_, name)| name);
        let message = format!("make {:?}: {}", String::from_utf8_lossy(name), error.message());
        let error = Error::new(error.kind(), message);
        if file.is_open {
            self.inner.deferred.surprise(file.ino, DeferredSurprise::Failed(error));
        } else {
            self.inner.deferred.keep_failure(error);
        }
    }
}

impl OpenFile {
    /// Works on the file if it waits to be sent. `None`: it does not (any more).
    fn on_deferred<T>(
        &self,
        work: impl FnOnce(&mut UnsentFile, &mut usize) -> Option<T>,
    ) -> Result<Option<T>> {
        if !self.deferred.load(Ordering::Acquire) {
            return Ok(None);
        }
        let deferred = &self.fs.inner.deferred;
        let ino = self.ino();
        let mut waiting = deferred.waiting();
        let WaitingFiles { files, data_len, .. } = &mut *waiting;
        if let Some(file) = files.find(ino) {
            if let Some(done) = work(file, data_len) {
                return Ok(Some(done));
            }
            drop(waiting);
            self.make_known()?;
        } else {
            drop(waiting);
            self.find_out()?;
        }
        Ok(None)
    }

    /// The file has been sent, or is being sent: finds out what became of it.
    fn find_out(&self) -> Result<()> {
        let deferred = &self.fs.inner.deferred;
        if self.fs.sends_deferred {
            self.fs.send_early();
        }
        if !self.deferred.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        match deferred.take_surprise(self.ino()) {
            None => Ok(()),
            Some(DeferredSurprise::Existed(node)) => {
                self.rebind(&node);
                Ok(())
            }
            Some(DeferredSurprise::Failed(error)) => Err(error),
        }
    }

    /// Sends the file if it waits, and tells what came of it.
    pub(crate) fn make_known(&self) -> Result<()> {
        if !self.deferred.load(Ordering::Acquire) {
            return Ok(());
        }
        self.fs.send_deferred();
        self.find_out()
    }

    pub(crate) fn deferred_attr(&self) -> Result<Option<FileAttributes>> {
        let found = self.on_deferred(|file, _| {
            let inode = Inode::decode(&file.value);
            Some(inode.map(|inode| inode.attr((file.value.len() - INODE_LEN) as u64)))
        })?;
        found.transpose()
    }

    pub(crate) fn read_deferred(&self, buf: &mut [u8], offset: u64) -> Result<Option<usize>> {
        self.on_deferred(|file, _| {
            let data = &file.value[INODE_LEN..];
            let start = usize::try_from(offset).map_or(data.len(), |start| start.min(data.len()));
            let len = buf.len().min(data.len() - start);
            buf[..len].copy_from_slice(&data[start..start + len]);
            // Beyond what was written here, there may be more in a file that was there before.
            (len == buf.len() || file.flags.excl || file.flags.truncate).then_some(len)
        })
    }

    /// Writes at `offset`, or at the end; returns where. `None`: the file does not wait, or the write is none that can.
    pub(crate) fn write_deferred(&self, buf: &[u8], offset: Option<u64>) -> Result<Option<u64>> {
        self.on_deferred(|file, data_len| {
            let len = file.value.len() - INODE_LEN;
            let start = offset.unwrap_or(len as u64);
            // An append goes to the end of the file that turns out to be there; with other writes
            // between, it would not be known where.
            let is_known = start <= len as u64 && file.flags.append == offset.is_none();
            let end = start + buf.len() as u64;
            let grown = (end as usize).saturating_sub(len);
            if !is_known || end > INLINE_LEN_MAX || *data_len + grown > DATA_LEN_MAX {
                return None;
            }
            let first = INODE_LEN + start as usize;
            if grown > 0 {
                file.value.resize(INODE_LEN + end as usize, 0);
            }
            file.value[first..first + buf.len()].copy_from_slice(buf);
            *data_len += grown;
            let now = Timestamp::now().0.to_le_bytes();
            for field in [at::MTIME, at::CTIME].map(|field| field as usize) {
                file.value[field..field + now.len()].copy_from_slice(&now);
            }
            Some(start)
        })
    }

    /// The last handle goes. True: the file waits on without one.
    pub(crate) fn leave_deferred(&self) -> Result<bool> {
        if !self.deferred.load(Ordering::Acquire) {
            return Ok(false);
        }
        let ino = self.ino();
        let mut waiting = self.fs.inner.deferred.waiting();
        let WaitingFiles { files, flying, .. } = &mut *waiting;
        let found =
            files.find(ino).or_else(|| flying.iter_mut().find_map(|flight| flight.find(ino)));
        if let Some(file) = found {
            file.is_open = false;
            self.deferred.store(false, Ordering::Release);
            return Ok(true);
        }
        drop(waiting);
        self.find_out().map(|()| false)
    }
}
