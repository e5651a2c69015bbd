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

use samite_types::{ClientId, DatasetId, PartitionId};
use samite_wire::control::{ControlReply, RevokedRecord};

use crate::mutex::lock;

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
pub(crate) type RecalledRecords = HashMap<(DatasetId, Box<[u8]>), RecalledDelegation>;

/// A client that listens.
struct RecallClient<R> {
    /// Where its last question came from.
    from: R,
    /// This question waits for an answer.
    is_open: bool,
    /// Not told yet.
    waiting: RecalledRecords,
    /// Told, and not given back yet.
    told: RecalledRecords,
    /// Number of the last answer.
    number: u64,
}

impl<R: Copy> RecallClient<R> {
    /// The answer, if there is something to tell and a question waits for it.
    fn tell(&mut self) -> Option<(R, ControlReply)> {
        if self.waiting.is_empty() || !std::mem::take(&mut self.is_open) {
            return None;
        }
        self.number += 1;
        let mut records = Vec::with_capacity(self.waiting.len());
        for ((dataset, key), revoked) in self.waiting.drain() {
            let partition = revoked.partition;
            records.push(RevokedRecord { dataset, partition, key: key.to_vec() });
            self.told.insert((dataset, key), revoked);
        }
        Some((self.from, ControlReply::Revoked { number: self.number, records }))
    }
}

/// Delegations given back by one client.
pub(crate) struct ReturnedDelegations {
    pub client: ClientId,
    pub records: RecalledRecords,
}

/// The clients that listen at this node, whichever shard serves the connection. `R`: where the
/// answer to a question goes.
pub(crate) struct RecallListeners<R> {
    listeners: Mutex<HashMap<ClientId, RecallClient<R>>>,
    count: AtomicUsize,
}

impl<R> Default for RecallListeners<R> {
    fn default() -> Self {
        Self { listeners: Mutex::default(), count: AtomicUsize::new(0) }
    }
}

impl<R: Copy> RecallListeners<R> {
    /// The longest delegation that `client` may have, of those that it asks for.
    pub(crate) fn term_max(&self, client: ClientId, asked: Duration) -> Duration {
        if asked <= SHORT_TERM_MAX || self.listens(client) {
            return Duration::MAX;
        }
        SHORT_TERM_MAX
    }

    fn listens(&self, client: ClientId) -> bool {
        self.count.load(Ordering::Acquire) > 0 && lock(&self.listeners).contains_key(&client)
    }

    /// `client` has acted on all answers up to number `done`, and asks for the next. Returns the
    /// answers to send, and the delegations that it gives back.
    pub(crate) fn ask(
        &self,
        client: ClientId,
        to: R,
        done: u64,
    ) -> (Vec<(R, ControlReply)>, RecalledRecords) {
        let mut listeners = lock(&self.listeners);
        let listener = match listeners.entry(client) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(RecallClient {
                from: to,
                is_open: false,
                waiting: RecalledRecords::new(),
                told: RecalledRecords::new(),
                number: 0,
            }),
        };
        let before = std::mem::replace(&mut listener.from, to);
        let mut answers = Vec::new();
        if std::mem::replace(&mut listener.is_open, true) {
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

    /// Recalls a delegation of `client`, if it listens. Returns the answer to send.
    pub(crate) fn revoke(
        &self,
        client: ClientId,
        record: (DatasetId, &[u8]),
        revoked: RecalledDelegation,
    ) -> Option<(R, ControlReply)> {
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

    /// The connection is gone by which the questions came that `is_by` says.
    pub(crate) fn left(&self, is_by: impl Fn(&R) -> bool) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut listeners = lock(&self.listeners);
        listeners.retain(|_, listener| !is_by(&listener.from));
        self.count.store(listeners.len(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ClientId = ClientId(1);
    const D: DatasetId = DatasetId(1);

    fn until(seconds: u64) -> RecalledDelegation {
        let until = Duration::from_secs(seconds);
        RecalledDelegation { partition: PartitionId(3), until }
    }

    /// The keys that an answer names, and its number.
    fn told(reply: &ControlReply) -> (u64, Vec<&[u8]>) {
        let ControlReply::Revoked { number, records } = reply else { panic!("{reply:?}") };
        (*number, records.iter().map(|record| &*record.key).collect())
    }

    #[test]
    fn a_listener_is_told_once_and_gives_back_with_its_next_question() {
        let listeners = RecallListeners::default();
        assert!(listeners.revoke(A, (D, b"k"), until(9)).is_none(), "it does not listen");
        assert_eq!(listeners.term_max(A, Duration::from_secs(3)), SHORT_TERM_MAX);
        let (answers, returned) = listeners.ask(A, 'q', 0);
        assert!(answers.is_empty() && returned.is_empty());
        assert_eq!(listeners.term_max(A, Duration::from_secs(3)), Duration::MAX);
        let (to, reply) = listeners.revoke(A, (D, b"k"), until(9)).expect("a question waits");
        assert_eq!((to, told(&reply)), ('q', (1, vec![&b"k"[..]])));
        assert!(listeners.revoke(A, (D, b"k"), until(9)).is_none(), "it was told");
        assert!(listeners.revoke(A, (D, b"l"), until(9)).is_none(), "no question waits");
        let (answers, returned) = listeners.ask(A, 'r', 1);
        assert_eq!(returned.into_values().collect::<Vec<_>>(), [until(9)]);
        assert_eq!((answers[0].0, told(&answers[0].1)), ('r', (2, vec![&b"l"[..]])));
    }

    #[test]
    fn a_missed_answer_is_told_again_and_an_older_question_ends() {
        let listeners = RecallListeners::default();
        listeners.ask(A, 'q', 0);
        listeners.revoke(A, (D, b"k"), until(9));
        let (answers, returned) = listeners.ask(A, 'r', 0);
        assert!(returned.is_empty());
        assert_eq!(told(&answers[0].1), (2, vec![&b"k"[..]]));
        listeners.ask(A, 's', 2);
        let (answers, _) = listeners.ask(A, 't', 2);
        assert_eq!((answers[0].0, told(&answers[0].1)), ('s', (2, vec![])));
        listeners.left(|from| *from == 's');
        assert!(listeners.revoke(A, (D, b"k"), until(9)).is_some(), "it asks by another");
        listeners.left(|from| *from == 't');
        assert!(listeners.revoke(A, (D, b"l"), until(9)).is_none());
        assert_eq!(listeners.term_max(A, Duration::from_secs(3)), SHORT_TERM_MAX);
    }
}
