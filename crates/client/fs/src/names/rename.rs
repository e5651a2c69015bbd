//! Rename.
//!
//! Within one partition it is one operation; across partitions it is a move ([`crate::records::moving`]). A directory that
//! moves to another
//! parent does so under a lock of the whole file system, so that two moves cannot put each into the other.

use samite_client::{ClientOperation, OwnedOutcome};
use samite_types::{Epoch, ErrorKind, Result};
use samite_wire::op::{Action, Guard, Operation, ValueData};

use crate::names::at::{RelativePath, named};
use crate::names::cache::{DirNode, permits};
use crate::names::entry_operations::take_away;
use crate::names::make::NewInode;
use crate::names::removal::check_sticky;
use crate::names::tombstone::DirectoryTombstone;
use crate::names::walk::{PathWalk, SEARCH, WRITE};
use crate::records::change_stamps::EntryMark;
use crate::records::inode::{DataLayout, FLAG_RENAMED, INODE_LEN, Inode, at, identity};
use crate::records::key::{self, DIRECTORY_MOVE_LOCK};
use crate::records::moving::{MoveDecision, MoveFinish, MoveIntent};
use crate::records::store::{ANY_NAME_SPACE, FoundInode, RecordLocation, fail, malformed};
use crate::sharing::open_references::RemovedInode;
use crate::{CallerContext, FileKind, FileSystem, RenameFlags, Timestamp};

/// One end of a rename.
pub struct RenameEnd {
    pub location: RecordLocation,
    /// Number of the directory.
    pub parent: u64,
}

/// A rename that was checked and is ready to go.
struct RenamePlan {
    from: RenameEnd,
    to: RenameEnd,
    /// The inode that moves, as the entry has it (possibly only a pointer).
    node: FoundInode,
    /// The whole value of its record.
    value: Vec<u8>,
    /// The inode that it replaces.
    replaced: Option<FoundInode>,
    /// Record of the whiteout that it leaves.
    left: Option<Vec<u8>>,
    epoch: Epoch,
}

/// The inodes at both ends, each with the value of its record: the whole value of the source, and
/// as much as was asked for of the one at the other end.
type Ends = [Option<(FoundInode, Vec<u8>)>; 2];

/// How one attempt ended.
pub enum RenameAttempt {
    Done,
    /// A directory changes its parent: take the lock and start again.
    NeedsLock,
}

impl FileSystem {
    /// Renames `from` to `to`, replacing what is there: a file by anything but a directory, an empty directory by a
    /// directory. With `exchange` both must be there, whatever they are, and swap their names in one step. With `whiteout` the old name
    /// is a character device 0:0 from that step on.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `Denied`, `Loop`, `NameTooLong` for the paths; `Exists` with `no_replace`;
    /// `IsDirectory`, `NotDirectory`,
    /// `NotEmpty` for what would be replaced; `Invalid`: a directory into itself, or `exchange` with another flag; `InUse`: the root, `.` or
    /// `..`; `NotOwner`: a directory is sticky.
    pub fn rename<'a, 'b>(
        &self,
        ctx: &CallerContext,
        from: impl Into<RelativePath<'a>>,
        to: impl Into<RelativePath<'b>>,
        flags: RenameFlags,
    ) -> Result<()> {
        let to = to.into();
        named("rename", from, |from| {
            if flags.exchange && (flags.no_replace || flags.whiteout) {
                return Err(fail(ErrorKind::Invalid));
            }
            let attempt = |is_locked| {
                self.under_lease(|epoch| self.try_rename(ctx, from, to, flags, epoch, is_locked))
            };
            if let RenameAttempt::NeedsLock = attempt(false)? {
                let token = self.lock_moves()?;
                let result = attempt(true);
                self.unlock_moves(token)?;
                result?;
            }
            Ok(())
        })
    }

