//! The partition: an ordered, exactly-once state machine over a record store.
mod outcome;

pub use outcome::{ActionOutput, Outcome};

use samite_backend::{Extent, RecordStore};
use samite_types::{ClientId, Epoch, Seq, Version};
use samite_wire::op::{BlockRef, Operation};

/// What the operations of one request share.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    /// Every mutation of this client with a smaller sequence number has been answered.
    pub answered_below: Seq,
    /// The operation may have been sent before.
    pub is_retry: bool,
    /// Lease epoch that the client relies on; `Epoch(u64::MAX)` for none.
    pub lease_epoch: Epoch,
    /// Most bytes that the operation's listings and its revealed record may take in the reply's body.
    pub body_len_max: usize,
}

/// Blocks that were granted to the connection an operation came by.
pub trait Grants {
    /// Takes the block that `block` names, if it is granted and starts there.
    fn take(&mut self, block: &BlockRef) -> Option<Extent>;
    /// Gives back a block of an operation that had no effect.
    fn put_back(&mut self, extent: Extent);
}

/// No blocks are granted.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoGrants;

impl Grants for NoGrants {
    fn take(&mut self, _block: &BlockRef) -> Option<Extent> {
        None
    }
    fn put_back(&mut self, _extent: Extent) {}
}

/// One partition of one dataset.
pub struct Partition {
    store: Box<dyn RecordStore>,
}

impl Partition {
    /// A partition whose records are in `store`.
    #[must_use]
    pub fn new(store: Box<dyn RecordStore>) -> Self {
        Self { store }
    }

    /// Applies one operation.
    pub fn apply(
        &mut self,
        _client: ClientId,
        _context: &Context,
        _operation: &Operation<'_>,
        _grants: &mut dyn Grants,
    ) -> Outcome {
        todo!()
    }

    /// Number of the last mutation that took effect.
    #[must_use]
    pub fn version(&self) -> Version {
        todo!()
    }
    /// Lease epoch.
    #[must_use]
    pub fn lease_epoch(&self) -> Epoch {
        todo!()
    }
    /// Records held.
    #[must_use]
    pub fn record_count(&self) -> u64 {
        self.store.record_count()
    }
}
