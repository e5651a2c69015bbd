//! File locks from a client's side.
//!
//! A [`Locker`] has an identity of its own, and connections that only its locks use: sockets, which a forked child or a successor over
//! `exec` may hold open too. When the last of them is closed, by whomever, its locks are free.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use samite_transport::client::{Link, Ticket, Woken};
use samite_types::{ClientId, Deadline, Entropy, Error, ErrorKind, NodeId, Result, SystemEntropy};
use samite_wire::control::{ControlReply, ControlRequest, decode, encode};
use samite_wire::frame::FrameKind;
use samite_wire::lock::{LockAnswer, LockCall, LockOwner, LockRequest};

use crate::Client;
use crate::peer::Credentials;

/// How often a node may say that it does not have a partition before that is an error.
const MAPS_MAX: u32 = 100;
/// Pause before such another try.
const MAP_PAUSE: Duration = Duration::from_millis(10);
/// Most owners that a search for a circle of waits over several nodes looks at.
const SEARCH_MAX: usize = 64;
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
    link: Arc<Link>,
    ticket: Option<Ticket>,
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
    /// `Unavailable`, `Timeout`: the node of the locks does not answer; what it held may be lost.
    pub fn ask(&self, request: &LockRequest) -> Result<LockAnswer> {
        let deadline = self.client.deadline();
        for _ in 0..MAPS_MAX {
            let node = self.node_of(request, deadline)?;
            let link = self.link(node, false, deadline)?;
            match self.client.control(&link, &ControlRequest::Lock(*request), deadline) {
                Ok(ControlReply::Lock(answer)) => return Ok(answer),
                Ok(_) => return Err(unexpected(&link)),
                Err(error) if error.kind() == ErrorKind::StaleMap => self.newer_map(deadline)?,
                Err(error) => return Err(error),
            }
        }
        Err(Error::new(ErrorKind::Busy, "lock: the cluster map keeps changing"))
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
        let link = self.link(self.node_of(&request, deadline)?, true, deadline)?;
        let mut wait = LockWait { locker: self, link, ticket: None, number };
        let body = encode(&ControlRequest::Lock(request));
        wait.ticket = Some(wait.link.submit(FrameKind::Control, &body, &[], deadline)?);
        let owner = LockOwner { client: self.id, token: request.token };
        if detects && self.is_in_circle(owner, deadline)? {
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

    /// Whether `owner`, which waits, waits for itself over several nodes. A circle at one node is seen there.
    fn is_in_circle(&self, owner: LockOwner, deadline: Deadline) -> Result<bool> {
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
                let link = peer.link(&self.client.credentials(), deadline)?;
                let asked = self.client.control(&link, &ControlRequest::LockWaits(one), deadline);
                if let ControlReply::LockOwners(owners) = asked? {
                    if owners.contains(&owner) {
                        return Ok(true);
                    }
                    next.extend(owners);
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

fn unexpected(link: &Link) -> Error {
    Error::new(ErrorKind::Corrupt, format!("{}: unexpected answer about a lock", link.node()))
}

impl LockWait<'_> {
    /// Waits until the answer is there, or something can be read from `alarm`. Then [`LockWait::finish`], or again.
    ///
    /// # Errors
    /// As [`Locker::ask`].
    pub fn block_beside(&self, alarm: BorrowedFd<'_>) -> Result<Woken> {
        loop {
            match self.link.wait_beside(Some(alarm), ALARM_INTERVAL)? {
                Woken::TimedOut => {}
                woken => return Ok(woken),
            }
        }
    }

    /// Waits until the answer is there or `stop` says so. Then [`LockWait::finish`].
    ///
    /// # Errors
    /// As [`Locker::ask`].
    pub fn block_until(&self, stop: &dyn Fn() -> bool) -> Result<Woken> {
        loop {
            match self.link.wait_beside(None, STOP_INTERVAL)? {
                Woken::Arrived => return Ok(Woken::Arrived),
                _ if stop() => return Ok(Woken::Interrupted),
                _ => {}
            }
        }
    }

    /// Takes the answer, or ends the wait if there is none.
    ///
    /// # Errors
    /// `Interrupted`: the wait was ended; `Deadlock`, `NoLocks`; as [`Locker::ask`].
    pub fn finish(mut self, woken: Woken) -> Result<()> {
        let answer = match woken {
            Woken::Arrived => self.answer()?,
            Woken::Interrupted | Woken::TimedOut => self.cancel()?,
        };
        match answer {
            LockAnswer::Done => Ok(()),
            LockAnswer::Cancelled => Err(Error::new(ErrorKind::Interrupted, "lock: interrupted")),
            LockAnswer::Deadlock => Err(Error::new(ErrorKind::Deadlock, "lock: deadlock")),
            LockAnswer::Full => Err(Error::new(ErrorKind::NoLocks, "lock: too many locks")),
            LockAnswer::Held(_) => Err(unexpected(&self.link)),
        }
    }

    fn answer(&mut self) -> Result<LockAnswer> {
        let ticket = self.ticket.take().ok_or(ErrorKind::Internal)?;
        let reply = self.link.wait(ticket, self.locker.client.deadline(), |reply| {
            decode::<ControlReply>(reply.body()).map_err(Error::from)
        })??;
        match reply {
            ControlReply::Lock(answer) => Ok(answer),
            ControlReply::Failed { kind, message } => Err(Error::new(
                ErrorKind::from_code(kind).unwrap_or(ErrorKind::Internal),
                format!("{}: {message}", self.link.node()),
            )),
            _ => Err(unexpected(&self.link)),
        }
    }

    fn cancel(&mut self) -> Result<LockAnswer> {
        let deadline = self.locker.client.deadline();
        let request = ControlRequest::CancelLock { wait: self.number };
        self.locker.client.control(&self.link, &request, deadline)?;
        self.answer()
    }
}

impl Drop for LockWait<'_> {
    fn drop(&mut self) {
        if self.ticket.is_some() {
            // Nobody takes the answer: with the connection the wait ends.
            self.locker.connections().retain(|one| !Arc::ptr_eq(&one.link, &self.link));
        } else {
            self.locker.put_back(&self.link);
        }
    }
}
