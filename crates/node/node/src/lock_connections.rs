//! The connections of one shard on which file locks were asked for.
//!
//! A connection that closes ends the locks of its client (if it was the last one); a connection
//! that breaks does not at once: its client has two seconds to come back.

use std::collections::HashSet;
use std::hash::Hash;
use std::time::Duration;

use samite_types::ClientId;

use crate::presence::ClientDepartures;

/// How a connection with locks has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionEnd {
    /// Its client has closed it, or is gone.
    Closed,
    /// It broke: its client may not know.
    Broken,
}

/// Connections with locks. `C` names a connection.
#[derive(Debug)]
pub(crate) struct LockConnections<C> {
    asked: HashSet<C>,
    /// The connection that is closed next, if it broke.
    broken: Option<C>,
    /// Clients whose last connection broke.
    departures: ClientDepartures,
}

impl<C> Default for LockConnections<C> {
    fn default() -> Self {
        Self { asked: HashSet::new(), broken: None, departures: ClientDepartures::default() }
    }
}

impl<C: Copy + Eq + Hash> LockConnections<C> {
    /// Locks are asked for on this connection.
    pub(crate) fn asks(&mut self, conn: C) {
        self.asked.insert(conn);
    }

    /// A connection broke; it is closed next.
    pub(crate) const fn broke(&mut self, conn: C) {
        self.broken = Some(conn);
    }

    /// A connection is closed. `None`: no locks were asked for on it.
    pub(crate) fn closed(&mut self, conn: C) -> Option<ConnectionEnd> {
        let is_broken = self.broken.take() == Some(conn);
        let end = if is_broken { ConnectionEnd::Broken } else { ConnectionEnd::Closed };
        self.asked.remove(&conn).then_some(end)
    }

    /// The last connection of a client broke: it is expected back within a while.
    pub(crate) fn expect_back(&mut self, client: ClientId, now: Duration) {
        self.departures.add(client, now);
    }

    /// The next client that should be back by now.
    pub(crate) fn take_due(&mut self, now: Duration) -> Option<ClientId> {
        self.departures.take(now)
    }

    /// When the first client should be back.
    pub(crate) fn next(&self) -> Option<Duration> {
        self.departures.next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn how_a_connection_ended_is_told_once_and_of_those_with_locks_only() {
        let mut connections = LockConnections::default();
        connections.asks('a');
        connections.asks('b');
        connections.broke('a');
        assert_eq!(connections.closed('a'), Some(ConnectionEnd::Broken));
        assert_eq!(connections.closed('a'), None);
        assert_eq!(connections.closed('b'), Some(ConnectionEnd::Closed));
        connections.broke('c');
        assert_eq!(connections.closed('c'), None, "no locks were asked for on it");
        connections.asks('d');
        assert_eq!(connections.closed('d'), Some(ConnectionEnd::Closed), "another one broke");
    }

    #[test]
    fn a_client_is_due_after_its_time_to_come_back() {
        let mut connections = LockConnections::<char>::default();
        connections.expect_back(ClientId(7), 10 * S);
        let due = connections.next().unwrap_or_default();
        assert!(due > 10 * S);
        assert_eq!(connections.take_due(due - S), None);
        assert_eq!(connections.take_due(due), Some(ClientId(7)));
        assert_eq!(connections.next(), None);
    }
}
