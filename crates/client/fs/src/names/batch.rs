//! Many small files at once: staging reads and makes them whole, in one request per node for a batch.

use samite_client::{ClientOperation, OwnedOutcome, OwnedResult};
use samite_types::{Epoch, Error, ErrorKind, Result};
use samite_wire::op::{Action, Operation};

use crate::names::at::{RelativePath, named};
use crate::names::cache::permits;
use crate::names::entry_operations::NewEntry;
use crate::names::walk::{PathWalk, READ, SEARCH, WRITE};
use crate::records::change_stamps::EntryMark;
use crate::records::inode::{DataLayout, INODE_LEN, Inode};
use crate::records::key::{self, Key};
use crate::records::store::{RecordLocation, fail, malformed};
use crate::{CallerContext, FileAttributes, FileKind, FileSystem, INLINE_LEN_MAX, Timestamp};

/// A regular file to be made, with all that is in it.
#[derive(Clone, Copy, Debug)]
pub struct NewFile<'a> {
    /// Absolute path; its directory must exist.
    pub path: &'a [u8],
    /// Permission bits; the umask does not touch them.
    pub perm: u32,
    /// Owner, if it shall not be the caller. Only root may give files away.
    pub owner: Option<(u32, u32)>,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the data.
    pub mtime: Timestamp,
    /// The data: at most [`INLINE_LEN_MAX`] bytes.
    pub data: &'a [u8],
}

/// A small file, whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WholeFile {
    /// Attributes.
    pub attr: FileAttributes,
    /// Data.
    pub data: Vec<u8>,
}

/// A file about to be made.
struct PlannedFile {
    location: RecordLocation,
    tombstone: Key,
    value: Vec<u8>,
    stamp: EntryMark,
}

