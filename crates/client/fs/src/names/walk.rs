//! Path resolution.
//!
//! A [`PathWalk`] stands in a directory and has the rest of a path before it. It knows the directories that it came
//! through, so `..` goes
//! back to where it really came from, also behind symbolic links.

use std::borrow::Cow;
use std::ops::Range;

use samite_client::CompletedChange;
use samite_types::{Epoch, ErrorKind, Result};
use smallvec::SmallVec;

use crate::names::at::RelativePath;
use crate::names::cache::DirNode;
use crate::records::inode::Inode;
use crate::records::key::{self, ROOT_INO};
use crate::records::store::{FoundInode, RecordLocation, fail};
use crate::sharing::delegated::DelegationStamp;
use crate::sharing::open_snapshot::OpenSnapshot;
use crate::{CallerContext, FileKind, FileSystem, NAME_LEN_MAX, PATH_LEN_MAX, SYMLINKS_MAX};

/// Search permission.
pub const SEARCH: u16 = 1;
/// Write permission.
pub const WRITE: u16 = 2;
/// Read permission.
pub const READ: u16 = 4;

/// A resolution under way.
pub struct PathWalk<'a> {
    fs: &'a FileSystem,
    ctx: &'a CallerContext,
    /// Name-space generation under which everything here was found.
    pub epoch: Epoch,
    /// Directories from the start to here; never empty.
    stack: SmallVec<[DirNode; 8]>,
    /// Record location of the first directory of the stack, unless that is the root.
    base: Option<RecordLocation>,
    /// Absolute path of the top of the stack, without symbolic links; empty for the root.
    canon: SmallVec<[u8; 128]>,
    path: Cow<'a, [u8]>,
    /// How far `path` has been walked.
    done: usize,
    /// The last component, once the walk stands in its directory.
    name: Range<usize>,
    links: usize,
    /// Where a symbolic link led out of the store.
    outside: Option<Vec<u8>>,
    /// Slashes follow the last component: it must be a directory.
    pub wants_directory: bool,
    /// The file that is found is about to be opened: it gets an open reference.
    pub opens: bool,
    /// And then it is to be read.
    pub reads: bool,
    /// The snapshot that the look-up for opening returned.
    pub snapshot: Option<OpenSnapshot>,
    /// A delegation is wanted on what is made.
    pub leases: bool,
    /// The file that was made.
    pub made: Option<WalkEnd>,
}

/// The file that a walk has made at its end.
#[derive(Clone, Copy)]
pub struct WalkEnd {
    /// The file as it was made.
    pub inode: Inode,
    /// For how long it stays so.
    pub delegation: Option<DelegationStamp>,
    /// It was left with the node.
    pub completed: Option<CompletedChange>,
}

impl<'a> PathWalk<'a> {
    /// Starts at the root, or at the directory of `at`.
    pub fn start(
        fs: &'a FileSystem,
        ctx: &'a CallerContext,
        at: RelativePath<'a>,
        epoch: Epoch,
    ) -> Result<Self> {
        if at.path.is_empty() {
            return Err(fail(ErrorKind::NotFound));
        }
        if at.path.len() > PATH_LEN_MAX {
            return Err(fail(ErrorKind::NameTooLong));
        }
        let mut walk = Self {
            fs,
            ctx,
            epoch,
            stack: SmallVec::new(),
            base: None,
            canon: SmallVec::new(),
            path: Cow::Borrowed(at.path),
            done: 0,
            name: 0..0,
            links: 0,
            outside: None,
            wants_directory: false,
            opens: false,
            reads: false,
            snapshot: None,
            leases: false,
            made: None,
        };
        match at.dir {
            Some(dir) if at.path[0] != b'/' => {
                let (node, location) = dir.as_directory(epoch)?;
                walk.canon.extend_from_slice(dir.dir_path().unwrap_or_default());
                walk.base = (node.ino != ROOT_INO).then_some(location);
                walk.stack.push(node);
            }
            _ => walk.start_at_root()?,
        }
        Ok(walk)
    }

