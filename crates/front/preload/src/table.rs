//! Which descriptor is which open file of the store.
//!
//! A hook on any other descriptor pays one array load. The array holds pointers to [`OpenDescription`]s, which are never freed but
//! used again, so that a reader may look at one that is just being closed: it counts itself in, then checks that the
//! descriptor still means the same.

use std::cell::Cell;
use std::ffi::c_int;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;
use samite_fs::{OpenFile, OpenState};

use crate::description_locks::DescriptionLocks;
use crate::session::{self, DescriptionSlot, SlotId};
use crate::store;

/// Numbers that can be open files of the store; untouched parts of the array cost nothing.
const NUMBERS: usize = 1 << 20;

static TABLE: [AtomicPtr<OpenDescription>; NUMBERS] =
    [const { AtomicPtr::new(null_mut()) }; NUMBERS];
/// One more than the highest number ever used.
static END: AtomicI32 = AtomicI32::new(0);
/// Descriptions that are not in use, and the right to take slots.
static SPARE: Mutex<Vec<&'static OpenDescription>> = Mutex::new(Vec::new());

thread_local! {
    /// The description that this thread is about to give a descriptor. Plain memory.
    static INSTALLED: Cell<Option<SlotId>> = const { Cell::new(None) };
}

/// An open file description: the state that several descriptors share after `dup`.
pub struct OpenDescription {
    /// Descriptors and calls in progress that use it; 0: spare.
    users: AtomicU32,
    /// [`SlotId`], packed.
    slot: AtomicU64,
    /// Null until needed when the description was inherited over `exec`.
    file: AtomicPtr<OpenFile>,
    /// This process wrote since it last settled the file.
    dirty: AtomicBool,
    /// It was inherited over `fork`: only another process has the open reference.
    is_borrowed: AtomicBool,
    /// Locks that belong to it.
    pub locks: DescriptionLocks,
    /// Scratch of `exec`: some descriptor of it stays open.
    pub survives: AtomicBool,
    /// Scratch of `exec`: given up already, unless the `exec` fails.
    pub is_gone: AtomicBool,
}

/// A use of a [`OpenDescription`].
pub struct DescriptionUse(&'static OpenDescription);

impl Deref for DescriptionUse {
    type Target = OpenDescription;

    fn deref(&self) -> &OpenDescription {
        self.0
    }
}

impl Clone for DescriptionUse {
    fn clone(&self) -> Self {
        self.0.users.fetch_add(1, Ordering::Relaxed);
        Self(self.0)
    }
}

impl Drop for DescriptionUse {
    fn drop(&mut self) {
        if self.0.users.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.retire();
        }
    }
}

impl OpenDescription {
    fn slot_id(&self) -> SlotId {
        let packed = self.slot.load(Ordering::Relaxed);
        SlotId { session: (packed >> 32) as u32, slot: packed as u32 }
    }

