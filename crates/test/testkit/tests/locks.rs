//! File locks whose node goes away: nobody else gets them while their holders live.
#![allow(clippy::unwrap_used, reason = "a test ends at what it does not expect")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use samite_client::locks::LockSession;
use samite_client::{Client, Dataset};
use samite_testkit::{LocalCluster, LocalOptions};
use samite_types::{Epoch, NodeId, PartitionId, Redundancy, TargetId, Term};
use samite_wire::control::{ClusterMapData, DatasetSpec, MemberConsistency, MirrorGroup};
use samite_wire::lock::{
    LockAnswer, LockCall, LockHolder, LockMode, LockRange, LockRequest, LockSpace,
};
use samite_wire::membership::AdminRequest;

const WAIT: Duration = Duration::from_secs(30);

const TAKE: LockCall = LockCall::Take {
    range: LockRange::WHOLE,
    mode: LockMode::Exclusive,
    holder: LockHolder { host: 1, pid: 2 },
    wait: None,
    detects_deadlock: true,
};
const RELEASE: LockCall = LockCall::Release { range: LockRange::WHOLE };

struct Stage {
    cluster: LocalCluster,
    client: Client,
    dataset: Dataset,
    partition: PartitionId,
}

impl Stage {
    /// Three nodes, and a partition whose members are on `members`.
    fn new(members: &[u32]) -> Self {
        Self::with(3, members)
    }

    fn with(nodes: usize, members: &[u32]) -> Self {
        let options = LocalOptions { shards: 2, ..LocalOptions::default() };
        let cluster = LocalCluster::start(nodes, options).unwrap();
        let client = cluster.client(samite_client::ClientOptions::default()).unwrap();
        let redundancy = Redundancy(members.len() as u8);
        let spec = DatasetSpec { redundancy, ..DatasetSpec::new("d") };
        let dataset = client.create_dataset(&spec).unwrap();
        let mut stage = Self { cluster, client, dataset, partition: PartitionId(0) };
        stage.partition = stage.partition_on(members, |_| true);
        stage
    }

    fn partition_on(&self, members: &[u32], is_it: impl Fn(PartitionId) -> bool) -> PartitionId {
        let map = self.client.refresh_map().unwrap();
        let groups = &map.table(self.dataset.spec().redundancy).unwrap().groups;
        let mut places = groups.iter().zip(0..).map(|(group, index)| (group, PartitionId(index)));
        let found = places.find(|(group, partition)| {
            let targets = group.members.iter().map(|member| member.target.get());
            targets.eq(members.iter().copied()) && is_it(*partition)
        });
        found.unwrap().1
    }

    fn request(&self, call: LockCall) -> LockRequest {
        let (dataset, partition) = (self.dataset.id(), self.partition);
        let (object, space, token, is_note) = (5, LockSpace::Ranges, 1, false);
        // The client knows better.
        let (term, epoch) = (Term(0), Epoch(0));
        LockRequest { dataset, partition, object, space, token, term, epoch, is_note, call }
    }

    /// Whether it gets the lock at once.
    fn takes(&self, locker: &LockSession) -> bool {
        locker.ask(&self.request(TAKE)).unwrap() == LockAnswer::Done
    }

    fn releases(&self, locker: &LockSession) {
        assert_eq!(locker.ask(&self.request(RELEASE)).unwrap(), LockAnswer::Done);
    }

    fn locker(&self) -> LockSession {
        LockSession::new(&self.cluster.client(samite_client::ClientOptions::default()).unwrap())
    }

    fn wait_for(&self, what: &str, is_so: impl Fn(&ClusterMapData) -> bool) {
        let start = Instant::now();
        while !is_so(self.client.refresh_map().unwrap().data()) {
            assert!(start.elapsed() < WAIT, "{what} does not happen");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn group<'a>(&self, map: &'a ClusterMapData) -> &'a MirrorGroup {
        let redundancy = self.dataset.spec().redundancy;
        let table = map.tables.iter().find(|table| table.redundancy == redundancy).unwrap();
        &table.groups[self.partition.get() as usize]
    }

    /// A member dies, comes back empty and is brought up to date.
    fn replace(&mut self, node: u32) {
        self.cluster.restart_node(NodeId(node)).unwrap();
        self.wait_for("a resync", |map| {
            let members = &self.group(map).members;
            members.iter().all(|member| member.consistency == MemberConsistency::Good)
                && members.iter().any(|member| member.target == TargetId(node))
        });
    }

    fn kill(&mut self, node: u32) {
        self.cluster.stop_node(NodeId(node)).unwrap();
    }

