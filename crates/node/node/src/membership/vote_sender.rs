//! Messages to voters in other nodes. A thread for each node carries the messages that wait for it;
//! a message that finds no way, or too many others waiting, is lost, as the voters expect.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::time::Duration;

use samite_coordinator::store::VoterTransport;
use samite_transport::Address;
use samite_transport::client::{NodeLink, RequestTicket};
use samite_types::{Deadline, Error, ErrorKind, NodeId, Result};
use samite_wire::control::{ControlReply, ControlRequest};
use samite_wire::limits::BODY_LEN_MAX;
use samite_wire::membership::VOTE_MESSAGES_MAX;

use super::map_watch::NodeCredentials;
use crate::control_reply::refusal;
use crate::node_calls::{answer, ask};
use crate::peer_channel::addresses;
use crate::shared::NodeShared;

/// How long another node may take over a connection or an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);
/// Pause after a failure.
const PAUSE: Duration = Duration::from_millis(50);
/// Most bytes of messages in one request; a message is shorter ([`samite_coordinator::store::VoterTransport`]).
const REQUEST_LEN_MAX: usize = BODY_LEN_MAX - (64 << 10);
/// Most messages that wait for one node.
const QUEUE_LEN: usize = 256;
/// Most requests to one node without an answer. Their answers are looked at when there is more to say: nobody is woken for them.
const REQUESTS_MAX: usize = 4;

/// Carries messages to other nodes.
pub(crate) struct VoteSenders {
    shared: Arc<NodeShared>,
    credentials: NodeCredentials,
    /// Where nodes are reached that are not in the cluster map yet.
    known: HashMap<NodeId, Address>,
    queues: HashMap<NodeId, SyncSender<Vec<u8>>>,
}

impl VoteSenders {
    pub(crate) fn new(
        shared: Arc<NodeShared>,
        credentials: NodeCredentials,
        known: HashMap<NodeId, Address>,
    ) -> Self {
        Self { shared, credentials, known, queues: HashMap::new() }
    }

    /// Starts the thread for one node. It ends when these senders do, and is not joined: it may be
    /// waiting for that node, and has nothing that matters.
    fn start(&self, to: NodeId) -> std::io::Result<SyncSender<Vec<u8>>> {
        let (queue, messages) = mpsc::sync_channel(QUEUE_LEN);
        let sender = VoteSender {
            shared: Arc::clone(&self.shared),
            credentials: self.credentials.clone(),
            known: self.known.get(&to).cloned(),
            to,
        };
        let body = move || sender.run(&messages);
        std::thread::Builder::new().name("vote-sender".into()).spawn(body)?;
        Ok(queue)
    }
}

impl VoterTransport for VoteSenders {
    fn send(&mut self, to: NodeId, message: Vec<u8>) {
        if !self.queues.contains_key(&to) {
            match self.start(to) {
                Ok(queue) => drop(self.queues.insert(to, queue)),
                Err(error) => return tracing::warn!(%error, "start a thread for voters"),
            }
        }
        if let Some(queue) = self.queues.get(&to) {
            let _ = queue.try_send(message);
        }
    }
}

/// Carries messages to one node.
struct VoteSender {
    shared: Arc<NodeShared>,
    credentials: NodeCredentials,
    known: Option<Address>,
    to: NodeId,
}

impl VoteSender {
    fn run(&self, waiting: &Receiver<Vec<u8>>) {
        let mut line: Option<VoteLink> = None;
        let mut next = None;
        while let Some(first) = next.take().or_else(|| waiting.recv().ok()) {
            let mut len = first.len();
            let mut messages = vec![first];
            while messages.len() < VOTE_MESSAGES_MAX
                && let Ok(message) = waiting.try_recv()
            {
                len += message.len();
                if len > REQUEST_LEN_MAX {
                    next = Some(message);
                    break;
                }
                messages.push(message);
            }
            if let Err(error) = self.carry(&mut line, messages) {
                tracing::debug!(to = %self.to, %error, "voters");
                line = None;
                std::thread::sleep(PAUSE);
            }
        }
    }

    fn carry(&self, line: &mut Option<VoteLink>, messages: Vec<Vec<u8>>) -> Result<()> {
        let line = match line {
            Some(line) => line,
            None => line.insert(VoteLink { link: self.connect()?, unanswered: VecDeque::new() }),
        };
        line.send(&ControlRequest::Vote { from: self.shared.node, messages })
    }

    fn connect(&self) -> Result<Arc<NodeLink>> {
        let map = self.shared.map();
        let by_map = map.iter().flat_map(|map| addresses(map, self.shared.node, self.to));
        let mut failed = Error::new(ErrorKind::Unavailable, "no address");
        for address in by_map.chain(self.known.clone()) {
            match self.credentials.connect(&self.shared, &address, ANSWER_TIMEOUT) {
                Ok(link) if link.node() == self.to => return Ok(link),
                Ok(_) => failed = Error::new(ErrorKind::Unavailable, "another node answers"),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }
}

/// A connection to the node, and requests of which no answer was seen.
struct VoteLink {
    link: Arc<NodeLink>,
    unanswered: VecDeque<RequestTicket>,
}

impl VoteLink {
    fn send(&mut self, request: &ControlRequest) -> Result<()> {
        if self.unanswered.len() == REQUESTS_MAX
            && let Some(ticket) = self.unanswered.pop_front()
        {
            // It came long ago, unless the node stands still.
            match answer(&self.link, ticket, Deadline::after(ANSWER_TIMEOUT))? {
                ControlReply::Ok => {}
                reply => return Err(refusal(&reply)),
            }
        }
        self.unanswered.push_back(ask(&self.link, request, Deadline::after(ANSWER_TIMEOUT))?);
        Ok(())
    }
}
