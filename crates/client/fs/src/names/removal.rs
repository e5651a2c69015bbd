//! Removing names, and what they named.

use samite_client::{ClientOperation, OwnedOutcome};
use samite_types::{Epoch, ErrorKind, Result};
use samite_wire::op::{Action, Guard, Operation};

use crate::names::at::{RelativePath, named};
use crate::names::cache::DirNode;
use crate::names::entry_operations::{EntryRemoval, take_away};
use crate::names::tombstone::DirectoryTombstone;
use crate::names::walk::{PathWalk, SEARCH, WRITE};
use crate::records::change_stamps::EntryMark;
use crate::records::inode::{DataLayout, INODE_LEN, Inode, at, identity, inode_changed};
use crate::records::key;
use crate::records::lookup::LOOKUPS_MAX;
use crate::records::store::{ANY_NAME_SPACE, fail, first_value};
use crate::sharing::open_references::RemovedInode;
use crate::{CallerContext, FileSemantics, FileSystem, Timestamp};

impl FileSystem {
    /// Removes a name, and the file with its last name. A file that anybody has open lives on until its last
    /// handle is closed.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `Denied`, `Loop`, `NameTooLong` for the path; `IsDirectory`; `NotOwner`: the
    /// directory is sticky.
    pub fn unlink<'a>(&self, ctx: &CallerContext, at: impl Into<RelativePath<'a>>) -> Result<()> {
        self.unlink_timed(ctx, at).map(drop)
    }

    /// The same, and says when the directory changed; `None`: not as far as its times tell.
    ///
    /// # Errors
    /// As of [`FileSystem::unlink`].
    pub fn unlink_timed<'a>(
        &self,
        ctx: &CallerContext,
        at: impl Into<RelativePath<'a>>,
    ) -> Result<Option<Timestamp>> {
        named("unlink", at, |at| self.under_lease(|epoch| self.try_unlink(ctx, at, epoch)))
    }

    fn try_unlink(
        &self,
        ctx: &CallerContext,
        at: RelativePath<'_>,
        epoch: Epoch,
    ) -> Result<Option<Timestamp>> {
        let mut walk = PathWalk::start(self, ctx, at, epoch)?;
        if !walk.advance()? {
            return Err(fail(ErrorKind::IsDirectory));
        }
        walk.require(WRITE | SEARCH)?;
        let location = walk.entry();
        if walk.wants_directory || needs_owner(ctx, walk.dir()) {
            let node = self
                .store()
                .lookup_location(&location, epoch)?
                .ok_or_else(|| fail(ErrorKind::NotFound))?;
            if walk.wants_directory && !node.inode.is_directory() {
                return Err(fail(ErrorKind::NotDirectory));
            }
            check_sticky(ctx, walk.dir(), node.inode.uid)?;
        }
        let orphan = key::orphan(self.token());
        let now = Timestamp::now();
        let stamp = EntryMark::new(&location.key, now);
        let removal = EntryRemoval { location: &location, orphan: &orphan, stamp: &stamp };
        let store = self.store();
        if walk.dir().semantics != FileSemantics::Temporary
            && !store.releases.are_waiting(location.partition)
            && store
                .dataset
                .try_complete(
                    &mut ClientOperation::new(removal.of_inline_file()).under_lease(epoch),
                )
                .is_some()
        {
            return Ok(Some(now));
        }
        let mut stamps = true;
        for _ in 0..LOOKUPS_MAX {
            let op = ClientOperation::new(removal.of_any_file(stamps)).under_lease(epoch);
            let outcome = match self.store().run_removal(op) {
                // Removing must work on a full target, where there may be no room for the first
                // change stamp.
                Err(error) if error.kind() == ErrorKind::NoSpace && stamps => {
                    stamps = false;
                    continue;
                }
                outcome => outcome?,
            };
            match outcome {
                OwnedOutcome::Done(results) => {
                    self.clean_up(&RemovedInode::of(results)?)?;
                    return Ok(stamps.then_some(now));
                }
                OwnedOutcome::Failed(failure) => {
                    let found = failure.current.ok_or_else(|| fail(ErrorKind::NotFound))?;
                    let inode = Inode::decode(&found.bytes)?;
                    if inode.layout == DataLayout::Moving {
                        self.store().await_move(&location)?;
                    } else {
                        return Err(fail(ErrorKind::IsDirectory));
                    }
                }
            }
        }
        Err(fail(ErrorKind::Busy))
    }

    /// After the removal of a record that was the entry of a file.
    pub(crate) fn clean_up(&self, removed: &RemovedInode) -> Result<()> {
        let inode = removed.inode()?;
        if inode.layout == DataLayout::Elsewhere {
            self.drop_link(inode.ino)
        } else if removed.is_kept {
            // The process that closes it last removes it.
            Ok(())
        } else {
            self.store().free(&inode)
        }
    }

    /// One link less to an inode in its own record.
    pub(crate) fn drop_link(&self, ino: u64) -> Result<()> {
        let location = self.store().own(ino);
        let now = Timestamp::now();
        let op = Operation::new(
            location.partition,
            [
                Action::Get { key: &location.key, offset: 0, len: INODE_LEN as u32 },
                Action::Add { key: &location.key, offset: at::NLINK, delta: u64::MAX },
                inode_changed(&location.key, now),
            ],
        );
        let OwnedOutcome::Done(results) = self.store().run_removal(ClientOperation::new(op))?
        else {
            return Ok(());
        };
        if Inode::decode(&first_value(results)?)?.nlink > 1 {
            return Ok(());
        }
        // Unless another process made a link from an open handle.
        let orphan = key::orphan(self.token());
        let op = Operation::new(location.partition, take_away(&location.key, &orphan))
            .guard(Guard::BytesAre { key: &location.key, offset: at::NLINK, bytes: &[0; 8] });
        match self.store().run(op)? {
            OwnedOutcome::Done(results) => self.clean_up(&RemovedInode::of(results)?),
            OwnedOutcome::Failed(_) => Ok(()),
        }
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// As of [`FileSystem::unlink`]; `NotDirectory`; `NotEmpty`; `Invalid`: the path ends in `.`; `InUse`: the root.
    pub fn rmdir<'a>(&self, ctx: &CallerContext, at: impl Into<RelativePath<'a>>) -> Result<()> {
        self.rmdir_timed(ctx, at).map(drop)
    }

    /// The same, and says which directory it was, by its inode number, and when the one changed that it was in.
    ///
    /// # Errors
    /// As of [`FileSystem::rmdir`].
    pub fn rmdir_timed<'a>(
        &self,
        ctx: &CallerContext,
        at: impl Into<RelativePath<'a>>,
    ) -> Result<(u64, Timestamp)> {
        named("rmdir", at, |at| self.under_lease(|epoch| self.try_rmdir(ctx, at, epoch)))
    }

    fn try_rmdir(
        &self,
        ctx: &CallerContext,
        at: RelativePath<'_>,
        epoch: Epoch,
    ) -> Result<(u64, Timestamp)> {
        let mut walk = PathWalk::start(self, ctx, at, epoch)?;
        if !walk.advance()? {
            let trimmed = at.path.trim_ascii_end();
            return Err(fail(if trimmed.ends_with(b"..") {
                ErrorKind::NotEmpty
            } else if trimmed.ends_with(b".") {
                ErrorKind::Invalid
            } else {
                ErrorKind::InUse
            }));
        }
        walk.require(WRITE | SEARCH)?;
        let location = walk.entry();
        let dir = match self.inner.cache.get(epoch, &location.key) {
            Some(dir) => dir,
            None => {
                let node = self
                    .store()
                    .lookup_location(&location, epoch)?
                    .ok_or_else(|| fail(ErrorKind::NotFound))?;
                if !node.inode.is_directory() {
                    return Err(fail(ErrorKind::NotDirectory));
                }
                DirNode::of(&node.inode)
            }
        };
        check_sticky(ctx, walk.dir(), dir.uid)?;
        let tombstone = self.set_tombstone(&location, dir.ino, epoch)?;
        let now = Timestamp::now();
        let Some(removed) = self.delete_with_tombstone(&tombstone, now)? else {
            self.withdraw_tombstone(&tombstone)?;
            return Err(fail(ErrorKind::StaleLease));
        };
        self.forget_directory(&tombstone)?;
        self.clean_up(&removed)?;
        Ok((tombstone.ino, now))
    }

    /// Removes the entry of a directory that has tombstones. `None`: another process took this one
    /// for dead and stopped the removal.
    pub(crate) fn delete_with_tombstone(
        &self,
        tombstone: &DirectoryTombstone,
        now: Timestamp,
    ) -> Result<Option<RemovedInode>> {
        let location = &tombstone.location;
        let (identity, token) =
            (identity(tombstone.ino, DataLayout::Inline), tombstone.token.to_le_bytes());
        let stamp = EntryMark::new(&location.key, now);
        let orphan = key::orphan(self.token());
        let mut op = Operation::new(location.partition, take_away(&location.key, &orphan))
            .guard(Guard::BytesAre { key: &location.key, offset: at::INO, bytes: &identity })
            .guard(Guard::BytesAre { key: &location.key, offset: at::REMOVAL, bytes: &token });
        op.actions.extend(stamp.actions(-1));
        match self.store().run_removal(ClientOperation::new(op).under_lease(ANY_NAME_SPACE))? {
            OwnedOutcome::Done(results) => RemovedInode::of(results).map(Some),
            OwnedOutcome::Failed(_) => Ok(None),
        }
    }
}

/// Whether only owners may remove names from `dir`, and the caller does not own it.
pub fn needs_owner(ctx: &CallerContext, dir: DirNode) -> bool {
    dir.is_sticky() && !ctx.may_all() && ctx.uid != dir.uid
}

/// Fails when `dir` is sticky and the caller owns neither it nor the file of `owner`.
pub fn check_sticky(ctx: &CallerContext, dir: DirNode, owner: u32) -> Result<()> {
    if needs_owner(ctx, dir) && ctx.uid != owner {
        return Err(fail(ErrorKind::NotOwner));
    }
    Ok(())
}
