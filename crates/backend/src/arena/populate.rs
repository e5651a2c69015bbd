//! Puts the arena's pages in place, in the background.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use rustix::mm::Advice;
use samite_wire::arena::ArenaLayout;

use super::mapping::Mapping;

/// Bytes populated by one call: few, because meanwhile no other thread can map memory. Where the host of a virtual machine has to find each page first, a
/// shard whose heap grew waited for milliseconds with calls of 2 MiB.
const STEP_LEN: usize = 128 << 10;

/// Lowest priority: the thread takes what the shards leave.
const NICE: i32 = 19;

/// The thread that populates an arena; it ends with it.
#[derive(Debug)]
pub(super) struct Populator {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    populated: AtomicU64,
}

impl Populator {
    /// Starts it. Without it (no thread could be made) the arena works the same, with slower first touches.
    pub(super) fn start(mapping: Arc<Mapping>, layout: &ArenaLayout) -> Self {
        let shared = Arc::new(Shared::default());
        let start = layout.board_offset() as usize;
        let end = layout.total_len() as usize;
        let thread = std::thread::Builder::new().name("populate".into()).spawn({
            let shared = Arc::clone(&shared);
            move || {
                // Without the lower priority it still works; with it, it disturbs nobody.
                let _ = rustix::process::setpriority_process(None, NICE);
                shared.run(&mapping, start, end);
            }
        });
        Self { shared, thread: thread.ok() }
    }

    /// Bytes whose pages are in place.
    pub(super) fn populated(&self) -> u64 {
        self.shared.populated.load(Ordering::Relaxed)
    }
}

impl Shared {
    /// Goes upwards, as the arena does when it takes blocks that were never used.
    fn run(&self, mapping: &Mapping, start: usize, end: usize) {
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

impl Drop for Populator {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It cannot have panicked; and if it had, the arena would go all the same.
            let _ = thread.join();
        }
    }
}
