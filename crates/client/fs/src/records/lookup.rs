//! Looking up the inode of a record, wherever it lives by now.

use samite_types::{Epoch, ErrorKind, Result};

use crate::records::inode::DataLayout;
use crate::records::store::{ANY_NAME_SPACE, FoundInode, RecordLocation, RecordStoreView, fail};

/// How often an entry may turn out to be on its way elsewhere before a look-up gives up.
pub const LOOKUPS_MAX: u32 = 1000;

impl RecordStoreView {
    /// The inode in `location`, or in the record that `location` names; waits for a move to end.
    pub fn lookup_location(
        &self,
        location: &RecordLocation,
        epoch: Epoch,
    ) -> Result<Option<FoundInode>> {
        for _ in 0..LOOKUPS_MAX {
            let Some(node) = self.read(location, epoch)? else { return Ok(None) };
            if let Some(node) = self.settled(node)? {
                return Ok(Some(node));
            }
        }
        Err(fail(ErrorKind::Busy))
    }

    /// `node`, or the inode that it names; `None` when it was moving, and should be looked up
    /// again.
    pub fn settled(&self, node: FoundInode) -> Result<Option<FoundInode>> {
        match node.inode.layout {
            DataLayout::Moving => {
                self.await_move(&node.location)?;
                Ok(None)
            }
            // Gone from there: its last link went away just now, this entry among them.
            DataLayout::Elsewhere => self.read(&self.own(node.inode.ino), ANY_NAME_SPACE),
            _ => Ok(Some(node)),
        }
    }
}
