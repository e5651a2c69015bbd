//! Which clients of the host may complete operations early.
//!
//! They may while nothing but the look-up table stands between them and the records of a shard: no
//! other client has delegations on records, no request waits for delegations to end, no partition
//! of a dataset that keeps records once has other members, and the target has room for what they
//! may submit. This decides; what clients see of it is in the arena (`submissions.rs`).

use samite_types::{ClientId, Epoch};

use crate::partitions::HolderSet;

/// The clients that may complete operations early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SubmissionClients {
    /// None.
    Nobody,
    /// This one alone: it has all delegations.
    Only(ClientId),
    /// All clients of the host.
    Anyone,
}

impl SubmissionClients {
    /// The only one that may, if it is one.
    pub(crate) const fn only(self) -> Option<ClientId> {
        match self {
            Self::Only(client) => Some(client),
            Self::Nobody | Self::Anyone => None,
        }
    }
}

/// The state of a shard, as far as early completion is concerned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SubmissionConditions {
    /// Clients with delegations.
    pub holders: HolderSet,
    /// Requests wait for delegations to end.
    pub has_waiters: bool,
    /// The target has room for all that may be submitted.
    pub has_room: bool,
    /// The client that has asked for something.
    pub asker: Option<ClientId>,
}

/// What a map says that matters here.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MapConditions {
    pub epoch: Epoch,
    /// By it partitions are about to move.
    pub has_moving: bool,
    /// By it partitions that this node leads have lost their records: a record that is not in the
    /// look-up table may have been there.
    pub has_lost: bool,
}

/// The policy of one shard.
#[derive(Debug)]
pub(crate) struct SubmissionPolicy {
    map: MapConditions,
    /// Epoch of the map by which clients may complete operations early; 0: they may not.
    open: Epoch,
    /// The only client that may, or might until the queues were closed.
    only: Option<ClientId>,
}

impl Default for SubmissionPolicy {
    fn default() -> Self {
        Self { map: MapConditions::default(), open: Epoch(0), only: None }
    }
}

impl SubmissionPolicy {
    /// Epoch of the map that was taken up; 0: none.
    pub(crate) const fn epoch(&self) -> Epoch {
        self.map.epoch
    }

    /// There is a new map.
    pub(crate) const fn take_up(&mut self, map: MapConditions) {
        self.map = map;
    }

    /// Epoch of the map by which the queues are open; 0: they are closed.
    pub(crate) const fn open_by(&self) -> Epoch {
        self.open
    }

    /// The only client that may complete operations early.
    pub(crate) const fn only(&self) -> Option<ClientId> {
        self.only
    }

    /// The clients that may complete operations early, as things are now. A client that was shut
    /// out for others may again when it asks for something: until then they change what they like,
    /// and the queues stay as they are.
    pub(crate) fn wanted(&self, now: &SubmissionConditions) -> SubmissionClients {
        let is_forbidden = self.map.has_moving || self.map.has_lost;
        if is_forbidden || now.has_waiters || !now.has_room {
            return SubmissionClients::Nobody;
        }
        match now.holders {
            HolderSet::Anyone => SubmissionClients::Anyone,
            HolderSet::Only(client) if [now.asker, self.only].contains(&Some(client)) => {
                SubmissionClients::Only(client)
            }
            HolderSet::Only(_) | HolderSet::Nobody => SubmissionClients::Nobody,
        }
    }

    /// Whether the queues are as they are `wanted`, by the newest map.
    pub(crate) fn stands(&self, wanted: SubmissionClients) -> bool {
        let open = match (self.open, self.only) {
            (Epoch(0), _) => SubmissionClients::Nobody,
            (_, None) => SubmissionClients::Anyone,
            (_, Some(client)) => SubmissionClients::Only(client),
        };
        open == wanted && (open == SubmissionClients::Nobody || self.open == self.map.epoch)
    }

