//! The kernel file behind the mappings of one file of the store.
//!
//! It lies in memory (`/dev/shm/samite-UID`), named by cluster and inode number, so that all processes of a user on one host map
//! the same pages, as they would with a kernel's file system. Beside the bytes, far behind the end of any file, it
//! keeps a hash of each page as the store has it ([`super::pages`]).
//!
//! A process that uses the file holds a shared lock on it (`flock`). A process that gets the
//! exclusive lock is alone: at the start it empties the file of a killed process, at the end it
//! removes the name. Locks go with the process, so nothing needs to be cleaned up after one that
//! died; its file is removed by the next process that maps anything.
//!
//! `/dev/shm` may be small (64 MiB in containers). A page that finds no room there when it is touched ends the program with SIGBUS. So what is
//! mapped is given its room before; where there is none, this process has pages of its own, in a file without a name, which has no such limit.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{AtFlags, CWD, Dir, FlockOperation, MemfdFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::real::NextSymbol;
use crate::{descriptor_range, start_environment};

pub const PAGE_LEN: usize = 4096;
/// Where the hashes begin: behind the largest file ([`samite_fs::FILE_LEN_MAX`]).
const HASHES_AT: u64 = 1 << 50;
const HASH_LEN: u64 = size_of::<u64>() as u64;
const LEN: u64 = HASHES_AT + samite_fs::FILE_LEN_MAX / PAGE_LEN as u64 * HASH_LEN;
/// Tries to open a name that others remove at the same time.
const TRIES: usize = 64;
/// Longest range whose holes are given room, too, in bytes: a longer one may be mostly holes that nobody ever touches.
const RESERVED_MAX: u64 = 256 << 20;
/// Leftovers looked at by one process.
const SWEEP_MAX: usize = 256;

/// Unit of `st_blocks`.
const STAT_BLOCK_LEN: u64 = 512;

const NONE: c_int = -1;

/// The file, as this process has it open.
pub struct BackingFile {
    pub ino: u64,
    /// It has a name in shared memory.
    is_shared: bool,
    fd: AtomicI32,
    /// Opened before a fork, for the child: a lock belongs to what parent and child would share.
    for_child: AtomicI32,
    /// Keeps the threads of this process apart, as the lock of [`BackingFile::lock`] does with processes.
    mutex: Mutex<()>,
}

impl Drop for BackingFile {
    fn drop(&mut self) {
        self.leave();
        descriptor_range::give_up(self.fd.load(Ordering::Relaxed));
    }
}

impl BackingFile {
    /// Opens it with room for `len` bytes at `at`.
    pub fn open(ino: u64, at: u64, len: u64) -> Result<Self, Errno> {
        sweep();
        // It may be full, or for reading only.
        if let Some(dir) = directory()
            && let Ok(file) = open_shared(&dir, &name(ino)?)
        {
            let shared = Self::new(ino, file, true)?;
            match shared.reserve(at, len) {
                Err(Errno::NOMEM) => {}
                reserved => return reserved.map(|()| shared),
            }
        }
        // Without shared memory, each process has its own pages.
        Self::new(ino, rustix::fs::memfd_create(c"samite-mapped", MemfdFlags::CLOEXEC)?, false)
    }

    fn new(ino: u64, file: OwnedFd, is_shared: bool) -> Result<Self, Errno> {
        rustix::fs::ftruncate(&file, LEN)?;
        let fd = descriptor_range::keep(file)?;
        let (fd, for_child) = (AtomicI32::new(fd), AtomicI32::new(NONE));
        Ok(Self { ino, is_shared, fd, for_child, mutex: Mutex::new(()) })
    }

    /// Sees to it that there is room for `len` bytes at `at`, and for their hashes.
    ///
    /// # Errors
    /// `NOMEM`: there is none.
    pub fn reserve(&self, at: u64, len: u64) -> Result<(), Errno> {
        if !self.is_shared {
            return Ok(());
        }
        let (first, end) = (hash_at(at), hash_at(at + len.next_multiple_of(PAGE_LEN as u64)));
        let has = rustix::fs::fstat(self.file())?.st_blocks.cast_unsigned() * STAT_BLOCK_LEN;
        let wanted = len + (end - first) + 2 * PAGE_LEN as u64;
        if wanted.saturating_sub(has) > free_at(self.file())? {
            return Err(Errno::NOMEM);
        }
        if len > RESERVED_MAX {
            return Ok(());
        }
        for (at, len) in [(at, len), (first, end - first)] {
            let flags = rustix::fs::FallocateFlags::KEEP_SIZE;
            match rustix::io::retry_on_intr(|| rustix::fs::fallocate(self.file(), flags, at, len)) {
                Ok(()) | Err(Errno::OPNOTSUPP) => {}
                Err(Errno::NOSPC) => return Err(Errno::NOMEM),
                Err(failed) => return Err(failed),
            }
        }
        Ok(())
    }

