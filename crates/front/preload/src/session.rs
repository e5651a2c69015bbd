//! The state that open file descriptions share between processes.
//!
//! A session is a memory file of one page per open file description of the process that made it. A *placeholder*, the kernel
//! descriptor that stands for an open file of the store, is a duplicate of an `O_PATH` descriptor of that memory file:
//!
//! * nothing can be read from or written to it behind our back: the kernel answers `EBADF`, which is loud, where any other
//!   kind of file would take the bytes;
//! * it survives `fork` and `exec` like any descriptor, under the close-on-exec flag that the kernel keeps for it;
//! * the program after an `exec` opens the memory file through it (`/proc/self/fd/N`) and maps it.
//!
//! ```text
//! page 0          magic, version
//! page 1 …        one [`DescriptionSlot`] each
//! ```
//!
//! Only the process that made a session takes slots of it; a forked child makes its own when it opens a file. So a process
//! that is killed leaks no slot of another.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{AtFlags, CWD, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::{descriptor_range, raw};

const PAGE_LEN: usize = 4096;
/// Slots of a session, with page 0.
const SLOTS: usize = 1024;
const SESSION_LEN: usize = SLOTS * PAGE_LEN;
/// Sessions that one process can have, made or inherited; with the slots this bounds its open files of the store.
pub const SESSIONS_MAX: usize = 128;
const MAGIC: u64 = u64::from_le_bytes(*b"samite\x00\x01");
const WORDS: usize = SLOTS / 64;

/// Room for [`DescriptionSlot::state`], in bytes. A directory whose state is longer (its path is part of it) does not survive `exec`.
const STATES_LEN: usize = PAGE_LEN - 64;
/// A state up to this length can be replaced: the new one is written beside it.
const HALF_LEN: usize = STATES_LEN / 2;

/// The shared part of an open file description.
#[repr(C, align(4096))]
pub struct DescriptionSlot {
    /// Processes that have it open. Page 0 keeps [`MAGIC`] in `offset`.
    holders: AtomicU32,
    /// `O_*` flags as `F_GETFL` tells them.
    pub status: AtomicU32,
    /// File offset, in bytes.
    pub offset: AtomicU64,
    /// Where in `states` the state lies (upper half), and its length; 0 while the file was not described.
    state_at: AtomicU32,
    /// Identity of the description's locks; 0 while it has had none.
    pub lock_client: AtomicU64,
    /// Inode number of the keep-alive socket with the connections of its locks; 0 for none.
    pub lock_line: AtomicU64,
    /// The answer to `F_GETOWN` and `F_GETSIG`: nobody is ever sent a signal for a file.
    pub owner: AtomicU32,
    pub owner_kind: AtomicU32,
    pub signal: AtomicU32,
    unused: [u32; 3],
    states: UnsafeCell<[u8; STATES_LEN]>,
}

// SAFETY: a part of `states` is written while `state_at` leads to another one, and by one process at a time: the one that
// is about to fork or exec with the file open.
unsafe impl Sync for DescriptionSlot {}

const _: () = assert!(size_of::<DescriptionSlot>() == PAGE_LEN);

impl DescriptionSlot {
    /// A slot of no session.
    pub const fn none() -> Self {
        Self {
            holders: AtomicU32::new(1),
            status: AtomicU32::new(0),
            offset: AtomicU64::new(0),
            state_at: AtomicU32::new(0),
            lock_client: AtomicU64::new(0),
            lock_line: AtomicU64::new(0),
            owner: AtomicU32::new(0),
            owner_kind: AtomicU32::new(0),
            signal: AtomicU32::new(0),
            unused: [0; 3],
            states: UnsafeCell::new([0; STATES_LEN]),
        }
    }

    /// The description of the file for other processes; `None` before [`DescriptionSlot::describe`].
    pub fn state(&self) -> Option<&[u8]> {
        let packed = self.state_at.load(Ordering::Acquire);
        let (start, len) = ((packed >> 16) as usize, (packed & 0xffff) as usize);
        if len == 0 || start + len > STATES_LEN {
            return None;
        }
        // SAFETY: within the array, and not written to while `state_at` leads there.
        Some(unsafe { std::slice::from_raw_parts(self.states.get().cast::<u8>().add(start), len) })
    }