    /// Whether the queues are to be closed before a request of `client` is looked at: a client that
    /// completes operations early might count on delegations that the request contradicts, or
    /// contradict those that it gets. `may_change`: whether it changes records.
    pub(crate) fn is_against(
        &self,
        client: ClientId,
        asks_delegation: bool,
        may_change: impl FnOnce() -> bool,
    ) -> bool {
        match self.only {
            None => asks_delegation,
            Some(only) => only != client && (asks_delegation || may_change()),
        }
    }

    /// The queues are opened to these clients, by the newest map.
    pub(crate) fn opened(&mut self, clients: SubmissionClients) {
        (self.open, self.only) = (self.map.epoch, clients.only());
    }

    /// The queues are closed. Whether they were open: then what is in them is to be carried out,
    /// and [`SubmissionPolicy::drained`] comes after it.
    pub(crate) fn close(&mut self) -> bool {
        std::mem::replace(&mut self.open, Epoch(0)) != Epoch(0)
    }

    /// What was in the queues when they were closed is carried out.
    pub(crate) const fn drained(&mut self) {
        self.only = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ClientId = ClientId(1);
    const B: ClientId = ClientId(2);
    const FREE: SubmissionConditions = SubmissionConditions {
        holders: HolderSet::Anyone,
        has_waiters: false,
        has_room: true,
        asker: None,
    };

    fn by_map(epoch: u64) -> SubmissionPolicy {
        let mut policy = SubmissionPolicy::default();
        policy.take_up(MapConditions { epoch: Epoch(epoch), ..MapConditions::default() });
        policy
    }

    #[test]
    fn whatever_stands_in_the_way_keeps_the_queues_closed() {
        let policy = by_map(3);
        assert_eq!(policy.wanted(&FREE), SubmissionClients::Anyone);
        for in_the_way in [
            SubmissionConditions { has_waiters: true, ..FREE },
            SubmissionConditions { has_room: false, ..FREE },
            SubmissionConditions { holders: HolderSet::Nobody, ..FREE },
            SubmissionConditions { holders: HolderSet::Only(A), asker: Some(B), ..FREE },
        ] {
            assert_eq!(policy.wanted(&in_the_way), SubmissionClients::Nobody, "{in_the_way:?}");
        }
        for (has_moving, has_lost) in [(true, false), (false, true)] {
            let mut policy = SubmissionPolicy::default();
            policy.take_up(MapConditions { epoch: Epoch(3), has_moving, has_lost });
            assert_eq!(policy.wanted(&FREE), SubmissionClients::Nobody);
        }
    }

    #[test]
    fn the_sole_holder_may_once_it_asks_and_goes_on_while_others_ask() {
        let mut policy = by_map(3);
        let held = SubmissionConditions { holders: HolderSet::Only(A), ..FREE };
        assert_eq!(policy.wanted(&held), SubmissionClients::Nobody, "it has not asked");
        let wanted = policy.wanted(&SubmissionConditions { asker: Some(A), ..held });
        assert_eq!(wanted, SubmissionClients::Only(A));
        policy.opened(wanted);
        let other = SubmissionConditions { asker: Some(B), ..held };
        assert!(policy.stands(policy.wanted(&other)));
        assert!(policy.is_against(B, false, || true) && !policy.is_against(B, false, || false));
        assert!(policy.is_against(B, true, || false) && !policy.is_against(A, true, || true));
        assert!(policy.close() && !policy.close());
        assert_eq!(policy.only(), Some(A), "its entries are carried out yet");
        policy.drained();
        assert_eq!(policy.wanted(&other), SubmissionClients::Nobody, "it was shut out");
    }

    #[test]
    fn queues_are_opened_anew_by_each_map() {
        let mut policy = by_map(3);
        assert!(policy.stands(SubmissionClients::Nobody));
        assert!(!policy.stands(SubmissionClients::Anyone));
        policy.opened(SubmissionClients::Anyone);
        assert_eq!(policy.open_by(), Epoch(3));
        assert!(policy.stands(SubmissionClients::Anyone));
        assert!(policy.is_against(A, true, || true) && !policy.is_against(A, false, || true));
        policy.take_up(MapConditions { epoch: Epoch(4), ..MapConditions::default() });
        assert!(!policy.stands(SubmissionClients::Anyone), "they are open by an older one");
    }
}
