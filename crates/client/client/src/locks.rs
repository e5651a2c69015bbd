//! File locks from a client's side.
//!
//! A [`LockSession`] has an identity of its own, and connections that only its locks use: sockets,
//! which a forked child or a successor over `exec` may hold open too. When the last of them is
//! closed, by any process, its locks are free.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use samite_filelock::{CircleSearch, LockAudience, granter, is_mirrored, is_online};
use samite_transport::client::{NodeLink, RequestTicket};
use samite_types::{
    ClientId, Deadline, Entropy, Epoch, Error, ErrorKind, NodeId, Result, SystemEntropy,
};
use samite_wire::control::{ControlReply, ControlRequest};
use samite_wire::lock::{LockAnswer, LockCall, LockOwner, LockRequest};

mod wait;

pub use wait::LockWait;

use crate::Client;
use crate::client::RetryBudget;
use crate::exec::is_absence;
use crate::peer::ClientCredentials;

/// Pause before another try when a node does not have the partition, or cannot be reached.
const MAP_PAUSE: Duration = Duration::from_millis(10);
/// Most owners that a search for a circle of waits over several nodes looks at.
const SEARCH_MAX: usize = 64;
/// For how long a node is waited for whose place another may take, at last: the first times less,
/// for a lost request is asked again.
const PRIMARY_PATIENCE: Duration = Duration::from_secs(1);
const FIRST_PATIENCE: Duration = Duration::from_millis(300);
const FIRST_TRIES: u32 = 3;
/// How often a node is told to forget a lock.
const FORGET_TRIES: u32 = 2;
/// How long a node beside the group may take to note a lock.
const WITNESS_PATIENCE: Duration = Duration::from_millis(500);

struct LockConnection {
    node: NodeId,
    link: Arc<NodeLink>,
    /// Used by one waiter at a time, and for nothing else.
    for_waits: bool,
    in_use: bool,
}

/// An identity that holds locks. They end with it, unless others hold its connections open.
pub struct LockSession {
    client: Client,
    id: ClientId,
    connections: Mutex<Vec<LockConnection>>,
    next_wait: AtomicU64,
}

impl LockSession {
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

    /// The identity of this host among others in [`LockHolder`](samite_wire::lock::LockHolder).
    #[must_use]
    pub fn host(&self) -> u64 {
        samite_placement::hash(self.client.session().host().as_bytes())
    }

    fn connections(&self) -> MutexGuard<'_, Vec<LockConnection>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection to `node`; one for a wait is the caller's alone until it is put back.
    fn link(&self, node: NodeId, for_waits: bool, deadline: Deadline) -> Result<Arc<NodeLink>> {
        self.drop_connections(|one| one.link.is_dead());
        let known = self
            .connections()
            .iter_mut()
            .find(|one| one.node == node && one.for_waits == for_waits && !one.in_use)
            .map(|known| {
                known.in_use = for_waits;
                Arc::clone(&known.link)
            });
        if let Some(known) = known {
            return Ok(known);
        }
        let view = self.client.view(deadline)?;
        let who = ClientCredentials { client: self.id, ..self.client.credentials() };
        let link = Arc::new(view.peer(node)?.connect_apart(&who, deadline)?);
        let entry = LockConnection { node, link: Arc::clone(&link), for_waits, in_use: for_waits };
        self.connections().push(entry);
        Ok(link)
    }

    fn drop_connection(&self, link: &Arc<NodeLink>) {
        self.drop_connections(|one| Arc::ptr_eq(&one.link, link));
    }

    /// The links end after the lock is free; see `peer::put`.
    fn drop_connections(&self, ends: impl Fn(&LockConnection) -> bool) {
        let ended: Vec<LockConnection> =
            self.connections().extract_if(.., |one| ends(one)).collect();
        drop(ended);
    }

    fn put_back(&self, link: &Arc<NodeLink>) {
        for one in self.connections().iter_mut().filter(|one| Arc::ptr_eq(&one.link, link)) {
            one.in_use = false;
        }
    }

    /// The node that grants this lock, and the request as it is to be put there.
    fn granter(&self, request: &LockRequest, deadline: Deadline) -> Result<(NodeId, LockRequest)> {
        let view = self.client.view(deadline)?;
        granter(&view.map, request).ok_or_else(|| {
            let LockRequest { dataset, partition, .. } = *request;
            let words = format!("lock: {dataset} {partition} is not in the map");
            Error::new(ErrorKind::Invalid, words)
        })
    }

    /// Asks without waiting for a lock: takes, releases or tests.
    ///
    /// # Errors
    /// `Unavailable`, `Timeout`: the node of the locks does not answer, and no other takes its
    /// place; its locks may be lost.
    pub fn ask(&self, request: &LockRequest) -> Result<LockAnswer> {
        let deadline = self.client.deadline();
        loop {
            let (asked, answer) = self.ask_primary(request, deadline)?;
            let is_taken =
                matches!(request.call, LockCall::Take { .. }) && answer == LockAnswer::Done;
            if !is_taken || self.is_kept(&asked, deadline)? {
                return Ok(answer);
            }
        }
    }

