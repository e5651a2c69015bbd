//! Open map watches: questions of other nodes for the next cluster map that wait at one shard.

use std::collections::HashMap;
use std::hash::Hash;

use samite_types::{Epoch, RequestId};

/// A question for the next map that has not been answered yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MapWatch {
    /// The request that waits for the answer.
    pub request: RequestId,
    /// Epoch of the map that the other node has.
    pub known: Epoch,
}

/// The watches of one shard, one for each connection at most. `C` names a connection.
#[derive(Debug)]
pub(crate) struct MapWatchers<C> {
    watches: HashMap<C, MapWatch>,
}

impl<C> Default for MapWatchers<C> {
    fn default() -> Self {
        Self { watches: HashMap::new() }
    }
}

impl<C: Copy + Eq + Hash> MapWatchers<C> {
    /// Whether nobody watches.
    pub(crate) fn is_empty(&self) -> bool {
        self.watches.is_empty()
    }

    /// A watch begins. Returns the one on this connection that it ends.
    pub(crate) fn begin(&mut self, conn: C, watch: MapWatch) -> Option<MapWatch> {
        self.watches.insert(conn, watch)
    }

    /// Takes the watches that a map of `epoch` answers.
    pub(crate) fn take_older(&mut self, epoch: Epoch) -> Vec<(C, MapWatch)> {
        self.watches.extract_if(|_, watch| watch.known < epoch).collect()
    }

    /// Takes all watches.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = (C, MapWatch)> + use<C> {
        std::mem::take(&mut self.watches).into_iter()
    }

    /// A connection is gone.
    pub(crate) fn closed(&mut self, conn: C) {
        self.watches.remove(&conn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(request: u64, known: u64) -> MapWatch {
        MapWatch { request: RequestId(request), known: Epoch(known) }
    }

    #[test]
    fn a_map_answers_the_watches_that_know_an_older_one() {
        let mut watchers = MapWatchers::default();
        assert_eq!(watchers.begin('a', watch(1, 4)), None);
        assert_eq!(watchers.begin('b', watch(2, 5)), None);
        assert_eq!(watchers.take_older(Epoch(4)), []);
        assert_eq!(watchers.take_older(Epoch(5)), [('a', watch(1, 4))]);
        assert_eq!(watchers.take_older(Epoch(5)), [], "each is answered once");
        assert!(!watchers.is_empty());
    }

    #[test]
    fn a_connection_has_one_watch_and_takes_it_along() {
        let mut watchers = MapWatchers::default();
        watchers.begin('a', watch(1, 4));
        assert_eq!(watchers.begin('a', watch(2, 4)), Some(watch(1, 4)));
        watchers.begin('b', watch(3, 4));
        watchers.closed('a');
        assert!(watchers.take_all().eq([('b', watch(3, 4))]));
        assert!(watchers.is_empty());
    }
}
