//! File locks as one node keeps them: the table, the requests that wait, and the connections by
//! which locks live.
//!
//! A lock lives as long as a connection of its client on which locks were asked for. The kernel
//! counts the processes that have such a connection, forked children and successors over `exec`
//! included, and closes it with the last of them, in whichever way that one ends. A connection that
//! breaks (a reset, damaged bytes) shows nothing of the kind: its client has two seconds to come
//! back. Within a host connections break on purpose only (faults), and a connection that ends in
//! any other way has ended with its client. Of locks that this node has taken over with a
//! partition, others may have those connections: see `recovery.rs`.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::time::Duration;

use samite_placement::ClusterMap;
use samite_types::{ClientId, Epoch, Error, ErrorKind, NodeId, PartitionId, Redundancy, Result};
use samite_wire::lock::{
    KNOWN_LOCKS_MAX, KnownLock, LockAnswer, LockCall, LockHolder, LockOwner, LockRequest,
};

use crate::recovery::{HolderReports, LockRecovery, PartitionPlace, RecoveryQuestions};
use crate::table::{LockClaim, LockFile, LockTable, LockVerdict, WaitId};

/// A client that waits for a lock.
#[derive(Debug)]
struct LockWaiter<C, R> {
    connection: C,
    to: R,
    /// By which the client can cancel it.
    number: u64,
    request: LockRequest,
}

/// The answer to a request that waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitAnswer<R> {
    /// Where it goes.
    pub to: R,
    /// The request.
    pub request: LockRequest,
    /// The answer; a lock that was granted has to be looked at by
    /// [`answer_to_wait`](crate::answer_to_wait).
    pub answer: LockAnswer,
}

/// The locks of one node. `C` tells its connections apart, `R` says where the answer to a request
/// goes; both are the driver's.
#[derive(Debug)]
pub struct NodeLocks<C, R> {
    table: LockTable,
    waiters: HashMap<WaitId, LockWaiter<C, R>>,
    next: WaitId,
    /// The client of each connection on which locks were asked for.
    clients: HashMap<C, ClientId>,
    /// How many of them a client has.
    connections: HashMap<ClientId, usize>,
    /// Clients whose last connection broke lately, and how often: they may not know, and come back.
    expected_back: HashMap<ClientId, u32>,
    /// Locks that are taken over from other nodes.
    recovery: LockRecovery,
}

impl<C, R> Default for NodeLocks<C, R> {
    fn default() -> Self {
        Self {
            table: LockTable::default(),
            waiters: HashMap::new(),
            next: 0,
            clients: HashMap::new(),
            connections: HashMap::new(),
            expected_back: HashMap::new(),
            recovery: LockRecovery::default(),
        }
    }
}

/// Requests and connections.
impl<C: Copy + Eq + Hash, R: Copy> NodeLocks<C, R> {
    /// Carries a request out that came on `connection`, about a dataset of this redundancy. No
    /// answer: it waits, and is answered later at `to`. The second value is for others that waited.
    ///
    /// # Errors
    /// `Busy`: other nodes are asked for locks of the partition.
    pub fn request(
        &mut self,
        (connection, to): (C, R),
        client: ClientId,
        request: &LockRequest,
        redundancy: Option<Redundancy>,
    ) -> Result<(Option<LockAnswer>, Vec<WaitAnswer<R>>)> {
        let owner = LockOwner { client, token: request.token };
        let expects =
            redundancy.is_some_and(|redundancy| self.expects(redundancy, request.partition));
        if expects && request.is_note && matches!(request.call, LockCall::Release { .. }) {
            self.recovery.forgets(file_of(request), owner);
        }
        if expects && !request.is_note {
            let words = format!("lock: others are asked for locks of {}", request.partition);
            return Err(Error::new(ErrorKind::Busy, words));
        }
        self.came(connection, client);
        Ok(self.run((connection, to), owner, request))
    }

    fn came(&mut self, connection: C, client: ClientId) {
        if self.clients.insert(connection, client).is_none() {
            *self.connections.entry(client).or_default() += 1;
            self.recovery.came(client);
        }
    }

    /// Carries a request out. `None`: it waits.
    fn run(
        &mut self,
        (connection, to): (C, R),
        owner: LockOwner,
        request: &LockRequest,
    ) -> (Option<LockAnswer>, Vec<WaitAnswer<R>>) {
        let file = file_of(request);
        let mut granted = Vec::new();
        let answer = match request.call {
            LockCall::Take { range, mode, holder, wait, detects_deadlock } => {
                let claim = LockClaim { owner, range, mode, holder, detects_deadlock };
                if request.is_note {
                    let done = self.table.note(file, &claim, &mut granted);
                    let answer = if done { LockAnswer::Done } else { LockAnswer::Full };
                    return (Some(answer), self.granted(&granted));
                }
                self.next += 1;
                let taken = self.table.take(file, &claim, wait.map(|_| self.next), &mut granted);
                if let (LockVerdict::Waits, Some(number)) = (taken, wait) {
                    let waiter = LockWaiter { connection, to, number, request: *request };
                    self.waiters.insert(self.next, waiter);
                }
                answer_of(taken)
            }
            LockCall::Release { range } => {
                let done = self.table.release(file, owner, range, &mut granted);
                Some(if done { LockAnswer::Done } else { LockAnswer::Full })
            }
            LockCall::Test { range, mode } => {
                let holder = LockHolder::default();
                let claim = LockClaim { owner, range, mode, holder, detects_deadlock: false };
                Some(self.table.test(file, &claim).map_or(LockAnswer::Done, LockAnswer::Held))
            }
        };
        let answers = self.granted(&granted);
        (answer, answers)
    }

