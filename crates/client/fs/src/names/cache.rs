//! Cached directories: entry key → directory, valid under one name-space generation.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use samite_placement::BuildKeyHasher;
use samite_types::Epoch;

use crate::records::inode::Inode;
use crate::{CallerContext, FileSemantics};

/// Most directories cached; the cache starts anew when it is full.
const DIRECTORIES_MAX: usize = 1 << 16;

/// A directory, as far as path resolution needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirNode {
    pub ino: u64,
    pub perm: u16,
    pub uid: u32,
    pub gid: u32,
    pub semantics: FileSemantics,
}

impl DirNode {
    pub const fn of(inode: &Inode) -> Self {
        Self {
            ino: inode.ino,
            perm: inode.perm,
            uid: inode.uid,
            gid: inode.gid,
            semantics: inode.semantics,
        }
    }

    /// Whether the caller has all of `mask` (4 read, 2 write, 1 search) here.
    pub fn permits(&self, ctx: &CallerContext, mask: u16) -> bool {
        permits(ctx, self.perm, self.uid, self.gid, true, mask)
    }

    pub const fn is_sticky(&self) -> bool {
        self.perm & 0o1000 != 0
    }

    pub const fn is_setgid(&self) -> bool {
        self.perm & 0o2000 != 0
    }
}

/// Whether the caller has all of `mask` (4 read, 2 write, 1 execute) on a file. Root may do all, but execute only what
/// someone may execute.
pub fn permits(
    ctx: &CallerContext,
    perm: u16,
    uid: u32,
    gid: u32,
    is_dir: bool,
    mask: u16,
) -> bool {
    if ctx.may_all() {
        return mask & 1 == 0 || is_dir || perm & 0o111 != 0;
    }
    let granted = if ctx.uid == uid {
        perm >> 6
    } else if ctx.in_group(gid) {
        perm >> 3
    } else {
        perm
    };
    granted & mask == mask
}

type Map = HashMap<Box<[u8]>, DirNode, BuildKeyHasher>;

/// The cache. All its directories were looked up under its name-space generation.
#[derive(Default)]
pub struct DirCache {
    epoch: AtomicU64,
    map: RwLock<Map>,
}

impl DirCache {
    /// Empties the cache unless it is of this name-space generation.
    pub fn start_epoch(&self, epoch: Epoch) {
        if self.epoch.load(Ordering::Acquire) < epoch.get() {
            let mut map = self.write();
            if self.epoch.load(Ordering::Acquire) < epoch.get() {
                map.clear();
                self.epoch.store(epoch.get(), Ordering::Release);
            }
        }
    }

    pub fn get(&self, epoch: Epoch, key: &[u8]) -> Option<DirNode> {
        let map = self.read();
        if self.epoch.load(Ordering::Acquire) != epoch.get() {
            return None;
        }
        map.get(key).copied()
    }

    /// Keeps the directory that a look-up under the name-space generation `epoch` found, unless the
    /// cache has moved on.
    pub fn insert(&self, epoch: Epoch, key: &[u8], node: DirNode) {
        let mut map = self.write();
        if self.epoch.load(Ordering::Acquire) != epoch.get() {
            return;
        }
        if map.len() >= DIRECTORIES_MAX {
            map.clear();
        }
        map.insert(key.into(), node);
    }

    pub fn remove(&self, key: &[u8]) {
        self.write().remove(key);
    }

    pub fn clear(&self) {
        self.write().clear();
    }

    /// After this process alone raised the name-space generation from `epoch - 1` to `epoch`, for
    /// the directory behind `key`: the rest is still valid.
    pub fn step(&self, epoch: Epoch, key: &[u8]) {
        let mut map = self.write();
        map.remove(key);
        let next = self.epoch.load(Ordering::Acquire) + 1;
        if next == epoch.get() {
            self.epoch.store(next, Ordering::Release);
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Map> {
        self.map.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Map> {
        self.map.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: DirNode =
        DirNode { ino: 7, perm: 0o750, uid: 1, gid: 2, semantics: FileSemantics::Posix };

    #[test]
    fn a_newer_epoch_empties_it_and_late_finds_are_dropped() {
        let cache = DirCache::default();
        cache.start_epoch(Epoch(3));
        cache.insert(Epoch(3), b"a", NODE);
        assert_eq!(cache.get(Epoch(3), b"a"), Some(NODE));
        cache.start_epoch(Epoch(4));
        cache.insert(Epoch(3), b"b", NODE);
        assert_eq!(cache.get(Epoch(4), b"a"), None);
        assert_eq!(cache.get(Epoch(4), b"b"), None);
    }

    #[test]
    fn an_own_step_keeps_the_rest() {
        let cache = DirCache::default();
        cache.start_epoch(Epoch(3));
        cache.insert(Epoch(3), b"a", NODE);
        cache.insert(Epoch(3), b"b", NODE);
        cache.step(Epoch(4), b"a");
        assert_eq!(cache.get(Epoch(4), b"a"), None);
        assert_eq!(cache.get(Epoch(4), b"b"), Some(NODE));
        cache.step(Epoch(6), b"x");
        assert_eq!(cache.get(Epoch(6), b"b"), None);
    }

    #[test]
    fn permissions_go_by_the_first_class_that_matches() {
        let user = |uid, gid| CallerContext { uid, gid, ..CallerContext::default() };
        assert!(NODE.permits(&user(1, 9), 7));
        assert!(NODE.permits(&user(9, 2), 5));
        assert!(!NODE.permits(&user(9, 2), 2));
        assert!(!NODE.permits(&user(9, 9), 1));
        assert!(NODE.permits(&user(0, 0), 7));
        assert!(!permits(&user(0, 0), 0o644, 0, 0, false, 1));
        assert!(!permits(&user(1, 2), 0o077, 1, 2, false, 4));
    }
}