    /// Moves everything away from a node.
    fn drain(&self, node: u32) {
        self.client.admin_request(NodeId(node), AdminRequest::Drain).unwrap();
        self.wait_for("a move", |map| {
            let mut members =
                map.tables.iter().flat_map(|table| &table.groups).flat_map(|group| &group.members);
            members.all(|member| member.target != TargetId(node))
        });
    }

    /// Somebody waits for the lock while `meanwhile` happens; it gets it then, and not before. Lets go of it again.
    fn waits_until(
        &mut self,
        locker: &LockSession,
        meanwhile: impl FnOnce(&mut Self, &AtomicBool),
    ) {
        let request = self.request(TAKE);
        let has_it = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let start = Instant::now();
                let mut wait = locker.begin(request).unwrap();
                let woken = wait.block_until(&|| start.elapsed() > WAIT).unwrap();
                wait.finish(woken).unwrap();
                has_it.store(true, Ordering::SeqCst);
            });
            std::thread::sleep(Duration::from_millis(300));
            assert!(!has_it.load(Ordering::SeqCst), "two have it");
            meanwhile(self, &has_it);
        });
        assert!(has_it.load(Ordering::SeqCst));
        self.releases(locker);
    }
}

#[test]
fn a_member_that_came_after_a_lock_was_taken_knows_it_when_it_becomes_the_primary() {
    let mut stage = Stage::new(&[1, 2]);
    let (first, second) = (stage.locker(), stage.locker());
    assert!(stage.takes(&first));
    stage.replace(2);
    stage.kill(1);
    // Its holder sleeps; and nobody else gets it.
    assert!(!stage.takes(&second));
    stage.waits_until(&second, |stage, _| {
        assert!(!stage.takes(&stage.locker()));
        stage.releases(&first);
    });
    // The holder goes on as before.
    assert!(stage.takes(&first) && !stage.takes(&second));
}

#[test]
fn a_member_that_becomes_good_is_told_of_locks_that_nobody_beside_the_group_knows() {
    let mut stage = Stage::with(4, &[1, 2]);
    // Of the nodes beside the group, 3 is the one that notes locks.
    let rank = |node: u32, partition: PartitionId| {
        samite_placement::hash(&[node.to_le_bytes(), partition.get().to_le_bytes()].concat())
    };
    stage.partition = stage.partition_on(&[1, 2], |at| rank(3, at) < rank(0, at));
    let (first, second) = (stage.locker(), stage.locker());
    assert!(stage.takes(&first));
    stage.replace(2);
    stage.cluster.restart_node(NodeId(3)).unwrap();
    // The member asks as soon as it has the map.
    std::thread::sleep(Duration::from_millis(300));
    stage.kill(1);
    assert!(!stage.takes(&second));
    stage.waits_until(&second, |stage, _| stage.releases(&first));
}

#[test]
fn a_lock_that_was_taken_over_ends_with_its_holder() {
    let mut stage = Stage::new(&[1, 2]);
    let (first, second) = (stage.locker(), stage.locker());
    assert!(stage.takes(&first));
    stage.replace(2);
    stage.kill(1);
    assert!(!stage.takes(&second));
    stage.waits_until(&second, |_, _| drop(first));
}

#[test]
fn who_waits_goes_on_waiting_at_a_primary_that_came_later() {
    let mut stage = Stage::new(&[1, 2]);
    let (first, second) = (stage.locker(), stage.locker());
    assert!(stage.takes(&first));
    stage.replace(2);
    stage.waits_until(&second, |stage, has_it| {
        stage.kill(1);
        // By then it asks the next one.
        std::thread::sleep(Duration::from_millis(4000));
        assert!(!has_it.load(Ordering::SeqCst), "two have it");
        drop(first);
    });
}

#[test]
fn a_lock_moves_with_its_partition() {
    let mut stage = Stage::new(&[1]);
    let (first, second) = (stage.locker(), stage.locker());
    assert!(stage.takes(&first));
    stage.drain(1);
    assert!(!stage.takes(&second));
    stage.waits_until(&second, |stage, _| stage.releases(&first));
    assert!(stage.takes(&first) && !stage.takes(&second));
}

#[test]
fn who_waits_moves_with_the_partition_and_a_lock_ends_with_its_holder() {
    let mut stage = Stage::new(&[1]);
    let (first, second) = (stage.locker(), stage.locker());
    assert!(stage.takes(&first));
    stage.waits_until(&second, |stage, _| {
        stage.drain(1);
        assert!(!stage.takes(&stage.locker()));
        drop(first);
    });
}
