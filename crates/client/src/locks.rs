//! File locks from a client's side.
//!
//! A [`Locker`] has an identity of its own, and connections that only its locks use: sockets, which a forked child or a successor over
//! `exec` may hold open too. When the last of them is closed, by whomever, its locks are free.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use samite_transport::client::{Link, Reply, Ticket, Woken};
use samite_types::{
    ClientId, Deadline, Entropy, Epoch, Error, ErrorKind, NodeId, Result, SystemEntropy,
};
use samite_wire::control::{Consistency, ControlReply, ControlRequest, decode, encode};
use samite_wire::frame::FrameKind;
use samite_wire::lock::{LockAnswer, LockCall, LockOwner, LockRequest};

use crate::Client;
use crate::exec::is_absence;
use crate::peer::Credentials;

/// Pause before another try when a node does not have the partition, or cannot be reached.
const MAP_PAUSE: Duration = Duration::from_millis(10);
/// Most owners that a search for a circle of waits over several nodes looks at.
const SEARCH_MAX: usize = 64;
/// For how long a node is waited for whose place another may take.
const PRIMARY_PATIENCE: Duration = Duration::from_secs(1);
/// How often somebody who waits for a lock looks whether another node grants it now.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Longest sleep of somebody who is told when to stop.
const ALARM_INTERVAL: Duration = Duration::from_secs(60);
/// How often somebody who waits looks whether it is to stop.
const STOP_INTERVAL: Duration = Duration::from_millis(20);

struct Connection {
    node: NodeId,
    link: Arc<Link>,
    /// Used by one waiter at a time, and for nothing else.
    for_waits: bool,
    in_use: bool,
}

/// Somebody who holds locks. They end with it, unless others hold its connections open.
pub struct Locker {
    client: Client,
    id: ClientId,
    connections: Mutex<Vec<Connection>>,
    next_wait: AtomicU64,
}

/// A lock that is waited for.
pub struct LockWait<'l> {
    locker: &'l Locker,
    request: LockRequest,
    is_mirrored: bool,
    link: Arc<Link>,
    ticket: Option<Ticket>,
    answered: Option<LockAnswer>,
    number: u64,
}

impl Locker {
    /// A new one.
    #[must_use]
    pub fn new(client: &Client) -> Self {
        Self::with_id(client, ClientId(SystemEntropy.next_u64().max(1)))
    }

    /// The one called `id`, in another process than before.
    #[must_use]
    pub fn with_id(client: &Client, id: ClientId) -> Self {
        Self {
            client: client.clone(),
            id,
            connections: Mutex::default(),
            next_wait: AtomicU64::new(1),
        }
    }

    /// Identity.
    #[must_use]
    pub const fn id(&self) -> ClientId {
        self.id
    }

    /// What tells this host from others in [`LockHolder`](samite_wire::lock::LockHolder).
    #[must_use]
    pub fn host(&self) -> u64 {
        samite_placement::hash(self.client.session().host().as_bytes())
    }