    fn start_at_root(&mut self) -> Result<()> {
        let root = match self.fs.inner.cache.get(self.epoch, ROOT_KEY) {
            Some(root) => root,
            None => {
                let location = self.fs.store().own(ROOT_INO);
                let node = self.fs.store().read(&location, self.epoch)?;
                let root = DirNode::of(&node.ok_or_else(|| fail(ErrorKind::NotFound))?.inode);
                self.fs.inner.cache.insert(self.epoch, ROOT_KEY, root);
                root
            }
        };
        self.stack.clear();
        self.stack.push(root);
        self.base = None;
        self.canon.clear();
        Ok(())
    }

    /// The directory that the walk stands in.
    pub fn dir(&self) -> DirNode {
        // Never empty: `start` pushes one, and only `climb` pops, when there are two.
        self.stack[self.stack.len() - 1]
    }

    /// The last component.
    pub fn name(&self) -> &[u8] {
        &self.path[self.name.clone()]
    }

    /// Record location of the last component's entry.
    pub fn entry(&self) -> RecordLocation {
        self.fs.inner.store.entry(self.dir().ino, self.name())
    }

    /// Path of the directory that the walk stands in, without symbolic links; `/` for the root.
    pub fn dir_path(&self) -> Box<[u8]> {
        if self.canon.is_empty() { b"/"[..].into() } else { self.canon.as_slice().into() }
    }

    /// Path of the last component's entry.
    pub fn entry_path(&self) -> Box<[u8]> {
        [&self.canon, &b"/"[..], self.name()].concat().into()
    }

    /// Whether the directory with this number is on the way here.
    pub fn came_through(&self, ino: u64) -> bool {
        self.stack.iter().any(|dir| dir.ino == ino)
    }

    /// Fails when this way leads through directory `ino`, which is to move to where it ends. The caller holds the lock of moves.
    pub fn check_outside(&self, ino: u64) -> Result<()> {
        let is_inside = self.came_through(ino)
            || match &self.base {
                Some(base) => self.fs.lies_within(base, ino)?,
                None => false,
            };
        if is_inside { Err(fail(ErrorKind::Invalid)) } else { Ok(()) }
    }

    /// Record location of the directory that the walk stands in.
    pub fn directory_location(&self) -> RecordLocation {
        let store = &self.fs.inner.store;
        if let [.., parent, _] = self.stack.as_slice() {
            let name = self.canon.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
            return store.entry(parent.ino, name);
        }
        self.base.clone().unwrap_or_else(|| store.own(ROOT_INO))
    }

    /// Goes to the directory of the last component. False: the path ends in the directory where the walk stands now
    /// (`/`, `.`, `..`).
    pub fn advance(&mut self) -> Result<bool> {
        loop {
            let rest = &self.path[self.done..];
            let start = self.done + rest.iter().take_while(|byte| **byte == b'/').count();
            if start == self.path.len() {
                return Ok(false);
            }
            let len = self.path[start..].iter().take_while(|byte| **byte != b'/').count();
            let end = start + len;
            self.done = end;
            let is_last = self.path[end..].iter().all(|byte| *byte == b'/');
            match &self.path[start..end] {
                b"." => {}
                b".." => self.climb()?,
                name if name.len() > NAME_LEN_MAX => return Err(fail(ErrorKind::NameTooLong)),
                _ => {
                    self.require(SEARCH)?;
                    self.name = start..end;
                    if is_last {
                        self.wants_directory |= end < self.path.len();
                        return Ok(true);
                    }
                    self.descend()?;
                }
            }
        }
    }

