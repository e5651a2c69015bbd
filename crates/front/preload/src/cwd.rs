//! The working directory, when it is in the store.
//!
//! The kernel cannot stand in a directory of the store. While the program does, the kernel's own working directory is one
//! of `/proc`, where nothing can be made or removed: a relative path that goes round this library (a statically linked program)
//! fails, instead of hitting files that the user left behind with `cd`.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Bytes of a path below the store's root.
const LEN_MAX: usize = 4096;

static INSIDE: AtomicBool = AtomicBool::new(false);
/// Odd while the path is being changed.
static GENERATION: AtomicU32 = AtomicU32::new(0);
static LEN: AtomicUsize = AtomicUsize::new(0);
static PATH: [AtomicU64; LEN_MAX / 8] = [const { AtomicU64::new(0) }; LEN_MAX / 8];

/// A reader gives up after so many changes under its eyes.
const READS_MAX: u32 = 1 << 20;

/// Whether the working directory is in the store.
#[inline]
pub fn is_inside() -> bool {
    INSIDE.load(Ordering::Acquire)
}

/// The working directory below the store's root, starting with `/`. Takes no lock, so that a signal handler may ask.
pub fn path() -> Vec<u8> {
    let mut path = Vec::new();
    for _ in 0..READS_MAX {
        let generation = GENERATION.load(Ordering::Acquire);
        if generation.is_multiple_of(2) {
            let len = LEN.load(Ordering::Relaxed).min(LEN_MAX);
            path.clear();
            for word in &PATH[..len.div_ceil(8)] {
                path.extend_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
            }
            path.truncate(len);
            std::sync::atomic::fence(Ordering::Acquire);
            if GENERATION.load(Ordering::Relaxed) == generation {
                break;
            }
        }
        std::hint::spin_loop();
    }
    path
}

/// Enters `path`, below the store's root.
pub fn enter_store(path: &[u8]) {
    let path = &path[..path.len().min(LEN_MAX)];
    GENERATION.fetch_add(1, Ordering::AcqRel);
    for (word, bytes) in PATH.iter().zip(path.chunks(8)) {
        let mut raw = [0; 8];
        raw[..bytes.len()].copy_from_slice(bytes);
        word.store(u64::from_ne_bytes(raw), Ordering::Relaxed);
    }
    LEN.store(path.len(), Ordering::Relaxed);
    GENERATION.fetch_add(1, Ordering::AcqRel);
    INSIDE.store(true, Ordering::Release);
}

/// The working directory is the kernel's again.
pub fn leave_store() {
    INSIDE.store(false, Ordering::Release);
}

/// Puts the kernel's working directory where relative paths can change nothing.
pub fn park() {
    // Without /proc it stays where it is; nothing depends on it.
    let _ = rustix::process::chdir(c"/proc/self/fdinfo");
}