    /// Asks the node that grants locks, whichever that is; returns the request as it was put there.
    fn ask_primary(
        &self,
        request: &LockRequest,
        deadline: Deadline,
    ) -> Result<(LockRequest, LockAnswer)> {
        let is_mirrored = self.is_mirrored(request, deadline)?;
        let is_release = matches!(request.call, LockCall::Release { .. });
        let mut told = None;
        let mut tries = 0;
        loop {
            let (node, asked) = self.granter(request, deadline)?;
            if is_release && told.replace(asked.epoch) != Some(asked.epoch) {
                // First where no client asks: the next holder of the lock has it noted there.
                self.forget(&asked, node, deadline)?;
            }
            let by = if is_mirrored { deadline.min(patience(tries)) } else { deadline };
            tries += 1;
            match self.ask_node(node, &asked, by) {
                Ok(answer) => return Ok((asked, answer)),
                Err(error) if deadline.remaining().is_none() => return Err(error),
                Err(error) if error.kind() == ErrorKind::StaleMap => self.newer_map(deadline)?,
                Err(error) if may_pass_at(&error, is_mirrored) => self.other_map(node),
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
        let mut again = RetryBudget::default();
        loop {
            let link = self.link(node, false, deadline)?;
            // To take, to release or to note a lock twice is the same as once.
            match self.client.control(&link, &ControlRequest::Lock(*request), deadline) {
                Ok(ControlReply::Lock(answer)) => return Ok(answer),
                Ok(_) => return Err(unexpected(&link)),
                Err(error) if again.is_lost(&link, &error, deadline) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Has a lock that was granted noted by the nodes that may take the granter's place, and by a
    /// node beside them. False: another node grants locks by now; ask that.
    fn is_kept(&self, granted: &LockRequest, deadline: Deadline) -> Result<bool> {
        let mut request = LockRequest { is_note: true, ..*granted };
        if let LockCall::Take { wait, .. } = &mut request.call {
            *wait = None;
        }
        let mut told: Vec<NodeId> = Vec::new();
        let mut tries = 0;
        loop {
            let Some(others) = self.others(&request, deadline)? else { return Ok(false) };
            let Some(node) = others.members.into_iter().find(|node| !told.contains(node)) else {
                return self.witness(&others.witnesses, &request, deadline);
            };
            let by = deadline.min(patience(tries));
            tries += 1;
            match self.ask_node(node, &request, by) {
                Ok(LockAnswer::Full) => return Err(full()),
                Ok(_) => told.push(node),
                Err(error) if deadline.remaining().is_none() => return Err(error),
                Err(error) if error.kind() == ErrorKind::StaleMap => self.newer_map(deadline)?,
                // If it is gone, the map will say so.
                Err(error) if may_pass(&error) => self.other_map(node),
                Err(error) => return Err(error),
            }
        }
    }

    /// Has the first of the nodes beside the group that answers note a lock. None need do so.
    fn witness(
        &self,
        witnesses: &[NodeId],
        request: &LockRequest,
        deadline: Deadline,
    ) -> Result<bool> {
        for node in witnesses {
            match self.ask_node(*node, request, deadline.min(Deadline::after(WITNESS_PATIENCE))) {
                Ok(LockAnswer::Full) => return Err(full()),
                Ok(_) => break,
                Err(error) if error.kind() == ErrorKind::StaleMap => {
                    self.newer_map(deadline)?;
                    return Ok(false);
                }
                Err(_) => {}
            }
        }
        let (_, now) = self.granter(request, deadline)?;
        Ok(now.term == request.term)
    }

    /// Has the nodes that noted a lock forget it. A node that cannot be told forgets it when it is
    /// told of the next one.
    fn forget(&self, asked: &LockRequest, granter: NodeId, deadline: Deadline) -> Result<()> {
        let request = LockRequest { is_note: true, ..*asked };
        let Some(others) = self.others(&request, deadline)? else { return Ok(()) };
        // Any that was told of it may tell of it, whatever has become of its place in the group.
        let view = self.client.view(deadline)?;
        let mut known: Vec<NodeId> = self
            .connections()
            .iter()
            .filter(|one| !one.link.is_dead() && is_online(&view.map, one.node))
            .map(|one| one.node)
            .filter(|node| *node != granter && !others.members.contains(node))
            .collect();
        known.sort_unstable();
        known.dedup();
        for node in others.members.into_iter().chain(known) {
            for tries in 0..FORGET_TRIES {
                // Without an answer it forgets by the next note.
                let answer = self.ask_node(node, &request, deadline.min(patience(tries)));
                if !answer.is_err_and(|error| error.kind() == ErrorKind::Timeout) {
                    break;
                }
            }
        }
        Ok(())
    }

    /// The nodes that are to know of a lock beside the one that has granted it; `None`: the group
    /// is in another term by now.
    fn others(&self, request: &LockRequest, deadline: Deadline) -> Result<Option<LockAudience>> {
        let view = self.client.view(deadline)?;
        Ok(LockAudience::of(&view.map, request))
    }

    fn is_mirrored(&self, request: &LockRequest, deadline: Deadline) -> Result<bool> {
        let view = self.client.view(deadline)?;
        Ok(is_mirrored(&view.map, request))
    }

    /// Looks for a map in which `node` has another place, and lets a short time pass if there is
    /// none.
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
    /// As [`LockSession::ask`]; `Deadlock`.
    pub fn begin(&self, mut request: LockRequest) -> Result<LockWait<'_>> {
        let deadline = self.client.deadline();
        let number = self.next_wait.fetch_add(1, Ordering::Relaxed);
        let mut detects = false;
        if let LockCall::Take { wait, detects_deadlock, .. } = &mut request.call {
            *wait = Some(number);
            detects = *detects_deadlock;
        }
        let is_mirrored = self.is_mirrored(&request, deadline)?;
        let (request, link, ticket) = self.send_wait(&request, is_mirrored, deadline)?;
        let ticket = Some(ticket);
        let locker = self;
        let look_at = Deadline::after(wait::LOOK_INTERVAL);
        let mut wait = LockWait {
            locker,
            request,
            is_mirrored,
            link,
            ticket,
            answered: None,
            number,
            look_at,
        };
        let owner = LockOwner { client: self.id, token: request.token };
        if detects
            && wait.is_known(owner, deadline)?
            && self.is_in_circle(owner, is_mirrored, deadline)?
        {
            return match wait.cancel()? {
                LockAnswer::Cancelled => {
                    Err(Error::new(ErrorKind::Deadlock, "lock: it would wait for itself"))
                }
                // It came first after all; to take it again changes nothing.
                _ => self.begin(without_search(request)),
            };
        }
        Ok(wait)
    }

    /// Sends a request that waits to the node that grants the lock; returns it as it was sent.
    fn send_wait(
        &self,
        request: &LockRequest,
        is_mirrored: bool,
        deadline: Deadline,
    ) -> Result<(LockRequest, Arc<NodeLink>, RequestTicket)> {
        let mut again = RetryBudget::default();
        loop {
            let (node, asked) = self.granter(request, deadline)?;
            let asking = ControlRequest::Lock(asked);
            let by = if is_mirrored {
                deadline.min(Deadline::after(PRIMARY_PATIENCE))
            } else {
                deadline
            };
            let sent = match self.link(node, true, by) {
                Ok(link) => match link.submit_control(&asking, by) {
                    Err(error) if again.is_lost(&link, &error, by) => continue,
                    sent => sent.map(|ticket| (asked, link, ticket)),
                },
                Err(error) => Err(error),
            };
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
        let mut search = CircleSearch::new(owner, SEARCH_MAX, vec![owner]);
        while let Some(one) = search.next_owner() {
            for peer in view.peers() {
                let by = if is_mirrored {
                    deadline.min(Deadline::after(PRIMARY_PATIENCE))
                } else {
                    deadline
                };
                match self.client.ask(peer, &ControlRequest::LockWaits(one), by) {
                    Ok((_, ControlReply::LockOwners(owners))) => {
                        if search.waits_for(owners) {
                            return Ok(true);
                        }
                    }
                    Ok(_) => {}
                    // No wait is left at a node that is gone.
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

    /// In the child of a fork: closes the inherited descriptors, so that the locks are the parent's
    /// alone. Takes no lock that another thread may have held at the fork, and neither allocates
    /// nor frees. This one is of no use afterwards.
    pub fn abandon(&self) {
        if let Ok(connections) = self.connections.try_lock() {
            connections.iter().for_each(|one| one.link.abandon());
        }
    }
}

/// By when a node is to answer that was asked so often before.
fn patience(tries: u32) -> Deadline {
    Deadline::after(if tries < FIRST_TRIES { FIRST_PATIENCE } else { PRIMARY_PATIENCE })
}

const fn without_search(mut request: LockRequest) -> LockRequest {
    if let LockCall::Take { detects_deadlock, .. } = &mut request.call {
        *detects_deadlock = false;
    }
    request
}

fn lock_answer(reply: ControlReply, link: &NodeLink) -> Result<LockAnswer> {
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

/// The same, of a partition without mirrors: it may have moved, but if its node is gone, so are its
/// locks.
fn may_pass_at(error: &Error, is_mirrored: bool) -> bool {
    may_pass(error) && (is_mirrored || !is_absence(error))
}

fn full() -> Error {
    Error::new(ErrorKind::NoLocks, "lock: too many locks")
}

fn unexpected(link: &NodeLink) -> Error {
    Error::new(ErrorKind::Corrupt, format!("{}: unexpected answer about a lock", link.node()))
}
