//! Whether a node has a say about a lock: it grants locks as the primary, or may note what that has
//! granted.

use std::time::Duration;

use samite_placement::ClusterMap;
use samite_types::{Error, ErrorKind, NodeId, Result};
use samite_wire::lock::{LockAnswer, LockCall, LockRequest};

/// The node that is asked, now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnsweringNode {
    /// The node.
    pub node: NodeId,
    /// The time, on the node's monotonic clock.
    pub now: Duration,
    /// When no other node may have taken its place before, on the same clock.
    pub lease_until: Duration,
}

/// Whether the node may answer such a request by `map`.
///
/// # Errors
/// `StaleMap`: the asker is to look for a newer map, or another node; `Busy`: it is to ask again.
pub fn check_request(
    asked: &AnsweringNode,
    map: Option<&ClusterMap>,
    request: &LockRequest,
) -> Result<()> {
    let stale = || {
        let words = format!("lock: {} is not here", request.partition);
        Err(Error::new(ErrorKind::StaleMap, words))
    };
    let busy = |words| Err(Error::new(ErrorKind::Busy, words));
    let Some(map) = map else { return busy("lock: no map yet") };
    let Some(dataset) = map.dataset_by_id(request.dataset) else { return stale() };
    let redundancy = dataset.spec.redundancy;
    let Some(group) = map.group(redundancy, request.partition) else { return stale() };
    if request.is_note && matches!(request.call, LockCall::Release { .. }) {
        return Ok(());
    }
    let is_primary = map.node_of(redundancy, request.partition) == Some(asked.node);
    // A lock that was granted in a term that is over may have been granted to another client since.
    if request.term < group.term || request.is_note == is_primary && request.term == group.term {
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
    if group.members.len() > 1 && asked.now >= asked.lease_until {
        return busy("lock: another node may grant it now");
    }
    Ok(())
}

/// The answer to a client that waited: one whose lock this node has no say about any more has to
/// ask again, and gets the error that says so.
///
/// # Errors
/// As [`check_request`], where a lock was granted.
pub fn answer_to_wait(
    asked: &AnsweringNode,
    map: Option<&ClusterMap>,
    request: &LockRequest,
    answer: LockAnswer,
) -> Result<LockAnswer> {
    match check_request(asked, map, request) {
        Err(error) if answer == LockAnswer::Done => Err(error),
        _ => Ok(answer),
    }
}
