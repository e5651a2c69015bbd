//! Links: symbolic ones are read, hard ones made.
//!
//! A file with one link lives in its entry. With the second link its inode moves to a record of its own, and the
//! entries only
//! point to it; it stays there.

use samite_client::{ClientOperation, OwnedOutcome};
use samite_types::{Epoch, ErrorKind, Result};
use samite_wire::op::{Action, Guard, Operation};

use crate::names::at::{RelativePath, named};
use crate::names::walk::{PathWalk, SEARCH, WRITE};
use crate::records::change_stamps::EntryMark;
use crate::records::inode::{
    DataLayout, FLAG_NAMEABLE, FLAG_RENAMED, INODE_LEN, Inode, at, inode_changed,
};
use crate::records::key;
use crate::records::lookup::LOOKUPS_MAX;
use crate::records::moving::{MoveDecision, MoveFinish, MoveIntent};
use crate::records::store::{ANY_NAME_SPACE, FoundInode, RecordLocation, fail};
use crate::{CallerContext, FileKind, FileSystem, Timestamp};

/// Most links to one file.
const LINKS_MAX: u64 = 1 << 31;

impl FileSystem {
    /// Target of a symbolic link.
    ///
    /// # Errors
    /// As of [`FileSystem::stat`]; `Invalid`: it is none.
    pub fn readlink<'a>(
        &self,
        ctx: &CallerContext,
        at: impl Into<RelativePath<'a>>,
    ) -> Result<Vec<u8>> {
        named("readlink", at, |at| {
            let node = self.resolve(ctx, at, false)?;
            if node.inode.kind != FileKind::Symlink {
                return Err(fail(ErrorKind::Invalid));
            }
            match node.target {
                Some(target) => Ok(target),
                None => Err(fail(ErrorKind::NotFound)),
            }
        })
    }

    /// Makes `to` another name of the file `from`; a symbolic link in the last component of `from` is followed if `follow`.
    ///
    /// # Errors
    /// As of [`FileSystem::mkdir`] for `to` and of [`FileSystem::stat`] for `from`; `NotOwner`: a directory; `CrossDevice`.
    pub fn link<'a, 'b>(
        &self,
        ctx: &CallerContext,
        from: impl Into<RelativePath<'a>>,
        to: impl Into<RelativePath<'b>>,
        follow: bool,
    ) -> Result<()> {
        let from = from.into();
        named("link", to, |to| {
            self.under_lease(|epoch| {
                let mut walk = PathWalk::start(self, ctx, from, epoch)?;
                let node = walk.find(follow)?.ok_or_else(|| fail(ErrorKind::NotFound))?;
                self.link_node(ctx, node, to, epoch)
            })
        })
    }

    pub(crate) fn link_node(
        &self,
        ctx: &CallerContext,
        node: FoundInode,
        to: RelativePath<'_>,
        epoch: Epoch,
    ) -> Result<()> {
        if node.inode.is_directory() {
            return Err(fail(ErrorKind::NotOwner));
        }
        let mut walk = PathWalk::start(self, ctx, to, epoch)?;
        if !walk.advance()? {
            return Err(fail(ErrorKind::Exists));
        }
        if walk.wants_directory {
            return Err(fail(ErrorKind::NotFound));
        }
        walk.require(WRITE | SEARCH)?;
        let location = walk.entry();
        if self.store().lookup_location(&location, epoch)?.is_some() {
            return Err(fail(ErrorKind::Exists));
        }
        if key::is_orphan(&node.location.key) {
            return self.name_orphan(&node, &walk, &location);
        }
        let inode = self.own_record(node)?;
        self.add_link(inode.ino)?;
        match self.put_pointer(&walk, &location, &inode) {
            Ok(true) => Ok(()),
            Ok(false) => {
                self.drop_link(inode.ino)?;
                Err(fail(ErrorKind::StaleLease))
            }
            Err(error) => {
                // The error to tell is the first one.
                let _ = self.drop_link(inode.ino);
                Err(error)
            }
        }
    }

    /// Gives a file that was made without a name its first one.
    fn name_orphan(
        &self,
        node: &FoundInode,
        walk: &PathWalk<'_>,
        location: &RecordLocation,
    ) -> Result<()> {
        let found = self.store().value(&node.location)?;
        let (version, mut value) = found.ok_or_else(|| fail(ErrorKind::NotFound))?;
        let fresh = FoundInode { version, inode: Inode::decode(&value)?, ..node.clone() };
        if fresh.inode.layout == DataLayout::Moving {
            self.store().await_move(&node.location)?;
            return Err(fail(ErrorKind::StaleLease));
        }
        if fresh.inode.flags & FLAG_NAMEABLE == 0 {
            return Err(fail(ErrorKind::NotFound));
        }
        // Handles find it by its location.
        value[at::FLAGS as usize] = fresh.inode.flags & !FLAG_NAMEABLE | FLAG_RENAMED;
        let layout = (fresh.inode.layout, false);
        let source = node.location.clone();
        let intended =
            MoveIntent::new(self.token(), source, layout, MoveFinish::Delete, location.clone());
        if !self.store().freeze(&fresh, &intended)? {
            return Err(fail(ErrorKind::StaleLease));
        }
        let tombstone = key::tombstone(walk.dir().ino);
        let stamp = EntryMark::new(&location.key, Timestamp::now());
        let guards = [Guard::Absent(&location.key), Guard::Absent(&tombstone)];
        match self.store().decide(&intended, &value, walk.epoch, guards, stamp.actions(0))? {
            MoveDecision::Done(_) => Ok(()),
            MoveDecision::Refused(0) => Err(fail(ErrorKind::Exists)),
            MoveDecision::Refused(_) => {
                self.outlast_tombstone(walk.dir().ino, location.partition)?;
                Err(fail(ErrorKind::StaleLease))
            }
            MoveDecision::Recovered => Err(fail(ErrorKind::StaleLease)),
        }
    }

    fn put_pointer(
        &self,
        walk: &PathWalk<'_>,
        location: &RecordLocation,
        inode: &Inode,
    ) -> Result<bool> {
        let value = Inode { layout: DataLayout::Elsewhere, ..*inode }.encode();
        let tombstone = key::tombstone(walk.dir().ino);
        let stamp = EntryMark::new(&location.key, Timestamp::now());
        let mut op = Operation::put(location.partition, &location.key, &value)
            .guard(Guard::Absent(&location.key))
            .guard(Guard::Absent(&tombstone));
        op.actions.extend(stamp.actions(0));
        match self.store().run(ClientOperation::new(op).under_lease(walk.epoch))? {
            OwnedOutcome::Done(_) => Ok(true),
            OwnedOutcome::Failed(failure) => {
                if failure.index == 1 {
                    self.outlast_tombstone(walk.dir().ino, location.partition)?;
                }
                Ok(false)
            }
        }
    }

    fn add_link(&self, ino: u64) -> Result<()> {
        let location = self.store().own(ino);
        let now = Timestamp::now();
        let op = Operation::new(
            location.partition,
            [
                Action::Add { key: &location.key, offset: at::NLINK, delta: 1 },
                inode_changed(&location.key, now),
            ],
        )
        .guard(Guard::Exists(&location.key));
        match self.store().run(op)? {
            OwnedOutcome::Done(_) => Ok(()),
            OwnedOutcome::Failed(_) => Err(fail(ErrorKind::NotFound)),
        }
    }

    /// Sees to it that the inode lives in its own record.
    fn own_record(&self, node: FoundInode) -> Result<Inode> {
        let own = self.store().own(node.inode.ino);
        let mut node = node;
        for _ in 0..LOOKUPS_MAX {
            if node.location == own {
                if node.inode.nlink >= LINKS_MAX {
                    return Err(fail(ErrorKind::Unsupported));
                }
                return Ok(node.inode);
            }
            self.move_out(&node, &own)?;
            let now = self.store().lookup_location(&node.location, ANY_NAME_SPACE)?;
            match now {
                Some(now) if now.inode.ino == node.inode.ino => node = now,
                _ => return Err(fail(ErrorKind::StaleLease)),
            }
        }
        Err(fail(ErrorKind::Busy))
    }

    /// Tries to move the inode from its entry to its own record.
    fn move_out(&self, node: &FoundInode, own: &RecordLocation) -> Result<()> {
        let Some((version, value)) = self.store().value(&node.location)? else { return Ok(()) };
        let fresh = FoundInode { version, inode: Inode::decode(&value)?, ..node.clone() };
        if fresh.inode.ino != node.inode.ino
            || matches!(fresh.inode.layout, DataLayout::Moving | DataLayout::Elsewhere)
        {
            return Ok(());
        }
        let intended = MoveIntent::new(
            self.token(),
            node.location.clone(),
            (fresh.inode.layout, false),
            MoveFinish::Point,
            own.clone(),
        );
        if self.store().freeze(&fresh, &intended)? {
            let guards = [Guard::Absent(&own.key)];
            let decision = self.store().decide(&intended, &value, ANY_NAME_SPACE, guards, [])?;
            debug_assert!(!matches!(decision, MoveDecision::Refused(_)), "one entry, one inode");
        }
        debug_assert!(value.len() >= INODE_LEN, "it was decoded");
        Ok(())
    }
}
