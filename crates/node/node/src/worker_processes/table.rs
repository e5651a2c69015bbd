//! The workers that there are, and what each of them has not answered yet.

use std::collections::{BTreeMap, HashMap};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Instant;

use samite_types::{ClientId, Error, ErrorKind, Result};
use samite_wire::worker::{WorkerKind, WorkerStatus};

use crate::control_reply::ReplyTo;

/// Most requests of a worker that are not answered; so there is always room for one in its queue.
pub(super) const UNDER_WAY_MAX: u32 = 64;

/// A request to a worker.
#[derive(Debug)]
pub(crate) struct WorkerCall {
    pub(crate) to: ReplyTo,
    pub(crate) message: Vec<u8>,
}

/// A worker process, among all that the node has started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WorkerId(u64);

/// Kind and user of a worker; there is one at a time.
type WorkerKey = (WorkerKind, u32);

#[derive(Debug)]
struct WorkerEntry {
    key: WorkerKey,
    calls: SyncSender<WorkerCall>,
    since: Instant,
    pid: u32,
    client: Option<ClientId>,
    under_way: u32,
    requests: u64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct WorkerTable {
    most: usize,
    next: u64,
    current: HashMap<WorkerKey, WorkerId>,
    workers: BTreeMap<WorkerId, WorkerEntry>,
    /// Of workers that may have ended; joined at the node's end.
    threads: BTreeMap<WorkerId, JoinHandle<()>>,
    is_over: bool,
}

impl WorkerTable {
    /// A table of so many workers.
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            next: 0,
            current: HashMap::new(),
            workers: BTreeMap::new(),
            threads: BTreeMap::new(),
            is_over: false,
        }
    }

    /// Gives a call to the worker of `key`. When there is none, it is noted, and the caller starts
    /// it with the queue that comes back.
    ///
    /// # Errors
    /// `Busy`: too much is under way, or there are too many workers; `Unavailable`: the node ends.
    pub(super) fn add(
        &mut self,
        key: WorkerKey,
        call: WorkerCall,
    ) -> Result<Option<(WorkerId, Receiver<WorkerCall>)>> {
        if self.is_over {
            return Err(Error::new(ErrorKind::Unavailable, "node is stopping"));
        }
        let busy = |words: &'static str| Err(Error::new(ErrorKind::Busy, words));
        if let Some(entry) = self.current.get(&key).and_then(|id| self.workers.get_mut(id)) {
            if entry.under_way >= UNDER_WAY_MAX {
                return busy("too many requests to this worker are under way; try again");
            }
            return match entry.calls.try_send(call) {
                Ok(()) => {
                    entry.under_way += 1;
                    entry.requests += 1;
                    Ok(None)
                }
                Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                    busy("the worker takes no more requests now; try again")
                }
            };
        }
        if self.workers.len() >= self.most {
            return busy("there are as many workers as a node may have; try again later");
        }
        self.threads.retain(|_, thread| !thread.is_finished());
        let id = WorkerId(self.next);
        self.next += 1;
        let (calls, queue) = sync_channel(UNDER_WAY_MAX as usize);
        // It has room for all.
        let _ = calls.try_send(call);
        let since = Instant::now();
        let entry =
            WorkerEntry { key, calls, since, pid: 0, client: None, under_way: 1, requests: 1 };
        self.workers.insert(id, entry);
        self.current.insert(key, id);
        Ok(Some((id, queue)))
    }

    /// The thread of a worker that was noted.
    pub(super) fn started(&mut self, id: WorkerId, thread: JoinHandle<()>) {
        self.threads.insert(id, thread);
    }

    /// Its process runs.
    pub(super) fn runs(&mut self, id: WorkerId, pid: u32) {
        if let Some(entry) = self.workers.get_mut(&id) {
            entry.pid = pid;
        }
    }

    /// Nodes know it as this client.
    pub(super) fn is_client(&mut self, id: WorkerId, client: ClientId) {
        if let Some(entry) = self.workers.get_mut(&id) {
            entry.client = Some(client);
        }
    }

    /// A request was answered.
    pub(super) fn answered(&mut self, id: WorkerId) {
        if let Some(entry) = self.workers.get_mut(&id) {
            entry.under_way = entry.under_way.saturating_sub(1);
        }
    }

    /// A worker takes no more calls: its queue ends after those that wait.
    pub(super) fn remove(&mut self, id: WorkerId) {
        if let Some(entry) = self.workers.remove(&id)
            && self.current.get(&entry.key) == Some(&id)
        {
            self.current.remove(&entry.key);
        }
    }

    /// The same, if nothing is under way. Whether it was removed.
    pub(super) fn remove_idle(&mut self, id: WorkerId) -> bool {
        let is_idle = self.workers.get(&id).is_none_or(|entry| entry.under_way == 0);
        if is_idle {
            self.remove(id);
        }
        is_idle
    }

    pub(super) fn statuses(&self) -> Vec<WorkerStatus> {
        let workers = self.workers.values();
        let status = |entry: &WorkerEntry| WorkerStatus {
            kind: entry.key.0,
            uid: entry.key.1,
            pid: entry.pid,
            client: entry.client,
            under_way: entry.under_way,
            requests: entry.requests,
            uptime_s: entry.since.elapsed().as_secs(),
        };
        workers.map(status).collect()
    }

    /// Whether the node ends.
    pub(super) const fn is_over(&self) -> bool {
        self.is_over
    }

    /// Takes no more calls. Returns the threads to wait for.
    pub(super) fn end(&mut self) -> Vec<JoinHandle<()>> {
        self.is_over = true;
        self.current.clear();
        self.workers.clear();
        std::mem::take(&mut self.threads).into_values().collect()
    }
}

/// Requests that a worker has not answered.
#[derive(Debug, Default)]
pub(super) struct PendingCalls {
    next: u64,
    waiting: HashMap<u64, ReplyTo>,
}

impl PendingCalls {
    /// Notes one, and returns its number.
    pub(super) fn add(&mut self, to: ReplyTo) -> u64 {
        self.next += 1;
        self.waiting.insert(self.next, to);
        self.next
    }

    /// The worker has answered a request. `None`: there is no such, or it was answered.
    pub(super) fn take(&mut self, request: u64) -> Option<ReplyTo> {
        self.waiting.remove(&request)
    }

    pub(super) fn take_all(&mut self) -> Vec<ReplyTo> {
        self.waiting.drain().map(|(_, to)| to).collect()
    }
}
