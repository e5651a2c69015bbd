//! The caller of operations: user, groups and umask of the program, as it has set them.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{CWD, Mode, OFlags};
use samite_fs::CallerContext;

use crate::real::NextSymbol;

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

/// User and group of the calling thread for files.
fn file_system_ids() -> (u32, u32) {
    static USER: NextSymbol = NextSymbol::new(c"setfsuid");
    static GROUP: NextSymbol = NextSymbol::new(c"setfsgid");
    type Set = extern "C" fn(u32) -> c_int;
    // An id that is none changes nothing; the answer is the one that is set.
    let ask = |symbol: &NextSymbol| {
        // SAFETY: both symbols have this signature in libc.
        let set = unsafe { std::mem::transmute::<*mut c_void, Set>(symbol.address()) };
        set(u32::MAX).cast_unsigned()
    };
    (ask(&USER), ask(&GROUP))
}

/// The ids of the calling thread: file systems look at ids of their own, which are the effective
/// ones until set.
fn of_thread() -> CallerContext {
    let mut context = CallerContext::of_process(0);
    (context.uid, context.gid) = file_system_ids();
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
