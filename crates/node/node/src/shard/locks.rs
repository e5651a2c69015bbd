//! File locks as the shard deals with them: requests of its connections on the node's one table of
//! locks ([`crate::locks`]), and what other nodes ask about it.

use samite_filelock::{WaitAnswer, check_request};
use samite_transport::server::{ConnId, ConnectionPeer, ReplySink};
use samite_types::{ClientId, Clock, Epoch, Error, ErrorKind, NodeId, Result, SystemClock};
use samite_wire::control::ControlReply;
use samite_wire::lock::{KnownLock, LockOwner, LockRequest};

use super::ShardService;
use crate::control_reply::{ReplyTo, refused};
use crate::inbox::InboxMessage;
use crate::lock_connections::ConnectionEnd;
use crate::locks::{answering_node, wait_reply};
use crate::mutex::lock;

/// Most owners that one answer names.
const OWNERS_MAX: usize = 1024;

impl ShardService {
    /// A request on the locks of an object. No reply yet: it waits.
    pub(super) fn lock_request(
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
        self.lock_connections.asks(to.conn);
        let dataset = self.map.as_ref().and_then(|map| map.dataset_by_id(request.dataset));
        let redundancy = dataset.map(|dataset| dataset.spec.redundancy);
        let asked =
            lock(&self.shared.locks).request(((self.id, to.conn), to), client, request, redundancy);
        let (answer, others) = asked?;
        self.answer_lock_waits(others, Some(out));
        Ok(answer.map(ControlReply::Lock))
    }

    /// A client that waits for locks that another node grants now is sent there.
    pub(super) fn send_lock_waits_on(&self, out: &mut ReplySink) {
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

    pub(super) fn cancel_lock(
        &self,
        conn: ConnId,
        number: u64,
        out: &mut ReplySink,
    ) -> Option<ControlReply> {
        let answers = lock(&self.shared.locks).cancel((self.id, conn), number);
        self.answer_lock_waits(answers, Some(out));
        Some(ControlReply::Ok)
    }

    pub(super) fn lock_waits(&self, owner: LockOwner) -> Option<ControlReply> {
        let mut owners = lock(&self.shared.locks).waits_for(owner);
        owners.truncate(OWNERS_MAX);
        Some(ControlReply::LockOwners(owners))
    }

    /// A connection is gone.
    pub(super) fn locks_closed(&mut self, conn: ConnId) {
        let Some(end) = self.lock_connections.closed(conn) else { return };
        let is_broken = end == ConnectionEnd::Broken;
        let (answers, back) = lock(&self.shared.locks).left((self.id, conn), is_broken);
        if let Some(client) = back {
            self.lock_connections.expect_back(client, SystemClock.monotonic());
        }
        self.answer_lock_waits(answers, None);
    }

    /// Ends the locks of clients whose connections broke, and that have not come back.
    pub(super) fn see_off_lockers(&mut self, out: &mut ReplySink) {
        let now = SystemClock.monotonic();
        while let Some(client) = self.lock_connections.take_due(now) {
            let answers = lock(&self.shared.locks).should_be_back(client);
            self.answer_lock_waits(answers, Some(&mut *out));
        }
    }

    /// Tells the clients that waited, here or at other shards.
    pub(super) fn answer_lock_waits(
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

    /// Which locks are known here of partitions that `node` is a member of.
    pub(super) fn known_locks(
        &self,
        peer: &ConnectionPeer,
        (node, epoch): (NodeId, Epoch),
        after: Option<&KnownLock>,
    ) -> Result<ControlReply> {
        if peer.node != Some(node) {
            let words = format!("only {node} itself may take over the locks of {node}");
            return Err(Error::new(ErrorKind::Denied, words));
        }
        // By an older map, a shard might still grant some.
        let map = self.map.as_ref().filter(|_| self.shared.taken_up() >= epoch);
        let Some(map) = map else {
            return Err(Error::new(ErrorKind::Busy, "locks: that map is on its way"));
        };
        let (locks, has_more) = lock(&self.shared.locks).known(map, node, after);
        Ok(ControlReply::KnownLocks { locks, has_more })
    }

    /// Which of these clients have connections here on which locks were asked for.
    pub(super) fn lock_clients(
        &self,
        peer: &ConnectionPeer,
        mut clients: Vec<ClientId>,
    ) -> Result<ControlReply> {
        if peer.node.is_none() {
            return Err(Error::new(ErrorKind::Denied, "only nodes may ask who is connected"));
        }
        let locks = lock(&self.shared.locks);
        clients.retain(|client| locks.is_here(*client));
        Ok(ControlReply::LockClients { incarnation: self.shared.incarnation, clients })
    }
}