    /// Fails unless the caller has all of `mask` on the directory where the walk stands.
    pub fn require(&mut self, mask: u16) -> Result<()> {
        if self.dir().permits(self.ctx, mask) {
            return Ok(());
        }
        // Cached permissions may be narrower than the real ones: only taking some away raises the
        // name-space generation.
        let node = self.fs.store().lookup_location(&self.directory_location(), self.epoch)?;
        let node = node.ok_or_else(|| fail(ErrorKind::StaleLease))?;
        let fresh = DirNode::of(&node.inode);
        if let Some(top) = self.stack.last_mut() {
            *top = fresh;
        }
        let key = if fresh.ino == ROOT_INO { ROOT_KEY } else { &node.location.key };
        self.fs.inner.cache.insert(self.epoch, key, fresh);
        if fresh.permits(self.ctx, mask) { Ok(()) } else { Err(fail(ErrorKind::Denied)) }
    }

    fn climb(&mut self) -> Result<()> {
        self.require(SEARCH)?;
        if self.stack.len() > 1 {
            self.stack.pop();
            self.drop_last_of_canon();
        } else if self.base.is_some() {
            // Above an open directory: come down again from the root.
            self.drop_last_of_canon();
            let above = std::mem::take(&mut self.canon);
            self.start_at_root()?;
            let mut down = PathWalk {
                path: Cow::Owned(above.to_vec()),
                stack: self.stack.clone(),
                canon: SmallVec::new(),
                base: None,
                outside: None,
                snapshot: None,
                done: 0,
                name: 0..0,
                ..*self
            };
            while down.advance()? {
                down.descend()?;
            }
            let (stack, canon) = (down.stack, down.canon);
            self.stack = stack;
            self.canon = canon;
        }
        Ok(())
    }

    fn drop_last_of_canon(&mut self) {
        let cut = self.canon.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        self.canon.truncate(cut);
    }

    /// Enters the component in `name`.
    fn descend(&mut self) -> Result<()> {
        let key = key::entry(self.dir().ino, self.name());
        if let Some(node) = self.fs.inner.cache.get(self.epoch, &key) {
            self.push(node);
            return Ok(());
        }
        let location = self.fs.store().location(key);
        let node = self.fs.store().lookup_location(&location, self.epoch)?;
        let node = node.ok_or_else(|| fail(ErrorKind::NotFound))?;
        match (node.inode.kind, node.target) {
            (FileKind::Directory, _) => {
                let dir = DirNode::of(&node.inode);
                self.fs.inner.cache.insert(self.epoch, &location.key, dir);
                self.push(dir);
                Ok(())
            }
            (FileKind::Symlink, Some(target)) => self.follow(&target),
            _ => Err(fail(ErrorKind::NotDirectory)),
        }
    }

    fn push(&mut self, node: DirNode) {
        self.stack.push(node);
        self.canon.push(b'/');
        self.canon.extend_from_slice(&self.path[self.name.clone()]);
    }

    /// Puts the target of a symbolic link in the place of the component in `name`.
    pub fn follow(&mut self, target: &[u8]) -> Result<()> {
        self.links += 1;
        if self.links > SYMLINKS_MAX {
            return Err(fail(ErrorKind::Loop));
        }
        if target.is_empty() {
            return Err(fail(ErrorKind::NotFound));
        }
        let mut rest = target;
        if target[0] == b'/' {
            if let Some(mount_point) = &self.fs.inner.mount_point {
                let Some(below) = inside(mount_point, target) else {
                    self.outside = Some([target, &self.path[self.name.end..]].concat());
                    return Err(fail(ErrorKind::CrossDevice));
                };
                rest = below;
            }
            self.start_at_root()?;
        }
        let path = [rest, &self.path[self.name.end..]].concat();
        if path.len() > PATH_LEN_MAX {
            return Err(fail(ErrorKind::NameTooLong));
        }
        self.path = Cow::Owned(path);
        self.done = 0;
        self.name = 0..0;
        Ok(())
    }

    fn look_up_last(&mut self) -> Result<Option<FoundInode>> {
        let location = self.entry();
        self.look_up(&location)
    }