    /// Ends the wait of that number.
    pub fn cancel(&mut self, connection: C, number: u64) -> Vec<WaitAnswer<R>> {
        let found = self
            .waiters
            .extract_if(|_, waiter| waiter.connection == connection && waiter.number == number);
        let found: Vec<_> = found.collect();
        let mut answers = Vec::new();
        for (wait, LockWaiter { to, request, .. }) in found {
            self.table.cancel(wait);
            answers.push(WaitAnswer { to, request, answer: LockAnswer::Cancelled });
        }
        answers
    }

    /// Ends the waits for which `ends` says so. They are to be answered by the caller.
    pub fn end_waits(&mut self, ends: impl Fn(&LockRequest) -> bool) -> Vec<R> {
        let ended = self.waiters.extract_if(|_, waiter| ends(&waiter.request));
        let ended: Vec<_> = ended.collect();
        for (wait, _) in &ended {
            self.table.cancel(*wait);
        }
        ended.into_iter().map(|(_, waiter)| waiter.to).collect()
    }

    /// The owners that `owner` waits for here.
    #[must_use]
    pub fn waits_for(&self, owner: LockOwner) -> Vec<LockOwner> {
        self.table.waits_for(owner)
    }

    /// Whether the client has a connection here on which locks were asked for, or had one that
    /// broke just now.
    #[must_use]
    pub fn is_here(&self, client: ClientId) -> bool {
        self.connections.contains_key(&client) || self.expected_back.contains_key(&client)
    }

    /// A connection is gone; with its client's last one, so are the client's locks, unless it
    /// broke. Then the client is returned: after two seconds [`Self::should_be_back`] is to be
    /// called.
    pub fn left(
        &mut self,
        connection: C,
        is_broken: bool,
    ) -> (Vec<WaitAnswer<R>>, Option<ClientId>) {
        let Some(client) = self.clients.remove(&connection) else { return (Vec::new(), None) };
        let mut granted = Vec::new();
        let alone: Vec<WaitId> = self
            .waiters
            .extract_if(|_, waiter| waiter.connection == connection)
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

    /// A client whose last connection had broken should be back by now. If it is not, its locks go.
    pub fn should_be_back(&mut self, client: ClientId) -> Vec<WaitAnswer<R>> {
        let Some(count) = self.expected_back.get_mut(&client) else { return Vec::new() };
        *count -= 1;
        if *count > 0 {
            return Vec::new();
        }
        self.expected_back.remove(&client);
        let mut granted = Vec::new();
        if !self.connections.contains_key(&client) {
            self.table.client_gone(client, &mut granted);
        }
        self.granted(&granted)
    }

    /// The answers for waits that were granted.
    fn granted(&mut self, waits: &[WaitId]) -> Vec<WaitAnswer<R>> {
        let waiters = waits.iter().filter_map(|wait| self.waiters.remove(wait));
        let answer = LockAnswer::Done;
        waiters.map(|LockWaiter { to, request, .. }| WaitAnswer { to, request, answer }).collect()
    }
}

/// Recovery: what other nodes know.
impl<C: Copy + Eq + Hash, R: Copy> NodeLocks<C, R> {
    /// There is a new map at `now`: finds out of which partitions this node `me` has become the
    /// primary, or a good member. Clients whose waits end because of it are returned; they have to
    /// ask again.
    pub fn see_map(
        &mut self,
        before: Option<&ClusterMap>,
        map: &ClusterMap,
        me: NodeId,
        now: Duration,
    ) -> Vec<R> {
        let fresh = self.recovery.see_map(before, map, me, now);
        if fresh.is_empty() { Vec::new() } else { self.begin_anew(map, &fresh) }
    }

    /// Forgets locks that others know better by now, of partitions that this node was a member of
    /// long ago.
    fn begin_anew(&mut self, map: &ClusterMap, fresh: &HashSet<PartitionPlace>) -> Vec<R> {
        let redundancy_of = |dataset| map.dataset_by_id(dataset).map(|data| data.spec.redundancy);
        let ended = self.end_waits(|request| {
            redundancy_of(request.dataset)
                .is_some_and(|redundancy| fresh.contains(&(redundancy, request.partition)))
        });
        let recovery = &self.recovery;
        self.table.retain_held(
            |file, held| {
                let Some(redundancy) = redundancy_of(file.dataset) else { return true };
                // Where there are no mirrors, nothing is noted: only the last primary knows.
                let is_old = redundancy == Redundancy(1) || recovery.is_absent(held.owner.client);
                !(is_old && fresh.contains(&(redundancy, file.partition)))
            },
            // No client waits any more.
            &mut Vec::new(),
        );
        ended
    }

