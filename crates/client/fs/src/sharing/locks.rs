//! File locks: by inode number, so that they follow a file through renames.

use samite_client::locks::{LockSession, LockWait};
use samite_types::{ClientId, Epoch, Error, ErrorKind, Result, Term};
pub use samite_wire::lock::{LOCK_LAST, LockFound, LockMode, LockRange, LockSpace};
use samite_wire::lock::{LockAnswer, LockCall, LockHolder, LockRequest};

use crate::FileSystem;

/// The owner of locks on a file, and the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockPlace {
    /// Inode number.
    pub ino: u64,
    /// Ranges (`fcntl`) or the whole file (`flock`); they do not meet.
    pub space: LockSpace,
    /// Owner among those of one [`FileLocks`].
    pub token: u64,
}

/// A lock that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WantedLock {
    /// Bytes; [`LockRange::WHOLE`] for `flock`.
    pub range: LockRange,
    /// Shared or exclusive.
    pub mode: LockMode,
    /// Process that others are told of; 0 for none in particular.
    pub pid: u32,
    /// Waiting in a circle ends with `Deadlock`: for locks of processes.
    pub detects_deadlock: bool,
}

/// Locks held together: they end with this value, at the latest with its process.
///
/// A front end has one for each life that locks can have: one for a mounted file system, with a token for each owner; one for a process,
/// one for an open file description.
pub struct FileLocks {
    fs: FileSystem,
    locker: LockSession,
}

impl FileSystem {
    /// A new owner of locks.
    #[must_use]
    pub fn locks(&self) -> FileLocks {
        FileLocks { fs: self.clone(), locker: LockSession::new(self.client()) }
    }

    /// The owner of locks that another process calls `id` ([`FileLocks::id`]).
    #[must_use]
    pub fn locks_of(&self, id: u64) -> FileLocks {
        FileLocks { fs: self.clone(), locker: LockSession::with_id(self.client(), ClientId(id)) }
    }
}

impl FileLocks {
    /// Identity, never 0.
    #[must_use]
    pub const fn id(&self) -> u64 {
        self.locker.id().get()
    }

    fn request(&self, place: LockPlace, call: LockCall) -> LockRequest {
        LockRequest {
            dataset: self.fs.store().dataset.id(),
            partition: self.fs.store().own(place.ino).partition,
            object: place.ino,
            space: place.space,
            token: place.token,
            term: Term(0),
            epoch: Epoch(0),
            is_note: false,
            call,
        }
    }

    fn take(&self, place: LockPlace, wanted: WantedLock) -> LockRequest {
        let WantedLock { range, mode, pid, detects_deadlock } = wanted;
        let holder = LockHolder { host: self.locker.host(), pid };
        self.request(place, LockCall::Take { range, mode, holder, wait: None, detects_deadlock })
    }

    /// Takes a lock, or changes one that the owner has, if nobody is in the way; else tells who is.
    ///
    /// # Errors
    /// `NoLocks`: there are too many; `Unavailable`, `Timeout`: the node that keeps them does not answer.
    pub fn try_lock(&self, place: LockPlace, wanted: WantedLock) -> Result<Option<LockFound>> {
        self.ask(&self.take(place, wanted))
    }

    /// The same, waiting for as long as others are in the way, or until `stop` says so (looked at some ten times a second).
    ///
    /// # Errors
    /// `Interrupted`: it was stopped; `Deadlock`; as [`FileLocks::try_lock`].
    pub fn lock(
        &self,
        place: LockPlace,
        wanted: WantedLock,
        stop: &dyn Fn() -> bool,
    ) -> Result<()> {
        if self.try_lock(place, wanted)?.is_none() {
            return Ok(());
        }
        let mut wait = self.begin(place, wanted)?;
        let woken = wait.block_until(stop)?;
        wait.finish(woken)
    }

    /// Begins to wait for a lock, for callers who wait in their own way.
    ///
    /// # Errors
    /// As [`FileLocks::lock`].
    pub fn begin(&self, place: LockPlace, wanted: WantedLock) -> Result<LockWait<'_>> {
        self.locker.begin(self.take(place, wanted))
    }

    /// Ends the locks that the owner has within `range`.
    ///
    /// # Errors
    /// As [`FileLocks::try_lock`].
    pub fn unlock(&self, place: LockPlace, range: LockRange) -> Result<()> {
        self.ask(&self.request(place, LockCall::Release { range })).map(drop)
    }

    /// The lock that is in the way of another.
    ///
    /// # Errors
    /// As [`FileLocks::try_lock`].
    pub fn test(&self, place: LockPlace, wanted: WantedLock) -> Result<Option<LockFound>> {
        let WantedLock { range, mode, .. } = wanted;
        self.ask(&self.request(place, LockCall::Test { range, mode }))
    }

    fn ask(&self, request: &LockRequest) -> Result<Option<LockFound>> {
        match self.locker.ask(request)? {
            LockAnswer::Done => Ok(None),
            LockAnswer::Held(found) => Ok(Some(found)),
            LockAnswer::Full => Err(Error::new(ErrorKind::NoLocks, "lock: too many locks")),
            LockAnswer::Deadlock | LockAnswer::Cancelled => {
                Err(Error::new(ErrorKind::Corrupt, "lock: the node answers another question"))
            }
        }
    }

    /// The process that holds a lock, if it is one on this host.
    #[must_use]
    pub fn process_of(&self, found: &LockFound) -> Option<u32> {
        let here = found.holder.host == self.locker.host() && found.holder.pid != 0;
        here.then_some(found.holder.pid)
    }

    /// Descriptors of its connections, as far as they can be told now.
    #[must_use]
    pub fn descriptors(&self) -> Vec<i32> {
        self.locker.descriptors()
    }

    /// In the child of a fork: closes the inherited connection, so that the locks are the parent's
    /// alone. Takes no lock.
    pub fn abandon(&self) {
        self.locker.abandon();
    }
}
