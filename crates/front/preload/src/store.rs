//! The connection to the store, and who the caller is.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use samite_client::Client;
use samite_fs::{CallerContext, FileSystem};
use samite_types::Result;

use crate::hooks::identity;
use crate::{locks, path_class, raw, start_environment};

/// Dataset of files that programs see.
const DATASET: &str = "files";

struct PreloadStore {
    client: Client,
    fs: FileSystem,
}

static STORE: OnceLock<PreloadStore> = OnceLock::new();
static CONNECTING: Mutex<()> = Mutex::new(());

fn store() -> Result<&'static PreloadStore, Errno> {
    if let Some(store) = STORE.get() {
        return Ok(store);
    }
    connect()
}

/// First touch. A failure is not remembered: the store may be there the next time.
#[cold]
fn connect() -> Result<&'static PreloadStore, Errno> {
    let _one_at_a_time = CONNECTING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(store) = STORE.get() {
        return Ok(store);
    }
    let open = || {
        let client = start_environment::client()?;
        let fs = FileSystem::open_mounted(&client, DATASET, Some(path_class::prefix()))?;
        // They leave with `flush`, before this process forks or ends.
        fs.defer_files(true);
        Ok(PreloadStore { client, fs })
    };
    let store = open().map_err(|error: samite_types::Error| error.kind().errno())?;
    Ok(STORE.get_or_init(|| store))
}

/// Runs a call of the file system.
pub fn call<T>(work: impl FnOnce(&FileSystem) -> Result<T>) -> Result<T, Errno> {
    work(&store()?.fs).map_err(|error| error.kind().errno())
}

/// Runs a call of the file system in the name of the calling process.
pub fn call_as<T>(work: impl FnOnce(&FileSystem, &CallerContext) -> Result<T>) -> Result<T, Errno> {
    let fs = &store()?.fs;
    work(fs, &context()).map_err(|error| error.kind().errno())
}

/// Sends the files that this process has deferred.
pub fn flush() -> Result<(), Errno> {
    STORE.get().map_or(Ok(()), |store| store.fs.flush().map_err(|error| error.kind().errno()))
}

/// Sends the files that this process has deferred; a failure is told later.
pub fn send_early() {
    if let Some(store) = STORE.get() {
        store.fs.send_early();
    }
}

/// Sends the files that this process has deferred, and prints failures on its standard error that
/// can be told nowhere else any more.
pub fn flush_at_end() {
    const STANDARD_ERROR: c_int = 2;
    let Some(store) = STORE.get() else { return };
    let first = store.fs.flush().err();
    for failure in first.into_iter().chain(store.fs.late_failures()) {
        let line = format!("samite: {failure}\n");
        // A program may have closed it.
        let _ = raw::write(STANDARD_ERROR, line.as_bytes(), None);
    }
}

/// Whether a descriptor belongs to a connection of the store.
pub fn is_connection(fd: c_int) -> bool {
    STORE.get().is_some_and(|store| {
        store.client.descriptors().contains(&fd) || locks::descriptors().contains(&fd)
    })
}

/// Descriptors of the connections.
pub fn connections() -> Vec<c_int> {
    let mut all = STORE.get().map(|store| store.client.descriptors()).unwrap_or_default();
    all.extend(locks::descriptors());
    all
}

/// In the child of a fork.
pub fn after_fork_child() {
    if let Some(store) = STORE.get() {
        store.client.after_fork_child();
        store.fs.after_fork_child();
    }
}

const UMASK_UNKNOWN: u32 = u32::MAX;
static UMASK: AtomicU32 = AtomicU32::new(UMASK_UNKNOWN);
static IDENTITY_CHANGED: AtomicBool = AtomicBool::new(false);
static EACH_THREAD: AtomicBool = AtomicBool::new(false);
static IDENTITY: Mutex<Option<CallerContext>> = Mutex::new(None);

/// The program set its umask.
pub fn set_umask(umask: u32) {
    UMASK.store(umask & 0o777, Ordering::Relaxed);
}

/// The program set its user or groups.
pub fn identity_changed() {
    IDENTITY_CHANGED.store(true, Ordering::Release);
}

/// A thread of the program set its own user or groups, past libc, which keeps all threads the same.
pub fn identity_is_the_threads_own() {
    EACH_THREAD.store(true, Ordering::Release);
}

/// The ids of the calling thread: file systems look at ids of their own, which are the effective
/// ones until set.
fn of_thread() -> CallerContext {
    let mut context = CallerContext::of_process(0);
    (context.uid, context.gid) = identity::file_system_ids();
    context
}

/// The context for `access`, which asks for the real user unless told otherwise.
pub fn real_context() -> CallerContext {
    let mut context = context();
    context.uid = rustix::process::getuid().as_raw();
    context.gid = rustix::process::getgid().as_raw();
    context
}

/// The caller of operations: asked of the kernel once, and again after the program changed it.
pub fn context() -> CallerContext {
    let umask = match UMASK.load(Ordering::Relaxed) {
        UMASK_UNKNOWN => {
            let umask = read_umask().unwrap_or(0o022);
            set_umask(umask);
            umask
        }
        umask => umask,
    };
    if EACH_THREAD.load(Ordering::Acquire) {
        let mut context = of_thread();
        context.umask = umask;
        return context;
    }
    let mut known = IDENTITY.lock().unwrap_or_else(PoisonError::into_inner);
    if IDENTITY_CHANGED.swap(false, Ordering::AcqRel) {
        *known = None;
    }
    let mut context = known.get_or_insert_with(|| CallerContext::of_process(0)).clone();
    context.umask = umask;
    context
}

/// The umask, from `/proc`: umask(2) tells it only by changing it, which other threads would notice.
fn read_umask() -> Option<u32> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(CWD, c"/proc/self/status", flags, Mode::empty()).ok()?;
    let mut text = [0; 256];
    let len = rustix::io::read(&file, &mut text).ok()?;
    let line =
        text[..len].split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"Umask:"))?;
    u32::from_str_radix(std::str::from_utf8(line).ok()?.trim(), 8).ok()
}
