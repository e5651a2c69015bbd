//! The shard between its partitions and its log.

use std::time::Duration;

use samite_log::FrameNeed;
use samite_metrics::registry;
use samite_mirror::MirrorEffect;
use samite_mirror::durable::PlaceId;
use samite_mirror::durable::frame::OVERHEAD;
use samite_partition::removes;
use samite_placement::{ClusterMap, shard_of};
use samite_transport::server::ReplySink;
use samite_types::{Clock, ErrorKind, SystemClock};
use samite_wire::op::{Action, Guard, Operation, OperationRequest, ValueData};
use samite_wire::peer::data_of;

use super::ShardService;

/// Whether there may be an entry about an operation.
fn may_append(operation: &Operation<'_>) -> bool {
    let about_holds = |action: &Action<'_>| {
        matches!(action, Action::Hold { .. } | Action::Release { .. } | Action::Lease { .. })
    };
    operation.is_mutation() || operation.actions.iter().any(about_holds)
}

/// The largest operation for which the log is to have room, when there is little.
fn need_of(operation: &Operation<'_>) -> FrameNeed {
    /// A change stamp, a time or a number.
    const MARK_LEN: usize = 32;
    let data: usize = data_of(operation).map(|(_, data)| data.len()).sum();
    // A directory gets a tombstone before it is removed.
    let seals = operation.guards.iter().any(|guard| matches!(guard, Guard::PrefixEmpty(_)));
    if data == 0 && (!operation.is_mutation() || operation.actions.iter().any(removes)) {
        FrameNeed::Essential
    } else if data <= MARK_LEN || seals {
        FrameNeed::Small
    } else {
        FrameNeed::Ordinary
    }
}

/// Bytes that an operation has beside those in its request.
fn blocks_len(operation: &Operation<'_>) -> usize {
    let data = data_of(operation).map(|(_, data)| data);
    data.filter(|data| matches!(data, ValueData::Blocks(_))).map(ValueData::len).sum()
}

impl ShardService {
    /// Whether the log has room for the changes of `request`, of `len` bytes, to this shard's
    /// partitions.
    pub(super) fn check_log(
        &self,
        request: &OperationRequest<'_>,
        len: usize,
    ) -> Result<(), ErrorKind> {
        let Some(durable) = &self.durable else { return Err(ErrorKind::Unsupported) };
        let shards = self.shared.shards();
        let mine = request.operations.iter().filter(|operation| {
            may_append(operation) && shard_of(operation.partition, shards) == self.id
        });
        let (mut more, mut need) = (0, FrameNeed::Essential);
        for operation in mine {
            more += OVERHEAD + blocks_len(operation);
            need = need.max(need_of(operation));
        }
        if more == 0 { Ok(()) } else { durable.admit(len + more, need) }
    }

    /// Carries out the effects of a partition.
    pub(super) fn log_effect(&mut self, id: PlaceId, effect: &MirrorEffect) {
        let Some(durable) = &mut self.durable else { return };
        match effect {
            MirrorEffect::Append(entry) => durable.append(id, entry),
            MirrorEffect::Discard => durable.discard(id),
            MirrorEffect::Checkpoint => durable.want_checkpoint(id),
            _ => {}
        }
    }

    /// Tells partitions which entries have come to be on flash.
    pub(super) fn note_durable(&mut self, out: &mut ReplySink) {
        let Some(durable) = &mut self.durable else { return };
        while let Some((id, position)) = durable.next_durable() {
            if let Some(replica) = self.partitions.mark_ready(id) {
                replica.member.logged(position);
            }
        }
        self.advance_checkpoints(out);
    }

    /// When the next piece of a checkpoint may be copied: when there is nothing else to do.
    pub(super) fn checkpoint_due(&self) -> Option<Duration> {
        self.durable.as_ref().filter(|durable| durable.is_busy()).map(|_| Duration::ZERO)
    }

    /// Copies the next piece of a checkpoint, if there is one to copy.
    pub(super) fn advance_checkpoints(&mut self, out: &mut ReplySink) {
        // The changes of a partition in this request batch are to be in the log first: a checkpoint
        // says with which frame the log goes on after it.
        self.settle(out);
        let Self { durable: Some(durable), partitions, .. } = self else { return };
        let headed = durable.advance(&mut |id, use_it| {
            if let Some(replica) = partitions.replica(id) {
                use_it(&mut replica.member);
            }
        });
        let (log, checkpoints) = durable.lens();
        if let Some((id, position)) = headed
            && let Some(replica) = self.partitions.mark_ready(id)
        {
            replica.member.logged(position);
        }
        self.metrics().set(registry::LOG_BYTES, log);
        self.metrics().set(registry::CHECKPOINT_BYTES, checkpoints);
    }

    /// There is a new map: opens the partitions that a restart has left, and lets go of those that
    /// are not this node's any more.
    pub(super) fn refresh_durable(&mut self, map: &ClusterMap, moved: &[PlaceId]) {
        self.partitions.open_recovered(map, SystemClock.monotonic());
        let Some(durable) = &mut self.durable else { return };
        moved.iter().for_each(|id| durable.discard(*id));
        durable.forget(&|dataset| map.dataset_by_id(dataset).is_none());
    }
}
