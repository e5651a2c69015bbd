//! A client's view of the node's arena.

use samite_wire::op::BlockRef;

use super::Grant;

/// The node's arena, mapped into the client. References into it are checked, so a wrong one is refused, never followed.
#[derive(Debug)]
pub struct ArenaView {}

impl ArenaView {
    /// Copies the bytes that `block` names to `dest`, whose length is at least `block.len`.
    ///
    /// `false`: the node has used the block for something else since it made the reference (or the reference
    /// is out of bounds); what is in `dest` is worthless, and the caller asks again.
    #[must_use]
    pub fn copy_out(&self, block: &BlockRef, dest: &mut [u8]) -> bool {
        let _ = (block, dest);
        todo!()
    }

    /// Copies `bytes` (at most one block) to the start of a granted block, and makes the reference to send with a request.
    /// `None`: the grant lies outside of the arena.
    #[must_use]
    pub fn copy_in(&self, grant: &Grant, bytes: &[u8]) -> Option<BlockRef> {
        let _ = (grant, bytes);
        todo!()
    }
}
