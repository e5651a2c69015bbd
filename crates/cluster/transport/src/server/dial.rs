//! Connections that a node makes to others.
//!
//! Connecting and proving the key take a few round trips, for which a loop cannot wait: a short-lived thread does it, and the loop takes up
//! the socket as one more connection.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use samite_types::fault::FaultSwitch;
use samite_types::{Deadline, Error, ErrorKind, NodeId, Result};

use super::accept::{AcceptedConnection, ConnectionOrigin};
use super::layer::LayerStart;
use super::waker::LoopWaker;
use crate::client::ConnectIdentity;
use crate::client::connect::connect_node;
use crate::key_set::SharedKeys;
use crate::{Address, Credential};

/// Result of a dial.
pub(super) struct DialResult {
    pub(super) ticket: u64,
    pub(super) made: Result<(AcceptedConnection, NodeId)>,
}

/// Makes connections to other nodes for the service of one [`EventLoop`](super::EventLoop).
#[derive(Clone)]
pub struct NodeDialler {
    faults: Arc<FaultSwitch>,
    keys: SharedKeys,
    /// At most one for each dial that the service has asked for.
    dialled: Arc<Mutex<VecDeque<DialResult>>>,
    waker: LoopWaker,
}

impl NodeDialler {
    pub(super) fn new(faults: Arc<FaultSwitch>, keys: SharedKeys, waker: LoopWaker) -> Self {
        Self { faults, keys, dialled: Arc::default(), waker }
    }

    /// Connects to the first of `addresses` that answers, as this node. The result is told by
    /// [`Service::connected`](super::NodeService::connected) with this ticket. Never waits. The
    /// caller sees to it that few are under way.
    pub fn dial(&self, ticket: u64, addresses: Vec<Address>, deadline: Deadline) {
        let dialler = self.clone();
        let spawned = std::thread::Builder::new()
            .name("dial".into())
            .spawn(move || dialler.done(ticket, dialler.connect(&addresses, deadline)));
        if let Err(error) = spawned {
            let errno = rustix::io::Errno::from_io_error(&error);
            let errno = errno.unwrap_or(rustix::io::Errno::AGAIN);
            self.done(ticket, Err(Error::io("start a thread", errno)));
        }
    }

    fn connect(
        &self,
        addresses: &[Address],
        deadline: Deadline,
    ) -> Result<(AcceptedConnection, NodeId)> {
        let who = ConnectIdentity::node(&self.faults);
        let credential = Credential::from(self.keys.load().current());
        let mut failed = Error::new(ErrorKind::Unavailable, "node has no address");
        for address in addresses {
            match connect_node(address, &credential, &who, deadline) {
                Ok((fd, tls, node)) => {
                    let is_tcp = address.is_tcp();
                    let origin = ConnectionOrigin { uid: None, is_tcp, is_for_guests: false };
                    let start =
                        tls.map_or(LayerStart::Plain, |tls| LayerStart::Made(Box::new(tls)));
                    return Ok((AcceptedConnection { fd, origin, start }, node));
                }
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    fn done(&self, ticket: u64, made: Result<(AcceptedConnection, NodeId)>) {
        let mut dialled = self.dialled.lock().unwrap_or_else(PoisonError::into_inner);
        dialled.push_back(DialResult { ticket, made });
        drop(dialled);
        self.waker.wake();
    }

    pub(super) fn take(&self) -> Option<DialResult> {
        self.dialled.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

impl fmt::Debug for NodeDialler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeDialler").field("node", &self.faults.node()).finish_non_exhaustive()
    }
}
