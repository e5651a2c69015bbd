//! Which clients are connected to this node, over all shards; and which were, and may come back.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::time::Duration;

use samite_types::ClientId;

/// How long a client without connections keeps its open references: a connection that broke is made
/// again well within it.
const GRACE: Duration = Duration::from_secs(2);

/// How long a node that has taken over from another keeps open references of clients that it does
/// not know: they may have been silent.
const RECOVERED_GRACE: Duration = Duration::from_secs(60);

/// Connections by client. Pure: time comes in.
#[derive(Debug, Default)]
pub(crate) struct ClientPresence {
    connections: HashMap<ClientId, u32>,
}

impl ClientPresence {
    /// A client has one connection more.
    pub(crate) fn came(&mut self, client: ClientId) {
        *self.connections.entry(client).or_default() += 1;
    }

    /// A client has one connection less. Whether that was its last.
    pub(crate) fn left(&mut self, client: ClientId) -> bool {
        let Some(count) = self.connections.get_mut(&client) else { return false };
        *count -= 1;
        let was_last = *count == 0;
        if was_last {
            self.connections.remove(&client);
        }
        was_last
    }

    /// How many are connected.
    pub(crate) fn count(&self) -> usize {
        self.connections.len()
    }

    /// Some of them, at most so many.
    pub(crate) fn some(&self, most: usize) -> Vec<ClientId> {
        self.connections.keys().copied().take(most).collect()
    }

    pub(crate) fn is_here(&self, client: ClientId) -> bool {
        self.connections.contains_key(&client)
    }
}

/// Clients that are not connected, oldest first: those whose last connection was one of this
/// shard's, and those with open references that were taken over. As many as there were connections
/// lately, or holders.
#[derive(Debug, Default)]
pub(crate) struct ClientDepartures(VecDeque<(Duration, ClientId)>);

impl ClientDepartures {
    pub(crate) fn add(&mut self, client: ClientId, now: Duration) {
        self.0.push_back((now + GRACE, client));
    }

    /// The same, with a longer time; not beside others.
    fn recover(&mut self, client: ClientId, now: Duration) {
        self.0.push_back((now + RECOVERED_GRACE, client));
    }

    /// When the first of them is taken for gone.
    pub(crate) fn next(&self) -> Option<Duration> {
        self.0.front().map(|(due, _)| *due)
    }

    /// The next client whose grace is over.
    pub(crate) fn take(&mut self, now: Duration) -> Option<ClientId> {
        let due = self.next().is_some_and(|due| due <= now);
        if due { self.0.pop_front().map(|(_, client)| client) } else { None }
    }
}

/// The client connections of one shard, and the clients whose open references are to end. `C` names
/// a connection.
#[derive(Debug)]
pub(crate) struct ClientConnections<C> {
    /// The client of each connection.
    clients: HashMap<C, ClientId>,
    departures: ClientDepartures,
    /// Clients with open references here that were not seen since another node decided on them.
    recovered: ClientDepartures,
}

impl<C> Default for ClientConnections<C> {
    fn default() -> Self {
        let (departures, recovered) = (ClientDepartures::default(), ClientDepartures::default());
        Self { clients: HashMap::new(), departures, recovered }
    }
}

impl<C: Copy + Eq + Hash> ClientConnections<C> {
    /// A client has one connection more.
    pub(crate) fn opened(&mut self, conn: C, client: ClientId) {
        self.clients.insert(conn, client);
    }

    /// A connection is gone. Returns the client, if it was a client's.
    pub(crate) fn closed(&mut self, conn: C) -> Option<ClientId> {
        self.clients.remove(&conn)
    }

    /// The last connection of a client was one of this shard's, and is gone.
    pub(crate) fn departs(&mut self, client: ClientId, now: Duration) {
        self.departures.add(client, now);
    }

    /// This node begins to decide on open references of these clients.
    pub(crate) fn recover(&mut self, mut clients: Vec<ClientId>, now: Duration) {
        clients.sort_unstable();
        clients.dedup();
        clients.into_iter().for_each(|client| self.recovered.recover(client, now));
    }

    /// The next client whose grace is over. It may be connected again.
    pub(crate) fn take_due(&mut self, now: Duration) -> Option<ClientId> {
        self.departures.take(now).or_else(|| self.recovered.take(now))
    }

    /// When the next grace is over.
    pub(crate) fn next(&self) -> Option<Duration> {
        self.departures.next().into_iter().chain(self.recovered.next()).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_gone_when_its_grace_is_over_and_not_before() {
        let (mut presence, mut departures) =
            (ClientPresence::default(), ClientDepartures::default());
        let client = ClientId(1);
        presence.came(client);
        presence.came(client);
        assert_eq!((presence.count(), presence.some(9)), (1, vec![client]));
        assert!(presence.some(0).is_empty());
        assert!(!presence.left(client) && presence.left(client) && !presence.left(client));
        assert_eq!(presence.count(), 0);
        departures.add(client, Duration::from_secs(10));
        assert_eq!(departures.take(Duration::from_secs(11)), None);
        presence.came(client);
        assert_eq!(departures.take(Duration::from_secs(12)), Some(client));
        assert!(presence.is_here(client), "it came back");
        assert_eq!((departures.take(Duration::from_secs(99)), departures.next()), (None, None));
    }

    #[test]
    fn recovered_clients_have_a_longer_grace_and_are_named_once() {
        let mut clients = ClientConnections::default();
        clients.opened('a', ClientId(1));
        assert_eq!((clients.closed('b'), clients.closed('a')), (None, Some(ClientId(1))));
        assert_eq!(clients.closed('a'), None);
        let now = Duration::from_secs(10);
        clients.recover(vec![ClientId(3), ClientId(2), ClientId(3)], now);
        clients.departs(ClientId(1), now);
        assert_eq!(clients.next(), Some(now + GRACE));
        assert_eq!(clients.take_due(now + GRACE), Some(ClientId(1)));
        assert_eq!(clients.take_due(now + GRACE), None);
        assert_eq!(clients.next(), Some(now + RECOVERED_GRACE));
        let due = now + RECOVERED_GRACE;
        assert_eq!(clients.take_due(due), Some(ClientId(2)));
        assert_eq!(clients.take_due(due), Some(ClientId(3)));
        assert_eq!((clients.take_due(due), clients.next()), (None, None));
    }
}