    pub fn file(&self) -> BorrowedFd<'_> {
        // SAFETY: kept open until `drop`; a fork's child swaps it before anyone can look.
        unsafe { BorrowedFd::borrow_raw(self.fd.load(Ordering::Relaxed)) }
    }

    /// The same file, for mappings through which nothing may be written.
    pub fn read_only(&self) -> Result<OwnedFd, Errno> {
        self.again(OFlags::RDONLY)
    }

    fn again(&self, how: OFlags) -> Result<OwnedFd, Errno> {
        let path = format!("/proc/self/fd/{}", self.file().as_raw_fd());
        rustix::fs::openat(CWD, path.as_str(), how | OFlags::CLOEXEC, Mode::empty())
    }

    /// Keeps other threads and processes from the pages of a range while their state is compared with the store's.
    pub fn lock(&self, at: u64, len: usize) -> Result<LockedBacking<'_>, Errno> {
        let own = self.mutex.lock().unwrap_or_else(PoisonError::into_inner);
        lock_range(self.file().as_raw_fd(), libc::F_WRLCK, at, len)?;
        Ok(LockedBacking { backing: self, at, len, _own: own })
    }

    /// Hashes of `count` pages from the one at `at`.
    pub fn hashes(&self, at: u64, count: usize) -> Result<Vec<u64>, Errno> {
        let mut raw = vec![0; count * size_of::<u64>()];
        read_all(self.file(), &mut raw, hash_at(at))?;
        Ok(raw.as_chunks().0.iter().map(|bytes| u64::from_ne_bytes(*bytes)).collect())
    }

    pub fn set_hashes(&self, at: u64, hashes: &[u64]) -> Result<(), Errno> {
        let raw: Vec<u8> = hashes.iter().flat_map(|hash| hash.to_ne_bytes()).collect();
        write_all(self.file(), &raw, hash_at(at))
    }

    /// Makes everything from the page at `at` on a hole, hashes too.
    pub fn punch_from(&self, at: u64) -> Result<(), Errno> {
        use rustix::fs::FallocateFlags as Flags;
        let flags = Flags::PUNCH_HOLE | Flags::KEEP_SIZE;
        rustix::fs::fallocate(self.file(), flags, at, HASHES_AT - at)?;
        rustix::fs::fallocate(self.file(), flags, hash_at(at), LEN - hash_at(at))
    }

    /// The next page with anything in it, from `at` on and before `end`.
    pub fn next_data(&self, at: u64, end: u64) -> Result<Option<u64>, Errno> {
        match rustix::fs::seek(self.file(), rustix::fs::SeekFrom::Data(at)) {
            Ok(data) => Ok((data < end).then_some(data / PAGE_LEN as u64 * PAGE_LEN as u64)),
            Err(Errno::NXIO) => Ok(None),
            Err(failed) => Err(failed),
        }
    }

    pub fn before_fork(&self) {
        let second = self.again(OFlags::RDWR).and_then(|file| {
            rustix::fs::flock(&file, FlockOperation::LockShared)?;
            descriptor_range::keep(file)
        });
        // Without one, the child shares its parent's lock: a later process may then get pages of its own.
        self.for_child.store(second.unwrap_or(NONE), Ordering::Relaxed);
    }

    pub fn after_fork(&self, is_child: bool) {
        let second = self.for_child.swap(NONE, Ordering::Relaxed);
        if second == NONE {
            return;
        }
        descriptor_range::give_up(if is_child {
            self.fd.swap(second, Ordering::Relaxed)
        } else {
            second
        });
    }

    /// This process is done with it: removes the name, unless another one uses the file.
    pub fn leave(&self) {
        if !self.is_shared {
            return;
        }
        let Some((dir, name)) = directory().zip(name(self.ino).ok()) else { return };
        if rustix::fs::flock(self.file(), FlockOperation::NonBlockingLockExclusive).is_ok()
            && is_named(&dir, &name, self.file())
        {
            // Nobody else has it; a name that stays is swept later.
            let _ = rustix::fs::unlinkat(&dir, name.as_str(), AtFlags::empty());
        }
    }
}

/// See [`BackingFile::lock`].
pub struct LockedBacking<'a> {
    backing: &'a BackingFile,
    at: u64,
    len: usize,
    _own: MutexGuard<'a, ()>,
}

impl Drop for LockedBacking<'_> {
    fn drop(&mut self) {
        // Unlocking what is locked does not fail.
        let _ = lock_range(self.backing.file().as_raw_fd(), libc::F_UNLCK, self.at, self.len);
    }
}

