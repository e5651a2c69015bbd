//! Puts the arena's pages in place: in the background, and at the latest before a block is granted.
//!
//! The process that touches a page of shared memory first is charged for it. A client in a control
//! group of its own (a batch job, a container) would be killed for memory that is the node's, and
//! not be able to give it back. So it is granted only blocks whose pages are there.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
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
    /// A bit for each block whose pages were given back since.
    absent: Box<[AtomicU64]>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct PopulatorShared {
    stop: AtomicBool,
    /// Where the thread is to stop, as an offset.
    end: AtomicUsize,
    populated: AtomicU64,
    /// Held while pages are put in place or given back; whether the system refuses them.
    turn: Mutex<bool>,
    changed: Condvar,
}

impl ArenaPopulator {
    /// Starts it; it goes as far as `end`. Without it (no thread could be made) the arena works the same, with slower first touches.
    pub(super) fn start(mapping: Arc<ArenaMapping>, layout: &ArenaLayout, end: u64) -> Self {
        let shared = Arc::new(PopulatorShared::default());
        shared.end.store(end as usize, Ordering::Relaxed);
        let start = layout.lookup_offset() as usize;
        let thread = std::thread::Builder::new().name("populate".into()).spawn({
            let (shared, mapping) = (Arc::clone(&shared), Arc::clone(&mapping));
            move || {
                // Without the lower priority it still works; with it, it disturbs nobody.
                let _ = rustix::process::setpriority_process(None, NICE);
                shared.run(&mapping, start);
            }
        });
        let bits = || {
            let words = (layout.block_count() as usize).div_ceil(64);
            (0..words).map(|_| AtomicU64::new(0)).collect()
        };
        Self { shared, mapping, start, early: bits(), absent: bits(), thread: thread.ok() }
    }

    /// Sees to it that all pages of a block at `offset` are there. Where memory is short they may not come; then it says no.
    pub(super) fn ensure(&self, block: u32, offset: u64) -> bool {
        let offset = offset as usize;
        let (word, bit) = (block as usize / 64, 1 << (block % 64));
        let is_absent = self.absent[word].load(Ordering::Relaxed) & bit != 0;
        let is_passed = offset + BLOCK_LEN <= self.start + self.populated() as usize;
        if !is_absent && (is_passed || self.early[word].load(Ordering::Relaxed) & bit != 0) {
            return true;
        }
        match self.mapping.advise(offset, BLOCK_LEN, Advice::LinuxPopulateWrite) {
            Ok(()) => {}
            // Linux before 5.14.
            Err(Errno::INVAL) => self.touch(offset),
            Err(_) => return false,
        }
        self.early[word].fetch_or(bit, Ordering::Relaxed);
        self.absent[word].fetch_and(!bit, Ordering::Relaxed);
        true
    }

    /// Gives the pages of a block at `offset`, which nobody has, back to the system.
    pub(super) fn release(&self, block: u32, offset: u64) {
        self.absent[block as usize / 64].fetch_or(1 << (block % 64), Ordering::Relaxed);
        // Where it cannot be, they stay.
        let _ = self.mapping.release(offset as usize, BLOCK_LEN);
    }

    /// The thread is to go as far as `end` from now on. What it has put in place beyond, and beyond
    /// `unused`, where no block was ever taken, goes back to the system.
    pub(super) fn set_end(&self, end: u64, unused: u64) {
        // First: so the thread comes to rest soon.
        self.shared.end.store(end as usize, Ordering::SeqCst);
        let mut refused = self.shared.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let (from, reached) = (unused as usize, self.start + self.populated() as usize);
        if reached > from && self.mapping.release(from, reached - from).is_ok() {
            self.shared.populated.store((from - self.start) as u64, Ordering::Relaxed);
        }
        *refused = false;
        self.shared.changed.notify_one();
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
    fn run(&self, mapping: &ArenaMapping, start: usize) {
        let mut refused = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        while !self.stop.load(Ordering::SeqCst) {
            let offset = start + self.populated.load(Ordering::Relaxed) as usize;
            let left = self.end.load(Ordering::SeqCst).saturating_sub(offset);
            if left == 0 || *refused {
                refused = self.changed.wait(refused).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let len = STEP_LEN.min(left);
            // An old kernel, or no memory left: the rest is populated by use.
            match mapping.advise(offset, len, Advice::LinuxPopulateWrite) {
                Ok(()) => drop(self.populated.fetch_add(len as u64, Ordering::Relaxed)),
                Err(_) => *refused = true,
            }
            drop(refused);
            refused = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for ArenaPopulator {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        // It looks again, or has not begun to wait.
        drop(self.shared.turn.lock().unwrap_or_else(PoisonError::into_inner));
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // It cannot have panicked; and if it had, the arena would go all the same.
            let _ = thread.join();
        }
    }
}
