//! Counts and digests of a node's copy of a partition, by which members are compared.

use std::ops::ControlFlow;

use samite_mirror::durable::PlaceId;
use samite_partition::Partition;
use samite_placement::{hash, shard_of};
use samite_types::ErrorKind;
use samite_wire::control::{ControlReply, PartitionCopy};

use super::ShardService;
use crate::control_reply::ReplyTo;
use crate::inbox::InboxMessage;

impl ShardService {
    /// A request for what this node has of a partition. `None`: the shard that has it answers.
    pub(super) fn copy_asked(&mut self, to: ReplyTo, id: PlaceId) -> Option<ControlReply> {
        let shard = shard_of(id.1, self.shared.shards());
        if shard == self.id {
            return Some(ControlReply::Copy(self.copy_of(id)));
        }
        let inbox = &self.shared.inboxes[usize::from(shard.get())];
        match inbox.reserve(0) {
            Some(cost) => inbox.send(InboxMessage::Copy(to, id, cost)),
            None => return Some(ControlReply::failed(ErrorKind::Busy, "a shard is too busy")),
        }
        None
    }

    pub(super) fn copy_of(&mut self, id: PlaceId) -> Option<PartitionCopy> {
        let replica = self.partitions.replica(id)?;
        Some(summary(replica.member.partition()))
    }
}

fn summary(partition: &Partition) -> PartitionCopy {
    let mut digest = 0u64;
    let mut add = |number: u64| {
        digest = (digest.rotate_left(5) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    };
    let visited = partition.visit_records(&[], &mut |key, meta| {
        add(hash(key));
        add(meta.version.get());
        if let Ok(Some((_, pieces))) = partition.read_record(key) {
            let mut value = Vec::with_capacity(meta.len as usize);
            pieces.iter().for_each(|piece| piece.append_to(&mut value));
            add(hash(&value));
        }
        ControlFlow::Continue(())
    });
    // A copy that cannot be read is like no other.
    add(u64::from(visited.is_err()));
    PartitionCopy { version: partition.version(), records: partition.record_count(), digest }
}
