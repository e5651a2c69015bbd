//! The receivers of a request: the primary of each partition; or, if it only reads and the dataset
//! lets all members answer, one on this host.
//!
//! A member that does not answer costs nothing but the way: the next round goes to the primary, and
//! no decision is made on its answer. A request while a change of this session is under way in the
//! same partitions goes to the primary, behind the change.

use std::time::Duration;

use samite_types::{Clock, NodeId, PartitionId, Redundancy, Result, SystemClock};
use samite_wire::control::{MemberConsistency, NodeReachability, ReadsKind};
use samite_wire::op::Operation;

use crate::Dataset;
use crate::changes::mask_of;
use crate::session::MapView;

/// A member that did not answer at all is not asked again for so long.
const DOUBT: Duration = Duration::from_secs(1);

/// The receivers of the operations of one call.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MemberTarget {
    /// Members may be asked.
    members: bool,
    /// One was, in this round.
    asked: Option<NodeId>,
}

impl MemberTarget {
    /// For a call of these operations.
    pub(crate) fn of<'o, 'a: 'o>(
        dataset: &Dataset,
        operations: impl Iterator<Item = &'o Operation<'a>> + Clone,
    ) -> Self {
        let members = dataset.is_mirrored()
            && dataset.spec().reads == ReadsKind::Any
            && operations.clone().all(Operation::only_reads)
            && {
                let mask = operations.fold(0, |mask, one| mask | mask_of(one.partition));
                let session = dataset.client().session();
                session.changes.read_stamp(session.id, mask).is_some()
            };
        Self { members, asked: None }
    }

    /// For somebody who only reads, and has changed nothing that matters to him.
    pub(crate) fn reader(dataset: &Dataset) -> Self {
        let members = dataset.is_mirrored() && dataset.spec().reads == ReadsKind::Any;
        Self { members, asked: None }
    }

    /// Position among the peers of the one to ask.
    pub(crate) fn index(
        &mut self,
        view: &MapView,
        redundancy: Redundancy,
        partition: PartitionId,
    ) -> Result<usize> {
        let primary = view.peer_index(redundancy, partition)?;
        if !self.members || view.peer_at(primary).is_on_host() {
            return Ok(primary);
        }
        let near = near_member(view, redundancy, partition);
        if let Some(index) = near {
            self.asked = Some(view.peer_at(index).node);
        }
        Ok(near.unwrap_or(primary))
    }

    /// There was no answer, or none that counts. Whether a member was asked: then the primaries are from here on.
    pub(crate) fn turns_to_primary(&mut self, view: Option<&MapView>, is_silent: bool) -> bool {
        self.members = false;
        let Some(node) = self.asked.take() else { return false };
        if is_silent && let Some(Ok(peer)) = view.map(|view| view.peer(node)) {
            peer.doubt(SystemClock.monotonic() + DOUBT);
        }
        true
    }
}

/// A member on this host that should have everything.
fn near_member(view: &MapView, redundancy: Redundancy, partition: PartitionId) -> Option<usize> {
    let group = view.map.group(redundancy, partition)?;
    let good = group.members.iter().filter(|member| member.consistency == MemberConsistency::Good);
    good.filter_map(|member| view.map.node_of_target(member.target)).find_map(|node| {
        let index = view.index_of(node).ok()?;
        let peer = view.peer_at(index);
        let is_online = view.map.state(node)?.reachability == NodeReachability::Online;
        (is_online && peer.is_on_host() && !peer.is_doubted()).then_some(index)
    })
}
