//! Requests that wait for delegations on records to end.
//!
//! A change of a record on which another client has a delegation waits, whole and before anything
//! of it is done, until the delegation has run out or was given back. Waiting requests keep their
//! order: a later request that would change the same records waits behind them. While something
//! waits, no new delegation is granted on what it changes, so it waits for one term at most.

use std::collections::VecDeque;
use std::time::Duration;

use samite_transport::server::{ConnId, ConnectionPeer};
use samite_types::RequestId;

use crate::inbox::ShardTask;

/// Most requests of connections that wait at one shard, and most bytes of them; tasks of other
/// shards have their own bound.
const WAITING_MAX: usize = 1024;
const WAITING_LEN_MAX: usize = 16 << 20;

/// A waiting request.
pub(crate) enum WaitingWork {
    /// A request of a connection of this shard.
    Request {
        conn: ConnId,
        peer: ConnectionPeer,
        id: RequestId,
        body: Vec<u8>,
        payload: Vec<u8>,
        /// When it came.
        since: Duration,
    },
    /// A task that another shard has passed on.
    Task(ShardTask),
}

impl WaitingWork {
    /// Bytes that count.
    pub(crate) const fn len(&self) -> usize {
        match self {
            Self::Request { body, payload, .. } => body.len() + payload.len(),
            Self::Task(_) => 0,
        }
    }

    /// When it came, if this shard knows.
    pub(crate) const fn since(&self) -> Option<Duration> {
        match self {
            Self::Request { since, .. } => Some(*since),
            Self::Task(_) => None,
        }
    }
}

/// Whether a request may be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DelegationTurn {
    /// It may.
    Now,
    /// It has to wait, at most until then.
    Later(Duration),
    /// It would have to wait, and too much waits already.
    Never,
}

/// Work `W` that waits, oldest first.
#[derive(Debug)]
pub(crate) struct DelegationWaiters<W> {
    waiting: VecDeque<(W, Duration)>,
    len: usize,
}

impl<W> Default for DelegationWaiters<W> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), len: 0 }
    }
}

impl<W> DelegationWaiters<W> {
    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// How much waits.
    pub(crate) fn count(&self) -> usize {
        self.waiting.len()
    }

    /// The oldest work, up to so much.
    pub(crate) fn oldest(&self, most: usize) -> impl Iterator<Item = &W> {
        self.waiting.iter().take(most).map(|(work, _)| work)
    }

    /// End of the first delegation that something waits for.
    pub(crate) fn next(&self) -> Option<Duration> {
        self.waiting.iter().map(|(_, until)| *until).min()
    }

    /// Whether a request may be carried out against which delegations stand until `stands`;
    /// `is_behind`: others wait to change what it changes. `len`: its bytes, if they count.
    pub(crate) fn turn(
        &self,
        stands: Option<Duration>,
        is_behind: bool,
        len: Option<usize>,
    ) -> DelegationTurn {
        // A request that waits behind others only has no timer of its own: it is looked at when
        // they are.
        match stands.or(is_behind.then_some(Duration::MAX)) {
            None => DelegationTurn::Now,
            Some(_) if len.is_some_and(|len| !self.has_room(len)) => DelegationTurn::Never,
            Some(until) => DelegationTurn::Later(until),
        }
    }

    fn has_room(&self, len: usize) -> bool {
        self.waiting.len() < WAITING_MAX && self.len + len <= WAITING_LEN_MAX
    }

    /// Work of `len` bytes waits, at most until then.
    pub(crate) fn push(&mut self, work: W, len: usize, until: Duration) {
        self.len += len;
        self.waiting.push_back((work, until));
    }

    /// Takes all work, to be tried again in order.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = W> + use<W> {
        std::mem::take(self).waiting.into_iter().map(|(work, _)| work)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_change_waits_for_delegations_and_behind_others_that_wait() {
        let waiters = DelegationWaiters::<u32>::default();
        assert_eq!(waiters.turn(None, false, Some(1)), DelegationTurn::Now);
        assert_eq!(waiters.turn(Some(5 * MS), false, Some(1)), DelegationTurn::Later(5 * MS));
        assert_eq!(waiters.turn(Some(5 * MS), true, Some(1)), DelegationTurn::Later(5 * MS));
        let behind = DelegationTurn::Later(Duration::MAX);
        assert_eq!(waiters.turn(None, true, Some(1)), behind, "others have the timer");
    }

    #[test]
    fn work_is_tried_again_in_order_at_the_first_end() {
        let mut waiters = DelegationWaiters::default();
        assert_eq!((waiters.is_empty(), waiters.next()), (true, None));
        waiters.push('a', 1, 9 * MS);
        waiters.push('b', 1, Duration::MAX);
        waiters.push('c', 1, 7 * MS);
        assert_eq!((waiters.is_empty(), waiters.next()), (false, Some(7 * MS)));
        assert_eq!((waiters.count(), waiters.oldest(1).next()), (3, Some(&'a')));
        let all: Vec<char> = waiters.take_all().collect();
        assert_eq!(all, ['a', 'b', 'c']);
        assert_eq!((waiters.is_empty(), waiters.next()), (true, None));
    }

    #[test]
    fn requests_that_wait_are_bounded_and_tasks_are_not() {
        let mut waiters = DelegationWaiters::default();
        waiters.push(0, WAITING_LEN_MAX - 1, MS);
        assert_eq!(waiters.turn(Some(MS), false, Some(1)), DelegationTurn::Later(MS));
        assert_eq!(waiters.turn(Some(MS), false, Some(2)), DelegationTurn::Never);
        assert_eq!(waiters.turn(Some(MS), false, None), DelegationTurn::Later(MS), "a task");
        assert_eq!(waiters.turn(None, false, Some(2)), DelegationTurn::Now);
        assert_eq!(waiters.take_all().count(), 1);
        assert_eq!(waiters.turn(Some(MS), false, Some(2)), DelegationTurn::Later(MS));
        (0..WAITING_MAX).for_each(|number| waiters.push(number, 0, MS));
        assert_eq!(waiters.turn(Some(MS), false, Some(0)), DelegationTurn::Never);
    }
}
