//! File locks at the shards: one table for all of them, behind a lock, and the answers to requests
//! that waited. The rules are in [`samite_filelock`].

use samite_filelock::{AnsweringNode, WaitAnswer, answer_to_wait, check_request};
use samite_placement::ClusterMap;
use samite_transport::server::{ConnId, ReplySink};
use samite_types::{ClientId, Clock, Error, ErrorKind, Result, ShardId, SystemClock};
use samite_wire::control::ControlReply;
use samite_wire::lock::{LockOwner, LockRequest};

use crate::control::refused;
use crate::inbox::InboxMessage;
use crate::shard::ShardService;
use crate::shared::{NodeShared, ReplyTo, lock};

/// Most owners that one answer names.
const OWNERS_MAX: usize = 1024;

/// The locks of this node. A connection is told by the shard that serves it.
pub(crate) type SharedLocks = samite_filelock::NodeLocks<(ShardId, ConnId), ReplyTo>;

/// This node, now.
fn answering_node(shared: &NodeShared) -> AnsweringNode {
    let lease_until = shared.membership.lease_until();
    AnsweringNode { node: shared.node, now: SystemClock.monotonic(), lease_until }
}

/// What is sent to a client that waited, by `map`.
pub(crate) fn wait_reply(
    shared: &NodeShared,
    map: Option<&ClusterMap>,
    waited: &WaitAnswer<ReplyTo>,
) -> ControlReply {
    match answer_to_wait(&answering_node(shared), map, &waited.request, waited.answer) {
        Ok(answer) => ControlReply::Lock(answer),
        Err(error) => refused(&error),
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
        check_request(&answering_node(&self.shared), self.map.as_deref(), request)?;
        self.has_locks.insert(to.conn);
        let dataset = self.map.as_ref().and_then(|map| map.dataset_by_id(request.dataset));
        let redundancy = dataset.map(|dataset| dataset.spec.redundancy);
        let asked =
            lock(&self.shared.locks).request(((self.id, to.conn), to), client, request, redundancy);
        let (answer, others) = asked?;
        self.answer_lock_waits(others, Some(out));
        Ok(answer.map(ControlReply::Lock))
    }

    /// A client that waits for locks that another node grants now is sent there.
    pub(crate) fn send_lock_waits_on(&self, out: &mut ReplySink) {
        let asked = answering_node(&self.shared);
        let is_elsewhere = |request: &LockRequest| {
            let checked = check_request(&asked, self.map.as_deref(), request);
            checked.is_err_and(|error| error.kind() == ErrorKind::StaleMap)
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
        let mut owners = lock(&self.shared.locks).waits_for(owner);
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
    pub(crate) fn answer_lock_waits(
        &self,
        answers: Vec<WaitAnswer<ReplyTo>>,
        mut out: Option<&mut ReplySink>,
    ) {
        for waited in answers {
            let reply = wait_reply(&self.shared, self.map.as_deref(), &waited);
            self.send_anywhere(waited.to, reply, out.as_deref_mut());
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
