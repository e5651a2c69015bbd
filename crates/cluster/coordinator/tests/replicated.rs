//! Voters in several nodes, each with its thread and its file: the election, the state that is
//! kept, and the state that dies with a node.
#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use samite_coordinator::ClusterTiming;
use samite_coordinator::store::{
    InstanceRole, ReplicatedStore, StateStore, VoterConfig, VoterMailbox, VoterTransport,
};
use samite_types::{Clock as _, NodeId, SystemClock};
use samite_wire::membership::LeaderAddress;

/// Longer than anything takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where each node is reached; a node that is not in it is dead or cut off.
type Mailboxes = Arc<Mutex<BTreeMap<NodeId, VoterMailbox>>>;

struct Mail {
    from: NodeId,
    mailboxes: Mailboxes,
    /// The next message of this node makes it panic.
    panics: Arc<AtomicBool>,
}

impl VoterTransport for Mail {
    fn send(&mut self, to: NodeId, message: Vec<u8>) {
        assert!(!self.panics.swap(false, Ordering::SeqCst), "as a test wants it");
        let mailboxes = self.mailboxes.lock().unwrap();
        if let (true, Some(mailbox)) = (mailboxes.contains_key(&self.from), mailboxes.get(&to)) {
            mailbox.deliver(self.from, message);
        }
    }
}

struct World {
    scratch: tempfile::TempDir,
    mailboxes: Mailboxes,
    stores: BTreeMap<NodeId, ReplicatedStore>,
    first: Vec<NodeId>,
    instances: u64,
    panics: BTreeMap<NodeId, Arc<AtomicBool>>,
}

impl World {
    /// With the first `voters` of `nodes` nodes.
    fn new(voters: u32, nodes: u32) -> Self {
        let mut world = Self {
            scratch: tempfile::tempdir().unwrap(),
            mailboxes: Mailboxes::default(),
            stores: BTreeMap::new(),
            first: (0..voters).map(NodeId).collect(),
            instances: 0,
            panics: BTreeMap::new(),
        };
        (0..nodes).for_each(|node| world.start(NodeId(node), false));
        world
    }

    fn path(&self, node: NodeId) -> std::path::PathBuf {
        self.scratch.path().join(node.to_string())
    }

    fn start(&mut self, node: NodeId, is_founded: bool) {
        self.instances += 1;
        let config = VoterConfig {
            node,
            first: self.first.clone(),
            path: self.path(node),
            is_synced: true,
            is_founded,
            leader: LeaderAddress { node, addresses: vec![format!("tcp://{node}:1")] },
            instance: self.instances,
            timing: ClusterTiming::DEFAULT,
        };
        let mail = self.mail(node);
        let (store, mailbox) = ReplicatedStore::start(&config, Box::new(mail)).unwrap();
        self.mailboxes.lock().unwrap().insert(node, mailbox);
        self.stores.insert(node, store);
    }

    fn mail(&mut self, from: NodeId) -> Mail {
        let panics = Arc::clone(self.panics.entry(from).or_default());
        Mail { from, mailboxes: Arc::clone(&self.mailboxes), panics }
    }

    fn kill(&mut self, node: NodeId) {
        self.cut_off(node);
        self.stores.remove(&node).unwrap();
    }

    fn cut_off(&mut self, node: NodeId) -> Option<VoterMailbox> {
        self.mailboxes.lock().unwrap().remove(&node)
    }

