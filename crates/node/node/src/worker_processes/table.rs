//! The workers that there are, and what each of them has not answered yet.

use std::collections::{BTreeMap, HashMap};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Instant;

use samite_types::{ClientId, Error, ErrorKind, Result};
use samite_wire::worker::{WorkerKind, WorkerStatus};

/// Most requests of a worker that are not answered; so there is always room for one in its queue.
pub(super) const UNDER_WAY_MAX: u32 = 64;

/// A worker process, among all that the node has started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WorkerId(u64);

/// Kind and user of a worker; there is one at a time.
type WorkerKey = (WorkerKind, u32);

#[derive(Debug)]
struct WorkerEntry<C> {
    key: WorkerKey,
    calls: SyncSender<C>,
    since: Instant,
    pid: u32,
    client: Option<ClientId>,
    under_way: u32,
    requests: u64,
}

/// The workers, and the queues of calls `C` to them.
#[derive(Debug)]
pub(super) struct WorkerTable<C> {
    most: usize,
    next: u64,
    current: HashMap<WorkerKey, WorkerId>,
    workers: BTreeMap<WorkerId, WorkerEntry<C>>,
    /// Of workers that may have ended; joined at the node's end.
    threads: BTreeMap<WorkerId, JoinHandle<()>>,
    is_over: bool,
}

impl<C> WorkerTable<C> {
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
        call: C,
    ) -> Result<Option<(WorkerId, Receiver<C>)>> {
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
        let status = |entry: &WorkerEntry<C>| WorkerStatus {
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

/// Requests that a worker has not answered, and where their answers go.
#[derive(Debug)]
pub(super) struct PendingCalls<R> {
    next: u64,
    waiting: HashMap<u64, R>,
}

impl<R> Default for PendingCalls<R> {
    fn default() -> Self {
        Self { next: 0, waiting: HashMap::new() }
    }
}

impl<R> PendingCalls<R> {
    /// Notes one, and returns its number.
    pub(super) fn add(&mut self, to: R) -> u64 {
        self.next += 1;
        self.waiting.insert(self.next, to);
        self.next
    }

    /// The worker has answered a request. `None`: there is no such, or it was answered.
    pub(super) fn take(&mut self, request: u64) -> Option<R> {
        self.waiting.remove(&request)
    }

    pub(super) fn take_all(&mut self) -> Vec<R> {
        self.waiting.drain().map(|(_, to)| to).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MOST: usize = 2;

    #[derive(Clone, Debug)]
    enum TableEvent {
        Call(u32),
        /// The worker with this index, among all there were, answers, ends, or is looked at.
        Answers(usize),
        Ends(usize),
        IsIdle(usize),
    }

    fn events() -> impl Strategy<Value = Vec<TableEvent>> {
        let event = prop_oneof![
            8 => (0..3_u32).prop_map(TableEvent::Call),
            4 => (0..8_usize).prop_map(TableEvent::Answers),
            1 => (0..8_usize).prop_map(TableEvent::Ends),
            1 => (0..8_usize).prop_map(TableEvent::IsIdle),
        ];
        proptest::collection::vec(event, 0..300)
    }

    /// A worker that was started: its user, its queue, and calls that it has not answered.
    struct StartedWorker {
        id: WorkerId,
        uid: u32,
        queue: Receiver<u32>,
        open: Vec<u32>,
        is_there: bool,
    }

    proptest! {
        #[test]
        fn each_call_goes_to_the_one_worker_of_its_user(events in events()) {
            let mut table = WorkerTable::new(MOST);
            let mut workers: Vec<StartedWorker> = Vec::new();
            let mut number = 0;
            for event in events {
                match event {
                    TableEvent::Call(uid) => {
                        number += 1;
                        let there = workers.iter().position(|one| one.is_there && one.uid == uid);
                        let open = there.map_or(0, |at| workers[at].open.len());
                        let living = workers.iter().filter(|one| one.is_there).count();
                        match table.add((WorkerKind::Native, uid), number) {
                            Ok(Some((id, queue))) => {
                                prop_assert!(there.is_none() && living < MOST);
                                let open = Vec::new();
                                workers.push(StartedWorker { id, uid, queue, open, is_there: true });
                            }
                            Ok(None) => prop_assert!(there.is_some()),
                            Err(error) => {
                                prop_assert_eq!(error.kind(), ErrorKind::Busy);
                                let is_full = open >= UNDER_WAY_MAX as usize;
                                prop_assert!(is_full || (there.is_none() && living == MOST));
                                continue;
                            }
                        }
                        let at = there.unwrap_or(workers.len() - 1);
                        prop_assert_eq!(workers[at].queue.try_recv(), Ok(number));
                        workers[at].open.push(number);
                    }
                    TableEvent::Answers(at) => {
                        if let Some(one) = workers.get_mut(at).filter(|one| one.open.pop().is_some()) {
                            table.answered(one.id);
                        }
                    }
                    TableEvent::Ends(at) => {
                        if let Some(one) = workers.get_mut(at) {
                            table.remove(one.id);
                            one.is_there = false;
                            prop_assert!(one.queue.recv().is_err(), "its queue has ended");
                        }
                    }
                    TableEvent::IsIdle(at) => {
                        if let Some(one) = workers.get_mut(at).filter(|one| one.is_there) {
                            let is_idle = table.remove_idle(one.id);
                            prop_assert_eq!(is_idle, one.open.is_empty());
                            one.is_there = !is_idle;
                        }
                    }
                }
                prop_assert_eq!(
                    table.statuses().len(),
                    workers.iter().filter(|one| one.is_there).count()
                );
            }
            table.end();
            prop_assert!(table.is_over() && table.statuses().is_empty());
            let late = table.add((WorkerKind::Native, 0), 0).unwrap_err();
            prop_assert_eq!(late.kind(), ErrorKind::Unavailable);
        }
    }

    #[test]
    fn an_answer_goes_where_it_is_waited_for_once() {
        let mut calls = PendingCalls::default();
        let (first, second) = (calls.add("first"), calls.add("second"));
        assert_eq!((calls.take(second), calls.take(second)), (Some("second"), None));
        assert_eq!((calls.take_all(), calls.take(first)), (vec!["first"], None));
    }
}
