//! One dataset, as seen from a client.

use samite_types::{DatasetId, Deadline, Epoch, PartitionId, Result};
use samite_wire::control::DatasetSpec;
use samite_wire::op::Operation;

use crate::{Client, Op, OwnedOutcome, Pending};

/// A dataset of a cluster. Cheap to clone.
#[derive(Clone)]
pub struct Dataset {
    client: Client,
}

#[allow(clippy::todo, clippy::missing_errors_doc, unused_variables, missing_docs)]
impl Dataset {
    /// The client behind it.
    #[must_use]
    pub const fn client(&self) -> &Client {
        &self.client
    }

    pub fn id(&self) -> DatasetId {
        todo!()
    }

    pub fn spec(&self) -> &DatasetSpec {
        todo!()
    }

    /// How many partitions there are.
    pub fn partitions(&self) -> u32 {
        todo!()
    }

    /// The partition of a placement key.
    pub fn partition_of(&self, key: &[u8]) -> PartitionId {
        todo!()
    }

    /// The partition of a placement key whose [`samite_placement::hash`] is known.
    pub fn partition_of_hash(&self, hash: u64) -> PartitionId {
        todo!()
    }

    /// The partition of chunk `chunk_no` of the object whose key hashes to `object_hash`.
    pub fn chunk_partition(&self, object_hash: u64, chunk_no: u64) -> PartitionId {
        todo!()
    }

    /// The newest lease epoch that any node has told this client. Whoever caches directories drops
    /// them when this has grown, and says in [`Op::lease_epoch`] on which epoch they stand.
    pub fn lease_epoch(&self) -> Epoch {
        todo!()
    }

    /// Carries out operations, in one request per node, and returns their outcomes in the same order.
    /// Operations on one partition happen in the order given; those on different partitions in any.
    ///
    /// Errors: a node did not answer by the deadline, is unreachable, or an operation is over a limit (then nothing was sent).
    /// With the first two the outcome of every operation is unknown.
    pub fn execute(&self, ops: &mut [Op<'_>], deadline: Deadline) -> Result<Vec<OwnedOutcome>> {
        todo!()
    }

    /// Carries out one operation by the client's default deadline.
    pub fn execute_one(&self, op: Op<'_>) -> Result<OwnedOutcome> {
        todo!()
    }

    /// Sends operations, in one request per node, without waiting.
    pub fn submit(&self, ops: &[Operation<'_>]) -> Result<Pending> {
        todo!()
    }
}
