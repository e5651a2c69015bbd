//! State of one process's use of a cluster: identity, sequence numbers, cluster map, links.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use samite_placement::ClusterMap;
use samite_transport::TransportKind;
use samite_transport::client::NodeLink;
use samite_transport::host::host_identity;
use samite_types::{
    ClientId, Clock, Entropy, Error, ErrorKind, NodeId, PartitionId, Redundancy, Result,
    SystemClock, SystemEntropy,
};
use samite_wire::control::ClusterMapData;
use samite_wire::delta::MapDelta;

use crate::Client;
use crate::changes::ChangeCounters;
use crate::credential_slot::CredentialSlot;
use crate::peer::{NodePeer, put};
use crate::seq::SequenceNumbers;
use crate::thread_pool::ThreadPool;
use crate::timer::WakeTimer;

/// A session. A forked child starts one of its own and leaves its parent's untouched.
#[derive(Debug)]
pub(crate) struct ClientSession {
    pub(crate) id: ClientId,
    pub(crate) credential: CredentialSlot,
    pub(crate) seqs: SequenceNumbers,
    pub(crate) changes: ChangeCounters,
    pub(crate) timer: WakeTimer,
    pub(crate) thread_pool: ThreadPool,
    /// Requests were left with links to be sent later.
    pub(crate) has_left: AtomicBool,
    host: String,
    only: Option<TransportKind>,
    view: RwLock<Option<Arc<MapView>>>,
    /// Held by the thread that asks for the map.
    pub(crate) refreshing: Mutex<()>,
    pub(crate) looks: MapRefresh,
}

/// When a newer map was last looked for, and with which node to begin the next time.
#[derive(Debug, Default)]
pub(crate) struct MapRefresh {
    ended_at_ns: AtomicU64,
    turn: AtomicUsize,
}

impl MapRefresh {
    /// Whether the last one is over for so long.
    pub(crate) fn is_due(&self, interval: Duration) -> bool {
        let ended_at = Duration::from_nanos(self.ended_at_ns.load(Ordering::Relaxed));
        SystemClock.monotonic() >= ended_at + interval
    }

    /// Number of the one that begins.
    pub(crate) fn begin(&self) -> usize {
        self.turn.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn end(&self) {
        let now = SystemClock.monotonic().as_nanos();
        self.ended_at_ns.store(u64::try_from(now).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

/// The cluster map, and the peers it names.
#[derive(Debug)]
pub(crate) struct MapView {
    pub(crate) map: Arc<ClusterMap>,
    /// Ordered by node, as in the map.
    peers: Vec<Arc<NodePeer>>,
}

impl MapView {
    /// Position among the peers of the node that serves `partition` of the datasets of this redundancy.
    pub(crate) fn peer_index(
        &self,
        redundancy: Redundancy,
        partition: PartitionId,
    ) -> Result<usize> {
        let node = self.map.node_of(redundancy, partition).ok_or_else(|| {
            Error::new(
                ErrorKind::Invalid,
                format!("{partition}: there are {} partitions", self.map.partitions()),
            )
        })?;
        self.index_of(node)
    }

    pub(crate) fn index_of(&self, node: NodeId) -> Result<usize> {
        // Nodes are mostly numbered from 0 without gaps.
        let guess = node.get() as usize;
        if self.peers.get(guess).is_some_and(|peer| peer.node == node) {
            return Ok(guess);
        }
        self.peers
            .binary_search_by_key(&node, |peer| peer.node)
            .map_err(|_| Error::new(ErrorKind::NotFound, format!("{node}: no such node")))
    }

    pub(crate) fn peer_at(&self, index: usize) -> &Arc<NodePeer> {
        &self.peers[index]
    }

    pub(crate) fn peer(&self, node: NodeId) -> Result<&Arc<NodePeer>> {
        Ok(&self.peers[self.index_of(node)?])
    }

    pub(crate) fn peers(&self) -> &[Arc<NodePeer>] {
        &self.peers
    }
}

impl ClientSession {
    pub(crate) fn new(only: Option<TransportKind>, credential: CredentialSlot) -> Self {
        Self {
            id: ClientId(SystemEntropy.next_u64()),
            credential,
            seqs: SequenceNumbers::new(),
            changes: ChangeCounters::new(),
            timer: WakeTimer::default(),
            thread_pool: ThreadPool::default(),
            has_left: AtomicBool::new(false),
            // Without one only tcp is used.
            host: host_identity().unwrap_or_default(),
            only,
            view: RwLock::new(None),
            refreshing: Mutex::new(()),
            looks: MapRefresh::default(),
        }
    }

    /// Name of this host.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// The cluster as known; `None` before the first map has come.
    pub(crate) fn view(&self) -> Option<Arc<MapView>> {
        self.view.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes over a map that a node sent, if it is newer, and `link` as the one to its node if it serves.
    pub(crate) fn adopt(&self, data: ClusterMapData, link: &Arc<NodeLink>) -> Result<Arc<MapView>> {
        self.adopt_map(ClusterMap::new(data)?, link)
    }

    /// Applies `delta` to the map that is known; whether it fits that.
    pub(crate) fn adopt_change(&self, delta: &MapDelta, link: &Arc<NodeLink>) -> Result<bool> {
        let Some(view) = self.view() else { return Ok(false) };
        if delta.to <= view.map.epoch() {
            return Ok(true);
        }
        let Ok(map) = view.map.with(delta) else { return Ok(false) };
        self.adopt_map(map, link).map(|_| true)
    }

    fn adopt_map(&self, map: ClusterMap, link: &Arc<NodeLink>) -> Result<Arc<MapView>> {
        let map = Arc::new(map);
        let current = self.view.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(view) = current.as_ref()
            && !map.replaces(&view.map)?
        {
            return Ok(Arc::clone(view));
        }
        let peers = map
            .nodes()
            .iter()
            .map(|info| {
                let peer = NodePeer::new(info, &self.host, self.only, &self.credential);
                let known =
                    current.iter().flat_map(|view| view.peers()).find(|old| old.is_same(&peer));
                known.map_or_else(
                    || {
                        peer.adopt(link);
                        Arc::new(peer)
                    },
                    Arc::clone,
                )
            })
            .collect();
        let view = Arc::new(MapView { map, peers });
        put(current, Some(Arc::clone(&view)));
        Ok(view)
    }

    /// Whether this is the client's session still. A signal handler may fork while a call is under way, which then goes on in the
    /// child as well: there it must send nothing, as its numbers are those of the parent's session. To be asked with a link at
    /// hand, which is dead if the fork comes later.
    pub(crate) fn check(&self, client: &Client) -> Result<()> {
        if std::ptr::eq(client.session(), self) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Unavailable, "the call began before the fork"))
    }

    /// In a forked child, on the parent's session: closes the inherited descriptors. Takes no lock
    /// that another thread may have held at the fork.
    pub(crate) fn abandon(&self) {
        if let Ok(view) = self.view.try_read() {
            for peer in view.iter().flat_map(|view| view.peers()) {
                peer.abandon();
            }
        }
    }
}