    fn try_rename(
        &self,
        ctx: &CallerContext,
        from: RelativePath<'_>,
        to: RelativePath<'_>,
        flags: RenameFlags,
        epoch: Epoch,
        is_locked: bool,
    ) -> Result<RenameAttempt> {
        let mut from_walk = PathWalk::start(self, ctx, from, epoch)?;
        let mut to_walk = PathWalk::start(self, ctx, to, epoch)?;
        if !from_walk.advance()? || !to_walk.advance()? {
            return Err(fail(ErrorKind::InUse));
        }
        from_walk.require(WRITE | SEARCH)?;
        to_walk.require(WRITE | SEARCH)?;
        let from = RenameEnd { location: from_walk.entry(), parent: from_walk.dir().ino };
        let to = RenameEnd { location: to_walk.entry(), parent: to_walk.dir().ino };
        if flags.exchange {
            return self.exchange(ctx, (&from_walk, from), (&to_walk, to), is_locked);
        }
        let [moving, replaced] =
            self.read_ends(&from.location, &to.location, INODE_LEN as u32, epoch)?;
        let (node, value) = moving.ok_or_else(|| fail(ErrorKind::NotFound))?;
        let replaced = replaced.map(|(node, _)| node);
        let is_directory = node.inode.is_directory();
        if (from_walk.wants_directory || to_walk.wants_directory) && !is_directory {
            return Err(fail(ErrorKind::NotDirectory));
        }
        if is_directory && to_walk.came_through(node.inode.ino) {
            return Err(fail(ErrorKind::Invalid));
        }
        self.check_owner(ctx, &from_walk, &node)?;
        check_parent_change(ctx, (&from, &to), &node.inode)?;
        if let Some(there) = &replaced {
            if flags.no_replace {
                return Err(fail(ErrorKind::Exists));
            }
            if there.inode.ino == node.inode.ino {
                return Ok(RenameAttempt::Done);
            }
            match (is_directory, there.inode.is_directory()) {
                (false, true) => return Err(fail(ErrorKind::IsDirectory)),
                (true, false) => return Err(fail(ErrorKind::NotDirectory)),
                _ => {}
            }
            if from_walk.came_through(there.inode.ino) {
                return Err(fail(ErrorKind::NotEmpty));
            }
            self.check_owner(ctx, &to_walk, there)?;
        }
        if is_directory && from.parent != to.parent && !is_locked {
            return Ok(RenameAttempt::NeedsLock);
        }
        if is_directory && is_locked {
            to_walk.check_outside(node.inode.ino)?;
        }
        let left = flags.whiteout.then(|| self.whiteout(ctx, from_walk.dir())).transpose()?;
        self.carry_out(RenamePlan { from, to, node, value, replaced, left, epoch })?;
        Ok(RenameAttempt::Done)
    }

    /// A new record of a character device 0:0, which anybody may make.
    fn whiteout(&self, ctx: &CallerContext, dir: DirNode) -> Result<Vec<u8>> {
        let new = NewInode { kind: FileKind::CharDevice, perm: 0, rdev: 0, data: b"" };
        Ok(self.new_inode(ctx, dir, &new, Timestamp::now())?.encode().to_vec())
    }

    /// The entries themselves, not what they point to, once they do not move: with the whole value of the first, and
    /// `to_len` bytes of the second. One request per node.
    pub(crate) fn read_ends(
        &self,
        from: &RecordLocation,
        to: &RecordLocation,
        to_len: u32,
        epoch: Epoch,
    ) -> Result<Ends> {
        let ops = [(from, u32::MAX), (to, to_len)].map(|(location, len)| {
            let get = Action::Get { key: &location.key, offset: 0, len };
            ClientOperation::new(Operation::new(location.partition, [get])).under_lease(epoch)
        });
        let mut outcomes = self.store().run_all_removals(ops)?.into_iter();
        let mut next = |location: &RecordLocation| -> Result<Option<(FoundInode, Vec<u8>)>> {
            let found = self.store().found(location, outcomes.next().ok_or_else(malformed)?)?;
            if let Some((node, _)) = &found {
                self.wait_for_rest(node)?;
            }
            Ok(found)
        };
        Ok([next(from)?, next(to)?])
    }

    /// Fails with `StaleLease`, after a wait, when the entry is moving or being removed.
    fn wait_for_rest(&self, node: &FoundInode) -> Result<()> {
        if node.inode.layout == DataLayout::Moving {
            self.store().await_move(&node.location)?;
        } else if node.inode.removal != 0 {
            self.outlast_removal(&node.location, node.inode.ino, node.inode.removal)?;
        } else {
            return Ok(());
        }
        Err(fail(ErrorKind::StaleLease))
    }

    pub(crate) fn check_owner(
        &self,
        ctx: &CallerContext,
        walk: &PathWalk<'_>,
        entry: &FoundInode,
    ) -> Result<()> {
        if !crate::names::removal::needs_owner(ctx, walk.dir()) {
            return Ok(());
        }
        let node = self.store().lookup_location(&entry.location, walk.epoch)?;
        let node = node.ok_or_else(|| fail(ErrorKind::StaleLease))?;
        check_sticky(ctx, walk.dir(), node.inode.uid)
    }

