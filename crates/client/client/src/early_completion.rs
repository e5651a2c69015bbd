//! Early completion: changes that a client leaves in a submission queue and does not wait for
//! ([`samite_arena::submission`]).

use samite_arena::lookup::{HEAD_LEN, LookupHead, RecordId};
use samite_arena::{ArenaView, SubmittedChange, SubmittedEntry};
use samite_transport::client::NodeLink;
use samite_types::{Epoch, PartitionId, Seq};
use samite_wire::op::{Action, Guard, Operation, OperationRequest, RequestEncoder, RequestHeader};
use smallvec::SmallVec;

use crate::changes::mask_of_change;
use crate::frame::{put_scratch, take_scratch};
use crate::op::check;
use crate::stats::count;
use crate::{ClientOperation, Dataset};

/// A change that was completed without a request: it is done, and all see it so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletedChange {
    entry: SubmittedEntry,
}

impl Dataset {
    /// Completes a change without a request, if that is possible now: if its guards hold by what
    /// the node publishes to clients on its host, and nothing can come in between. From here on the
    /// change counts as done. `None`: nothing was done, and nothing is known; ask the node.
    ///
    /// The change is about the record of its first action: a `Put`, or a `Delete` or `Detach` of a
    /// record that exists. The other actions may be an `Add`, `Max` or `Advance` of any record, and
    /// a `Hold` and a `Lease` of that one. The caller counts on the following:
    ///
    /// - It needs no results. A record that is deleted existed; a delegation that is asked for is
    ///   granted for as long as it says.
    /// - A record whose absence a guard asks for, beside the record of the first action, is only
    ///   made by operations that also change that one, or that have the guard that a prefix is
    ///   empty. A key that a record is detached to is nobody else's.
    /// - Earlier operations of this session that were sent and not waited for are not about the
    ///   same records.
    ///
    /// An open reference that the change takes may [end](Dataset::end_reference) before the node
    /// has heard of it.
    #[must_use]
    pub fn try_complete(&self, op: &mut ClientOperation<'_>) -> Option<CompletedChange> {
        if !self.completes_early() {
            return None;
        }
        let precondition = Precondition::of(&op.operation)?;
        let name_space = op.name_space_generation;
        // One guard of the record tells the node which one to prefetch; all of them are certain.
        let first =
            op.operation.guards.iter().find(|guard| guard.record() == Some(precondition.key));
        let guards = first.cloned().into_iter().collect();
        let guards = std::mem::replace(&mut op.operation.guards, guards);
        let entry = self.submit_if(precondition.key, &op.operation, |arena, record| {
            precondition.holds(&guards, arena, record, name_space)
        });
        op.operation.guards = guards;
        entry.map(|entry| CompletedChange { entry })
    }

    /// Ends the open reference under `token` that a change in this partition takes which was
    /// completed, if the node has not taken it yet: then it is never taken. `false`: ask for it.
    #[must_use]
    pub fn end_reference(
        &self,
        partition: PartitionId,
        completed: CompletedChange,
        token: u64,
    ) -> bool {
        let session = self.client().session();
        let Some(view) = session.view() else { return false };
        let link = view.peer_index(self.redundancy(), partition).ok();
        link.and_then(|index| view.peer_at(index).live_link())
            .and_then(|link| Some(link.arena()?.end_reference(partition, completed.entry, token)))
            .unwrap_or(false)
    }

