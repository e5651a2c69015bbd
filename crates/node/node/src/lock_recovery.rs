//! The thread that asks other nodes for the file locks that they know, and after lock holders that
//! are not connected here. The rules are in [`samite_filelock`].

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use samite_filelock::{HolderReports, may_live};
use samite_placement::ClusterMap;
use samite_transport::client::NodeLink;
use samite_types::{Clock, Deadline, Error, ErrorKind, NodeId, Result, SystemClock};
use samite_wire::control::{ControlReply, ControlRequest};
use samite_wire::lock::{KnownLock, LOCK_CLIENTS_MAX};

use crate::control_reply::refusal;
use crate::inbox::InboxMessage;
use crate::locks::{SharedLocks, wait_reply};
use crate::membership::map_watch::NodeCredentials;
use crate::mutex::lock;
use crate::node_calls::call;
use crate::peer_channel::addresses;
use crate::shared::NodeShared;

/// How long another node may take over a connection or an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);
/// Pause before nodes are asked again that have not answered.
const PAUSE: Duration = Duration::from_millis(10);
/// How often the node asks after lock holders that are not connected here.
const LOOK_AFTER: Duration = Duration::from_millis(500);
/// How often the thread looks whether the node stops.
const LOOK: Duration = Duration::from_secs(1);

/// Takes over locks, and looks after absent holders, until the node stops.
pub(crate) fn run(shared: &NodeShared, credentials: &NodeCredentials) {
    let mut others = RecoveryLinks { shared, credentials, links: HashMap::new() };
    let mut looked = Duration::ZERO;
    while !shared.stop.is_asked() {
        let wait = if lock(&shared.locks).has_absent() { LOOK_AFTER } else { LOOK };
        let waits = |locks: &mut SharedLocks| !locks.expects_any();
        let waited = shared.lock_recovery_due.wait_timeout_while(lock(&shared.locks), wait, waits);
        let locks = waited.unwrap_or_else(PoisonError::into_inner).0;
        let (expects, has_absent) = (locks.expects_any(), locks.has_absent());
        drop(locks);
        if !expects && !has_absent {
            others.links.clear();
            continue;
        }
        let Some(map) = shared.map() else { continue };
        if expects {
            others.gather(&map);
            // At once, unless somebody has not answered.
            if lock(&shared.locks).expects_any() {
                std::thread::sleep(PAUSE);
            }
        }
        let now = SystemClock.monotonic();
        if now >= looked + LOOK_AFTER {
            looked = now;
            others.look_after(&map);
        }
    }
}

/// Ways to other nodes.
struct RecoveryLinks<'a> {
    shared: &'a NodeShared,
    credentials: &'a NodeCredentials,
    links: HashMap<NodeId, (u64, Arc<NodeLink>)>,
}

impl RecoveryLinks<'_> {
    /// Asks the nodes that have not told yet for the locks that they know.
    fn gather(&mut self, map: &ClusterMap) {
        let questions = lock(&self.shared.locks).questions(SystemClock.monotonic());
        for over in questions.given_up {
            let (partition, silent) = (over.partition, over.silent);
            tracing::warn!(%partition, ?silent, "nobody else tells of locks");
        }
        for node in questions.nodes {
            let answered = !may_live(map, node) || self.tells(map, node);
            if answered {
                lock(&self.shared.locks).answered(node, map.epoch());
            }
        }
    }

    /// Takes over the locks that `node` knows; whether these were all.
    fn tells(&mut self, map: &ClusterMap, node: NodeId) -> bool {
        let Some(info) = map.node(node) else { return true };
        let from = (node, info.incarnation);
        let mut after = None;
        loop {
            let request =
                ControlRequest::KnownLocks { node: self.shared.node, epoch: map.epoch(), after };
            match self.ask(map, node, &request) {
                Ok(ControlReply::KnownLocks { locks, has_more }) => {
                    let now = SystemClock.monotonic();
                    let left = lock(&self.shared.locks).take_over(map, from, &locks, now);
                    for KnownLock { partition, .. } in left {
                        tracing::warn!(%partition, "no room for a lock that another node knows");
                    }
                    after = locks.last().copied();
                    if !has_more || after.is_none() {
                        return true;
                    }
                }
                Ok(reply) => {
                    tracing::debug!(%node, error = %refusal(&reply), "locks of another node");
                    return false;
                }
                Err(error) => {
                    tracing::debug!(%node, %error, "locks of another node");
                    return false;
                }
            }
        }
    }

    /// Asks after holders that are not connected here, and ends the locks of those that are gone.
    fn look_after(&mut self, map: &ClusterMap) {
        let absent = lock(&self.shared.locks).absent_clients();
        if absent.is_empty() {
            return;
        }
        let mut reports = HolderReports::default();
        let others = map.nodes().iter().map(|info| info.node);
        for node in others.filter(|node| *node != self.shared.node && may_live(map, *node)) {
            for clients in absent.chunks(LOCK_CLIENTS_MAX) {
                let request = ControlRequest::LockClients(clients.to_vec());
                let Ok(ControlReply::LockClients { incarnation, clients }) =
                    self.ask(map, node, &request)
                else {
                    break;
                };
                reports.add(node, incarnation, clients);
            }
        }
        let is_dead = |(node, process)| {
            let is_same = map.node(node).is_some_and(|info| info.incarnation == process);
            !(is_same && may_live(map, node))
        };
        let answers = lock(&self.shared.locks).heard(&reports, is_dead, SystemClock.monotonic());
        for waited in answers {
            let reply = wait_reply(self.shared, Some(map), &waited);
            self.shared.inboxes[usize::from(waited.to.shard.get())]
                .send(InboxMessage::Control(waited.to, reply));
        }
    }

    fn ask(
        &mut self,
        map: &ClusterMap,
        node: NodeId,
        request: &ControlRequest,
    ) -> Result<ControlReply> {
        let incarnation = map.node(node).map_or(0, |info| info.incarnation);
        let known = self.links.get(&node).filter(|(process, _)| *process == incarnation);
        let link = match known {
            Some((_, link)) => Arc::clone(link),
            None => {
                let link = self.connect(map, node)?;
                self.links.insert(node, (incarnation, Arc::clone(&link)));
                link
            }
        };
        let answer = call(&link, request, Deadline::after(ANSWER_TIMEOUT));
        if answer.is_err() {
            self.links.remove(&node);
        }
        answer
    }

    fn connect(&self, map: &ClusterMap, node: NodeId) -> Result<Arc<NodeLink>> {
        let mut failed = Error::new(ErrorKind::Unavailable, "no address");
        for address in addresses(map, self.shared.node, node) {
            match self.credentials.connect(self.shared, &address, ANSWER_TIMEOUT) {
                Ok(link) if link.node() == node => return Ok(link),
                Ok(_) => failed = Error::new(ErrorKind::Unavailable, "another node answers"),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }
}