    /// The instance that leads, once there is one; with all of them campaigning.
    fn leader(&mut self) -> NodeId {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            for (node, store) in &mut self.stores {
                if let InstanceRole::Leads { until } = store.campaign()
                    && until > SystemClock.monotonic()
                {
                    return *node;
                }
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("nobody leads: {:?}", self.stores);
    }

    /// Loads the kept state, saves `state`, by the instance that leads then; and returns the state
    /// that was kept.
    fn save(&mut self, state: &[u8]) -> Option<Vec<u8>> {
        let until = Instant::now() + PATIENCE;
        loop {
            let leader = self.leader();
            let store = self.stores.get_mut(&leader).unwrap();
            let kept = store.load();
            if let (Ok(kept), Ok(())) = (kept, store.save(state)) {
                return kept;
            }
            assert!(Instant::now() < until, "nothing is saved");
        }
    }
}

#[test]
fn what_was_saved_outlives_each_node_in_turn() {
    let mut world = World::new(3, 3);
    assert_eq!(world.save(b"0"), None);
    for round in 1..7u32 {
        let victim = world.leader();
        world.kill(victim);
        let before = (round - 1).to_string().into_bytes();
        assert_eq!(world.save(round.to_string().as_bytes()), Some(before));
        world.start(victim, true);
    }
}

#[test]
fn who_leads_and_is_cut_off_saves_nothing() {
    let mut world = World::new(3, 3);
    world.save(b"first");
    let leader = world.leader();
    let mailbox = world.cut_off(leader).unwrap();
    let alone = world.stores.get_mut(&leader).unwrap();
    assert!(alone.save(b"alone").is_err());
    let until = Instant::now() + PATIENCE;
    while matches!(alone.campaign(), InstanceRole::Leads { .. }) {
        assert!(Instant::now() < until, "it leads for ever");
        std::thread::sleep(Duration::from_millis(10));
    }
    let cut_off = world.stores.remove(&leader).unwrap();
    assert_eq!(world.save(b"second"), Some(b"first".to_vec()));
    world.mailboxes.lock().unwrap().insert(leader, mailbox);
    world.stores.insert(leader, cut_off);
    assert_eq!(world.save(b"third"), Some(b"second".to_vec()));
}

#[test]
fn all_come_back_with_what_was_saved() {
    let mut world = World::new(3, 3);
    world.save(b"kept");
    (0..3).for_each(|node| world.kill(NodeId(node)));
    (0..3).for_each(|node| world.start(NodeId(node), true));
    assert_eq!(world.save(b"more"), Some(b"kept".to_vec()));
}

#[test]
fn a_node_without_its_file_gets_a_new_voter() {
    let mut world = World::new(3, 3);
    world.save(b"kept");
    for node in (0..3).map(NodeId) {
        world.kill(node);
        std::fs::remove_file(world.path(node)).unwrap();
        world.start(node, true);
        wait_for(&world.path(node));
        assert_eq!(world.save(b"kept"), Some(b"kept".to_vec()));
    }
}

#[test]
fn another_node_takes_the_place_of_one_that_is_gone() {
    let mut world = World::new(3, 5);
    world.save(b"kept");
    for (gone, left) in [(0, vec![1, 2, 3, 4]), (1, vec![2, 3, 4])] {
        world.kill(NodeId(gone));
        let left: Vec<NodeId> = left.into_iter().map(NodeId).collect();
        for store in world.stores.values_mut() {
            store.set_nodes(&left);
        }
        wait_for(&world.path(NodeId(gone + 3)));
    }
    // Of the first three only one is left: the others decide with it, and it is not needed either.
    assert_eq!(world.save(b"kept"), Some(b"kept".to_vec()));
    world.kill(NodeId(2));
    assert_eq!(world.save(b"kept"), Some(b"kept".to_vec()));
}

#[test]
fn a_voter_that_panics_begins_again_with_what_it_kept() {
    let mut world = World::new(3, 3);
    world.save(b"first");
    for node in [0, 1] {
        let panics = Arc::clone(&world.panics[&NodeId(node)]);
        panics.store(true, Ordering::SeqCst);
        let until = Instant::now() + PATIENCE;
        while panics.load(Ordering::SeqCst) {
            assert!(Instant::now() < until, "n{node} sends nothing");
            std::thread::sleep(Duration::from_millis(10));
        }
        // Without the third one, it is needed.
        world.kill(NodeId(2));
        let kept = if node == 0 { b"first".to_vec() } else { b"next".to_vec() };
        assert_eq!(world.save(b"next"), Some(kept));
        world.start(NodeId(2), true);
    }
}

#[test]
fn a_damaged_file_is_refused() {
    let mut world = World::new(3, 3);
    world.save(b"kept");
    world.kill(NodeId(1));
    let mut bytes = std::fs::read(world.path(NodeId(1))).unwrap();
    bytes[20] ^= 1;
    std::fs::write(world.path(NodeId(1)), bytes).unwrap();
    let config = VoterConfig {
        node: NodeId(1),
        first: world.first.clone(),
        path: world.path(NodeId(1)),
        is_synced: true,
        is_founded: true,
        leader: LeaderAddress { node: NodeId(1), addresses: Vec::new() },
        instance: 99,
        timing: ClusterTiming::DEFAULT,
    };
    let mail = world.mail(NodeId(1));
    let error = ReplicatedStore::start(&config, Box::new(mail)).unwrap_err();
    assert_eq!(error.kind(), samite_types::ErrorKind::Corrupt);
}

fn wait_for(path: &Path) {
    let until = Instant::now() + PATIENCE;
    while !path.exists() {
        assert!(Instant::now() < until, "{} does not come", path.display());
        std::thread::sleep(Duration::from_millis(10));
    }
}
