//! Long delegations, and their recall.
//!
//! A client with delegations longer than a short one always has one `RecallListeners` question
//! under way to this node. When a change has to wait for one of its delegations, the answer names
//! the record; asking again gives the delegation back, and the change goes on. A client that does
//! not ask gets short delegations only. A client that asks and then falls silent keeps a change
//! waiting until the term is over.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use samite_placement::shard_of;
use samite_transport::server::{ConnId, ReplySink};
use samite_types::{ClientId, DatasetId, PartitionId, ShardId};
use samite_wire::control::{ControlReply, RevokedRecord};

use crate::inbox::InboxMessage;
use crate::shard::ShardService;
use crate::shared::{ReplyTo, lock};

/// Longest term of a delegation that is not recalled.
pub(crate) const SHORT_TERM_MAX: Duration = Duration::from_millis(10);
/// Most records that one client is asked to give up at a time; delegations on further ones run out.
const REVOKED_MAX: usize = 4096;

/// A delegation that is recalled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecalledDelegation {
    pub partition: PartitionId,
    /// It ends then by itself; a later one is another delegation.
    pub until: Duration,
}

/// By record.
type Records = HashMap<(DatasetId, Box<[u8]>), RecalledDelegation>;

/// A client that listens.
struct RecallClient {
    /// Where it asks.
    at: (ShardId, ConnId),
    /// The question that waits for an answer.
    asks: Option<ReplyTo>,
    /// Not told yet.
    waiting: Records,
    /// Told, and not given back yet.
    told: Records,
    /// Number of the last answer.
    number: u64,
}

/// An answer, and where it goes.
type Told = Option<(ReplyTo, ControlReply)>;

impl RecallClient {
    fn tell(&mut self) -> Told {
        if self.waiting.is_empty() {
            return None;
        }
        let to = self.asks.take()?;
        self.number += 1;
        let mut records = Vec::with_capacity(self.waiting.len());
        for ((dataset, key), revoked) in self.waiting.drain() {
            let partition = revoked.partition;
            records.push(RevokedRecord { dataset, partition, key: key.to_vec() });
            self.told.insert((dataset, key), revoked);
        }
        Some((to, ControlReply::Revoked { number: self.number, records }))
    }
}

/// Delegations given back by one client.
pub(crate) struct ReturnedDelegations {
    pub client: ClientId,
    records: Records,
}

/// The clients that listen at this node, whichever shard serves the connection.
#[derive(Default)]
pub(crate) struct RecallListeners {
    listeners: Mutex<HashMap<ClientId, RecallClient>>,
    count: AtomicUsize,
}

impl RecallListeners {
    fn listens(&self, client: ClientId) -> bool {
        self.count.load(Ordering::Acquire) > 0 && lock(&self.listeners).contains_key(&client)
    }

    /// `client` has acted on all answers up to number `done`, and asks for the next.
    fn ask(
        &self,
        client: ClientId,
        to: ReplyTo,
        done: u64,
    ) -> (Vec<(ReplyTo, ControlReply)>, Records) {
        let mut listeners = lock(&self.listeners);
        let at = (to.shard, to.conn);
        let listener = match listeners.entry(client) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(RecallClient {
                at,
                asks: None,
                waiting: Records::new(),
                told: Records::new(),
                number: 0,
            }),
        };
        listener.at = at;
        let mut answers = Vec::new();
        if let Some(before) = listener.asks.replace(to) {
            let number = listener.number;
            answers.push((before, ControlReply::Revoked { number, records: Vec::new() }));
        }
        let mut returned = std::mem::take(&mut listener.told);
        if done != listener.number {
            // It has missed an answer, so it is told once more.
            listener.waiting.extend(returned.drain());
        }
        answers.extend(listener.tell());
        self.count.store(listeners.len(), Ordering::Release);
        (answers, returned)
    }

    /// Recalls a delegation of `client`, if it listens.
    fn revoke(
        &self,
        client: ClientId,
        record: (DatasetId, &[u8]),
        revoked: RecalledDelegation,
    ) -> Told {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut listeners = lock(&self.listeners);
        let listener = listeners.get_mut(&client)?;
        let record = (record.0, Box::from(record.1));
        let is_told = listener.told.get(&record).is_some_and(|told| told.until >= revoked.until);
        if !is_told && listener.waiting.len() < REVOKED_MAX {
            listener.waiting.insert(record, revoked);
        }
        listener.tell()
    }

    fn left(&self, at: (ShardId, ConnId)) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut listeners = lock(&self.listeners);
        listeners.retain(|_, listener| listener.at != at);
        self.count.store(listeners.len(), Ordering::Release);
    }
}

impl ShardService {
    /// The longest delegation that `client` may have, of those that it asks for.
    pub(crate) fn lease_term_max(&self, client: ClientId, asked: Duration) -> Duration {
        if asked <= SHORT_TERM_MAX || self.shared.revocations.listens(client) {
            return Duration::MAX;
        }
        SHORT_TERM_MAX
    }

    /// Recalls a delegation.
    pub(crate) fn revoke(
        &self,
        client: ClientId,
        record: (DatasetId, &[u8]),
        revoked: RecalledDelegation,
    ) {
        if let Some((to, reply)) = self.shared.revocations.revoke(client, record, revoked) {
            self.shared.inboxes[usize::from(to.shard.get())].send(InboxMessage::Control(to, reply));
        }
    }

    /// A client listens for revocations, and gives back the delegations that it was told of before.
    pub(crate) fn revocations(
        &mut self,
        to: ReplyTo,
        client: ClientId,
        done: u64,
        out: &mut ReplySink,
    ) -> Option<ControlReply> {
        let (answers, records) = self.shared.revocations.ask(client, to, done);
        for (to, reply) in answers {
            // The question that this one ends may have come to another shard.
            self.shared.inboxes[usize::from(to.shard.get())].send(InboxMessage::Control(to, reply));
        }
        let shards = self.shared.shards();
        let mut by_shard: HashMap<ShardId, Records> = HashMap::new();
        for (record, revoked) in records {
            let shard = shard_of(revoked.partition, shards);
            by_shard.entry(shard).or_default().insert(record, revoked);
        }
        for (shard, records) in by_shard {
            let returned = ReturnedDelegations { client, records };
            if shard == self.id {
                self.returned(&returned, out);
            } else {
                self.shared.inboxes[usize::from(shard.get())]
                    .send(InboxMessage::Returned(returned));
            }
        }
        None
    }

    /// Delegations on records of this shard were given back: requests that wait for them may go on.
    pub(crate) fn returned(&mut self, returned: &ReturnedDelegations, out: &mut ReplySink) {
        for ((dataset, key), RecalledDelegation { partition, until }) in &returned.records {
            let place = (*dataset, *partition);
            self.partitions.release_lease(place, returned.client, key, *until);
        }
        self.retry_waiters(out);
    }

    pub(crate) fn revocations_closed(&self, conn: ConnId) {
        self.shared.revocations.left((self.id, conn));
    }
}