    /// Whether others may know locks of this partition that are not known here yet.
    #[must_use]
    pub fn expects(&self, redundancy: Redundancy, partition: PartitionId) -> bool {
        self.recovery.expects(redundancy, partition)
    }

    /// Whether others may know locks of any partition that are not known here yet: then
    /// [`Self::questions`] says whom to ask.
    #[must_use]
    pub fn expects_any(&self) -> bool {
        self.recovery.expects_any()
    }

    /// The nodes to ask for the locks that they know.
    pub fn questions(&mut self, now: Duration) -> RecoveryQuestions {
        self.recovery.questions(now)
    }

    /// A node has told everything, or is gone: it need not be asked any more for locks that are
    /// expected by this epoch.
    pub fn answered(&mut self, node: NodeId, by: Epoch) {
        self.recovery.answered(node, by);
    }

    /// Locks on partitions of which `node` is a member by `map`, behind `after`; and whether there
    /// are more than are returned.
    #[must_use]
    pub fn known(
        &self,
        map: &ClusterMap,
        node: NodeId,
        after: Option<&KnownLock>,
    ) -> (Vec<KnownLock>, bool) {
        let after = after.map(KnownLock::place);
        let is_of_node = |file: &LockFile| {
            let dataset = map.dataset_by_id(file.dataset);
            let group = dataset.and_then(|data| map.group(data.spec.redundancy, file.partition));
            let members = group.into_iter().flat_map(|group| &group.members);
            members.into_iter().any(|member| map.node_of_target(member.target) == Some(node))
        };
        let held = self.table.held().filter(|(file, _)| is_of_node(file));
        let mut locks: Vec<KnownLock> = held
            .map(|(file, lock)| {
                let LockFile { dataset, partition, object, space } = file;
                let is_here = self.is_here(lock.owner.client);
                KnownLock { dataset, partition, object, space, lock: *lock, is_here }
            })
            .filter(|lock| after.is_none_or(|after| lock.place() > after))
            .collect();
        let has_more = locks.len() > KNOWN_LOCKS_MAX;
        if has_more {
            // Only the locks that are told of are sorted.
            locks.select_nth_unstable_by_key(KNOWN_LOCKS_MAX, KnownLock::place);
            locks.truncate(KNOWN_LOCKS_MAX);
        }
        locks.sort_unstable_by_key(KnownLock::place);
        (locks, has_more)
    }

    /// Takes over locks that the process `from` of another node (with its incarnation) knows. Those
    /// are returned for which there was no room.
    pub fn take_over(
        &mut self,
        map: &ClusterMap,
        from: (NodeId, u64),
        locks: &[KnownLock],
        now: Duration,
    ) -> Vec<KnownLock> {
        let mut left = Vec::new();
        for known in locks {
            let KnownLock { dataset, partition, object, space, lock, is_here } = *known;
            let redundancy = map.dataset_by_id(dataset).map(|data| data.spec.redundancy);
            if !redundancy.is_some_and(|redundancy| self.expects(redundancy, partition)) {
                continue;
            }
            let file = LockFile { dataset, partition, object, space };
            if self.recovery.has_forgotten(file, lock.owner) {
                continue;
            }
            if !self.table.adopt(file, &lock) {
                left.push(*known);
            }
            let client = lock.owner.client;
            if !self.is_here(client) {
                self.recovery.is_missing(client, is_here.then_some(from), now);
            }
        }
        left
    }

    /// Clients that have locks here and no connection: other nodes are to be asked after them.
    #[must_use]
    pub fn absent_clients(&self) -> Vec<ClientId> {
        self.recovery.absent().collect()
    }

    /// Whether there are such clients.
    #[must_use]
    pub fn has_absent(&self) -> bool {
        self.recovery.absent().next().is_some()
    }

    /// Other nodes were asked after the absent clients: ends the locks of those that are gone.
    /// `is_dead` tells whether a process of a node (with its incarnation) has ended.
    pub fn heard(
        &mut self,
        reports: &HolderReports,
        is_dead: impl Fn((NodeId, u64)) -> bool,
        now: Duration,
    ) -> Vec<WaitAnswer<R>> {
        let mut granted = Vec::new();
        for client in self.recovery.heard(reports, is_dead, now) {
            self.table.client_gone(client, &mut granted);
        }
        self.granted(&granted)
    }
}

const fn file_of(request: &LockRequest) -> LockFile {
    let LockRequest { dataset, partition, object, space, .. } = *request;
    LockFile { dataset, partition, object, space }
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
