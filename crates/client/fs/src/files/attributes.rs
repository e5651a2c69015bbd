//! Asking for and changing attributes.

use samite_client::OwnedOutcome;
use samite_types::{ErrorKind, Result};
use samite_wire::op::{Action, Operation, ValueData};

use crate::files::set_id::{SET_ID, without_set_id};
use crate::names::at::{RelativePath, named};
use crate::names::cache::permits;
use crate::names::walk::{PathWalk, WRITE};
use crate::records::inode::{Inode, at, inode_changed, owner};
use crate::records::lookup::LOOKUPS_MAX;
use crate::records::store::{FoundInode, fail, identity_of, lives_in};
use crate::{
    CallerContext, FileAttributes, FileSemantics, FileSystem, OpenFile, SetTime, Timestamp,
};

/// The attributes that are to be changed.
#[derive(Clone, Copy)]
enum AttributeChange {
    Perm(u32),
    Owner(Option<u32>, Option<u32>),
    Times(SetTime, SetTime),
    Semantics(FileSemantics),
}

impl FileSystem {
    /// Attributes of the file that `at` names; a symbolic link in the last component is followed if `follow`.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `Denied`, `Loop`, `NameTooLong`; `CrossDevice`: see [`FileSystem::way_out`].
    pub fn stat<'a>(
        &self,
        ctx: &CallerContext,
        at: impl Into<RelativePath<'a>>,
        follow: bool,
    ) -> Result<FileAttributes> {
        named("stat", at, |at| {
            let node = self.resolve(ctx, at, follow)?;
            self.attr_of(&node, None)
        })
    }

    /// Checks permissions: any of `R_OK` 4, `W_OK` 2, `X_OK` 1; 0 for existence.
    ///
    /// # Errors
    /// As of [`FileSystem::stat`]; `Denied`.
    pub fn access<'a>(
        &self,
        ctx: &CallerContext,
        at: impl Into<RelativePath<'a>>,
        mask: u32,
        follow: bool,
    ) -> Result<()> {
        named("access", at, |at| check_access(ctx, &self.resolve(ctx, at, follow)?.inode, mask))
    }

    /// The path from the root of the store with every symbolic link, `.` and `..` resolved; the file must exist.
    ///
    /// # Errors
    /// As of [`FileSystem::stat`].
    pub fn canonicalize<'a>(
        &self,
        ctx: &CallerContext,
        at: impl Into<RelativePath<'a>>,
    ) -> Result<Vec<u8>> {
        named("realpath", at, |at| {
            self.under_lease(|epoch| {
                let mut walk = PathWalk::start(self, ctx, at, epoch)?;
                let node = walk.find(true)?.ok_or_else(|| fail(ErrorKind::NotFound))?;
                let is_here = walk.dir().ino == node.inode.ino;
                Ok(if is_here { walk.dir_path() } else { walk.entry_path() }.into_vec())
            })
        })
    }

    /// Sets permission bits.
    ///
    /// # Errors
    /// As of [`FileSystem::stat`]; `NotOwner`.
    pub fn chmod<'a>(
        &self,
        ctx: &CallerContext,
        at: impl Into<RelativePath<'a>>,
        perm: u32,
        follow: bool,
    ) -> Result<()> {
        named("chmod", at, |at| {
            self.change(ctx, AttributeChange::Perm(perm), || self.resolve(ctx, at, follow))
        })
    }

    /// Sets owner and group; `None` leaves one as it is.
    ///
    /// # Errors
    /// As of [`FileSystem::stat`]; `NotOwner`: only root gives files away, and an owner can only set a group of his own.
    pub fn chown<'a>(
        &self,
        ctx: &CallerContext,
        at: impl Into<RelativePath<'a>>,
        uid: Option<u32>,
        gid: Option<u32>,
        follow: bool,
    ) -> Result<()> {
        named("chown", at, |at| {
            self.change(ctx, AttributeChange::Owner(uid, gid), || self.resolve(ctx, at, follow))
        })
    }

    /// Sets times.
    ///
    /// # Errors
    /// As of [`FileSystem::stat`]; `NotOwner`: times other than now, by another than the owner; `Denied`: now, without
    /// write permission.
    pub fn utimens<'a>(
        &self,
        ctx: &CallerContext,
        at: impl Into<RelativePath<'a>>,
        atime: SetTime,
        mtime: SetTime,
        follow: bool,
    ) -> Result<()> {
        named("utimens", at, |at| {
            self.change(ctx, AttributeChange::Times(atime, mtime), || self.resolve(ctx, at, follow))
        })
    }

    /// The semantics of the directory that `at` names, or of the directory of another file that it
    /// names.
    ///
    /// # Errors
    /// As of [`FileSystem::stat`].
    pub fn semantics<'a>(
        &self,
        ctx: &CallerContext,
        at: impl Into<RelativePath<'a>>,
    ) -> Result<FileSemantics> {
        named("semantics of", at, |at| {
            self.under_lease(|epoch| {
                let mut walk = PathWalk::start(self, ctx, at, epoch)?;
                let node = walk.find(true)?.ok_or_else(|| fail(ErrorKind::NotFound))?;
                let is_directory = node.inode.is_directory();
                Ok(if is_directory { node.inode.semantics } else { walk.dir().semantics })
            })
        })
    }

    /// Sets the semantics of a directory; directories made in it from now on inherit it.
    ///
    /// # Errors
    /// As of [`FileSystem::stat`]; `NotDirectory`; `NotOwner`.
    pub fn set_semantics<'a>(
        &self,
        ctx: &CallerContext,
        at: impl Into<RelativePath<'a>>,
        semantics: FileSemantics,
    ) -> Result<()> {
        named("set semantics of", at, |at| {
            self.change(ctx, AttributeChange::Semantics(semantics), || self.resolve(ctx, at, true))
        })
    }

    /// Changes the inode that `find` finds, if the caller may.
    fn change(
        &self,
        ctx: &CallerContext,
        change: AttributeChange,
        find: impl Fn() -> Result<FoundInode>,
    ) -> Result<()> {
        for _ in 0..LOOKUPS_MAX {
            let node = find()?;
            let before = node.inode;
            let now = Timestamp::now();
            let mut after = Inode { ctime: now, ..before };
            if let AttributeChange::Times(SetTime::Keep, SetTime::Keep) = change {
                return Ok(());
            }
            apply(ctx, change, &mut after, now)?;
            let sets_mtime =
                matches!(change, AttributeChange::Times(_, mtime) if mtime != SetTime::Keep);
            if sets_mtime && node.is_chunked() && before.mark != 0 {
                // Writers settle no older time over it: they find that the file was cut, and look.
                self.store().drop_stamps(before.ino)?;
                after.cuts = after.cuts.wrapping_add(1);
            }
            // Also when the inode has this time already: its change stamps may be younger.
            if after.is_directory() && sets_mtime {
                self.store().reset_stamp_times(after.ino)?;
            }
            if !self.put_changes(&node, &before, &after)? {
                continue;
            }
            if !after.is_directory() && after.perm & SET_ID & !before.perm != 0 {
                // The handles that have it open for writing take them off again.
                self.raise_generation(&node.location.key, Vec::new)?;
            }
            if after.is_directory() {
                self.inner.cache.remove(&node.location.key);
                let is_narrower = before.perm & !after.perm != 0
                    || (before.uid, before.gid) != (after.uid, after.gid)
                    || before.semantics != after.semantics;
                if is_narrower {
                    self.raise_generation(&node.location.key, Vec::new)?;
                }
            }
            return Ok(());
        }
        Err(fail(ErrorKind::Busy))
    }

    /// Writes the fields that differ. False: the inode moved on or changed its layout in the meantime.
    pub(crate) fn put_changes(
        &self,
        node: &FoundInode,
        before: &Inode,
        after: &Inode,
    ) -> Result<bool> {
        let identity = identity_of(node);
        let key = &node.location.key;
        let raw = after.encode();
        let field = |offset: u32, len: usize| Action::Write {
            key,
            offset,
            data: ValueData::Inline(&raw[offset as usize..offset as usize + len]),
        };
        let mut op = Operation::new(node.location.partition, [inode_changed(key, after.ctime)]);
        if before.perm != after.perm {
            op.actions.push(field(at::PERM, 2));
        }
        if owner(before.uid, before.gid) != owner(after.uid, after.gid) {
            op.actions.push(field(at::OWNER, 8));
        }
        if before.atime != after.atime {
            op.actions.push(field(at::ATIME, 8));
        }
        if before.mtime != after.mtime {
            op.actions.push(field(at::MTIME, 8));
        }
        if before.cuts != after.cuts {
            op.actions.push(Action::Add { key, offset: at::CUTS, delta: 1 });
        }
        if before.semantics != after.semantics {
            op.actions.push(field(at::SEMANTICS, 1));
        }
        let outcome = self.store().run(op.guard(lives_in(&node.location, &identity)))?;
        Ok(matches!(outcome, OwnedOutcome::Done(_)))
    }
}

