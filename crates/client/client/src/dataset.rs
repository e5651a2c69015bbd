//! One dataset, as seen from a client.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use samite_arena::lookup::{HEAD_LEN, LookupHead, RecordId};
use samite_placement::{ClusterMap, Distribution, hash};
use samite_types::{DatasetId, Deadline, Epoch, NodeId, PartitionId, Redundancy, Result};
use samite_wire::control::{DatasetData, DatasetSpec, DurabilityKind, MEMORY_BACKEND};
use samite_wire::limits::OPERATIONS_MAX;
use samite_wire::op::Operation;

use crate::changes::{mask_of, mask_of_key};
use crate::exec::OperationRun;
use crate::op::check;
use crate::scan::{DatasetScan, ScanOptions};
use crate::{
    Client, ClientOperation, DatasetFreeze, FinishStep, OwnedOutcome, PendingOperations, ReadStamp,
};

/// A dataset of a cluster. Cheap to clone.
#[derive(Clone)]
pub struct Dataset {
    inner: Arc<DatasetInner>,
}

struct DatasetInner {
    client: Client,
    data: DatasetData,
    partitions: u32,
    distribution: Distribution,
    name_space_generation: AtomicU64,
    /// Its changes may be completed early: its nodes publish each record that they have, and wait
    /// for no other node and no flash.
    completes_early: bool,
}

impl Dataset {
    pub(crate) fn new(client: Client, data: &DatasetData, map: &ClusterMap) -> Self {
        let spec = &data.spec;
        let inner = DatasetInner {
            client,
            data: data.clone(),
            partitions: map.partitions(),
            distribution: map.distribution(data),
            name_space_generation: AtomicU64::new(0),
            completes_early: spec.redundancy.get() == 1
                && spec.durability == DurabilityKind::Memory
                && spec.backend.name == MEMORY_BACKEND,
        };
        Self { inner: Arc::new(inner) }
    }

