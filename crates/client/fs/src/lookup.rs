//! Looking up the inode of a record, wherever it lives by now.

use samite_types::{Epoch, ErrorKind, Result};

use crate::FileSystem;
use crate::inode::DataLayout;
use crate::store::{FoundInode, NO_LEASE, RecordLocation, fail};

/// How often an entry may turn out to be on its way elsewhere before a look-up gives up.
pub const LOOKUPS_MAX: u32 = 1000;

impl FileSystem {
    /// The inode in `home`, or in the record that `home` names; waits for a move to end.
    pub(crate) fn lookup_location(
        &self,
        home: &RecordLocation,
        epoch: Epoch,
    ) -> Result<Option<FoundInode>> {
        for _ in 0..LOOKUPS_MAX {
            let Some(node) = self.store().read(home, epoch)? else { return Ok(None) };
            if let Some(node) = self.settled(node)? {
                return Ok(Some(node));
            }
        }
        Err(fail(ErrorKind::Busy))
    }

    /// `node`, or the inode that it names; `None` when it was moving, and should be looked up
    /// again.
    pub(crate) fn settled(&self, node: FoundInode) -> Result<Option<FoundInode>> {
        match node.inode.layout {
            DataLayout::Moving => {
                self.await_move(&node.home)?;
                Ok(None)
            }
            // Gone from there: its last link went away just now, this entry among them.
            DataLayout::Elsewhere => self.store().read(&self.store().own(node.inode.ino), NO_LEASE),
            _ => Ok(Some(node)),
        }
    }
}
