//! Open files and directories, by the number that the kernel uses for them.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use fuser::Errno;
use samite_fs::{DirEntry, DirHandle, OpenFile, ResolvedName};

const SHARDS: usize = 16;

/// One open file or directory.
pub struct OpenHandle {
    /// The file.
    pub file: Arc<OpenFile>,
    /// A writer without the right to keep them has taken the set-id bits off.
    pub has_no_set_id: AtomicBool,
    /// Of a directory.
    pub listing: Mutex<Option<HandleListing>>,
}

/// A listing under way.
pub struct HandleListing {
    pub entries: DirHandle,
    /// Read already, and not in a reply yet.
    pub ahead: VecDeque<NextEntry>,
}

/// An entry that comes next.
pub struct NextEntry {
    /// Position before it.
    pub before: u64,
    pub entry: DirEntry,
    /// The inode behind the name, if it was looked up.
    pub named: Option<ResolvedName>,
}

/// Handle number → open file.
#[derive(Default)]
pub struct HandleTable {
    shards: [RwLock<HashMap<u64, Arc<OpenHandle>>>; SHARDS],
    next: AtomicU64,
}

impl HandleTable {
    /// Gives a number to an open file.
    pub fn add(&self, file: Arc<OpenFile>) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        let handle =
            OpenHandle { file, has_no_set_id: AtomicBool::new(false), listing: Mutex::new(None) };
        self.shard(number)
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(number, Arc::new(handle));
        number
    }

    /// The open file with this number.
    pub fn get(&self, number: u64) -> Result<Arc<OpenHandle>, Errno> {
        let shard = self.shard(number).read().unwrap_or_else(PoisonError::into_inner);
        shard.get(&number).cloned().ok_or(Errno::EBADF)
    }

    /// Takes it out.
    pub fn remove(&self, number: u64) -> Result<Arc<OpenHandle>, Errno> {
        let mut shard = self.shard(number).write().unwrap_or_else(PoisonError::into_inner);
        shard.remove(&number).ok_or(Errno::EBADF)
    }

    fn shard(&self, number: u64) -> &RwLock<HashMap<u64, Arc<OpenHandle>>> {
        &self.shards[number as usize % SHARDS]
    }
}