fn check_access(ctx: &CallerContext, inode: &Inode, mask: u32) -> Result<()> {
    let mask = (mask & 7) as u16;
    if permits(ctx, inode.perm, inode.uid, inode.gid, inode.is_directory(), mask) {
        Ok(())
    } else {
        Err(fail(ErrorKind::Denied))
    }
}

/// Applies a change if the caller may make it.
fn apply(
    ctx: &CallerContext,
    change: AttributeChange,
    inode: &mut Inode,
    now: Timestamp,
) -> Result<()> {
    let is_owner = ctx.may_all() || ctx.uid == inode.uid;
    match change {
        AttributeChange::Perm(perm) => {
            if !is_owner {
                return Err(fail(ErrorKind::NotOwner));
            }
            inode.perm = (perm & 0o7777) as u16;
            if !ctx.may_all() && !ctx.in_group(inode.gid) {
                inode.perm &= !0o2000;
            }
        }
        AttributeChange::Owner(uid, gid) => {
            let gives_away = uid.is_some_and(|uid| uid != inode.uid);
            let foreign_group = gid.is_some_and(|gid| gid != inode.gid && !ctx.in_group(gid));
            if !ctx.may_all() && (!is_owner || gives_away || foreign_group) {
                return Err(fail(ErrorKind::NotOwner));
            }
            inode.uid = uid.unwrap_or(inode.uid);
            inode.gid = gid.unwrap_or(inode.gid);
            if !inode.is_directory() {
                // A program that ran as its owner must not go on doing so for another.
                inode.perm = without_set_id(inode.perm);
            }
        }
        AttributeChange::Semantics(semantics) => {
            if !inode.is_directory() {
                return Err(fail(ErrorKind::NotDirectory));
            }
            if !is_owner {
                return Err(fail(ErrorKind::NotOwner));
            }
            inode.semantics = semantics;
        }
        AttributeChange::Times(atime, mtime) => {
            if !is_owner {
                if (atime, mtime) != (SetTime::Now, SetTime::Now) {
                    return Err(fail(ErrorKind::NotOwner));
                }
                let (perm, uid, gid) = (inode.perm, inode.uid, inode.gid);
                if !permits(ctx, perm, uid, gid, inode.is_directory(), WRITE) {
                    return Err(fail(ErrorKind::Denied));
                }
            }
            let set = |time: SetTime, old: Timestamp| match time {
                SetTime::Keep => old,
                SetTime::Now => now,
                SetTime::To(time) => time,
            };
            inode.atime = set(atime, inode.atime);
            inode.mtime = set(mtime, inode.mtime);
        }
    }
    Ok(())
}

