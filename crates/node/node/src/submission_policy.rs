//! Which clients of the host may complete operations early: a function of what the shard knows at
//! the end of a request batch.
//!
//! They may while nothing but the look-up table stands between them and the records of a shard: no
//! other client has delegations on records, no request waits for delegations to end, no partition
//! of a dataset that keeps records once has other members, and the target has room for what they
//! may submit. This decides; what clients see of it is in the arena (`submissions.rs`).

use samite_arena::QueueAccess;
use samite_types::ClientId;

use crate::partitions::HolderSet;

/// What the newest map says, as far as early completion is concerned.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MapConditions {
    /// Partitions are about to move.
    pub has_moving: bool,
    /// Partitions that this node leads have lost their records: a record that is not in the look-up
    /// table may have been there.
    pub has_lost: bool,
    /// A client has frozen a dataset.
    pub has_frozen: bool,
}

/// The state of a shard, as far as early completion is concerned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SubmissionConditions {
    /// What the map says.
    pub map: MapConditions,
    /// Clients with delegations.
    pub holders: HolderSet,
    /// Requests wait for delegations to end.
    pub has_waiters: bool,
    /// The target has room for all that may be submitted.
    pub has_room: bool,
    /// The client that has asked for something.
    pub asker: Option<ClientId>,
    /// Who has access until now.
    pub until_now: QueueAccess,
}

/// Who is to have access to the submission queues. A sole holder of delegations that was shut out
/// for others gets it back when it asks for something: until then the others change what they like,
/// and the queues stay as they are.
pub(crate) fn queue_access(now: &SubmissionConditions) -> QueueAccess {
    let MapConditions { has_moving, has_lost, has_frozen } = now.map;
    if has_moving || has_lost || has_frozen || now.has_waiters || !now.has_room {
        return QueueAccess::Closed;
    }
    match now.holders {
        HolderSet::Anyone => QueueAccess::AnyClient,
        HolderSet::Only(client) if [now.asker, now.until_now.only()].contains(&Some(client)) => {
            QueueAccess::OnlyClient(client)
        }
        HolderSet::Only(_) | HolderSet::Nobody => QueueAccess::Closed,
    }
}

/// Whether the queues, to which `access` was given, are to be closed before a request of `client` is
/// looked at: a client that completes operations early might count on delegations that the request
/// contradicts, or contradict those that it gets. `may_change`: whether it changes records.
pub(crate) fn contradicts(
    access: QueueAccess,
    client: ClientId,
    asks_delegation: bool,
    may_change: impl FnOnce() -> bool,
) -> bool {
    match access.only() {
        None => asks_delegation,
        Some(only) => only != client && (asks_delegation || may_change()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ClientId = ClientId(1);
    const B: ClientId = ClientId(2);
    const FREE: SubmissionConditions = SubmissionConditions {
        map: MapConditions { has_moving: false, has_lost: false, has_frozen: false },
        holders: HolderSet::Anyone,
        has_waiters: false,
        has_room: true,
        asker: None,
        until_now: QueueAccess::Closed,
    };

    #[test]
    fn access_follows_from_delegations_who_asks_and_who_had_it() {
        use HolderSet::{Anyone, Nobody, Only};
        use QueueAccess::{AnyClient, Closed, OnlyClient};
        for (holders, asker, until_now, access) in [
            (Anyone, None, Closed, AnyClient),
            (Anyone, Some(A), Closed, AnyClient),
            (Anyone, None, AnyClient, AnyClient),
            (Anyone, Some(B), OnlyClient(A), AnyClient),
            // A sole holder gets access when it asks, and keeps it while others ask.
            (Only(A), None, Closed, Closed),
            (Only(A), Some(B), Closed, Closed),
            (Only(A), Some(A), Closed, OnlyClient(A)),
            (Only(A), Some(A), AnyClient, OnlyClient(A)),
            (Only(A), None, AnyClient, Closed),
            (Only(A), None, OnlyClient(A), OnlyClient(A)),
            (Only(A), Some(B), OnlyClient(A), OnlyClient(A)),
            (Only(B), None, OnlyClient(A), Closed),
            (Only(B), Some(B), OnlyClient(A), OnlyClient(B)),
            (Nobody, None, Closed, Closed),
            (Nobody, Some(A), OnlyClient(A), Closed),
            (Nobody, Some(A), AnyClient, Closed),
        ] {
            let now = SubmissionConditions { holders, asker, until_now, ..FREE };
            assert_eq!(queue_access(&now), access, "{now:?}");
            // Whatever stands in the way keeps the queues closed.
            for in_the_way in [
                SubmissionConditions { map: MapConditions { has_moving: true, ..now.map }, ..now },
                SubmissionConditions { map: MapConditions { has_lost: true, ..now.map }, ..now },
                SubmissionConditions { map: MapConditions { has_frozen: true, ..now.map }, ..now },
                SubmissionConditions { has_waiters: true, ..now },
                SubmissionConditions { has_room: false, ..now },
            ] {
                assert_eq!(queue_access(&in_the_way), Closed, "{in_the_way:?}");
            }
        }
    }

    #[test]
    fn a_request_contradicts_those_who_count_on_or_want_delegations() {
        use QueueAccess::{AnyClient, Closed, OnlyClient};
        for (access, asks_delegation, may_change, is_against) in [
            (AnyClient, false, true, false),
            (AnyClient, true, false, true),
            (Closed, false, true, false),
            (OnlyClient(B), false, false, false),
            (OnlyClient(B), false, true, true),
            (OnlyClient(B), true, false, true),
            (OnlyClient(A), true, true, false),
        ] {
            let verdict = contradicts(access, A, asks_delegation, || may_change);
            assert_eq!(verdict, is_against, "{access:?} {asks_delegation} {may_change}");
        }
    }
}