    fn carry_out(&self, plan: RenamePlan) -> Result<()> {
        let tombstone = match &plan.replaced {
            Some(there) if there.inode.is_directory() => {
                Some(self.set_tombstone(&plan.to.location, there.inode.ino, plan.epoch)?)
            }
            _ => None,
        };
        let moved = self.move_entry(&plan, tombstone.as_ref());
        let removed = match (moved, &tombstone) {
            (Ok(removed), _) => removed,
            (Err(error), Some(tombstone)) => {
                self.withdraw_tombstone(tombstone)?;
                return Err(error);
            }
            (Err(error), None) => return Err(error),
        };
        if let Some(tombstone) = &tombstone {
            self.forget_directory(tombstone)?;
            self.inner.cache.remove(&plan.from.location.key);
        } else if plan.node.inode.is_directory() {
            self.raise_generation(&plan.from.location.key, Vec::new)?;
        }
        removed.map_or(Ok(()), |removed| self.clean_up(&removed))
    }

    /// Moves the entry. Returns what it replaced.
    fn move_entry(
        &self,
        plan: &RenamePlan,
        tombstone: Option<&DirectoryTombstone>,
    ) -> Result<Option<RemovedInode>> {
        let now = Timestamp::now();
        let value = renamed(&plan.node, &plan.value, now);
        if plan.from.location.partition == plan.to.location.partition {
            self.store().note_location(&plan.node, &plan.to.location)?;
            self.move_within(plan, tombstone, &value, now)
        } else {
            self.move_across(plan, tombstone, &value, now)
        }
    }

    fn move_within(
        &self,
        plan: &RenamePlan,
        tombstone: Option<&DirectoryTombstone>,
        value: &[u8],
        now: Timestamp,
    ) -> Result<Option<RemovedInode>> {
        let from = &plan.from.location;
        let target = RenameTarget::new(plan, tombstone, self.token());
        let from_stamp = EntryMark::new(&from.key, now);
        let to_stamp = EntryMark::new(&plan.to.location.key, now);
        let mut op = Operation::new(from.partition, []).reveal(INODE_LEN as u32);
        op.guards.push(Guard::VersionIs(&from.key, plan.node.version));
        op.guards.extend(target.guards());
        op.actions.extend(target.reads());
        op.actions.push(Action::Put { key: &plan.to.location.key, data: ValueData::Inline(value) });
        op.actions.push(Action::MoveHolds { from: &from.key, to: &plan.to.location.key });
        op.actions.push(match &plan.left {
            Some(whiteout) => Action::Put { key: &from.key, data: ValueData::Inline(whiteout) },
            None => Action::Delete { key: &from.key },
        });
        op.actions.extend(from_stamp.actions(-target.directories));
        op.actions.extend(to_stamp.actions(target.directories_after));
        match self.store().run(ClientOperation::new(op).under_lease(plan.epoch))? {
            OwnedOutcome::Done(results) if plan.replaced.is_some() => {
                RemovedInode::of(results).map(Some)
            }
            OwnedOutcome::Done(_) => Ok(None),
            OwnedOutcome::Failed(failure) if failure.index == 0 => Err(fail(ErrorKind::StaleLease)),
            OwnedOutcome::Failed(failure) => self.refused(plan, usize::from(failure.index) - 1),
        }
    }

    fn move_across(
        &self,
        plan: &RenamePlan,
        tombstone: Option<&DirectoryTombstone>,
        value: &[u8],
        now: Timestamp,
    ) -> Result<Option<RemovedInode>> {
        // A whiteout is made at the destination and swapped for what comes there, all in the decision.
        let finish = if plan.left.is_some() { MoveFinish::Swap } else { MoveFinish::Delete };
        let intended = MoveIntent::new(
            self.token(),
            plan.from.location.clone(),
            (plan.node.inode.layout, plan.node.inode.is_directory()),
            finish,
            plan.to.location.clone(),
        )
        .bringing(plan.left.as_deref().unwrap_or_default());
        if !self.store().freeze(&plan.node, &intended)? {
            return Err(fail(ErrorKind::StaleLease));
        }
        let target = RenameTarget::new(plan, tombstone, self.token());
        let stamp = EntryMark::new(&plan.to.location.key, now);
        let actions = target.reads().chain(stamp.actions(target.directories_after));
        match self.store().decide(&intended, value, plan.epoch, target.guards(), actions)? {
            MoveDecision::Done(OwnedOutcome::Done(results)) if plan.replaced.is_some() => {
                RemovedInode::of(results).map(Some)
            }
            MoveDecision::Done(_) => Ok(None),
            MoveDecision::Refused(index) => self.refused(plan, index),
            MoveDecision::Recovered => Err(fail(ErrorKind::StaleLease)),
        }
    }