/// A lock of the open file on a range, which rustix does not have.
fn lock_range(fd: c_int, kind: c_int, at: u64, len: usize) -> Result<(), Errno> {
    static NEXT: NextSymbol = NextSymbol::new(c"fcntl64");
    // SAFETY: the symbol of this name takes these in libc; variadic arguments travel as others (see `hook::hooks`).
    let next = unsafe {
        std::mem::transmute::<*mut c_void, extern "C" fn(c_int, c_int, *const libc::flock) -> c_int>(
            NEXT.address(),
        )
    };
    // SAFETY: a structure of numbers, for which zeros are valid.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    range.l_type = kind as i16;
    range.l_start = at.cast_signed();
    range.l_len = len as i64;
    loop {
        if next(fd, libc::F_OFD_SETLKW, &raw const range) == 0 {
            return Ok(());
        }
        match Errno::from_raw_os_error(crate::real::errno()) {
            Errno::INTR => {}
            failed => return Err(failed),
        }
    }
}

const fn hash_at(at: u64) -> u64 {
    HASHES_AT + at / PAGE_LEN as u64 * HASH_LEN
}

pub fn read_all(file: BorrowedFd<'_>, mut into: &mut [u8], mut at: u64) -> Result<(), Errno> {
    while !into.is_empty() {
        let len = rustix::io::pread(file, &mut *into, at)?;
        if len == 0 {
            return Err(Errno::IO);
        }
        into = &mut into[len..];
        at += len as u64;
    }
    Ok(())
}

pub fn write_all(file: BorrowedFd<'_>, mut from: &[u8], mut at: u64) -> Result<(), Errno> {
    while !from.is_empty() {
        let len = rustix::io::pwrite(file, from, at)?;
        from = &from[len..];
        at += len as u64;
    }
    Ok(())
}

/// Bytes that are free where a file lies. Where there is no limit, the kernel tells of no blocks at all.
fn free_at(file: BorrowedFd<'_>) -> Result<u64, Errno> {
    let stat = rustix::fs::fstatvfs(file)?;
    Ok(if stat.f_blocks == 0 { u64::MAX } else { stat.f_bavail.saturating_mul(stat.f_frsize) })
}

fn name(ino: u64) -> Result<String, Errno> {
    let cluster = start_environment::cluster_hash().map_err(|error| error.kind().errno())?;
    Ok(format!("{cluster:016x}-{ino:016x}"))
}

/// Where the files lie; `None`: there is no such place that is this user's alone.
fn directory() -> Option<OwnedFd> {
    let uid = rustix::process::geteuid().as_raw();
    let path = format!("/dev/shm/samite-{uid}");
    // It is there already, but for the first time; its content is checked below.
    let _ = rustix::fs::mkdirat(CWD, path.as_str(), Mode::RWXU);
    let how = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
    let dir = rustix::fs::openat(CWD, path.as_str(), how, Mode::empty()).ok()?;
    let stat = rustix::fs::fstat(&dir).ok()?;
    (stat.st_uid == uid && stat.st_mode & 0o077 == 0).then_some(dir)
}

fn is_named(dir: &OwnedFd, name: &str, file: impl AsFd) -> bool {
    let named = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW);
    let open = rustix::fs::fstat(file);
    named.is_ok_and(|named| open.is_ok_and(|open| open.st_ino == named.st_ino))
}

fn open_shared(dir: &OwnedFd, name: &str) -> Result<OwnedFd, Errno> {
    let how = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    for _ in 0..TRIES {
        let file = rustix::fs::openat(dir, name, how, Mode::RUSR | Mode::WUSR)?;
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            rustix::fs::ftruncate(&file, 0)?;
        }
        // Others hold the exclusive lock for a short time only.
        rustix::io::retry_on_intr(|| rustix::fs::flock(&file, FlockOperation::LockShared))?;
        if is_named(dir, name, &file) {
            return Ok(file);
        }
    }
    Err(Errno::AGAIN)
}

/// Removes what killed processes left, once in the life of this one.
fn sweep() {
    static DONE: AtomicBool = AtomicBool::new(false);
    if DONE.swap(true, Ordering::Relaxed) {
        return;
    }
    let Some((dir, entries)) =
        directory().and_then(|dir| Dir::read_from(&dir).ok().map(|entries| (dir, entries)))
    else {
        return;
    };
    for entry in entries.flatten().take(SWEEP_MAX) {
        let how = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        if let Ok(file) = rustix::fs::openat(&dir, entry.file_name(), how, Mode::empty())
            && rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
        {
            // A process that opens it now finds the name gone, and makes it anew.
            let _ = rustix::fs::unlinkat(&dir, entry.file_name(), AtFlags::empty());
        }
    }
}