    /// The client behind it.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.inner.client
    }

    /// Id.
    #[must_use]
    pub fn id(&self) -> DatasetId {
        self.inner.data.id
    }

    /// Policy.
    #[must_use]
    pub fn spec(&self) -> &DatasetSpec {
        &self.inner.data.spec
    }

    pub(crate) fn completes_early(&self) -> bool {
        self.inner.completes_early
    }

    pub(crate) fn redundancy(&self) -> Redundancy {
        self.inner.data.spec.redundancy
    }

    /// Whether other nodes have the same records as each one: then one that dies is a pause, not an
    /// error.
    #[must_use]
    pub fn is_mirrored(&self) -> bool {
        self.redundancy().get() > 1
    }

    /// Whether every node answers as soon as it has served: it shares memory with this host, and
    /// waits for no other and for no flash.
    #[must_use]
    pub fn answers_soon(&self) -> bool {
        let view = self.inner.client.session().view();
        self.spec().durability == DurabilityKind::Memory
            && !self.is_mirrored()
            && view.is_some_and(|view| view.peers().iter().all(|peer| peer.is_on_host()))
    }

    /// How many partitions there are.
    #[must_use]
    pub fn partitions(&self) -> u32 {
        self.inner.partitions
    }

    /// Whether partitions of it are lost by the newest cluster map that is known here, and nobody
    /// has taken note of that.
    #[must_use]
    pub fn has_lost(&self) -> bool {
        self.client().map().is_ok_and(|map| !map.lost_partitions(self.id()).is_empty())
    }

    /// The partition of a placement key.
    #[must_use]
    pub fn partition_of(&self, key: &[u8]) -> PartitionId {
        self.partition_of_hash(hash(key))
    }

    /// The partition of a placement key whose [`samite_placement::hash`] is known.
    #[must_use]
    pub fn partition_of_hash(&self, hash: u64) -> PartitionId {
        // The remainder is below the partition count, which fits.
        PartitionId((hash % u64::from(self.inner.partitions)) as u32)
    }

    /// The node that serves a partition, as far as is known.
    ///
    /// # Errors
    /// No cluster map can be had.
    pub fn node_of(&self, partition: PartitionId) -> Result<NodeId> {
        let view = self.inner.client.view(self.inner.client.deadline())?;
        Ok(view.peer_at(view.peer_index(self.redundancy(), partition)?).node)
    }

    /// The connection over which this process's requests for a partition go, if there is one now.
    /// As long as anybody has it open, a node does not take this process for gone. Asks nobody.
    #[must_use]
    pub fn connection_to(&self, partition: PartitionId) -> Option<i32> {
        let view = self.inner.client.session().view()?;
        let index = view.peer_index(self.redundancy(), partition).ok()?;
        view.peer_at(index).live_link()?.socket()
    }

    /// The partition of chunk `chunk_no` of the object whose key hashes to `object_hash`.
    #[must_use]
    pub fn chunk_partition(&self, object_hash: u64, chunk_no: u64) -> PartitionId {
        self.inner.distribution.chunk_partition(object_hash, chunk_no)
    }

    /// The newest name-space generation that any node has told this client. A user of cached
    /// directories drops them when this has grown, and says in
    /// [`ClientOperation::name_space_generation`] on which generation it stands.
    #[must_use]
    pub fn name_space_generation(&self) -> Epoch {
        Epoch(self.inner.name_space_generation.load(Ordering::Acquire))
    }

    pub(crate) fn saw_name_space_generation(&self, epoch: Epoch) {
        if epoch > self.name_space_generation() {
            self.inner.name_space_generation.fetch_max(epoch.get(), Ordering::AcqRel);
        }
    }

    /// To be taken before a request is sent that asks for a delegation
    /// ([`samite_wire::op::Action::Lease`]) on a record in `partition`. `None`: a change by this
    /// session is under way there, and a record that is read now cannot be relied on.
    #[must_use]
    pub fn read_stamp(&self, partition: PartitionId) -> Option<ReadStamp> {
        let session = self.inner.client.session();
        session.changes.read_stamp(session.id, mask_of(partition))
    }

    /// The same for the records with this key, in whichever partition.
    #[must_use]
    pub fn read_stamp_of_key(&self, key: &[u8]) -> Option<ReadStamp> {
        let session = self.inner.client.session();
        session.changes.read_stamp(session.id, mask_of_key(key))
    }

    /// For how long no other client can change the records that were asked for at `read_stamp`,
    /// under a delegation that was granted for `term`. `None`: the answer may not be the one that a
    /// node would give, for the term is over, or this session has changed something itself, or this
    /// is a forked child.
    #[must_use]
    pub fn is_current(&self, read_stamp: &ReadStamp, term: Duration) -> Option<Duration> {
        let session = self.inner.client.session();
        session.changes.is_current(session.id, read_stamp, term)
    }

    /// The record at `key` in `partition`, as its node publishes it to clients on its host, without
    /// a request: the result of a look-up now, under name-space generation `name_space`. Its first
    /// bytes are put to the front of `dest`. `None`: it is not published, ask for it; it may exist.
    #[must_use]
    pub fn head(
        &self,
        partition: PartitionId,
        key: &[u8],
        name_space: Epoch,
        dest: &mut [u8; HEAD_LEN],
    ) -> Option<LookupHead> {
        let view = self.inner.client.session().view()?;
        let link = view.peer_at(view.peer_index(self.redundancy(), partition).ok()?).live_link()?;
        link.arena()?.head(&RecordId { dataset: self.id(), partition, key }, name_space, dest)
    }

    /// Carries out operations, in one request per node, and returns their outcomes in the same
    /// order.
    ///
    /// Operations on one partition happen in the order given, unless a node was too busy for some
    /// of them; those on different partitions in any. More than [`OPERATIONS_MAX`] of them, and
    /// more data than fits one frame, travel in several requests.
    ///
    /// # Errors
    /// `TooLarge`, `Invalid`: an operation is over a limit; nothing was sent. `Unavailable`,
    /// `Timeout`: a node, which the message names, cannot be reached or did not answer by the
    /// deadline; the outcome of every operation is unknown.
    pub fn execute(
        &self,
        ops: &mut [ClientOperation<'_>],
        deadline: Deadline,
    ) -> Result<Vec<OwnedOutcome>> {
        let mut outcomes = Vec::new();
        for op in ops.iter() {
            check(&op.operation)?;
        }
        for wave in ops.chunks_mut(OPERATIONS_MAX) {
            OperationRun::new(self, wave, deadline).finish(&mut outcomes)?;
        }
        Ok(outcomes)
    }

    /// Carries out one operation by the client's default deadline.
    ///
    /// # Errors
    /// As [`Self::execute`].
    pub fn execute_one(&self, op: ClientOperation<'_>) -> Result<OwnedOutcome> {
        self.execute_one_by(op, self.inner.client.deadline())
    }

    /// Carries out one operation.
    ///
    /// # Errors
    /// As [`Self::execute`].
    pub fn execute_one_by(
        &self,
        mut op: ClientOperation<'_>,
        deadline: Deadline,
    ) -> Result<OwnedOutcome> {
        check(&op.operation)?;
        OperationRun::new(self, std::slice::from_mut(&mut op), deadline).finish_one()
    }

    /// Begins a scan: see [`DatasetScan`].
    ///
    /// # Errors
    /// `Invalid`: there is no such partition, or the token is of another dataset.
    pub fn scan(&self, options: &ScanOptions) -> Result<DatasetScan> {
        DatasetScan::new(self, options)
    }

    /// Freezes the dataset: until the freeze ends, nothing changes its records; who wants to waits.
    /// Readers do not. For the owner of the dataset; see [`DatasetFreeze`].
    ///
    /// # Errors
    /// `InUse`: another client has frozen it. `Denied`. `Unavailable`, `Timeout`: some node that
    /// serves it does not say that it knows; the dataset is not frozen, or thaws by itself.
    pub fn freeze(&self) -> Result<DatasetFreeze> {
        DatasetFreeze::begin(self)
    }

    /// Sends operations, in one request per node, without waiting. At most [`OPERATIONS_MAX`] of
    /// them.
    ///
    /// A single small one may stay here for a little while, to leave together with others to the
    /// same node: until any [`PendingOperations`] is waited for or polled, or enough has come
    /// together.
    ///
    /// # Errors
    /// As [`Self::execute`]; `Busy`: too many operations wait for their answers, let some finish
    /// first.
    pub fn submit(&self, ops: &[Operation<'_>]) -> Result<PendingOperations> {
        PendingOperations::send(self, ops, self.inner.client.deadline())
    }

    /// As [`Self::submit`], with a result that `finish` makes of the outcomes, which come in the
    /// order of `ops`: for views, whose calls are made of operations. `finish` runs in the thread
    /// that waits or polls, and must not block.
    ///
    /// # Errors
    /// As [`Self::submit`].
    pub fn submit_then<T>(
        &self,
        ops: &[Operation<'_>],
        finish: impl FnOnce(Vec<OwnedOutcome>) -> FinishStep<T> + Send + 'static,
    ) -> Result<PendingOperations<T>> {
        PendingOperations::send_then(self, ops, self.inner.client.deadline(), finish)
    }

    /// As [`Self::submit`], standing on name-space generation `name_space_generation`
    /// ([`ClientOperation::name_space_generation`]).
    ///
    /// # Errors
    /// As [`Self::submit`].
    pub fn submit_under(
        &self,
        ops: &[Operation<'_>],
        name_space_generation: Epoch,
    ) -> Result<PendingOperations> {
        PendingOperations::send_under(
            self,
            ops,
            name_space_generation,
            self.inner.client.deadline(),
        )
    }
}

impl fmt::Debug for Dataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dataset")
            .field("id", &self.inner.data.id)
            .field("name", &self.inner.data.spec.name)
            .finish_non_exhaustive()
    }
}