    /// Keeps the description, in place of an older one; a description that is too long is left out.
    pub fn describe(&self, state: &[u8]) {
        let known = self.state();
        if known == Some(state) || state.is_empty() || state.len() > STATES_LEN {
            return;
        }
        let is_first_half = self.state_at.load(Ordering::Relaxed) >> 16 == 0;
        let start = match known {
            None => 0,
            Some(known) if known.len().max(state.len()) > HALF_LEN => return,
            Some(_) if is_first_half => HALF_LEN,
            Some(_) => 0,
        };
        // SAFETY: it fits, and `state_at` does not lead there.
        unsafe {
            let states = self.states.get().cast::<u8>().add(start);
            states.copy_from_nonoverlapping(state.as_ptr(), state.len());
        }
        // Both are below 4096.
        self.state_at.store((start as u32) << 16 | state.len() as u32, Ordering::Release);
    }

    /// One process more has it open.
    pub fn open_reference(&self) {
        self.holders.fetch_add(1, Ordering::AcqRel);
    }

    /// This process does not have it open any more. Whether it was the last one.
    pub fn let_go(&self) -> bool {
        self.holders.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

struct PreloadSession {
    base: AtomicPtr<DescriptionSlot>,
    /// Which slots are taken, known to the process that made the session.
    taken: [AtomicU64; WORDS],
    /// Process that made it, 0 for an inherited one.
    owner: AtomicU32,
    /// `O_PATH` descriptor of the memory file; -1 in an inherited session.
    path_fd: AtomicU32,
    /// Inode number of the memory file.
    ino: AtomicU64,
}

#[expect(clippy::declare_interior_mutable_const, reason = "start value of the array")]
const NONE: PreloadSession = PreloadSession {
    base: AtomicPtr::new(std::ptr::null_mut()),
    taken: [const { AtomicU64::new(0) }; WORDS],
    owner: AtomicU32::new(0),
    path_fd: AtomicU32::new(u32::MAX),
    ino: AtomicU64::new(0),
};

static SESSIONS: [PreloadSession; SESSIONS_MAX] = [NONE; SESSIONS_MAX];
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// The right to add one.
static GROWING: Mutex<()> = Mutex::new(());
/// Process id, as of the last fork; asking the kernel at each open would cost a system call.
static PID: AtomicU32 = AtomicU32::new(0);

/// Where a slot is: session of this process, and number within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotId {
    pub session: u32,
    pub slot: u32,
}

/// The slot behind an id that this process took or was given.
pub fn slot(id: SlotId) -> Option<&'static DescriptionSlot> {
    let base = SESSIONS.get(id.session as usize)?.base.load(Ordering::Acquire);
    if base.is_null() || id.slot == 0 || id.slot as usize >= SLOTS {
        return None;
    }
    // SAFETY: a session's mapping has SLOTS slots and is never unmapped.
    Some(unsafe { &*base.add(id.slot as usize) })
}

/// In the child of a fork: sessions of the parent are inherited ones from here on.
pub fn after_fork_child() {
    PID.store(0, Ordering::Relaxed);
}

/// This process.
pub fn pid() -> u32 {
    match PID.load(Ordering::Relaxed) {
        0 => {
            let pid = rustix::process::getpid().as_raw_nonzero().get().unsigned_abs();
            PID.store(pid, Ordering::Relaxed);
            pid
        }
        pid => pid,
    }
}

/// Takes a free slot, open in one process, offset 0. Called by one thread at a time.
pub fn take(status: u32) -> Result<SlotId, Errno> {
    let count = COUNT.load(Ordering::Acquire);
    for index in (0..count).rev() {
        if SESSIONS[index].owner.load(Ordering::Relaxed) == pid()
            && let Some(id) = take_from(index, status)
        {
            return Ok(id);
        }
    }
    let index = create()?;
    take_from(index, status).ok_or(Errno::NFILE)
}

