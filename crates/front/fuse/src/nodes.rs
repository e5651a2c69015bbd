//! The inodes that the kernel knows.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fuser::Errno;
use samite_fs::{FileKind, OpenFile};

const SHARDS: usize = 16;

/// One inode.
struct KernelNode {
    /// Names the file, and keeps nothing open.
    named: Arc<OpenFile>,
    /// How often the kernel was told of it and has not forgotten.
    lookups: u64,
    /// Open files of it, by handle number.
    open: Vec<(u64, Arc<OpenFile>)>,
}

/// Inode number → inode. The root is always in it.
pub struct NodeTable {
    shards: [Mutex<HashMap<u64, KernelNode>>; SHARDS],
    root: Arc<OpenFile>,
}

impl NodeTable {
    /// Only the root.
    pub fn new(root: OpenFile) -> Self {
        Self { shards: Default::default(), root: Arc::new(root) }
    }

    /// A handle of an inode. One that is open also works when the last name is gone, and knows its
    /// own writes.
    pub fn get(&self, ino: u64) -> Result<Arc<OpenFile>, Errno> {
        if ino == self.root.ino() {
            return Ok(self.root.clone());
        }
        let shard = self.lock(ino);
        let node = shard.get(&ino).ok_or(Errno::ESTALE)?;
        let open = node.open.iter().find(|(_, file)| file.flags().write).or(node.open.first());
        Ok(open.map_or(&node.named, |(_, file)| file).clone())
    }

    /// Whether the kernel was told of this inode and has not forgotten it.
    pub fn knows(&self, ino: u64) -> bool {
        ino == self.root.ino() || self.lock(ino).contains_key(&ino)
    }

    /// The kernel is being told of this file.
    pub fn remember(&self, file: OpenFile) {
        let ino = file.ino();
        if ino == self.root.ino() {
            return;
        }
        match self.lock(ino).entry(ino) {
            Entry::Occupied(mut entry) => entry.get_mut().lookups += 1,
            Entry::Vacant(entry) => {
                entry.insert(KernelNode { named: Arc::new(file), lookups: 1, open: Vec::new() });
            }
        }
    }

    /// The kernel is being told once more of a file that it knows.
    pub fn remember_again(&self, ino: u64) {
        if let Some(node) = self.lock(ino).get_mut(&ino) {
            node.lookups += 1;
        }
    }

    /// The kernel forgets `lookups` of the times that it was told of this inode. True: it knows it no more.
    pub fn forget(&self, ino: u64, lookups: u64) -> bool {
        let mut shard = self.lock(ino);
        if let Entry::Occupied(mut entry) = shard.entry(ino) {
            let node = entry.get_mut();
            node.lookups = node.lookups.saturating_sub(lookups);
            if node.lookups == 0 && node.open.is_empty() {
                entry.remove();
                return true;
            }
        }
        false
    }

    /// An open file of an inode.
    pub fn opened(&self, handle: u64, file: &Arc<OpenFile>) {
        if file.kind() == FileKind::File
            && let Some(node) = self.lock(file.ino()).get_mut(&file.ino())
        {
            node.open.push((handle, file.clone()));
        }
    }

    /// It is closed.
    pub fn closed(&self, handle: u64, ino: u64) {
        let mut shard = self.lock(ino);
        if let Entry::Occupied(mut entry) = shard.entry(ino) {
            let node = entry.get_mut();
            node.open.retain(|(number, _)| *number != handle);
            if node.lookups == 0 && node.open.is_empty() {
                entry.remove();
            }
        }
    }

    fn lock(&self, ino: u64) -> MutexGuard<'_, HashMap<u64, KernelNode>> {
        self.shards[ino as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }
}
