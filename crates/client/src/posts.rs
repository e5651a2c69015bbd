//! Changes that are left with the node, not asked for ([`samite_wire::posts`]).

use samite_transport::shm::Change;
use samite_types::{Epoch, PartitionId, Seq};
use samite_wire::control::DurabilityKind;
use samite_wire::heads::{Head, RecordId};
use samite_wire::op::{Operation, Request, RequestEncoder, RequestHeader};

use crate::Dataset;
use crate::changes::mask_of_change;
use crate::frame::{put_scratch, take_scratch};
use crate::stats::count;

impl Dataset {
    /// Posts operations of one partition, whose outcome is certain as long as the record at `key` there is as its node shows it to clients on its
    /// host: from here on they count as done. `agrees` looks at the first bytes of its value. `false`: nothing was done, ask the node.
    ///
    /// The operations are carried out together, before whatever the node is asked next; those behind the first are left out where the target has no room for
    /// them. They carry no data beside them, hold and lease
    /// nothing, and change no record under a prefix. Nothing that the session has sent before them and not waited for may be about the same records.
    #[must_use]
    pub fn post(
        &self,
        (partition, key): (PartitionId, &[u8]),
        operations: &[Operation<'_>],
        lease: Epoch,
        agrees: impl FnOnce(&[u8], &Head) -> bool,
    ) -> bool {
        let spec = self.spec();
        if spec.redundancy.get() > 1 || spec.durability == DurabilityKind::Logged {
            return false;
        }
        let session = self.client().session();
        let Some(view) = session.view() else { return false };
        let Some(known) = view.map.dataset_by_id(self.id()) else { return false };
        let link = view.peer_index(self.redundancy(), partition).ok();
        let Some(link) = link.and_then(|index| view.peer_at(index).live_link()) else {
            return false;
        };
        let record = RecordId { dataset: self.id(), partition, key };
        if !link.may_post(&record, view.map.epoch()) {
            return false;
        }
        let header = RequestHeader {
            dataset: self.id(),
            map_epoch: view.map.epoch(),
            lease_epoch: Epoch(u64::MAX),
            answered_below: Seq(0),
            is_retry: false,
        };
        let mut encoder = RequestEncoder::new(take_scratch(), &header);
        // They are carried out once; no number is needed for that, and none may be missing.
        operations.iter().for_each(|one| encoder.operation_placed(one, Seq(1), &mut |_| None));
        let (request, payload) = encoder.finish();
        debug_assert!(payload.is_empty() && Request::decode(&request, &[]).is_ok());
        let change = Change {
            record,
            access: known.spec.access,
            lease,
            map_epoch: view.map.epoch(),
            client: session.id,
            request: &request,
        };
        let mask = operations.iter().fold(0, |mask, operation| mask | mask_of_change(operation));
        let changing = session.changes.begin(mask);
        let is_posted = link.post(&change, agrees);
        changing.end();
        put_scratch(request);
        count(&self.client().counters().posts, u64::from(is_posted));
        is_posted
    }
}