fn take_from(index: usize, status: u32) -> Option<SlotId> {
    let session = &SESSIONS[index];
    for sweep in [false, true] {
        if sweep {
            reclaim(index);
        }
        for (word, taken) in session.taken.iter().enumerate() {
            let bits = taken.load(Ordering::Relaxed);
            if bits == u64::MAX {
                continue;
            }
            let bit = bits.trailing_ones();
            taken.fetch_or(1 << bit, Ordering::Relaxed);
            let id = SlotId { session: index as u32, slot: (word as u32) * 64 + bit };
            let slot = slot(id)?;
            slot.status.store(status, Ordering::Relaxed);
            slot.offset.store(0, Ordering::Relaxed);
            slot.state_at.store(0, Ordering::Relaxed);
            slot.lock_client.store(0, Ordering::Relaxed);
            slot.lock_line.store(0, Ordering::Relaxed);
            for word in [&slot.owner, &slot.owner_kind, &slot.signal] {
                word.store(0, Ordering::Relaxed);
            }
            slot.holders.store(1, Ordering::Release);
            return Some(id);
        }
    }
    None
}

/// Finds slots that another process was the last to release.
fn reclaim(index: usize) {
    for number in 1..SLOTS as u32 {
        let id = SlotId { session: index as u32, slot: number };
        if slot(id).is_some_and(|slot| slot.holders.load(Ordering::Acquire) == 0) {
            free(id);
        }
    }
}

/// Gives back a slot that no process has open.
pub fn free(id: SlotId) {
    let session = &SESSIONS[id.session as usize];
    if session.owner.load(Ordering::Relaxed) == pid() {
        session.taken[id.slot as usize / 64].fetch_and(!(1 << (id.slot % 64)), Ordering::Relaxed);
    }
}

fn create() -> Result<usize, Errno> {
    let _one_at_a_time = GROWING.lock().unwrap_or_else(PoisonError::into_inner);
    let index = COUNT.load(Ordering::Acquire);
    if index >= SESSIONS_MAX {
        return Err(Errno::NFILE);
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create(c"samite-descriptors", flags)?;
    rustix::fs::ftruncate(&file, SESSION_LEN as u64)?;
    // Any process of the user can reach it as `/proc/PID/fd/N`; a process that cut it would kill
    // the processes that have it mapped.
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals)?;
    let base = map(&file)?;
    let path_fd =
        descriptor_range::keep(open_again(file.as_fd(), OFlags::PATH | OFlags::CLOEXEC)?)?;
    // SAFETY: page 0 of the mapping that was just made.
    unsafe { &*base }.offset.store(MAGIC, Ordering::Relaxed);
    let session = &SESSIONS[index];
    session.taken[0].store(1, Ordering::Relaxed);
    for word in &session.taken[1..] {
        word.store(0, Ordering::Relaxed);
    }
    session.ino.store(rustix::fs::fstat(&file)?.st_ino, Ordering::Relaxed);
    session.owner.store(pid(), Ordering::Relaxed);
    session.path_fd.store(path_fd.unsigned_abs(), Ordering::Relaxed);
    session.base.store(base, Ordering::Release);
    COUNT.store(index + 1, Ordering::Release);
    Ok(index)
}

fn map(file: &OwnedFd) -> Result<*mut DescriptionSlot, Errno> {
    // SAFETY: a new mapping at a place of the kernel's choice.
    let base = unsafe {
        rustix::mm::mmap(
            std::ptr::null_mut(),
            SESSION_LEN,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            file,
            0,
        )
    }?;
    Ok(base.cast())
}