    /// The part shared with other processes.
    pub fn slot(&self) -> &'static DescriptionSlot {
        static LOST: DescriptionSlot = DescriptionSlot::none();
        session::slot(self.slot_id()).unwrap_or(&LOST)
    }

    /// `O_*` flags as `F_GETFL` tells them.
    pub fn status(&self) -> c_int {
        self.slot().status.load(Ordering::Relaxed).cast_signed()
    }

    /// A descriptor that only names a file (`O_PATH`) is none for most calls.
    pub fn check_open(&self) -> Result<(), Errno> {
        if self.status() & libc::O_PATH != 0 { Err(Errno::BADF) } else { Ok(()) }
    }

    /// Whether it is open for reading.
    pub fn check_readable(&self) -> Result<(), Errno> {
        let status = self.status();
        if status & libc::O_PATH != 0 || status & libc::O_ACCMODE == libc::O_WRONLY {
            return Err(Errno::BADF);
        }
        Ok(())
    }

    /// Whether it is open for writing.
    pub fn check_writable(&self) -> Result<(), Errno> {
        let status = self.status();
        if status & libc::O_PATH != 0 || status & libc::O_ACCMODE == libc::O_RDONLY {
            return Err(Errno::BADF);
        }
        Ok(())
    }

    /// The open file; opened again first when it was inherited over `exec`.
    pub fn file(&self) -> Result<&OpenFile, Errno> {
        let known = self.file.load(Ordering::Acquire);
        if !known.is_null() {
            // SAFETY: the file lives until the last use of the description ends, and `self` is one.
            let file = unsafe { &*known };
            if self.is_borrowed.load(Ordering::Relaxed) {
                self.hold(file);
            }
            return Ok(file);
        }
        let state = self.slot().state().ok_or(Errno::BADF)?;
        let state = OpenState::decode(state).map_err(|error| error.kind().errno())?;
        let file = store::call(|fs| Ok(fs.reopen(&state)))?;
        let fresh = Box::into_raw(Box::new(file));
        let winner = match self.file.compare_exchange(
            null_mut(),
            fresh,
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            Ok(_) => {
                // SAFETY: as above.
                self.hold(unsafe { &*fresh });
                fresh
            }
            Err(other) => {
                // SAFETY: nobody else has seen `fresh`.
                let fresh = unsafe { Box::from_raw(fresh) };
                fresh.leave();
                other
            }
        };
        // SAFETY: as above.
        Ok(unsafe { &*winner })
    }

    /// The first use of a file that was opened by another process.
    #[cold]
    fn hold(&self, file: &OpenFile) {
        self.is_borrowed.store(false, Ordering::Relaxed);
        // A change that comes too late shows when it is used.
        let _ = file.reference_again();
    }

    /// The open file, if it was used in this process.
    fn file_if_used(&self) -> Option<&OpenFile> {
        // SAFETY: as in `file`.
        unsafe { self.file.load(Ordering::Acquire).as_ref() }
    }

    /// The program writes.
    pub fn mark_dirty(&self) {
        self.dirty.store(true, Ordering::Relaxed);
    }

    /// Makes size and times of what this process wrote final.
    pub fn settle(&self) -> Result<(), Errno> {
        if self.dirty.swap(false, Ordering::Relaxed)
            && let Some(file) = self.file_if_used()
        {
            file.fsync().map_err(|error| error.kind().errno())?;
        }
        Ok(())
    }

    /// Before it gets into another process: makes the socket that keeps its locks and the file
    /// alive.
    pub fn share(&self) {
        let holder = self.file_if_used().and_then(OpenFile::reference_connection);
        self.locks.share(self.slot(), holder);
    }

    /// Writes down what another process needs to go on with the file.
    fn describe(&self) {
        if let Some(file) = self.file_if_used()
            && let Ok(state) = file.state()
        {
            self.slot().describe(&state.encode());
        }
    }

    /// At the end of the process: as the last close of it, except that libc may still write.
    pub fn let_go_at_exit(&self) {
        if self.slot().let_go() {
            self.free_locks();
            match self.file_if_used() {
                // Nobody is left to hear of a failure.
                Some(file) => drop(file.close()),
                None => self.close_unused(),
            }
        }
    }

    /// The last close of a file that this process inherited and never used: worth a connection only
    /// when much may depend on it. Otherwise the open reference ends with the process that opened
    /// the file.
    fn close_unused(&self) {
        let state = self.slot().state().and_then(|state| OpenState::decode(state).ok());
        if let Some(state) = state
            && state.is_urgent()
        {
            let _ = store::call(|fs| fs.reopen(&state).close());
        }
    }

    /// No process has the description any more: nor its locks.
    fn free_locks(&self) {
        if self.slot().lock_client.load(Ordering::Acquire) != 0 {
            // This may run outside a guard.
            let _ = catch_unwind(AssertUnwindSafe(|| {
                if let Ok(file) = self.file() {
                    self.locks.release(self.slot(), file.ino());
                }
            }));
        }
    }

    /// The last use has ended.
    #[cold]
    fn retire(&'static self) {
        let was_last = self.slot().let_go();
        if was_last {
            self.free_locks();
        }
        self.locks.end();
        let file = self.file.swap(null_mut(), Ordering::AcqRel);
        if was_last {
            // This has no one to report to: the program's own close settled the file before. It may run outside a guard.
            let _ = catch_unwind(AssertUnwindSafe(|| {
                // SAFETY: as in `file`; the box is dropped below only.
                match unsafe { file.as_ref() } {
                    Some(file) => drop(file.close()),
                    None => self.close_unused(),
                }
            }));
            session::free(self.slot_id());
        }
        if !file.is_null() {
            // SAFETY: it came from Box::into_raw, and this was its last use.
            let file = unsafe { Box::from_raw(file) };
            file.leave();
        }
        self.dirty.store(false, Ordering::Relaxed);
        self.is_borrowed.store(false, Ordering::Relaxed);
        SPARE.lock().unwrap_or_else(PoisonError::into_inner).push(self);
    }
}

