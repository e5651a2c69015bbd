//! Whether this node has a say about a file lock: it grants locks as the primary of a partition, or
//! notes what that has granted.

use std::time::Duration;

use samite_placement::ClusterMap;
use samite_types::{Error, ErrorKind, NodeId, Result};
use samite_wire::control::ControlReply;
use samite_wire::lock::{LockAnswer, LockCall, LockRequest};

use crate::control_reply::refused;

/// What a node goes by when it is asked for a lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LockAuthority<'m> {
    pub map: Option<&'m ClusterMap>,
    pub node: NodeId,
    /// End of the node's lease.
    pub lease_until: Duration,
    pub now: Duration,
}

impl LockAuthority<'_> {
    /// Whether this node has a say about such a lock now.
    ///
    /// # Errors
    /// `StaleMap`: another node has; `Busy`: perhaps later.
    pub(crate) fn check(&self, request: &LockRequest) -> Result<()> {
        let stale = || {
            let words = format!("lock: {} is not here", request.partition);
            Err(Error::new(ErrorKind::StaleMap, words))
        };
        let busy = |words| Err(Error::new(ErrorKind::Busy, words));
        let Some(map) = self.map else { return busy("lock: no map yet") };
        let Some(dataset) = map.dataset_by_id(request.dataset) else { return stale() };
        let redundancy = dataset.spec.redundancy;
        let Some(group) = map.group(redundancy, request.partition) else { return stale() };
        if request.is_note && matches!(request.call, LockCall::Release { .. }) {
            return Ok(());
        }
        let is_primary = map.node_of(redundancy, request.partition) == Some(self.node);
        // A lock that was granted in a term that is over may have been granted to another client
        // since.
        if request.term < group.term || request.is_note == is_primary && request.term == group.term
        {
            return stale();
        }
        if request.is_note {
            return Ok(());
        }
        // All members that this map names are to note it, or to forget it.
        let is_change = !matches!(request.call, LockCall::Test { .. });
        if is_change && redundancy.get() > 1 && request.epoch < map.epoch() {
            return stale();
        }
        if request.term > group.term {
            return busy("lock: a newer map is on its way");
        }
        if group.members.len() > 1 && self.now >= self.lease_until {
            return busy("lock: another node may grant it now");
        }
        Ok(())
    }

    /// The answer to a client that waited: a client whose lock this node has no say about any more
    /// has to ask again.
    pub(crate) fn answer_to_wait(&self, request: &LockRequest, answer: LockAnswer) -> ControlReply {
        match self.check(request) {
            Err(error) if answer == LockAnswer::Done => refused(&error),
            _ => ControlReply::Lock(answer),
        }
    }
}

#[cfg(test)]
mod tests {
    use samite_types::{Epoch, PartitionId, Redundancy, Term};
    use samite_wire::lock::{LockMode, LockRange, LockSpace};

    use super::*;
    use crate::test_map::three_nodes;

    const MS: Duration = Duration::from_millis(1);
    const RANGE: LockRange = LockRange { start: 0, last: 9 };
    const TEST: LockCall = LockCall::Test { range: RANGE, mode: LockMode::Exclusive };
    const RELEASE: LockCall = LockCall::Release { range: RANGE };

    /// A request that was sent by this map, on its first dataset.
    fn request(map: &ClusterMap, call: LockCall) -> LockRequest {
        let (partition, dataset) = (PartitionId(0), map.datasets()[0].id);
        let term = map.group(Redundancy(2), partition).map_or(Term(0), |group| group.term);
        let (object, space, token) = (1, LockSpace::Whole, 1);
        let (epoch, is_note) = (map.epoch(), false);
        LockRequest { dataset, partition, object, space, token, term, epoch, is_note, call }
    }

    #[test]
    fn the_primary_grants_and_others_note() {
        let map = three_nodes();
        let primary = map.node_of(Redundancy(2), PartitionId(0)).unwrap();
        let at = |node| LockAuthority { map: Some(&map), node, lease_until: 2 * MS, now: MS };
        let (primary, other) = (at(primary), at(NodeId((primary.get() + 1) % 3)));
        let kind = |authority: LockAuthority<'_>, request: &LockRequest| {
            authority.check(request).err().map(|error| error.kind())
        };
        let asked = request(&map, TEST);
        assert_eq!(kind(primary, &asked), None);
        assert_eq!(kind(other, &asked), Some(ErrorKind::StaleMap));
        let noted = LockRequest { is_note: true, ..asked };
        assert_eq!((kind(primary, &noted), kind(other, &noted)), (Some(ErrorKind::StaleMap), None));
        let forgotten = LockRequest { is_note: true, ..request(&map, RELEASE) };
        assert_eq!((kind(primary, &forgotten), kind(other, &forgotten)), (None, None));
        let later = LockRequest { term: Term(asked.term.get() + 1), ..asked };
        assert_eq!(kind(primary, &later), Some(ErrorKind::Busy), "by a newer map");
        let late = LockAuthority { now: 2 * MS, ..primary };
        assert_eq!(kind(late, &asked), Some(ErrorKind::Busy), "its lease is over");
        let none = LockAuthority { map: None, ..primary };
        assert_eq!(kind(none, &asked), Some(ErrorKind::Busy));
        let older = LockRequest { epoch: Epoch(asked.epoch.get() - 1), ..asked };
        assert_eq!(kind(primary, &older), None, "a test changes nothing");
        let older = LockRequest { epoch: older.epoch, ..request(&map, RELEASE) };
        assert_eq!(kind(primary, &older), Some(ErrorKind::StaleMap), "others are to forget it");
    }

    #[test]
    fn a_lock_is_not_told_as_granted_by_a_node_that_has_no_say() {
        let map = three_nodes();
        let asked = request(&map, TEST);
        let primary = map.node_of(Redundancy(2), PartitionId(0)).unwrap();
        let primary = LockAuthority { map: Some(&map), node: primary, lease_until: MS, now: MS };
        let granted = primary.answer_to_wait(&asked, LockAnswer::Done);
        assert!(matches!(granted, ControlReply::Failed { .. }), "{granted:?}");
        let cancelled = primary.answer_to_wait(&asked, LockAnswer::Cancelled);
        assert_eq!(cancelled, ControlReply::Lock(LockAnswer::Cancelled));
        let leased = LockAuthority { lease_until: 2 * MS, ..primary };
        let granted = leased.answer_to_wait(&asked, LockAnswer::Done);
        assert_eq!(granted, ControlReply::Lock(LockAnswer::Done));
    }
}
