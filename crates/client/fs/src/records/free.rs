//! Removing what belongs to an inode that is gone: its chunks, the record of its location, its
//! extended attributes.

use samite_client::ClientOperation;
use samite_types::Result;
use samite_wire::op::{Action, Operation};

use crate::records::inode::{DataLayout, FLAG_ATTRIBUTES, FLAG_RENAMED, Inode};
use crate::records::key;
use crate::records::store::{RecordStoreView, expected, only};

/// Most attributes that one operation removes.
const ATTRIBUTES_AT_ONCE: u32 = 256;

impl RecordStoreView {
    /// Removes what belongs to an inode that is gone.
    pub fn free(&self, inode: &Inode) -> Result<()> {
        match inode.layout {
            DataLayout::Chunked | DataLayout::Tailed => {
                let is_known = inode.mark == 0 && inode.spiller == 0;
                let size = is_known.then_some(inode.size);
                self.remove_chunks(inode.ino, size)?;
            }
            DataLayout::Converting => self.remove_chunks(inode.ino, Some(1))?,
            // How much of the tail is there already, is unknown.
            DataLayout::Spilling => self.remove_chunks(inode.ino, None)?,
            // Only a pointer: the inode is somewhere else.
            DataLayout::Elsewhere => return Ok(()),
            DataLayout::Inline | DataLayout::Moving => {}
        }
        if inode.flags & FLAG_RENAMED != 0 {
            let location = self.location(key::location(inode.ino));
            let op = Operation::new(location.partition, [Action::Delete { key: &location.key }]);
            expected(self.dataset.execute_one(ClientOperation::new(op))?)?;
        }
        if inode.flags & FLAG_ATTRIBUTES != 0 {
            self.remove_attributes(inode.ino)?;
        }
        Ok(())
    }

    /// Removes all extended attributes of an inode that is gone.
    fn remove_attributes(&self, ino: u64) -> Result<()> {
        let prefix = key::attribute(ino, b"");
        let partition = self.dataset.partition_of(&prefix);
        loop {
            let sweep = Action::DeletePrefix { prefix: &prefix, limit: ATTRIBUTES_AT_ONCE };
            let op = ClientOperation::new(Operation::new(partition, [sweep]));
            let results = self.dataset.execute_one(op)?.into_results("remove attributes")?;
            if only(&results)?.number()? < u64::from(ATTRIBUTES_AT_ONCE) {
                return Ok(());
            }
        }
    }
}