    /// Submits an operation about the record at `key`, if `is_certain` says so once no other change
    /// of the record can be submitted.
    fn submit_if(
        &self,
        key: &[u8],
        operation: &Operation<'_>,
        is_certain: impl FnOnce(&ArenaView, &RecordId<'_>) -> bool,
    ) -> Option<SubmittedEntry> {
        let session = self.client().session();
        let view = session.view()?;
        let known = view.map.dataset_by_id(self.id())?;
        let (partition, map_epoch) = (operation.partition, view.map.epoch());
        let link = view.peer_at(view.peer_index(self.redundancy(), partition).ok()?).live_link()?;
        let arena = NodeLink::arena_beside_requests(&link)?;
        let token = reference_of(operation)?;
        let record = RecordId { dataset: self.id(), partition, key };
        let takes_delegation = operation.takes_delegation();
        if !arena.may_submit(&record, map_epoch, (session.id, takes_delegation)) {
            return None;
        }
        let header = RequestHeader {
            dataset: self.id(),
            map_epoch,
            name_space_generation: Epoch(u64::MAX),
            answered_below: Seq(0),
            is_retry: false,
        };
        let mut encoder = RequestEncoder::new(take_scratch(), &header);
        // Changes are carried out once; no number is needed for that, and none may be missing.
        encoder.operation_placed(operation, Seq(operation.is_mutation().into()), &mut |_| None);
        let (body, payload) = encoder.finish();
        debug_assert!(OperationRequest::decode(&body, &payload.concat()).is_ok());
        let change = SubmittedChange {
            record,
            access: known.spec.access,
            map_epoch,
            client: session.id,
            takes_delegation,
            token,
            body: &body,
            payload: &payload,
        };
        let changing = session.changes.begin(mask_of_change(operation));
        let submitted =
            arena.submit(&change, || link.wake_node(), |arena| is_certain(arena, &record));
        changing.end();
        put_scratch(body);
        count(&self.client().counters().early_completions, u64::from(submitted.is_some()));
        submitted
    }
}

/// What has to be certain of a change: its guards, and that there is a record to be removed.
struct Precondition<'o> {
    /// Key of the record that it is about.
    key: &'o [u8],
    /// The record exists.
    is_there: bool,
}

impl<'o> Precondition<'o> {
    /// That of an operation; `None`: it cannot be completed early, whatever is published.
    fn of(operation: &Operation<'o>) -> Option<Self> {
        let (first, others) = operation.actions.split_first()?;
        let (key, is_removal) = match *first {
            Action::Put { key, .. } => (key, false),
            Action::Delete { key } | Action::Detach { key, .. } => (key, true),
            _ => return None,
        };
        let is_allowed = |action: &Action<'_>| match *action {
            Action::Add { .. } | Action::Max { .. } | Action::Advance { .. } => true,
            Action::Hold { key: of, .. } | Action::Lease { key: of, .. } => of == key,
            _ => false,
        };
        let mut is_there = is_removal;
        for guard in &operation.guards {
            match *guard {
                Guard::Absent(_) => {}
                Guard::PrefixEmpty(_) => return None,
                _ if guard.record() != Some(key) => return None,
                _ => is_there = true,
            }
        }
        (others.iter().all(is_allowed) && check(operation).is_ok())
            .then_some(Self { key, is_there })
    }

    /// Whether the guards hold by what the node publishes.
    fn holds(
        &self,
        guards: &[Guard<'_>],
        arena: &ArenaView,
        record: &RecordId<'_>,
        name_space: Epoch,
    ) -> bool {
        let mut absent: SmallVec<[RecordId<'_>; 2]> = SmallVec::new();
        for guard in guards {
            if let Guard::Absent(key) = *guard {
                absent.push(RecordId { key, ..*record });
            }
        }
        // Without such guards this says that the node lives, and what it publishes counts.
        if (!absent.is_empty() || !self.is_there) && !arena.has_none(&absent, name_space) {
            return false;
        }
        if !self.is_there {
            return true;
        }
        let mut start = [0; HEAD_LEN];
        let head = arena.head(record, name_space, &mut start);
        head.is_some_and(|head| guards.iter().all(|guard| agrees(guard, &start[..head.len], &head)))
    }
}

/// Whether a guard on a record holds that is there and whose value begins with `start`. One on its
/// absence was looked at before.
fn agrees(guard: &Guard<'_>, start: &[u8], head: &LookupHead) -> bool {
    match *guard {
        Guard::Absent(_) | Guard::Exists(_) => true,
        Guard::VersionIs(_, version) => head.version == version,
        Guard::LenAtMost(_, len) => head.total_len <= len,
        Guard::BytesAre { offset, bytes, .. } => {
            start.get(offset as usize..).is_some_and(|rest| rest.starts_with(bytes))
        }
        Guard::PrefixEmpty(_) => false,
    }
}

/// Token of the open reference that an operation takes, 0 for none. `None`: a slot has no place for
/// what it takes.
fn reference_of(operation: &Operation<'_>) -> Option<u64> {
    let token = |action: &Action<'_>| match *action {
        Action::Hold { token, .. } => Some(token),
        _ => None,
    };
    let mut tokens = operation.actions.iter().filter_map(token);
    match (tokens.next(), tokens.next()) {
        (None, _) => Some(0),
        (Some(token @ 1..), None) => Some(token),
        _ => None,
    }
}
