//! File locks as this node keeps them: one table for all shards, and the requests that wait.
//!
//! A lock lives as long as a connection of its client on which locks were asked for. The kernel counts who holds such a connection,
//! forked children and successors over `exec` included, and closes it with the last of them, however that one ends.

use std::collections::HashMap;

use samite_partition::locks::{LockFile, LockTable, LockWish, Taken, WaitId};
use samite_transport::server::{ConnId, Replies};
use samite_types::{ClientId, Error, ErrorKind, Result, ShardId};
use samite_wire::control::ControlReply;
use samite_wire::lock::{LockAnswer, LockCall, LockOwner, LockRequest};

use crate::inbox::Message;
use crate::shard::Shard;
use crate::shared::{ReplyTo, lock};

/// Most owners that one answer names.
const OWNERS_MAX: usize = 1024;

/// A connection, wherever it is served.
type Place = (ShardId, ConnId);

/// Somebody who waits.
#[derive(Debug)]
struct Parked {
    to: ReplyTo,
    /// By which the client can cancel it.
    number: u64,
}

/// The locks of this node.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    table: LockTable,
    parked: HashMap<WaitId, Parked>,
    next: WaitId,
    /// Whose connection it is, of those on which locks were asked for.
    clients: HashMap<Place, ClientId>,
    /// How many of them a client has.
    connections: HashMap<ClientId, usize>,
}

/// Answers to requests that waited.
type Answers = Vec<(ReplyTo, LockAnswer)>;

impl Locks {
    fn came(&mut self, place: Place, client: ClientId) {
        if self.clients.insert(place, client).is_none() {
            *self.connections.entry(client).or_default() += 1;
        }
    }

    /// A connection is gone; with its client's last one, so are the client's locks.
    fn left(&mut self, place: Place) -> Answers {
        let Some(client) = self.clients.remove(&place) else { return Answers::new() };
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
                self.table.client_gone(client, &mut granted);
            }
        }
        self.granted(&granted)
    }

    /// The answers for waits that were granted.
    fn granted(&mut self, waits: &[WaitId]) -> Answers {
        let parked = waits.iter().filter_map(|wait| self.parked.remove(wait));
        parked.map(|parked| (parked.to, LockAnswer::Done)).collect()
    }

    /// Carries a request out. `None`: it waits.
    fn run(
        &mut self,
        to: ReplyTo,
        client: ClientId,
        request: &LockRequest,
    ) -> (Option<LockAnswer>, Answers) {
        let owner = LockOwner { client, token: request.token };
        let file =
            LockFile { dataset: request.dataset, object: request.object, space: request.space };
        let mut granted = Vec::new();
        let answer = match request.call {
            LockCall::Take { range, mode, holder, wait, detects_deadlock } => {
                let wish = LockWish { owner, range, mode, holder, detects_deadlock };
                if request.is_note {
                    let done = self.table.note(file, &wish, &mut granted);
                    let answer = if done { LockAnswer::Done } else { LockAnswer::Full };
                    return (Some(answer), self.granted(&granted));
                }
                self.next += 1;
                let taken = self.table.take(file, &wish, wait.map(|_| self.next), &mut granted);
                if let (Taken::Waits, Some(number)) = (taken, wait) {
                    self.parked.insert(self.next, Parked { to, number });
                }
                answer_of(taken)
            }
            LockCall::Release { range } => {
                let done = self.table.release(file, owner, range, &mut granted);
                Some(if done { LockAnswer::Done } else { LockAnswer::Full })
            }
            LockCall::Test { range, mode } => {
                let holder = samite_wire::lock::LockHolder::default();
                let wish = LockWish { owner, range, mode, holder, detects_deadlock: false };
                Some(self.table.test(file, &wish).map_or(LockAnswer::Done, LockAnswer::Held))
            }
        };
        let answers = self.granted(&granted);
        (answer, answers)
    }

    fn cancel(&mut self, place: Place, number: u64) -> Answers {
        let found: Vec<(WaitId, Parked)> = self
            .parked
            .extract_if(|_, parked| {
                (parked.to.shard, parked.to.conn) == place && parked.number == number
            })
            .collect();
        let mut answers = Answers::new();
        for (wait, parked) in found {
            self.table.cancel(wait);
            answers.push((parked.to, LockAnswer::Cancelled));
        }
        answers
    }
}

const fn answer_of(taken: Taken) -> Option<LockAnswer> {
    match taken {
        Taken::Granted => Some(LockAnswer::Done),
        Taken::Held(found) => Some(LockAnswer::Held(found)),
        Taken::Waits => None,
        Taken::Deadlock => Some(LockAnswer::Deadlock),
        Taken::Full => Some(LockAnswer::Full),
    }
}

impl Shard {
    /// A request on the locks of an object. No reply yet: it waits.
    pub(crate) fn lock_request(
        &mut self,
        to: ReplyTo,
        client: ClientId,
        request: &LockRequest,
        out: &mut Replies,
    ) -> Result<Option<ControlReply>> {
        if !request.call.range().is_valid() {
            return Err(Error::new(ErrorKind::Invalid, "lock: no such range of bytes"));
        }
        if !self.keeps_locks(request) {
            let words = format!("lock: {} is not here", request.partition);
            return Err(Error::new(ErrorKind::StaleMap, words));
        }
        self.has_locks.insert(to.conn);
        let mut locks = lock(&self.shared.locks);
        locks.came((self.id, to.conn), client);
        let (answer, others) = locks.run(to, client, request);
        drop(locks);
        self.answer_lock_waits(others, Some(out));
        Ok(answer.map(ControlReply::Lock))
    }

    /// Whether this node is to know of such a lock: as the primary, or as a member that may become it.
    fn keeps_locks(&self, request: &LockRequest) -> bool {
        let Some(map) = &self.map else { return false };
        let Some(dataset) = map.dataset_by_id(request.dataset) else { return false };
        let redundancy = dataset.spec.redundancy;
        if !request.is_note {
            return map.node_of(redundancy, request.partition) == Some(self.shared.node);
        }
        let members = map.group(redundancy, request.partition).map(|group| &group.members);
        members
            .into_iter()
            .flatten()
            .any(|member| map.node_of_target(member.target) == Some(self.shared.node))
    }

    pub(crate) fn cancel_lock(
        &self,
        conn: ConnId,
        number: u64,
        out: &mut Replies,
    ) -> Option<ControlReply> {
        let answers = lock(&self.shared.locks).cancel((self.id, conn), number);
        self.answer_lock_waits(answers, Some(out));
        Some(ControlReply::Ok)
    }

    pub(crate) fn lock_waits(&self, owner: LockOwner) -> Option<ControlReply> {
        let mut owners = lock(&self.shared.locks).table.waits_for(owner);
        owners.truncate(OWNERS_MAX);
        Some(ControlReply::LockOwners(owners))
    }

    /// A connection is gone.
    pub(crate) fn locks_closed(&mut self, conn: ConnId) {
        if self.has_locks.remove(&conn) {
            let answers = lock(&self.shared.locks).left((self.id, conn));
            self.answer_lock_waits(answers, None);
        }
    }

    /// Tells those who waited, here or at other shards.
    fn answer_lock_waits(&self, answers: Answers, mut out: Option<&mut Replies>) {
        for (to, answer) in answers {
            let reply = ControlReply::Lock(answer);
            match &mut out {
                Some(out) if to.shard == self.id => self.send_control(to, &reply, out),
                _ => {
                    let inbox = &self.shared.inboxes[usize::from(to.shard.get())];
                    inbox.send(Message::Control(to, reply));
                }
            }
        }
    }
}
