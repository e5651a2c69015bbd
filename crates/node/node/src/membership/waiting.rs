//! Says what a node waits for that has no cluster map: every few seconds, in its log.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use samite_transport::Address;
use samite_types::{Error, NodeId};

use crate::mutex::lock;
use crate::shared::NodeShared;

/// Between two lines.
const INTERVAL: Duration = Duration::from_secs(5);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(100);
/// Most coordinators whose tries are counted.
const COORDINATORS_MAX: usize = 16;

/// Connections to one coordinator that could not be made.
#[derive(Debug)]
struct FailedTries {
    address: Address,
    /// Since the last that could.
    count: u64,
    last: Error,
}

/// The coordinators elsewhere that do not answer.
#[derive(Debug, Default)]
pub(crate) struct CoordinatorTries(Mutex<Vec<FailedTries>>);

impl CoordinatorTries {
    /// The one at `address` could not be reached.
    pub(crate) fn failed(&self, address: &Address, last: Error) {
        let mut all = lock(&self.0);
        let has_room = all.len() < COORDINATORS_MAX;
        match all.iter_mut().find(|tries| tries.address == *address) {
            Some(tries) => (tries.count, tries.last) = (tries.count + 1, last),
            None if has_room => {
                all.push(FailedTries { address: address.clone(), count: 1, last });
            }
            None => {}
        }
    }

    /// The one at `address` answers.
    pub(crate) fn answered(&self, address: &Address) {
        lock(&self.0).retain(|tries| tries.address != *address);
    }

    /// A few words about each that does not answer; empty: all that were tried do.
    fn words(&self) -> Vec<String> {
        let words = |tries: &FailedTries| {
            let FailedTries { address, count, last } = tries;
            let plural = if *count == 1 { "try" } else { "tries" };
            // Errors of connections begin with the address.
            let last = last.message().replace(&format!("connect {address}: "), "");
            format!("no coordinator answers at {address} ({count} {plural}: {last})")
        };
        lock(&self.0).iter().map(words).collect()
    }
}

/// Says what this node waits for, until it has a map, or stops.
pub(crate) fn run(shared: &NodeShared) {
    let mut due = Instant::now() + INTERVAL;
    while !shared.stop.is_asked() && shared.map().is_none() {
        if Instant::now() >= due {
            let membership = &shared.membership;
            let leader = membership.leader().map(|leader| leader.node);
            let missing = membership.leads().then(|| membership.missing()).flatten();
            let words = waits_for(shared.node, missing, leader, membership.tries.words());
            tracing::warn!("{words}");
            due += INTERVAL;
        }
        std::thread::sleep(LOOK);
    }
}

/// What `node` waits for: as leader, for what is `missing`; else for the leader's map, or for a
/// leader. Failed tries of other coordinators come after a leader that is known.
fn waits_for(
    node: NodeId,
    missing: Option<String>,
    leader: Option<NodeId>,
    tries: Vec<String>,
) -> String {
    match (missing, leader) {
        (Some(missing), _) => format!("{node} waits for nodes: {missing}"),
        (None, Some(leader)) if leader != node => {
            let first =
                format!("{node} waits for the cluster map: {leader} leads, and has none yet");
            tries.into_iter().fold(first, |words, tries| format!("{words}; {tries}"))
        }
        (None, _) if !tries.is_empty() => format!("{node}: {}", tries.join("; ")),
        (None, _) => format!("{node} waits for a coordinator that leads"),
    }
}

#[cfg(test)]
mod tests {
    use samite_types::ErrorKind;

    use super::*;

    #[test]
    fn tries_are_counted_until_one_succeeds() {
        let (tries, address) = (CoordinatorTries::default(), "tcp://h:1".parse().unwrap());
        assert!(tries.words().is_empty());
        let refused =
            || Error::new(ErrorKind::Unavailable, "connect tcp://h:1: Connection refused");
        tries.failed(&address, refused());
        let one = "no coordinator answers at tcp://h:1 (1 try: Connection refused)";
        assert_eq!(tries.words(), [one]);
        tries.failed(&address, refused());
        assert!(tries.words()[0].contains("(2 tries: "));
        for port in 2..100 {
            tries.failed(&format!("tcp://h:{port}").parse().unwrap(), refused());
        }
        assert_eq!(tries.words().len(), COORDINATORS_MAX, "bounded");
        tries.answered(&address);
        assert!(!tries.words().iter().any(|words| words.contains("tcp://h:1 ")));
    }

    #[test]
    fn a_node_says_what_it_waits_for() {
        let (node, other) = (NodeId(1), NodeId(0));
        let silent = || vec!["no coordinator answers at tcp://h:1 (3 tries: no)".to_owned()];
        let missing = || Some("1 of 2 nodes have joined, not n0".to_owned());
        assert_eq!(
            waits_for(node, missing(), Some(node), silent()),
            "n1 waits for nodes: 1 of 2 nodes have joined, not n0"
        );
        assert!(waits_for(node, None, None, silent()).starts_with("n1: no coordinator answers"));
        assert!(waits_for(node, None, Some(other), Vec::new()).contains("n0 leads"));
        assert_eq!(
            waits_for(node, None, Some(other), silent()),
            "n1 waits for the cluster map: n0 leads, and has none yet; no coordinator answers at \
             tcp://h:1 (3 tries: no)"
        );
        assert_eq!(
            waits_for(node, None, None, Vec::new()),
            "n1 waits for a coordinator that leads"
        );
    }
}
