//! Which clients are connected to this node, over all shards; and which were, and may come back.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use samite_types::ClientId;

/// How long a client without connections keeps its open references: a connection that broke is made
/// again well within it.
const GRACE: Duration = Duration::from_secs(2);

/// How long a node that has taken over from another keeps open references of clients that it does
/// not know: they may have been silent.
const INHERITED_GRACE: Duration = Duration::from_secs(60);

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
    pub(crate) fn inherit(&mut self, client: ClientId, now: Duration) {
        self.0.push_back((now + INHERITED_GRACE, client));
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
        assert!(!presence.left(client) && presence.left(client) && !presence.left(client));
        departures.add(client, Duration::from_secs(10));
        assert_eq!(departures.take(Duration::from_secs(11)), None);
        presence.came(client);
        assert_eq!(departures.take(Duration::from_secs(12)), Some(client));
        assert!(presence.is_here(client), "it came back");
        assert_eq!((departures.take(Duration::from_secs(99)), departures.next()), (None, None));
    }
}
