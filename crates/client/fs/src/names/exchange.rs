//! Exchange: two names swap what they name, in one step.
//!
//! Within one partition it is one operation. Across partitions it is a move with
//! [`MoveFinish::Swap`]: the first is frozen, one operation at the second puts the first there and
//! keeps the inode that was there in the verdict, and the end moves that one to where the first
//! was. Meanwhile look-ups of the first wait.

use samite_client::{ClientOperation, OwnedOutcome};
use samite_types::{Epoch, ErrorKind, Result};
use samite_wire::op::{Action, Guard, Operation, ValueData};

use crate::names::rename::{RenameAttempt, RenameEnd, check_parent_change, renamed};
use crate::names::walk::PathWalk;
use crate::records::change_stamps::EntryMark;
use crate::records::key;
use crate::records::moving::{MoveDecision, MoveFinish, MoveIntent};
use crate::records::store::{FoundInode, fail};
use crate::{CallerContext, FileSystem, Timestamp};

/// One of the two: where it is, what it is, and the value of its record after.
struct ExchangeSide {
    end: RenameEnd,
    node: FoundInode,
    value: Vec<u8>,
}

impl ExchangeSide {
    fn is_directory(&self) -> bool {
        self.node.inode.is_directory()
    }
}

impl FileSystem {
    /// Swaps the files at two names.
    pub(crate) fn exchange(
        &self,
        ctx: &CallerContext,
        (from_walk, from): (&PathWalk<'_>, RenameEnd),
        (to_walk, to): (&PathWalk<'_>, RenameEnd),
        is_locked: bool,
    ) -> Result<RenameAttempt> {
        let epoch = from_walk.epoch;
        let [first, second] = self.read_ends(&from.location, &to.location, u32::MAX, epoch)?;
        let (first, first_value) = first.ok_or_else(|| fail(ErrorKind::NotFound))?;
        let (second, second_value) = second.ok_or_else(|| fail(ErrorKind::NotFound))?;
        let is_file_as_directory = (from_walk.wants_directory && !first.inode.is_directory())
            || (to_walk.wants_directory && !second.inode.is_directory());
        if is_file_as_directory {
            return Err(fail(ErrorKind::NotDirectory));
        }
        if to_walk.came_through(first.inode.ino) || from_walk.came_through(second.inode.ino) {
            return Err(fail(ErrorKind::Invalid));
        }
        self.check_owner(ctx, from_walk, &first)?;
        self.check_owner(ctx, to_walk, &second)?;
        for node in [&first, &second] {
            check_parent_change(ctx, (&from, &to), &node.inode)?;
        }
        if first.inode.ino == second.inode.ino {
            return Ok(RenameAttempt::Done);
        }
        let has_directory = first.inode.is_directory() || second.inode.is_directory();
        if has_directory && from.parent != to.parent && !is_locked {
            return Ok(RenameAttempt::NeedsLock);
        }
        if is_locked {
            to_walk.check_outside(first.inode.ino)?;
            from_walk.check_outside(second.inode.ino)?;
        }
        let now = Timestamp::now();
        let first =
            ExchangeSide { value: renamed(&first, &first_value, now), end: from, node: first };
        let second =
            ExchangeSide { value: renamed(&second, &second_value, now), end: to, node: second };
        if first.end.location.partition == second.end.location.partition {
            self.swap_within(&first, &second, epoch, now)?;
        } else {
            self.swap_across(&first, &second, epoch, now)?;
        }
        if has_directory {
            self.inner.cache.remove(&second.end.location.key);
            self.raise_generation(&first.end.location.key, Vec::new)?;
            self.inner.cache.remove(&second.end.location.key);
        }
        Ok(RenameAttempt::Done)
    }

    fn swap_within(
        &self,
        first: &ExchangeSide,
        second: &ExchangeSide,
        epoch: Epoch,
        now: Timestamp,
    ) -> Result<()> {
        self.store().note_location(&first.node, &second.end.location)?;
        self.store().note_location(&second.node, &first.end.location)?;
        let (key, other) = (&first.end.location.key, &second.end.location.key);
        let directories = i64::from(first.is_directory()) - i64::from(second.is_directory());
        let aside = key::orphan(self.token());
        let stamps = [key, other].map(|key| EntryMark::new(key, now));
        let mut op = Operation::new(
            first.end.location.partition,
            [
                Action::Put { key, data: ValueData::Inline(&second.value) },
                Action::Put { key: other, data: ValueData::Inline(&first.value) },
                Action::MoveHolds { from: key, to: &aside },
                Action::MoveHolds { from: other, to: key },
                Action::MoveHolds { from: &aside, to: other },
            ],
        )
        .guard(Guard::VersionIs(key, first.node.version))
        .guard(Guard::VersionIs(other, second.node.version));
        op.actions.extend(stamps[0].actions(-directories));
        op.actions.extend(stamps[1].actions(directories));
        match self.store().run(ClientOperation::new(op).under_lease(epoch))? {
            OwnedOutcome::Done(_) => Ok(()),
            OwnedOutcome::Failed(_) => Err(fail(ErrorKind::StaleLease)),
        }
    }

    fn swap_across(
        &self,
        first: &ExchangeSide,
        second: &ExchangeSide,
        epoch: Epoch,
        now: Timestamp,
    ) -> Result<()> {
        let intended = MoveIntent::new(
            self.token(),
            first.end.location.clone(),
            (first.node.inode.layout, first.is_directory()),
            MoveFinish::Swap,
            second.end.location.clone(),
        )
        .bringing(&second.value);
        self.store().note_location(&second.node, &first.end.location)?;
        if !self.store().freeze(&first.node, &intended)? {
            return Err(fail(ErrorKind::StaleLease));
        }
        let directories = i64::from(first.is_directory()) - i64::from(second.is_directory());
        let stamp = EntryMark::new(&second.end.location.key, now);
        let guard = Guard::VersionIs(&second.end.location.key, second.node.version);
        match self.store().decide(
            &intended,
            &first.value,
            epoch,
            [guard],
            stamp.actions(directories),
        )? {
            MoveDecision::Done(_) => Ok(()),
            MoveDecision::Refused(_) | MoveDecision::Recovered => Err(fail(ErrorKind::StaleLease)),
        }
    }
}