/// The open file of the store behind a descriptor.
#[inline]
pub fn get(fd: c_int) -> Option<DescriptionUse> {
    let entry = TABLE.get(usize::try_from(fd).ok()?)?;
    if entry.load(Ordering::Relaxed).is_null() { None } else { get_slow(entry) }
}

/// Whether a descriptor is of the store.
#[inline]
pub fn has(fd: c_int) -> bool {
    usize::try_from(fd)
        .ok()
        .and_then(|fd| TABLE.get(fd))
        .is_some_and(|entry| !entry.load(Ordering::Relaxed).is_null())
}

fn get_slow(entry: &AtomicPtr<OpenDescription>) -> Option<DescriptionUse> {
    loop {
        let found = entry.load(Ordering::Acquire);
        // SAFETY: descriptions are never freed.
        let description: &'static OpenDescription = unsafe { found.as_ref() }?;
        let users = description.users.load(Ordering::Relaxed);
        if users == 0 {
            // Retired between the two loads; the entry has changed.
            std::hint::spin_loop();
            continue;
        }
        let counted = description.users.compare_exchange_weak(
            users,
            users + 1,
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
        if counted.is_ok() {
            let open = DescriptionUse(description);
            if entry.load(Ordering::Acquire) == found {
                return Some(open);
            }
        }
    }
}

fn spare() -> &'static OpenDescription {
    let spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let description = spare.unwrap_or_else(|| {
        Box::leak(Box::new(OpenDescription {
            users: AtomicU32::new(0),
            slot: AtomicU64::new(0),
            file: AtomicPtr::new(null_mut()),
            dirty: AtomicBool::new(false),
            is_borrowed: AtomicBool::new(false),
            locks: DescriptionLocks::new(),
            survives: AtomicBool::new(false),
            is_gone: AtomicBool::new(false),
        }))
    });
    description.users.store(1, Ordering::Release);
    description
}

/// Gives an open file the lowest free descriptor.
pub fn install(file: OpenFile, status: c_int, close_on_exec: bool) -> Result<c_int, Errno> {
    static TAKING: Mutex<()> = Mutex::new(());
    let id = {
        let _one_at_a_time = TAKING.lock().unwrap_or_else(PoisonError::into_inner);
        session::take(status.cast_unsigned())?
    };
    let description = spare();
    description.slot.store(pack(id), Ordering::Relaxed);
    description.file.store(Box::into_raw(Box::new(file)), Ordering::Release);
    let open = DescriptionUse(description);
    INSTALLED.set(Some(id));
    let installed =
        session::placeholder(id, close_on_exec).and_then(|fd| set(fd, open).map(|()| fd));
    INSTALLED.set(None);
    installed
}

