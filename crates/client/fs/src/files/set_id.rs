//! Set-user-id and set-group-id bits, which are cleared when a user other than root changes the
//! file.
//!
//! A file that is open may be given such bits by another process, and then be run as its owner. The
//! process that gives them raises the name-space generation, which each reply of a node tells. So a
//! handle whose user may not keep the bits looks at the inode after a write whose reply tells of a
//! generation that the handle has not seen yet, and needs no request otherwise.

use std::sync::atomic::Ordering;

use samite_types::{Epoch, ErrorKind, Result};

use crate::records::inode::Inode;
use crate::records::lookup::LOOKUPS_MAX;
use crate::records::store::fail;
use crate::{CallerContext, FileKind, OpenFile, Timestamp};

/// The bits.
pub const SET_ID: u16 = 0o6000;
/// The user may keep them.
pub const NEVER: u64 = u64::MAX;
/// The file may have them now.
const UNKNOWN: u64 = 0;

/// Permission bits after the data or the owner changed. A group bit without execution is a lock mode of old, and stays.
pub const fn without_set_id(perm: u16) -> u16 {
    perm & if perm & 0o010 == 0 { !0o4000 } else { !SET_ID }
}

impl OpenFile {
    /// This handle, which takes the bits off when it changes data, if `ctx` may not keep them. The file had none at `epoch`; `None`: it may have some.
    pub(crate) fn minding(self, ctx: &CallerContext, epoch: Option<Epoch>) -> Self {
        if self.kind() == FileKind::File && self.flags().write && !ctx.may_all() {
            self.set_id.store(epoch.map_or(UNKNOWN, seen_at), Ordering::Relaxed);
        }
        self
    }

    /// Before a change of the data that no node is told of: takes off the bits that the file may have.
    pub(crate) fn strip_known_set_id(&self) -> Result<()> {
        if self.set_id.load(Ordering::Relaxed) == UNKNOWN { self.strip_set_id() } else { Ok(()) }
    }

    /// After a change of the data: takes off the bits that the file may have been given.
    pub(crate) fn strip_set_id(&self) -> Result<()> {
        let seen = self.set_id.load(Ordering::Relaxed);
        let now = seen_at(self.fs.store().dataset.name_space_generation());
        if seen == NEVER || seen == now {
            return Ok(());
        }
        for _ in 0..LOOKUPS_MAX {
            let node = self.node()?;
            let before = node.inode;
            let perm = without_set_id(before.perm);
            let after = Inode { perm, ctime: Timestamp::now(), ..before };
            if before.perm == perm || self.fs.put_changes(&node, &before, &after)? {
                self.set_id.store(now, Ordering::Relaxed);
                return Ok(());
            }
        }
        Err(fail(ErrorKind::Busy))
    }
}

/// A generation other than [`UNKNOWN`] and [`NEVER`].
const fn seen_at(epoch: Epoch) -> u64 {
    let next = epoch.get().saturating_add(1);
    if next == NEVER { NEVER - 1 } else { next }
}
