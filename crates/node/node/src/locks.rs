//! File locks as this node keeps them: one table for all shards, and the requests that wait.
//!
//! A lock lives as long as a connection of its client on which locks were asked for. The kernel
//! counts the processes that have such a connection, forked children and successors over `exec`
//! included, and closes it with the last of them, in whichever way that one ends. A connection that
//! breaks (a reset, damaged bytes) shows nothing of the kind: its client has two seconds to come
//! back. Within a host connections break on purpose only (faults), and a connection that ends in
//! any other way has ended with its client. Of locks that this node has taken over with a
//! partition, others may have those connections: see [`crate::lock_recovery`].

use std::collections::HashMap;

use samite_partition::locks::{LockClaim, LockFile, LockTable, LockVerdict, WaitId};
use samite_transport::server::ConnId;
use samite_types::{ClientId, ShardId};
use samite_wire::lock::{LockAnswer, LockCall, LockOwner, LockRequest};

use crate::control_reply::ReplyTo;
use crate::lock_recovery::LockRecovery;

/// A connection, wherever it is served.
type Place = (ShardId, ConnId);

/// A client that waits for a lock.
#[derive(Debug)]
struct LockWaiter {
    to: ReplyTo,
    /// By which the client can cancel it.
    number: u64,
    request: LockRequest,
}

/// The locks of this node.
#[derive(Debug, Default)]
pub(crate) struct NodeLocks {
    pub(crate) table: LockTable,
    parked: HashMap<WaitId, LockWaiter>,
    next: WaitId,
    /// The client of each connection on which locks were asked for.
    clients: HashMap<Place, ClientId>,
    /// How many of them a client has.
    connections: HashMap<ClientId, usize>,
    /// Clients whose last connection broke lately, and how often: they may not know, and come back.
    expected_back: HashMap<ClientId, u32>,
    /// Locks that are taken over from other nodes.
    pub(crate) recovery: LockRecovery,
}

/// Answers to requests that waited.
pub(crate) type Answers = Vec<(ReplyTo, LockRequest, LockAnswer)>;

impl NodeLocks {
    pub(crate) fn came(&mut self, place: Place, client: ClientId) {
        if self.clients.insert(place, client).is_none() {
            *self.connections.entry(client).or_default() += 1;
            self.recovery.came(client);
        }
    }

    /// Whether the client has a connection here on which locks were asked for, or had one that broke just now.
    pub(crate) fn is_here(&self, client: ClientId) -> bool {
        self.connections.contains_key(&client) || self.expected_back.contains_key(&client)
    }

    /// A client whose last connection had broken should be back by now. If it is not, its locks go.
    pub(crate) fn should_be_back(&mut self, client: ClientId) -> Answers {
        let Some(count) = self.expected_back.get_mut(&client) else { return Answers::new() };
        *count -= 1;
        if *count > 0 {
            return Answers::new();
        }
        self.expected_back.remove(&client);
        let mut granted = Vec::new();
        if !self.connections.contains_key(&client) {
            self.table.client_gone(client, &mut granted);
        }
        self.granted(&granted)
    }

    /// A connection is gone; with its client's last one, so are the client's locks, unless it broke. Then the client is returned: it is to be expected back.
    pub(crate) fn left(&mut self, place: Place, is_broken: bool) -> (Answers, Option<ClientId>) {
        let Some(client) = self.clients.remove(&place) else { return (Answers::new(), None) };
        let mut granted = Vec::new();
        let alone: Vec<WaitId> = self
            .parked
            .extract_if(|_, parked| (parked.to.shard, parked.to.conn) == place)
            .map(|(wait, _)| wait)
            .collect();
        for wait in alone {
            self.table.cancel(wait);
        }
        if let Some(count) = self.connections.get_mut(&client) {
            *count -= 1;
            if *count == 0 {
                self.connections.remove(&client);
                if is_broken {
                    *self.expected_back.entry(client).or_default() += 1;
                    return (self.granted(&granted), Some(client));
                }
                self.table.client_gone(client, &mut granted);
            }
        }
        (self.granted(&granted), None)
    }

    /// The answers for waits that were granted.
    pub(crate) fn granted(&mut self, waits: &[WaitId]) -> Answers {
        let parked = waits.iter().filter_map(|wait| self.parked.remove(wait));
        parked.map(|parked| (parked.to, parked.request, LockAnswer::Done)).collect()
    }

    /// Carries a request out. `None`: it waits.
    pub(crate) fn run(
        &mut self,
        to: ReplyTo,
        client: ClientId,
        request: &LockRequest,
    ) -> (Option<LockAnswer>, Answers) {
        let owner = LockOwner { client, token: request.token };
        let LockRequest { dataset, partition, object, space, .. } = *request;
        let file = LockFile { dataset, partition, object, space };
        let mut granted = Vec::new();
        let answer = match request.call {
            LockCall::Take { range, mode, holder, wait, detects_deadlock } => {
                let wish = LockClaim { owner, range, mode, holder, detects_deadlock };
                if request.is_note {
                    let done = self.table.note(file, &wish, &mut granted);
                    let answer = if done { LockAnswer::Done } else { LockAnswer::Full };
                    return (Some(answer), self.granted(&granted));
                }
                self.next += 1;
                let taken = self.table.take(file, &wish, wait.map(|_| self.next), &mut granted);
                if let (LockVerdict::Waits, Some(number)) = (taken, wait) {
                    self.parked.insert(self.next, LockWaiter { to, number, request: *request });
                }
                answer_of(taken)
            }
            LockCall::Release { range } => {
                let done = self.table.release(file, owner, range, &mut granted);
                Some(if done { LockAnswer::Done } else { LockAnswer::Full })
            }
            LockCall::Test { range, mode } => {
                let holder = samite_wire::lock::LockHolder::default();
                let wish = LockClaim { owner, range, mode, holder, detects_deadlock: false };
                Some(self.table.test(file, &wish).map_or(LockAnswer::Done, LockAnswer::Held))
            }
        };
        let answers = self.granted(&granted);
        (answer, answers)
    }

    pub(crate) fn cancel(&mut self, place: Place, number: u64) -> Answers {
        let found: Vec<(WaitId, LockWaiter)> = self
            .parked
            .extract_if(|_, parked| {
                (parked.to.shard, parked.to.conn) == place && parked.number == number
            })
            .collect();
        let mut answers = Answers::new();
        for (wait, parked) in found {
            self.table.cancel(wait);
            answers.push((parked.to, parked.request, LockAnswer::Cancelled));
        }
        answers
    }

    /// Ends the waits for which `ends` says so.
    pub(crate) fn end_waits(&mut self, ends: impl Fn(&LockRequest) -> bool) -> Vec<ReplyTo> {
        let ended = self.parked.extract_if(|_, parked| ends(&parked.request));
        let ended: Vec<(WaitId, LockWaiter)> = ended.collect();
        for (wait, _) in &ended {
            self.table.cancel(*wait);
        }
        ended.into_iter().map(|(_, parked)| parked.to).collect()
    }
}

const fn answer_of(taken: LockVerdict) -> Option<LockAnswer> {
    match taken {
        LockVerdict::Granted => Some(LockAnswer::Done),
        LockVerdict::Held(found) => Some(LockAnswer::Held(found)),
        LockVerdict::Waits => None,
        LockVerdict::Deadlock => Some(LockAnswer::Deadlock),
        LockVerdict::Full => Some(LockAnswer::Full),
    }
}
