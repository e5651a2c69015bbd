//! The shard between its partitions and the targets that remember.

use std::sync::Arc;

use samite_backend::ReadAhead;
use samite_metrics::registry;
use samite_mirror::durable::PlaceId;
use samite_placement::{ClusterMap, shard_of};
use samite_transport::server::ReplySink;
use samite_types::{Clock, Error, Position, SystemClock};
use samite_wire::op::OperationRequest;

use super::ShardService;
use crate::commit_thread::{CommitJob, TargetThreads};
use crate::delegation_waiters::WaitingWork;
use crate::inbox::ShardTask;
use crate::partitions::{ClearBatch, DatasetIndex};
use crate::shared::NodeNotice;

/// A request that is to wait for reads.
pub(super) struct ColdRequest {
    threads: Arc<TargetThreads>,
    reads: Vec<ReadAhead>,
    len: usize,
}

impl ShardService {
    /// Has committed what has changed in a partition, if its store remembers.
    pub(super) fn commit_next(&mut self, id: PlaceId) {
        let shard = self.id;
        let Some((replica, threads)) = self.partitions.replica_and_target(id) else { return };
        if let Some(kind) = replica.member.failed() {
            let words = format!(
                "{} {}: its store failed in the midst of a change; the node ends, so that nothing is told of it",
                id.0, id.1
            );
            return self.shared.notice(NodeNotice::Fatal(Error::new(kind, words)));
        }
        let Some(threads) = threads else { return };
        if let Some(commit) = replica.member.next_commit() {
            let (batch, position) = (commit.batch, commit.position);
            threads.commit(CommitJob { shard, batch, position });
        }
    }

    /// A batch of a partition is committed.
    pub(super) fn committed(&mut self, id: PlaceId, position: Option<Position>) {
        if self.partitions.note_cleared(id) {
            return;
        }
        if let Some(replica) = self.partitions.mark_ready(id) {
            replica.member.committed_upto(position);
        }
    }

    /// The reads for which `request`, of `len` bytes, is to wait: what it reads of this shard's
    /// partitions and is not there yet.
    pub(super) fn cold_reads_of(
        &self,
        slot: DatasetIndex,
        request: &OperationRequest<'_>,
        len: usize,
    ) -> Option<ColdRequest> {
        let threads = self.partitions.target(slot)?;
        if !self.cold_reads.has_room(len) {
            return None;
        }
        let (shards, id) = (self.shared.shards(), self.id);
        let mine = request.operations.iter().filter(|op| shard_of(op.partition, shards) == id);
        let reads: Vec<_> =
            mine.filter_map(|operation| self.partitions.read_ahead(slot, operation)).collect();
        (!reads.is_empty()).then_some(ColdRequest { threads, reads, len })
    }

    /// Has `work` wait for its reads.
    pub(super) fn await_reads(&mut self, work: WaitingWork, cold: ColdRequest) {
        let number = self.cold_reads.push(work, cold.len);
        cold.threads.read(self.id, number, cold.reads);
        self.metrics().add(registry::TARGET_READS, 1);
    }

    /// Carries out a request for which the reads were done.
    pub(super) fn read_was_done(&mut self, number: u64, out: &mut ReplySink) {
        match self.cold_reads.take(number) {
            Some(WaitingWork::Request { conn, peer, id, body, payload, since }) => {
                let frame = (&*body, &*payload);
                if let Some(until) = self.serve(conn, &peer, id, frame, Some(since), out) {
                    let work = WaitingWork::Request { conn, peer, id, body, payload, since };
                    self.park(work, until);
                }
            }
            Some(WaitingWork::Task(task)) => self.task(ShardTask { is_read: true, ..task }, out),
            None => {}
        }
    }

    /// There is a new map: opens the partitions that targets have, and clears those that are not
    /// this node's, or not any more.
    pub(super) fn refresh_targets(&mut self, map: &ClusterMap, mut cleared: Vec<ClearBatch>) {
        let (shards, shard) = (self.shared.shards(), self.id);
        let is_mine = |partition| shard_of(partition, shards) == shard;
        let now = SystemClock.monotonic();
        cleared.extend(self.partitions.open_stored(map, now, &is_mine));
        for (batch, threads) in cleared {
            threads.commit(CommitJob { shard, batch, position: None });
        }
    }
}