impl OpenFile {
    /// Checks permissions on the file, however it was opened; see [`FileSystem::access`].
    ///
    /// # Errors
    /// `Denied`; `StaleHandle`.
    pub fn access(&self, ctx: &CallerContext, mask: u32) -> Result<()> {
        self.context("access", || check_access(ctx, &self.node()?.inode, mask))
    }

    /// Sets permission bits.
    ///
    /// # Errors
    /// `NotOwner`; `StaleHandle`.
    pub fn chmod(&self, ctx: &CallerContext, perm: u32) -> Result<()> {
        self.context("fchmod", || self.fs.change(ctx, AttributeChange::Perm(perm), || self.node()))
    }

    /// Sets owner and group; `None` leaves one as it is.
    ///
    /// # Errors
    /// As of [`FileSystem::chown`]; `StaleHandle`.
    pub fn chown(&self, ctx: &CallerContext, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.context("fchown", || {
            self.fs.change(ctx, AttributeChange::Owner(uid, gid), || self.node())
        })
    }

    /// Sets times. Settles the file first: a later close must not change them.
    ///
    /// # Errors
    /// As of [`FileSystem::utimens`]; `StaleHandle`.
    pub fn utimens(&self, ctx: &CallerContext, atime: SetTime, mtime: SetTime) -> Result<()> {
        self.context("futimens", || {
            self.settle()?;
            self.fs.change(ctx, AttributeChange::Times(atime, mtime), || self.node())
        })
    }
}