fn open_again(file: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd, Errno> {
    let mut path = *b"/proc/self/fd/\0\0\0\0\0\0\0\0\0\0\0\0";
    let mut number = file.as_raw_fd().unsigned_abs();
    let mut digits = [0_u8; 10];
    let mut len = 0;
    loop {
        digits[len] = b'0' + (number % 10) as u8;
        len += 1;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    for (place, digit) in path[14..].iter_mut().zip(digits[..len].iter().rev()) {
        *place = *digit;
    }
    rustix::fs::openat(CWD, &path[..14 + len], flags, Mode::empty())
}

/// A new placeholder for a slot, at the lowest free number.
pub fn placeholder(id: SlotId, close_on_exec: bool) -> Result<c_int, Errno> {
    let raw = SESSIONS[id.session as usize].path_fd.load(Ordering::Relaxed);
    let Ok(raw @ 0..) = c_int::try_from(raw) else { return Err(Errno::BADF) };
    // SAFETY: sessions that this process made keep their descriptor for its life; `kept` keeps the program off it.
    let path_fd = unsafe { BorrowedFd::borrow_raw(raw) };
    let fd = if close_on_exec {
        rustix::io::fcntl_dupfd_cloexec(path_fd, 0)?
    } else {
        rustix::io::dup(path_fd)?
    };
    Ok(std::os::fd::IntoRawFd::into_raw_fd(fd))
}

/// File offset of a ticket of slot 0: behind the end, so that nothing can be read.
const TICKET_AT: u64 = 1 << 40;
/// Name of the memory file, as `/proc/self/fd` tells it.
const LINK: &[u8] = b"/memfd:samite-descriptors (deleted)";

/// A descriptor that names a slot to another process, through a socket.
pub fn slot_ticket(placeholder: c_int, id: SlotId) -> Result<OwnedFd, Errno> {
    // SAFETY: only borrowed for the call; a number that is not open is an error.
    let fd = unsafe { BorrowedFd::borrow_raw(placeholder) };
    let file = open_again(fd, OFlags::RDONLY | OFlags::CLOEXEC)?;
    rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(TICKET_AT + u64::from(id.slot)))?;
    Ok(file)
}

/// The slot that a ticket names; `None`: it is not one.
pub fn redeem(fd: c_int) -> Result<Option<SlotId>, Errno> {
    let mut link = [0; LINK.len() + 1];
    let path = format!("/proc/self/fd/{fd}");
    let len = rustix::fs::readlinkat_raw(CWD, path.as_str(), &mut link)?;
    if link[..len] != *LINK || fd < 0 {
        return Ok(None);
    }
    // SAFETY: as above.
    let file = unsafe { BorrowedFd::borrow_raw(fd) };
    // A placeholder that came without this library has no offset.
    let Ok(at) = rustix::fs::tell(file) else { return Ok(None) };
    let Some(slot) = at.checked_sub(TICKET_AT).filter(|slot| (1..SLOTS as u64).contains(slot))
    else {
        return Ok(None);
    };
    let ino = rustix::fs::fstat(file)?.st_ino;
    let _one_at_a_time = GROWING.lock().unwrap_or_else(PoisonError::into_inner);
    let known = (0..COUNT.load(Ordering::Acquire))
        .find(|index| SESSIONS[*index].ino.load(Ordering::Relaxed) == ino);
    let session = known.map(|index| index as u32).or_else(|| attach(fd)).ok_or(Errno::NFILE)?;
    Ok(Some(SlotId { session, slot: slot as u32 }))
}

/// Makes a ticket a placeholder, at the same number.
pub fn replace(ticket: c_int, close_on_exec: bool) -> Result<(), Errno> {
    // SAFETY: as above.
    let fd = unsafe { BorrowedFd::borrow_raw(ticket) };
    let placeholder = open_again(fd, OFlags::PATH | OFlags::CLOEXEC)?;
    let flags = if close_on_exec { libc::O_CLOEXEC } else { 0 };
    raw::duplicate_to(placeholder.as_raw_fd(), ticket, flags)
}

/// Maps the session behind an inherited placeholder. Its number in this process, or `None` when it is not one.
pub fn attach(placeholder: c_int) -> Option<u32> {
    let index = COUNT.load(Ordering::Acquire);
    if index >= SESSIONS_MAX || placeholder < 0 {
        return None;
    }
    // SAFETY: only borrowed for the call; a number that is not open is an error.
    let fd = unsafe { BorrowedFd::borrow_raw(placeholder) };
    let file = open_again(fd, OFlags::RDWR | OFlags::CLOEXEC).ok()?;
    let stat = rustix::fs::statat(&file, c"", AtFlags::EMPTY_PATH).ok()?;
    if stat.st_size != SESSION_LEN as i64 {
        return None;
    }
    let base = map(&file).ok()?;
    // SAFETY: page 0 of the mapping that was just made.
    if unsafe { &*base }.offset.load(Ordering::Relaxed) != MAGIC {
        return None;
    }
    SESSIONS[index].owner.store(0, Ordering::Relaxed);
    SESSIONS[index].ino.store(stat.st_ino, Ordering::Relaxed);
    SESSIONS[index].base.store(base, Ordering::Release);
    COUNT.store(index + 1, Ordering::Release);
    Some(index as u32)
}