fn pack(id: SlotId) -> u64 {
    u64::from(id.session) << 32 | u64::from(id.slot)
}

/// Takes over a description from before `exec`, for one descriptor or several.
pub fn take_over(id: SlotId) -> Option<DescriptionUse> {
    session::slot(id)?;
    let description = spare();
    description.slot.store(pack(id), Ordering::Relaxed);
    Some(DescriptionUse(description))
}

/// Lets `fd` mean `open`; the description that it meant before is closed.
pub fn set(fd: c_int, open: DescriptionUse) -> Result<(), Errno> {
    let entry = usize::try_from(fd).ok().and_then(|fd| TABLE.get(fd)).ok_or(Errno::MFILE)?;
    END.fetch_max(fd + 1, Ordering::AcqRel);
    let before = entry.swap(std::ptr::from_ref(open.0).cast_mut(), Ordering::AcqRel);
    std::mem::forget(open);
    end_use(before);
    Ok(())
}

/// `fd` is of the store no more; its description, when it was.
pub fn remove(fd: c_int) -> Option<DescriptionUse> {
    let entry = usize::try_from(fd).ok().and_then(|fd| TABLE.get(fd))?;
    let before = entry.swap(null_mut(), Ordering::AcqRel);
    // SAFETY: descriptions are never freed; the entry's use passes to the caller.
    unsafe { before.as_ref() }.map(DescriptionUse)
}

fn end_use(before: *mut OpenDescription) {
    // SAFETY: descriptions are never freed; the entry's use ends here.
    drop(unsafe { before.as_ref() }.map(DescriptionUse));
}

/// Whether no file of the store was ever open here.
pub fn is_unused() -> bool {
    END.load(Ordering::Relaxed) == 0
}

/// Every descriptor of the store from `first` on.
pub fn each_from(first: c_int) -> impl Iterator<Item = (c_int, DescriptionUse)> {
    (first.max(0)..END.load(Ordering::Acquire)).filter_map(|fd| get(fd).map(|open| (fd, open)))
}

/// Describes an open file for another process.
pub fn describe(open: &DescriptionUse) -> Result<(), Errno> {
    // A description that was inherited and not used is described already.
    open.file()?;
    open.describe();
    if open.slot().state().is_some() { Ok(()) } else { Err(Errno::NAMETOOLONG) }
}

/// The place of a description, for [`take_over`] in another program.
pub fn slot_id(open: &DescriptionUse) -> SlotId {
    open.slot_id()
}

/// Before `fork` or `exec`: describes every open file for the other process.
pub fn describe_all() {
    for (_, open) in each_from(0) {
        open.describe();
    }
}

/// Before `fork`: the child has everything open too. That includes a description to which a signal
/// handler that forks has kept its own thread from giving a descriptor: parent and child both go on
/// with that.
pub fn hold_for_child() {
    let mut installed = INSTALLED.get();
    each_description(|open| {
        installed = installed.filter(|id| *id != open.slot_id());
        open.slot().open_reference();
    });
    if let Some(slot) = installed.and_then(session::slot) {
        slot.open_reference();
    }
}

/// Before `fork`: locks are kept for the processes that have their descriptions.
pub fn share_locks() {
    each_description(|open| open.share());
}

/// Calls `visit` once for each description.
pub fn each_description(mut visit: impl FnMut(&DescriptionUse)) {
    for (_, open) in each_from(0) {
        open.survives.store(false, Ordering::Relaxed);
    }
    for (_, open) in each_from(0) {
        if !open.survives.swap(true, Ordering::Relaxed) {
            visit(&open);
        }
    }
}

/// In the child of a fork: writes of the parent are the parent's to settle.
pub fn after_fork_child() {
    for (_, open) in each_from(0) {
        open.dirty.store(false, Ordering::Relaxed);
        open.is_borrowed.store(true, Ordering::Relaxed);
        open.locks.after_fork_child();
    }
}