    /// The inode in `location`; with an open reference if it is about to be opened.
    pub fn look_up(&mut self, location: &RecordLocation) -> Result<Option<FoundInode>> {
        if !self.opens {
            return self.fs.store().lookup_location(location, self.epoch);
        }
        let reads = self.reads.then(|| self.dir().semantics);
        let found = self.fs.lookup_to_open(location, self.epoch, reads)?;
        let Some((node, snapshot)) = found else {
            return Ok(None);
        };
        self.snapshot = snapshot;
        Ok(Some(node))
    }

    /// The file that the path names; a symbolic link is followed if `follow`. `None`: there is no
    /// such entry, and the walk stands in the directory where it would be.
    pub fn find(&mut self, follow: bool) -> Result<Option<FoundInode>> {
        loop {
            if !self.advance()? {
                let location = self.directory_location();
                return match self.look_up(&location)? {
                    Some(node) if node.inode.ino == self.dir().ino => Ok(Some(node)),
                    found => {
                        if let Some(node) = found {
                            self.fs.let_go(&node)?;
                        }
                        self.fs.inner.cache.clear();
                        Err(fail(ErrorKind::StaleLease))
                    }
                };
            }
            let Some(node) = self.look_up_last()? else { return Ok(None) };
            match &node.target {
                Some(target) if follow || self.wants_directory => {
                    self.fs.let_go(&node)?;
                    self.follow(target)?;
                }
                _ if self.wants_directory && !node.inode.is_directory() => {
                    self.fs.let_go(&node)?;
                    return Err(fail(ErrorKind::NotDirectory));
                }
                _ => return Ok(Some(node)),
            }
        }
    }
}

/// Key of the root in the cache.
const ROOT_KEY: &[u8] = b"h\0\0\0\0\0\0\0\x01";

/// The part of the absolute path `target` below `mount_point`.
fn inside<'t>(mount_point: &[u8], target: &'t [u8]) -> Option<&'t [u8]> {
    match target.strip_prefix(mount_point)? {
        b"" => Some(b"/"),
        rest if rest[0] == b'/' => Some(rest),
        _ => None,
    }
}

impl FileSystem {
    /// Where `at` leads when a symbolic link on the way leaves the store (then other calls fail with `CrossDevice`): an
    /// absolute path, to be resolved by the operating system. `None` when it stays inside.
    ///
    /// # Errors
    /// As of [`FileSystem::stat`].
    pub fn way_out<'a>(
        &self,
        ctx: &CallerContext,
        at: impl Into<RelativePath<'a>>,
        follow: bool,
    ) -> Result<Option<Vec<u8>>> {
        let at = at.into();
        self.under_lease(|epoch| {
            let mut walk = PathWalk::start(self, ctx, at, epoch)?;
            match walk.find(follow) {
                Err(error) if error.kind() == ErrorKind::CrossDevice => Ok(walk.outside.take()),
                result => result.map(|_| None),
            }
        })
    }

    /// Resolves `at` to a file that must exist.
    pub(crate) fn resolve(
        &self,
        ctx: &CallerContext,
        at: RelativePath<'_>,
        follow: bool,
    ) -> Result<FoundInode> {
        self.under_lease(|epoch| {
            PathWalk::start(self, ctx, at, epoch)?
                .find(follow)?
                .ok_or_else(|| fail(ErrorKind::NotFound))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_under_the_mount_point_stay_inside() {
        assert_eq!(inside(b"/samite", b"/samite/a"), Some(&b"/a"[..]));
        assert_eq!(inside(b"/samite", b"/samite"), Some(&b"/"[..]));
        assert_eq!(inside(b"/samite", b"/samite2"), None);
        assert_eq!(inside(b"/samite", b"/etc"), None);
    }

    #[test]
    fn the_cache_key_of_the_root_is_its_record_key() {
        assert_eq!(&*key::own(ROOT_INO), ROOT_KEY);
    }
}
