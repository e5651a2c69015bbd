//! Puts the arena's pages in place: in the background, and at the latest before a block is granted.
//!
//! The process that touches a page of shared memory first is charged for it. A client in a control
//! group of its own (a batch job, a container) would be killed for memory that is the node's, and
//! not be able to give it back. So it is granted only blocks whose pages are there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use rustix::io::Errno;
use rustix::mm::Advice;
use samite_wire::limits::BLOCK_LEN;

use super::mapping::ArenaMapping;
use crate::layout::ArenaLayout;

/// Bytes populated by one call: few, because meanwhile no other thread can map memory. Where the host of a virtual machine has to find each page first, a
/// shard whose heap grew waited for milliseconds with calls of 2 MiB.
const STEP_LEN: usize = 128 << 10;

/// Lowest priority: the thread takes the time that the shards leave.
const NICE: i32 = 19;

/// Distance at which a page is touched where the kernel cannot be asked to put pages in place.
const PAGE_LEN: usize = 4096;

/// The thread that populates an arena; it ends with it.
pub(super) struct ArenaPopulator {
    shared: Arc<PopulatorShared>,
    mapping: Arc<ArenaMapping>,
    /// Where the thread began.
    start: usize,
    /// A bit for each block that was put in place before the thread came to it.
    early: Box<[AtomicU64]>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct PopulatorShared {
    stop: AtomicBool,
    populated: AtomicU64,
}

impl ArenaPopulator {
    /// Starts it. Without it (no thread could be made) the arena works the same, with slower first touches.
    pub(super) fn start(mapping: Arc<ArenaMapping>, layout: &ArenaLayout) -> Self {
        let shared = Arc::new(PopulatorShared::default());
        let start = layout.lookup_offset() as usize;
        let end = layout.total_len() as usize;
        let thread = std::thread::Builder::new().name("populate".into()).spawn({
            let (shared, mapping) = (Arc::clone(&shared), Arc::clone(&mapping));
            move || {
                // Without the lower priority it still works; with it, it disturbs nobody.
                let _ = rustix::process::setpriority_process(None, NICE);
                shared.run(&mapping, start, end);
            }
        });
        let words = (layout.block_count() as usize).div_ceil(64);
        let early = (0..words).map(|_| AtomicU64::new(0)).collect();
        Self { shared, mapping, start, early, thread: thread.ok() }
    }

    /// Sees to it that all pages of a block at `offset` are there. Where memory is short they may not come; then it says no.
    pub(super) fn ensure(&self, block: u32, offset: u64) -> bool {
        let offset = offset as usize;
        if offset + BLOCK_LEN <= self.start + self.populated() as usize {
            return true;
        }
        let (early, bit) = (&self.early[block as usize / 64], 1 << (block % 64));
        if early.load(Ordering::Relaxed) & bit != 0 {
            return true;
        }
        match self.mapping.advise(offset, BLOCK_LEN, Advice::LinuxPopulateWrite) {
            Ok(()) => {}
            // Linux before 5.14.
            Err(Errno::INVAL) => self.touch(offset),
            Err(_) => return false,
        }
        early.fetch_or(bit, Ordering::Relaxed);
        true
    }

    /// Writes to each page of a block what is there already.
    fn touch(&self, offset: usize) {
        for page in (offset..offset + BLOCK_LEN).step_by(PAGE_LEN) {
            self.mapping.word(page).fetch_or(0, Ordering::Relaxed);
        }
    }

    /// Bytes whose pages are in place.
    pub(super) fn populated(&self) -> u64 {
        self.shared.populated.load(Ordering::Relaxed)
    }
}

impl PopulatorShared {
    /// Goes upwards, as the arena does when it takes blocks that were never used.
    fn run(&self, mapping: &ArenaMapping, start: usize, end: usize) {
        let mut offset = start;
        while offset < end && !self.stop.load(Ordering::Relaxed) {
            let len = STEP_LEN.min(end - offset);
            // An old kernel, or no memory left: the rest is populated by use.
            if mapping.advise(offset, len, Advice::LinuxPopulateWrite).is_err() {
                return;
            }
            self.populated.fetch_add(len as u64, Ordering::Relaxed);
            offset += len;
        }
    }
}

impl Drop for ArenaPopulator {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It cannot have panicked; and if it had, the arena would go all the same.
            let _ = thread.join();
        }
    }
}
