//! Getting the cluster map, and having it changed, from whichever node answers.
//!
//! A node may be dead, which shows at once, or stopped, which does not: so none is waited for as long as the caller has
//! time, but a little first, and longer in the next round.

use std::sync::Arc;
use std::time::Duration;

use samite_types::{Deadline, Epoch, Error, ErrorKind, NodeId, Result};
use samite_wire::control::{ControlReply, ControlRequest, NodeReachability};

use crate::Client;
use crate::client::{RetryBudget, is_lost, unexpected};
use crate::peer::{NodePeer, connect_any, lock_by};
use crate::session::MapView;

/// For how long one node is waited for in the first round. Doubles with each.
const PATIENCE: Duration = Duration::from_millis(500);

/// For how long one node is waited for by a client that looks for another's place.
const LOOK_PATIENCE: Duration = Duration::from_millis(200);

/// Nodes that are asked in one such look. Maps reach all nodes at once, and the next look asks others.
const LOOK_NODES: usize = 3;

/// Looks are not closer together than this: many calls may want one at the same time.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// For how long a change of the map is waited for at one node, where another may become the coordinator.
const CHANGE_PATIENCE: Duration = Duration::from_secs(5);

/// First and longest pause before a change of the map is asked for again.
const CHANGE_PAUSE_MIN: Duration = Duration::from_millis(5);
const CHANGE_PAUSE_MAX: Duration = Duration::from_millis(100);

impl Client {
    /// The cluster as known here, asked for if it is not.
    pub(crate) fn view(&self, deadline: Deadline) -> Result<Arc<MapView>> {
        let session = self.session();
        if let Some(view) = session.view() {
            return Ok(view);
        }
        let _one = lock_by(&session.refreshing, deadline)?;
        if let Some(view) = session.view() {
            return Ok(view);
        }
        in_rounds(deadline, |by| {
            let mut failed = None;
            for address in self.addresses() {
                match self.first_map(std::slice::from_ref(address), by()) {
                    Ok(view) => return Ok(view),
                    Err(error) => failed = worse(failed, error),
                }
            }
            Err(failed.unwrap_or_else(|| {
                Error::new(ErrorKind::Unavailable, "no address that this client may use")
            }))
        })
        .map_err(|error| error.context(format_args!("cluster {}", self.cluster())))
    }

    fn first_map(
        &self,
        address: &[samite_transport::Address],
        by: Deadline,
    ) -> Result<Arc<MapView>> {
        let mut again = RetryBudget::default();
        loop {
            let link = Arc::new(connect_any(address, &self.credentials(), by)?);
            return match self.control(&link, &ControlRequest::Map { known: Epoch(0) }, by) {
                Ok(ControlReply::Map(Some(data))) => self.session().adopt(data, &link),
                Ok(_) => Err(unexpected(&link, "its cluster map")),
                Err(error) if again.is_lost(&link, &error, by) => continue,
                Err(error) => Err(error),
            };
        }
    }

    fn is_newer_than(&self, known: Epoch) -> bool {
        self.session().view().is_some_and(|view| view.map.epoch() > known)
    }

    /// Asks for a newer cluster map than the one known.
    pub(crate) fn refresh(&self, deadline: Deadline) -> Result<bool> {
        let known = self.view(deadline)?.map.epoch();
        self.refresh_from(known, None, deadline)
    }

    /// Asks for a cluster map newer than `known`, `first` before all others; whether there is one.
    pub(crate) fn refresh_from(
        &self,
        known: Epoch,
        first: Option<NodeId>,
        deadline: Deadline,
    ) -> Result<bool> {
        let view = self.view(deadline)?;
        let _one = lock_by(&self.session().refreshing, deadline)?;
        if self.is_newer_than(known) {
            return Ok(true);
        }
        in_rounds(deadline, |by| {
            let (mut failed, mut has_answered) = (None, false);
            let others = view.peers().iter().filter(|peer| Some(peer.node) != first);
            for peer in first.iter().filter_map(|node| view.peer(*node).ok()).chain(others) {
                match self.ask_map(peer, by()) {
                    Ok(()) if self.is_newer_than(known) => return Ok(true),
                    Ok(()) => has_answered = true,
                    Err(error) => failed = worse(failed, error),
                }
            }
            failed.filter(|_| !has_answered).map_or(Ok(false), Err)
        })
    }

    /// Asks some nodes for a map newer than `known` because `beside` says nothing, or nothing that
    /// helps; whether there is one. Takes a short time, whichever others are silent.
    pub(crate) fn look(&self, known: Epoch, beside: NodeId) -> bool {
        let session = self.session();
        let Some(view) = session.view() else { return false };
        let by = Deadline::after(LOOK_PATIENCE * LOOK_NODES as u32);
        let Ok(_one) = lock_by(&session.refreshing, by) else { return self.is_newer_than(known) };
        if self.is_newer_than(known) || !session.looks.is_due(LOOK_INTERVAL) {
            return self.is_newer_than(known);
        }
        let turn = session.looks.begin();
        let count = view.peers().len();
        let mut peers: Vec<&Arc<NodePeer>> =
            (0..count).map(|at| view.peer_at((at + turn) % count)).collect();
        // Nodes that can be reached, as far as is known, come first; the silent one last.
        peers.sort_by_key(|peer| {
            let state = view.map.state(peer.node);
            let is_online =
                state.is_some_and(|state| state.reachability == NodeReachability::Online);
            (peer.node == beside, !is_online)
        });
        for peer in peers.into_iter().take(LOOK_NODES) {
            let _ = self.ask_map(peer, Deadline::after(LOOK_PATIENCE));
            if self.is_newer_than(known) {
                break;
            }
        }
        session.looks.end();
        self.is_newer_than(known)
    }