    fn connections(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection to `node`; one for a wait is the caller's alone until it is put back.
    fn link(&self, node: NodeId, for_waits: bool, deadline: Deadline) -> Result<Arc<Link>> {
        let mut connections = self.connections();
        connections.retain(|one| !one.link.is_dead());
        if let Some(known) = connections
            .iter_mut()
            .find(|one| one.node == node && one.for_waits == for_waits && !one.in_use)
        {
            known.in_use = for_waits;
            return Ok(Arc::clone(&known.link));
        }
        drop(connections);
        let view = self.client.view(deadline)?;
        let who = Credentials { client: self.id, ..self.client.credentials() };
        let link = Arc::new(view.peer(node)?.connect_apart(&who, deadline)?);
        let entry = Connection { node, link: Arc::clone(&link), for_waits, in_use: for_waits };
        self.connections().push(entry);
        Ok(link)
    }

    fn drop_connection(&self, link: &Arc<Link>) {
        self.connections().retain(|one| !Arc::ptr_eq(&one.link, link));
    }

    fn put_back(&self, link: &Arc<Link>) {
        for one in self.connections().iter_mut().filter(|one| Arc::ptr_eq(&one.link, link)) {
            one.in_use = false;
        }
    }

    fn node_of(&self, request: &LockRequest, deadline: Deadline) -> Result<NodeId> {
        let view = self.client.view(deadline)?;
        let dataset = view.map.dataset_by_id(request.dataset);
        dataset
            .and_then(|dataset| view.map.node_of(dataset.spec.redundancy, request.partition))
            .ok_or_else(|| {
                let words =
                    format!("lock: {} {} is not in the map", request.dataset, request.partition);
                Error::new(ErrorKind::Invalid, words)
            })
    }

    /// Asks without waiting for a lock: takes, releases or tests.
    ///
    /// # Errors
    /// `Unavailable`, `Timeout`: the node of the locks does not answer, and nobody takes its place; what it held may be lost.
    pub fn ask(&self, request: &LockRequest) -> Result<LockAnswer> {
        let deadline = self.client.deadline();
        if matches!(request.call, LockCall::Release { .. }) {
            // First where nobody asks: whoever gets the lock next has it noted there.
            self.note(request, deadline)?;
        }
        loop {
            let (node, answer) = self.ask_primary(request, deadline)?;
            let is_taken =
                matches!(request.call, LockCall::Take { .. }) && answer == LockAnswer::Done;
            if !is_taken || self.is_kept(node, request, deadline)? {
                return Ok(answer);
            }
        }
    }

    /// Has a lock that `node` has granted noted where it may be looked for next. False: another node grants locks by now; ask that.
    fn is_kept(&self, node: NodeId, request: &LockRequest, deadline: Deadline) -> Result<bool> {
        self.note(request, deadline)?;
        Ok(self.node_of(request, deadline)? == node)
    }

    /// Asks the node that grants locks, whoever that is.
    fn ask_primary(
        &self,
        request: &LockRequest,
        deadline: Deadline,
    ) -> Result<(NodeId, LockAnswer)> {
        let is_mirrored = self.is_mirrored(request, deadline)?;
        loop {
            let node = self.node_of(request, deadline)?;
            let by = if is_mirrored {
                deadline.min(Deadline::after(PRIMARY_PATIENCE))
            } else {
                deadline
            };
            match self.ask_node(node, request, by) {
                Ok(answer) => return Ok((node, answer)),
                Err(error) if deadline.remaining().is_none() => return Err(error),
                Err(error) if error.kind() == ErrorKind::StaleMap => self.newer_map(deadline)?,
                Err(error) if is_mirrored && may_pass(&error) => self.other_map(node),
                Err(error) => return Err(error),
            }
        }
    }

    fn ask_node(
        &self,
        node: NodeId,
        request: &LockRequest,
        deadline: Deadline,
    ) -> Result<LockAnswer> {
        let link = self.link(node, false, deadline)?;
        match self.client.control(&link, &ControlRequest::Lock(*request), deadline)? {
            ControlReply::Lock(answer) => Ok(answer),
            _ => Err(unexpected(&link)),
        }
    }

    /// Has the other members of the mirror group note a lock, or forget it.
    fn note(&self, request: &LockRequest, deadline: Deadline) -> Result<()> {
        let is_release = matches!(request.call, LockCall::Release { .. });
        let mut request = LockRequest { is_note: true, ..*request };
        if let LockCall::Take { wait, .. } = &mut request.call {
            *wait = None;
        }
        let mut told: Vec<NodeId> = Vec::new();
        loop {
            let others = self.others(&request, deadline)?;
            let Some(node) = others.into_iter().find(|node| !told.contains(node)) else {
                return Ok(());
            };
            match self.ask_node(node, &request, deadline.min(Deadline::after(PRIMARY_PATIENCE))) {
                Ok(LockAnswer::Full) if !is_release => {
                    return Err(Error::new(ErrorKind::NoLocks, "lock: too many locks"));
                }
                Ok(_) => told.push(node),
                // It forgets by itself when it is told of the next one.
                Err(_) if is_release => told.push(node),
                Err(error) if deadline.remaining().is_none() => return Err(error),
                // If it is gone, the map will say so.
                Err(error) if may_pass(&error) || error.kind() == ErrorKind::StaleMap => {
                    self.other_map(node);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The nodes that may take the place of the one that grants this lock.
    fn others(&self, request: &LockRequest, deadline: Deadline) -> Result<Vec<NodeId>> {
        let view = self.client.view(deadline)?;
        let dataset = view.map.dataset_by_id(request.dataset);
        let group =
            dataset.and_then(|dataset| view.map.group(dataset.spec.redundancy, request.partition));
        let members = group.map_or(&[][..], |group| &group.members);
        let others = members.iter().skip(1);
        let good = others.filter(|member| member.consistency == Consistency::Good);
        Ok(good.filter_map(|member| view.map.node_of_target(member.target)).collect())
    }

    fn is_mirrored(&self, request: &LockRequest, deadline: Deadline) -> Result<bool> {
        let view = self.client.view(deadline)?;
        let dataset = view.map.dataset_by_id(request.dataset);
        Ok(dataset.is_some_and(|dataset| dataset.spec.redundancy.get() > 1))
    }

    /// Looks for a map in which `node` has another place, and lets a moment pass if there is none.
    fn other_map(&self, node: NodeId) {
        let known = self.client.session().view().map_or(Epoch(0), |view| view.map.epoch());
        if !self.client.look(known, node) {
            std::thread::sleep(MAP_PAUSE);
        }
    }

    fn newer_map(&self, deadline: Deadline) -> Result<()> {
        if !self.client.refresh(deadline)? {
            std::thread::sleep(MAP_PAUSE);
        }
        Ok(())
    }

    /// Asks for a lock and waits for it in the background. `request` is a [`LockCall::Take`]; the wait's number is set here.
    ///
    /// # Errors
    /// As [`Locker::ask`]; `Deadlock`.
    pub fn begin(&self, mut request: LockRequest) -> Result<LockWait<'_>> {
        let deadline = self.client.deadline();
        let number = self.next_wait.fetch_add(1, Ordering::Relaxed);
        let mut detects = false;
        if let LockCall::Take { wait, detects_deadlock, .. } = &mut request.call {
            *wait = Some(number);
            detects = *detects_deadlock;
        }
        let is_mirrored = self.is_mirrored(&request, deadline)?;
        let (link, ticket) = self.send_wait(&request, is_mirrored, deadline)?;
        let ticket = Some(ticket);
        let locker = self;
        let mut wait =
            LockWait { locker, request, is_mirrored, link, ticket, answered: None, number };
        let owner = LockOwner { client: self.id, token: request.token };
        if detects
            && wait.is_known(owner, deadline)?
            && self.is_in_circle(owner, is_mirrored, deadline)?
        {
            return match wait.cancel()? {
                LockAnswer::Cancelled => {
                    Err(Error::new(ErrorKind::Deadlock, "lock: it would wait for itself"))
                }
                // It came first after all; to take it again does no harm.
                _ => self.begin(without_search(request)),
            };
        }
        Ok(wait)
    }

    /// Sends a request that waits to the node that grants the lock.
    fn send_wait(
        &self,
        request: &LockRequest,
        is_mirrored: bool,
        deadline: Deadline,
    ) -> Result<(Arc<Link>, Ticket)> {
        let body = encode(&ControlRequest::Lock(*request));
        loop {
            let node = self.node_of(request, deadline)?;
            let by = if is_mirrored {
                deadline.min(Deadline::after(PRIMARY_PATIENCE))
            } else {
                deadline
            };
            let sent = self.link(node, true, by).and_then(|link| {
                let ticket = link.submit(FrameKind::Control, &body, &[], by)?;
                Ok((link, ticket))
            });
            match sent {
                Err(error) if is_mirrored && may_pass(&error) && deadline.remaining().is_some() => {
                    self.other_map(node);
                }
                sent => return sent,
            }
        }
    }

    /// Whether `owner`, which waits, waits for itself over several nodes. A circle at one node is seen there.
    fn is_in_circle(
        &self,
        owner: LockOwner,
        is_mirrored: bool,
        deadline: Deadline,
    ) -> Result<bool> {
        let view = self.client.view(deadline)?;
        if view.peers().len() < 2 {
            return Ok(false);
        }
        let (mut next, mut seen) = (vec![owner], Vec::new());
        while let Some(one) = next.pop() {
            if seen.len() >= SEARCH_MAX || seen.contains(&one) {
                continue;
            }
            seen.push(one);
            for peer in view.peers() {
                let by = if is_mirrored {
                    deadline.min(Deadline::after(PRIMARY_PATIENCE))
                } else {
                    deadline
                };
                let asked = peer.link(&self.client.credentials(), by).and_then(|link| {
                    self.client.control(&link, &ControlRequest::LockWaits(one), by)
                });
                match asked {
                    Ok(ControlReply::LockOwners(owners)) if owners.contains(&owner) => {
                        return Ok(true);
                    }
                    Ok(ControlReply::LockOwners(owners)) => next.extend(owners),
                    Ok(_) => {}
                    // Nobody waits at a node that is gone.
                    Err(error) if is_mirrored && may_pass(&error) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(false)
    }

    /// Descriptors of the connections, as far as they can be told now.
    #[must_use]
    pub fn descriptors(&self) -> Vec<i32> {
        let connections = match self.connections.try_lock() {
            Ok(connections) => connections,
            Err(std::sync::TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(std::sync::TryLockError::WouldBlock) => return Vec::new(),
        };
        connections.iter().flat_map(|one| one.link.descriptors()).collect()
    }

    /// In the child of a fork: closes what was inherited, so that the locks are the parent's alone. Takes no lock that another thread may
    /// have held at the fork, and neither allocates nor frees. This one is of no use afterwards.
    pub fn abandon(&self) {
        if let Ok(connections) = self.connections.try_lock() {
            connections.iter().for_each(|one| one.link.abandon());
        }
    }
}

const fn without_search(mut request: LockRequest) -> LockRequest {
    if let LockCall::Take { detects_deadlock, .. } = &mut request.call {
        *detects_deadlock = false;
    }
    request
}

fn lock_answer(reply: ControlReply, link: &Link) -> Result<LockAnswer> {
    match reply {
        ControlReply::Lock(answer) => Ok(answer),
        ControlReply::Failed { kind, message } => Err(Error::new(
            ErrorKind::from_code(kind).unwrap_or(ErrorKind::Internal),
            format!("{}: {message}", link.node()),
        )),
        _ => Err(unexpected(link)),
    }
}

/// Whether the failure of one node may be made good by another.
fn may_pass(error: &Error) -> bool {
    is_absence(error) || error.kind() == ErrorKind::Busy || error.kind() == ErrorKind::StaleMap
}

fn unexpected(link: &Link) -> Error {
    Error::new(ErrorKind::Corrupt, format!("{}: unexpected answer about a lock", link.node()))
}

impl LockWait<'_> {
    /// The node knows of the wait, so that whoever looks for a circle finds it; false: it is over already. The question goes the same way as the
    /// request, and is answered after it.
    fn is_known(&mut self, owner: LockOwner, deadline: Deadline) -> Result<bool> {
        let asked = ControlRequest::LockWaits(owner);
        match self.locker.client.control(&self.link, &asked, deadline) {
            Ok(_) => {}
            Err(error) if self.is_mirrored && may_pass(&error) => return Ok(false),
            Err(error) => return Err(error),
        }
        // The answer to the request may have come before that to the question.
        let Some(ticket) = &mut self.ticket else { return Ok(false) };
        let here = Deadline::at_time(Duration::ZERO);
        let read = |reply: &mut Reply<'_>| decode::<ControlReply>(reply.body());
        if let Some(reply) = self.link.wait_until(ticket, here, deadline, read)? {
            self.ticket = None;
            self.answered = Some(lock_answer(reply?, &self.link)?);
        }
        Ok(self.answered.is_none())
    }

    /// Waits until the answer is there, or something can be read from `alarm`. Then [`LockWait::finish`], or again.
    ///
    /// # Errors
    /// As [`Locker::ask`].
    pub fn block_beside(&mut self, alarm: BorrowedFd<'_>) -> Result<Woken> {
        let interval = if self.is_mirrored { LOOK_INTERVAL } else { ALARM_INTERVAL };
        while self.answered.is_none() {
            match self.link.wait_beside(Some(alarm), interval)? {
                Woken::TimedOut => self.follow()?,
                Woken::Arrived if !self.has_answer()? => {}
                woken => return Ok(woken),
            }
        }
        Ok(Woken::Arrived)
    }

    /// Waits until the answer is there or `stop` says so. Then [`LockWait::finish`].
    ///
    /// # Errors
    /// As [`Locker::ask`].
    pub fn block_until(&mut self, stop: &dyn Fn() -> bool) -> Result<Woken> {
        let mut looked_at = Deadline::after(LOOK_INTERVAL);
        while self.answered.is_none() {
            match self.link.wait_beside(None, STOP_INTERVAL)? {
                Woken::Arrived if self.has_answer()? => return Ok(Woken::Arrived),
                _ if stop() => return Ok(Woken::Interrupted),
                _ if looked_at.remaining().is_none() => {
                    self.follow()?;
                    looked_at = Deadline::after(LOOK_INTERVAL);
                }
                _ => {}
            }
        }
        Ok(Woken::Arrived)
    }

    /// What has come is the answer; if it is the end of the connection, and another node grants the lock, that is asked.
    fn has_answer(&mut self) -> Result<bool> {
        match self.answer() {
            Ok(answer) => {
                self.answered = Some(answer);
                Ok(true)
            }
            Err(error) if self.is_mirrored && may_pass(&error) => self.ask_again().map(|()| false),
            Err(error) => Err(error),
        }
    }

    /// Asks another node when another one grants the lock by now.
    fn follow(&mut self) -> Result<()> {
        if !self.is_mirrored {
            return Ok(());
        }
        let deadline = self.locker.client.deadline();
        let known = self.locker.client.view(deadline)?.map.epoch();
        let node = self.link.node();
        if self.locker.node_of(&self.request, deadline)? == node {
            self.locker.client.look(known, node);
        }
        if self.locker.node_of(&self.request, deadline)? == node {
            Ok(())
        } else {
            self.ask_again()
        }
    }

    fn ask_again(&mut self) -> Result<()> {
        self.ticket = None;
        self.locker.drop_connection(&self.link);
        let deadline = self.locker.client.deadline();
        let (link, ticket) = self.locker.send_wait(&self.request, self.is_mirrored, deadline)?;
        (self.link, self.ticket) = (link, Some(ticket));
        Ok(())
    }

    /// Takes the answer, or ends the wait if there is none.
    ///
    /// # Errors
    /// `Interrupted`: the wait was ended; `Deadlock`, `NoLocks`; as [`Locker::ask`].
    pub fn finish(mut self, woken: Woken) -> Result<()> {
        let answer = match (self.answered.take(), woken) {
            (Some(answer), _) => answer,
            (None, Woken::Arrived) => self.answer()?,
            (None, Woken::Interrupted | Woken::TimedOut) => self.cancel()?,
        };
        match answer {
            LockAnswer::Done => self.keep(),
            LockAnswer::Cancelled => Err(Error::new(ErrorKind::Interrupted, "lock: interrupted")),
            LockAnswer::Deadlock => Err(Error::new(ErrorKind::Deadlock, "lock: deadlock")),
            LockAnswer::Full => Err(Error::new(ErrorKind::NoLocks, "lock: too many locks")),
            LockAnswer::Held(_) => Err(unexpected(&self.link)),
        }
    }

    /// The lock was granted: sees to it that it lasts.
    fn keep(&self) -> Result<()> {
        let deadline = self.locker.client.deadline();
        if self.locker.is_kept(self.link.node(), &self.request, deadline)? {
            return Ok(());
        }
        let mut request = self.request;
        if let LockCall::Take { wait, .. } = &mut request.call {
            *wait = None;
        }
        match self.locker.ask(&request)? {
            LockAnswer::Done => Ok(()),
            // It was granted by a node that had no say any more, and somebody else has it.
            _ => Err(Error::new(ErrorKind::Unavailable, "lock: its node died as it was granted")),
        }
    }

    fn answer(&mut self) -> Result<LockAnswer> {
        let ticket = self.ticket.take().ok_or(ErrorKind::Internal)?;
        let reply = self.link.wait(ticket, self.locker.client.deadline(), |reply| {
            decode::<ControlReply>(reply.body()).map_err(Error::from)
        })??;
        lock_answer(reply, &self.link)
    }

    fn cancel(&mut self) -> Result<LockAnswer> {
        let deadline = self.locker.client.deadline();
        let by = if self.is_mirrored {
            deadline.min(Deadline::after(PRIMARY_PATIENCE))
        } else {
            deadline
        };
        let request = ControlRequest::CancelLock { wait: self.number };
        match self.locker.client.control(&self.link, &request, by) {
            Ok(_) => self.answer(),
            Err(error) if self.is_mirrored && may_pass(&error) => {
                // With the connection the wait ends, also at a node that answers again later.
                self.ticket = None;
                self.locker.drop_connection(&self.link);
                Ok(LockAnswer::Cancelled)
            }
            Err(error) => Err(error),
        }
    }
}

impl Drop for LockWait<'_> {
    fn drop(&mut self) {
        if self.ticket.is_some() {
            // Nobody takes the answer: with the connection the wait ends.
            self.locker.drop_connection(&self.link);
        } else {
            self.locker.put_back(&self.link);
        }
    }
}
