//! The connections that others have made to one shard, by who they are and how bytes travel.

use std::collections::HashMap;
use std::hash::Hash;

use samite_metrics::MetricValues;
use samite_metrics::registry::{self, LINK_TRANSPORTS};
use samite_transport::TransportKind;

/// Connections of clients, and of other nodes. `C` names a connection.
#[derive(Debug)]
pub(crate) struct LinkCounts<C> {
    open: HashMap<C, (bool, usize)>,
    /// Of clients, then of nodes; by transport.
    counts: [[u64; LINK_TRANSPORTS.len()]; 2],
}

impl<C> Default for LinkCounts<C> {
    fn default() -> Self {
        Self { open: HashMap::new(), counts: Default::default() }
    }
}

impl<C: Copy + Eq + Hash> LinkCounts<C> {
    /// A client, or a node, has one more.
    pub(crate) fn opened(&mut self, conn: C, is_node: bool, transport: TransportKind) {
        let index = match transport {
            TransportKind::Shm => 0,
            TransportKind::Unix => 1,
            TransportKind::Tcp => 2,
            TransportKind::Tls => 3,
        };
        if self.open.insert(conn, (is_node, index)).is_none() {
            self.counts[usize::from(is_node)][index] += 1;
        }
    }

    /// One is gone.
    pub(crate) fn closed(&mut self, conn: C) {
        if let Some((is_node, index)) = self.open.remove(&conn) {
            self.counts[usize::from(is_node)][index] -= 1;
        }
    }

    /// Tells them to whoever asks for metrics.
    pub(crate) fn note(&self, metrics: &MetricValues) {
        for (metric, counts) in
            [registry::CLIENT_LINKS, registry::NODE_LINKS].iter().zip(&self.counts)
        {
            counts
                .iter()
                .enumerate()
                .for_each(|(index, count)| metrics.set_at(*metric, index, *count));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_counted_by_peer_and_transport() {
        let mut links = LinkCounts::default();
        links.opened('a', false, TransportKind::Shm);
        links.opened('b', false, TransportKind::Tcp);
        links.opened('c', false, TransportKind::Tcp);
        links.opened('d', true, TransportKind::Tls);
        links.closed('b');
        links.closed('b');
        assert_eq!(links.counts, [[1, 0, 1, 0], [0, 0, 0, 1]]);
        let store = samite_metrics::MetricStore::new(1);
        links.note(store.shard(0));
        let told = store.snapshot(0);
        let of_nodes = told.iter().filter(|sample| sample.name == "samite_node_links");
        let tls = of_nodes.filter(|sample| sample.labels[0].1 == "tls");
        let numbers: Vec<_> = tls.map(|sample| sample.value.clone()).collect();
        assert_eq!(numbers, [samite_metrics::SampleValue::Number(1)]);
        links.closed('a');
        links.closed('c');
        links.closed('d');
        assert_eq!(links.counts, [[0; 4]; 2]);
    }
}