    /// A guard on the target failed: waits if the new parent has a tombstone; then the rename
    /// starts again.
    fn refused(&self, plan: &RenamePlan, index: usize) -> Result<Option<RemovedInode>> {
        if index == 0 {
            self.outlast_tombstone(plan.to.parent, plan.to.location.partition)?;
        }
        Err(fail(ErrorKind::StaleLease))
    }

    fn lock_moves(&self) -> Result<u64> {
        let location = self.store().location(key::Key::from_slice(DIRECTORY_MOVE_LOCK));
        let token = self.token();
        let raw_token = token.to_le_bytes();
        loop {
            let op = Operation::put(location.partition, &location.key, &raw_token)
                .guard(Guard::Absent(&location.key));
            if self.store().run(ClientOperation::new(op).under_lease(ANY_NAME_SPACE))?.is_done() {
                return Ok(token);
            }
            if let Some(held) = self.store().outlast(&location)? {
                self.release(&location, &held)?;
            }
        }
    }

    fn unlock_moves(&self, token: u64) -> Result<()> {
        let location = self.store().location(key::Key::from_slice(DIRECTORY_MOVE_LOCK));
        self.release(&location, &token.to_le_bytes())
    }

    fn release(&self, location: &RecordLocation, held: &[u8]) -> Result<()> {
        let op = Operation::new(location.partition, [Action::Delete { key: &location.key }])
            .guard(Guard::BytesAre { key: &location.key, offset: 0, bytes: held });
        self.store().run(op).map(drop)
    }
}

/// The value of a renamed node's record, from what it was.
pub fn renamed(node: &FoundInode, value: &[u8], now: Timestamp) -> Vec<u8> {
    let mut value = value.to_vec();
    if node.inode.layout != DataLayout::Elsewhere {
        value[at::FLAGS as usize] |= FLAG_RENAMED;
    }
    let ctime = at::CTIME as usize;
    value[ctime..ctime + 8].copy_from_slice(&now.max(node.inode.ctime).0.to_le_bytes());
    value
}

/// A directory that changes its parent changes itself: its `..`.
pub fn check_parent_change(
    ctx: &CallerContext,
    (from, to): (&RenameEnd, &RenameEnd),
    inode: &Inode,
) -> Result<()> {
    let changes = inode.is_directory() && from.parent != to.parent;
    if changes && !permits(ctx, inode.perm, inode.uid, inode.gid, true, WRITE) {
        return Err(fail(ErrorKind::Denied));
    }
    Ok(())
}

/// The guards of a rename on its target, and its reads there.
struct RenameTarget<'p> {
    location: &'p RecordLocation,
    tombstone: key::Key,
    orphan: key::Key,
    replaced: Option<([u8; 9], Option<[u8; 8]>)>,
    /// 1 when a directory moves.
    directories: i64,
    /// Directories more at the target after.
    directories_after: i64,
}

impl<'p> RenameTarget<'p> {
    fn new(plan: &'p RenamePlan, tombstone: Option<&DirectoryTombstone>, token: u64) -> Self {
        let directories = i64::from(plan.node.inode.is_directory());
        let identity_of = |inode: &Inode| identity(inode.ino, inode.layout);
        Self {
            location: &plan.to.location,
            tombstone: key::tombstone(plan.to.parent),
            orphan: key::orphan(token),
            replaced: plan.replaced.as_ref().map(|there| {
                (
                    identity_of(&there.inode),
                    tombstone.map(|tombstone| tombstone.token.to_le_bytes()),
                )
            }),
            directories,
            directories_after: directories - i64::from(tombstone.is_some()),
        }
    }

    /// The tombstone's guard is the first.
    fn guards(&self) -> impl Iterator<Item = Guard<'_>> {
        let key = &self.location.key;
        let (there, token) = match &self.replaced {
            None => (Guard::Absent(key), None),
            Some((identity, token)) => (
                Guard::BytesAre { key, offset: at::INO, bytes: identity },
                token.as_ref().map(|token| Guard::BytesAre {
                    key,
                    offset: at::REMOVAL,
                    bytes: token,
                }),
            ),
        };
        [Guard::Absent(&self.tombstone), there].into_iter().chain(token)
    }

    /// The actions that remove the entry that is there.
    fn reads(&self) -> impl Iterator<Item = Action<'_>> {
        let replaces = self.replaced.is_some();
        take_away(&self.location.key, &self.orphan).into_iter().filter(move |_| replaces)
    }
}