    fn ask_map(&self, peer: &NodePeer, by: Deadline) -> Result<()> {
        let known = self.session().view().map_or(Epoch(0), |view| view.map.epoch());
        let (mut link, mut reply) = self.ask(peer, &ControlRequest::Map { known }, by)?;
        if let ControlReply::MapDelta(delta) = &reply {
            if self.session().adopt_change(delta, &link)? {
                return Ok(());
            }
            (link, reply) = self.ask(peer, &ControlRequest::Map { known: Epoch(0) }, by)?;
        }
        match reply {
            ControlReply::Map(Some(data)) => self.session().adopt(data, &link).map(drop),
            ControlReply::Map(None) => Ok(()),
            _ => Err(unexpected(&link, "its cluster map")),
        }
    }

    /// Has the coordinator change the map, whichever node it lives in now. The request may be sent
    /// again: `done` says which refusal shows that an earlier try has done it.
    pub(crate) fn change_map(
        &self,
        request: &ControlRequest,
        done: Option<ErrorKind>,
        deadline: Deadline,
    ) -> Result<()> {
        let mut pause = CHANGE_PAUSE_MIN;
        let (mut leader, mut is_doubtful) = (None, false);
        loop {
            let view = self.view(deadline)?;
            let first = leader.take();
            let others = view.peers().iter().filter(|peer| Some(peer.node) != first);
            let peers = first.iter().filter_map(|node| view.peer(*node).ok()).chain(others);
            // Another node takes the coordinator's place, too, where another takes that of each
            // node.
            let has_mirrors = view.map.data().tables.len() > 1;
            let patience = if has_mirrors { CHANGE_PATIENCE } else { Duration::MAX };
            let mut failed = None;
            for peer in peers {
                match self.ask_change(peer, request, deadline.min(Deadline::after(patience))) {
                    Ok(MapAnswer::Changed) => return Ok(()),
                    Ok(MapAnswer::NotHere(node)) => leader = leader.or(node),
                    Ok(MapAnswer::Lost) => is_doubtful = true,
                    Err(error) if is_doubtful && Some(error.kind()) == done => {
                        return self.refresh(deadline).map(drop);
                    }
                    Err(error) => match error.kind() {
                        ErrorKind::Unavailable | ErrorKind::Timeout | ErrorKind::Busy => {
                            is_doubtful = true;
                            failed = worse(failed, error);
                        }
                        _ => return Err(error),
                    },
                }
                if leader.is_some() && leader != first {
                    break;
                }
            }
            let left = deadline.remaining();
            if let Some(error) = failed
                && (left.is_none() || !has_mirrors)
            {
                return Err(error);
            }
            let Some(left) = left else {
                let cause = "no node leads the cluster now";
                return Err(Error::new(ErrorKind::Timeout, cause));
            };
            std::thread::sleep(pause.min(left));
            pause = (pause * 2).min(CHANGE_PAUSE_MAX);
        }
    }

    fn ask_change(
        &self,
        peer: &NodePeer,
        request: &ControlRequest,
        deadline: Deadline,
    ) -> Result<MapAnswer> {
        let link = peer.link(&self.credentials(), deadline.min(Deadline::after(PATIENCE)))?;
        match self.control(&link, request, deadline) {
            Ok(ControlReply::Map(Some(data))) => {
                self.session().adopt(data, &link).map(|_| MapAnswer::Changed)
            }
            Ok(ControlReply::Map(None) | ControlReply::Ok) => {
                let known = self.view(deadline)?.map.epoch();
                self.refresh_from(known, Some(peer.node), deadline).map(|_| MapAnswer::Changed)
            }
            Ok(ControlReply::NotLeader { leader }) => {
                Ok(MapAnswer::NotHere(leader.map(|leader| leader.node)))
            }
            Ok(_) => Err(unexpected(&link, "a change of the cluster map")),
            Err(error) if is_lost(&link, &error) => Ok(MapAnswer::Lost),
            Err(error) => Err(error),
        }
    }
}

/// A node's answer to a change of the map.
enum MapAnswer {
    Changed,
    /// The coordinator is not there, but here, if it knows.
    NotHere(Option<NodeId>),
    /// The connection ended: it may have heard of the change or not.
    Lost,
}

/// Tries again and again, each time with more patience for each node, while the reason that it fails is that one is silent.
fn in_rounds<T>(
    deadline: Deadline,
    mut round: impl FnMut(&dyn Fn() -> Deadline) -> Result<T>,
) -> Result<T> {
    let mut patience = PATIENCE;
    loop {
        match round(&|| deadline.min(Deadline::after(patience))) {
            Err(error) if error.kind() == ErrorKind::Timeout && deadline.remaining().is_some() => {
                patience *= 2;
            }
            result => return result,
        }
    }
}

/// The error that says more: one of a node that may yet answer.
fn worse(known: Option<Error>, error: Error) -> Option<Error> {
    match known {
        Some(known) if known.kind() == ErrorKind::Timeout || error.kind() != ErrorKind::Timeout => {
            Some(known)
        }
        _ => Some(error),
    }
}
