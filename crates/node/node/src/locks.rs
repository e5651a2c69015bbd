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
use samite_placement::ClusterMap;
use samite_transport::server::{ConnId, ReplySink};
use samite_types::{ClientId, Clock, Error, ErrorKind, Result, ShardId, SystemClock};
use samite_wire::control::ControlReply;
use samite_wire::lock::{LockAnswer, LockCall, LockOwner, LockRequest};

use crate::control::refused;
use crate::inbox::InboxMessage;
use crate::lock_recovery::LockRecovery;
use crate::shard::ShardService;
use crate::shared::{NodeShared, ReplyTo, lock};

/// Most owners that one answer names.
const OWNERS_MAX: usize = 1024;

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
    pub(crate) heir: LockRecovery,
}

/// Answers to requests that waited.
pub(crate) type Answers = Vec<(ReplyTo, LockRequest, LockAnswer)>;

impl NodeLocks {
    fn came(&mut self, place: Place, client: ClientId) {
        if self.clients.insert(place, client).is_none() {
            *self.connections.entry(client).or_default() += 1;
            self.heir.came(client);
        }
    }

    /// Whether the client has a connection here on which locks were asked for, or had one that broke just now.
    pub(crate) fn is_here(&self, client: ClientId) -> bool {
        self.connections.contains_key(&client) || self.expected_back.contains_key(&client)
    }

    /// A client whose last connection had broken should be back by now. If it is not, its locks go.
    fn should_be_back(&mut self, client: ClientId) -> Answers {
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
    fn left(&mut self, place: Place, is_broken: bool) -> (Answers, Option<ClientId>) {
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
    fn run(
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

    fn cancel(&mut self, place: Place, number: u64) -> Answers {
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

/// Whether this node has a say about such a lock now: it grants locks as the primary, or may note what that has granted.
fn may_answer(shared: &NodeShared, map: Option<&ClusterMap>, request: &LockRequest) -> Result<()> {
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
    let is_primary = map.node_of(redundancy, request.partition) == Some(shared.node);
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
    let lease_until = shared.membership.lease_until();
    if group.members.len() > 1 && SystemClock.monotonic() >= lease_until {
        return busy("lock: another node may grant it now");
    }
    Ok(())
}

/// The answer to a client that waited: a client whose lock this node has no say about any more has
/// to ask again.
pub(crate) fn answer_to_wait(
    shared: &NodeShared,
    map: Option<&ClusterMap>,
    request: &LockRequest,
    answer: LockAnswer,
) -> ControlReply {
    match may_answer(shared, map, request) {
        Err(error) if answer == LockAnswer::Done => refused(&error),
        _ => ControlReply::Lock(answer),
    }
}

impl ShardService {
    /// A request on the locks of an object. No reply yet: it waits.
    pub(crate) fn lock_request(
        &mut self,
        to: ReplyTo,
        client: ClientId,
        request: &LockRequest,
        out: &mut ReplySink,
    ) -> Result<Option<ControlReply>> {
        if !request.call.range().is_valid() {
            return Err(Error::new(ErrorKind::Invalid, "lock: no such range of bytes"));
        }
        self.may_answer(request)?;
        self.has_locks.insert(to.conn);
        let dataset = self.map.as_ref().and_then(|map| map.dataset_by_id(request.dataset));
        let redundancy = dataset.map(|dataset| dataset.spec.redundancy);
        let mut locks = lock(&self.shared.locks);
        let expects =
            redundancy.is_some_and(|redundancy| locks.heir.expects(redundancy, request.partition));
        if expects && request.is_note && matches!(request.call, LockCall::Release { .. }) {
            let (dataset, object, space) = (request.dataset, request.object, request.space);
            let file = LockFile { dataset, partition: request.partition, object, space };
            locks.heir.forgets(file, LockOwner { client, token: request.token });
        }
        if expects && !request.is_note {
            let words = format!("lock: others are asked for locks of {}", request.partition);
            return Err(Error::new(ErrorKind::Busy, words));
        }
        locks.came((self.id, to.conn), client);
        let (answer, others) = locks.run(to, client, request);
        drop(locks);
        self.answer_lock_waits(others, Some(out));
        Ok(answer.map(ControlReply::Lock))
    }

    fn may_answer(&self, request: &LockRequest) -> Result<()> {
        may_answer(&self.shared, self.map.as_deref(), request)
    }

    /// A client that waits for locks that another node grants now is sent there.
    pub(crate) fn send_lock_waits_on(&self, out: &mut ReplySink) {
        let is_elsewhere = |request: &LockRequest| {
            self.may_answer(request).is_err_and(|error| error.kind() == ErrorKind::StaleMap)
        };
        let ended = lock(&self.shared.locks).end_waits(is_elsewhere);
        let moved = Error::new(ErrorKind::StaleMap, "lock: another node grants it now");
        for to in ended {
            self.send_anywhere(to, refused(&moved), Some(&mut *out));
        }
    }

    pub(crate) fn cancel_lock(
        &self,
        conn: ConnId,
        number: u64,
        out: &mut ReplySink,
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
        let is_broken = self.broken.take() == Some(conn);
        if self.has_locks.remove(&conn) {
            let (answers, back) = lock(&self.shared.locks).left((self.id, conn), is_broken);
            if let Some(client) = back {
                self.lock_departures.add(client, SystemClock.monotonic());
            }
            self.answer_lock_waits(answers, None);
        }
    }

    /// Ends the locks of clients whose connections broke, and that have not come back.
    pub(crate) fn see_off_lockers(&mut self, out: &mut ReplySink) {
        let now = SystemClock.monotonic();
        while let Some(client) = self.lock_departures.take(now) {
            let answers = lock(&self.shared.locks).should_be_back(client);
            self.answer_lock_waits(answers, Some(&mut *out));
        }
    }

    /// Tells the clients that waited, here or at other shards.
    pub(crate) fn answer_lock_waits(&self, answers: Answers, mut out: Option<&mut ReplySink>) {
        for (to, request, answer) in answers {
            let reply = answer_to_wait(&self.shared, self.map.as_deref(), &request, answer);
            self.send_anywhere(to, reply, out.as_deref_mut());
        }
    }

    fn send_anywhere(&self, to: ReplyTo, reply: ControlReply, out: Option<&mut ReplySink>) {
        match out {
            Some(out) if to.shard == self.id => self.send_control(to, &reply, out),
            _ => self.shared.inboxes[usize::from(to.shard.get())]
                .send(InboxMessage::Control(to, reply)),
        }
    }
}