impl FileSystem {
    /// Makes regular files whole, each in one operation, all in one request per node. One result for each file.
    ///
    /// `Exists`: something of this name is there. `NotFound`, `NotDirectory`, `Denied`, `Loop`, `NameTooLong`: for the path.
    /// `NotOwner`: the caller may not give files away. `TooLarge`: more data than fit. `NoSpace`.
    /// `Busy`: directories on the way are being changed; [`FileSystem::open_file`] waits for that.
    ///
    /// # Errors
    /// A node cannot be reached: which files were made is unknown.
    pub fn put_files(&self, ctx: &CallerContext, files: &[NewFile<'_>]) -> Result<Vec<Result<()>>> {
        let epoch = self.start_generation();
        let planned: Vec<Result<PlannedFile>> = files
            .iter()
            .map(|file| named("make", file.path, |at| self.plan(ctx, file, at, epoch)))
            .collect();
        let mut operations: Vec<ClientOperation<'_>> = planned
            .iter()
            .flatten()
            .map(|plan| {
                let entry = NewEntry {
                    location: &plan.location,
                    value: &plan.value,
                    tombstone: &plan.tombstone,
                    stamp: &plan.stamp,
                    is_directory: false,
                    open_reference: 0,
                };
                ClientOperation::new(entry.operation(false)).under_lease(epoch)
            })
            .collect();
        let mut outcomes = self.store().run_each(&mut operations)?.into_iter();
        drop(operations);
        let made = files.iter().zip(planned).map(|(file, plan)| {
            let result = plan.and_then(|_| named("make", file.path, |_| made(outcomes.next())));
            result.map_err(busy_when_stale)
        });
        Ok(made.collect())
    }

    fn plan(
        &self,
        ctx: &CallerContext,
        file: &NewFile<'_>,
        at: RelativePath<'_>,
        epoch: Epoch,
    ) -> Result<PlannedFile> {
        if file.data.len() as u64 > INLINE_LEN_MAX {
            return Err(fail(ErrorKind::TooLarge));
        }
        let (uid, gid) = file.owner.unwrap_or((ctx.uid, ctx.gid));
        if ctx.uid != 0 && (uid != ctx.uid || !ctx.in_group(gid)) {
            return Err(fail(ErrorKind::NotOwner));
        }
        let mut walk = PathWalk::start(self, ctx, at, epoch)?;
        if !walk.advance()? || walk.wants_directory {
            return Err(fail(ErrorKind::IsDirectory));
        }
        walk.require(WRITE | SEARCH)?;
        let now = Timestamp::now();
        let mut inode = Inode::new(FileKind::File, self.new_ino()?, file.perm, uid, gid, now);
        (inode.atime, inode.mtime) = (file.atime, file.mtime);
        let location = walk.entry();
        let mut value = inode.encode().to_vec();
        value.extend_from_slice(file.data);
        let stamp = EntryMark::new(&location.key, now);
        Ok(PlannedFile { location, tombstone: key::tombstone(walk.dir().ino), value, stamp })
    }

    /// Reads regular files whole, all in one request per node. One result for each path: `None` for
    /// a file that is not regular (a symbolic link is not followed), is larger than
    /// [`INLINE_LEN_MAX`], or is being changed in its layout or place; open such a one.
    ///
    /// `NotFound`, `NotDirectory`, `Denied`, `Loop`, `NameTooLong`: for the path or the file.
    ///
    /// # Errors
    /// A node cannot be reached.
    pub fn get_files(
        &self,
        ctx: &CallerContext,
        paths: &[&[u8]],
    ) -> Result<Vec<Result<Option<WholeFile>>>> {
        const LEN_MAX: u32 = INODE_LEN as u32 + INLINE_LEN_MAX as u32;
        let epoch = self.start_generation();
        let locations: Vec<Result<RecordLocation>> = paths
            .iter()
            .map(|path| named("read", *path, |at| self.location_of(ctx, at, epoch)))
            .collect();
        let mut operations: Vec<ClientOperation<'_>> = locations
            .iter()
            .flatten()
            .map(|location| {
                let get = Action::Get { key: &location.key, offset: 0, len: LEN_MAX };
                ClientOperation::new(Operation::new(location.partition, [get])).under_lease(epoch)
            })
            .collect();
        let mut outcomes = self.store().run_each(&mut operations)?.into_iter();
        drop(operations);
        let found = paths.iter().zip(locations).map(|(path, location)| {
            match location.and_then(|_| named("read", *path, |_| found(ctx, outcomes.next()))) {
                Err(error) if error.kind() == ErrorKind::StaleLease => Ok(None),
                result => result,
            }
        });
        Ok(found.collect())
    }

    fn location_of(
        &self,
        ctx: &CallerContext,
        at: RelativePath<'_>,
        epoch: Epoch,
    ) -> Result<RecordLocation> {
        let mut walk = PathWalk::start(self, ctx, at, epoch)?;
        if walk.advance()? { Ok(walk.entry()) } else { Err(fail(ErrorKind::IsDirectory)) }
    }

    /// The newest name-space generation, with the cached directories that stand on it.
    fn start_generation(&self) -> Epoch {
        let epoch = self.store().dataset.name_space_generation();
        self.inner.cache.start_epoch(epoch);
        epoch
    }
}

fn busy_when_stale(error: Error) -> Error {
    match error.kind() {
        ErrorKind::StaleLease => Error::new(ErrorKind::Busy, error.message().to_owned()),
        _ => error,
    }
}

/// The fate of a file.
fn made(outcome: Option<OwnedOutcome>) -> Result<()> {
    match outcome {
        Some(OwnedOutcome::Done(_)) => Ok(()),
        Some(OwnedOutcome::Failed(failure)) => Err(match (failure.kind, failure.index) {
            (ErrorKind::Conflict, 0) => fail(ErrorKind::Exists),
            // A tombstone: the directory is being removed.
            (ErrorKind::Conflict, _) => fail(ErrorKind::StaleLease),
            _ => failure.into_error("a record of the file system"),
        }),
        None => Err(malformed()),
    }
}

fn found(ctx: &CallerContext, outcome: Option<OwnedOutcome>) -> Result<Option<WholeFile>> {
    let results = match outcome {
        Some(OwnedOutcome::Done(results)) => results,
        Some(OwnedOutcome::Failed(failure)) if failure.kind == ErrorKind::NotFound => {
            return Err(fail(ErrorKind::NotFound));
        }
        Some(OwnedOutcome::Failed(failure)) => return Err(failure.into_error("look up")),
        None => return Err(malformed()),
    };
    let Some(OwnedResult::Value { mut data, .. }) = results.into_iter().next() else {
        return Err(malformed());
    };
    let inode = Inode::decode(&data)?;
    if inode.kind != FileKind::File || inode.layout != DataLayout::Inline {
        return Ok(None);
    }
    if !permits(ctx, inode.perm, inode.uid, inode.gid, false, READ) {
        return Err(fail(ErrorKind::Denied));
    }
    data.drain(..INODE_LEN);
    Ok(Some(WholeFile { attr: inode.attr(data.len() as u64), data }))
}
