//! Another member is made the primary while the former one has applied more than the others: no
//! member is to be found wanting for that.

use std::time::Duration;

use samite_mirror::{GroupView, MirrorRules};
use samite_partition::AppliedOutcome;
use samite_types::{Epoch, ErrorKind, TargetId, Term};
use samite_wire::control::{GroupMember, MemberConsistency};

use crate::client::key_of;
use crate::node::{Node, Out, Report, ReportedChange};
use crate::world::{Contents, contents};

const STEP: Duration = Duration::from_millis(20);

fn view(epoch: u64, term: u32, members: &[(u32, MemberConsistency)]) -> GroupView {
    let member = |(target, consistency): &(u32, MemberConsistency)| GroupMember {
        target: TargetId(*target),
        consistency: *consistency,
    };
    let members: Vec<GroupMember> = members.iter().map(member).collect();
    let incarnations = vec![0; members.len()];
    GroupView { epoch: Epoch(epoch), term: Term(term), members, incarnations, is_lost: false }
}

fn good(targets: &[u32]) -> Vec<(u32, MemberConsistency)> {
    targets.iter().map(|target| (*target, MemberConsistency::Good)).collect()
}

struct Scene {
    nodes: Vec<Node>,
    now: Duration,
    reports: Vec<Report>,
    /// Messages to these are lost.
    deaf: Vec<u32>,
    seq: u64,
}

impl Scene {
    /// Members 1 and on, of which the first is the primary.
    fn new(capacities: &[u64]) -> Self {
        Self::with_rules(capacities, MirrorRules::default())
    }

    fn with_rules(capacities: &[u64], rules: MirrorRules) -> Self {
        let ways = (rules, false);
        let node = |(target, capacity): (u32, &u64)| Node::of(TargetId(target), 0, *capacity, ways);
        let nodes: Vec<Node> = (1..).zip(capacities).map(node).collect();
        let all: Vec<u32> = nodes.iter().map(|node| node.target.get()).collect();
        let now = Duration::from_secs(1);
        let mut scene = Self { nodes, now, reports: Vec::new(), deaf: Vec::new(), seq: 0 };
        scene.configure(&view(1, 0, &good(&all)));
        scene.pass(5);
        scene
    }

    fn configure(&mut self, view: &GroupView) {
        self.nodes.iter_mut().for_each(|node| node.configure(view, self.now));
    }

    fn node(&mut self, target: u32) -> &mut Node {
        &mut self.nodes[target as usize - 1]
    }

    /// Some time passes, and messages arrive.
    fn pass(&mut self, times: usize) {
        for _ in 0..times {
            self.now += STEP;
            for from in 0..self.nodes.len() {
                let mut out = Out::default();
                self.nodes[from].settle(self.now, &mut out);
                self.reports.append(&mut out.reports);
                for packet in out.packets {
                    let (mut body, mut payload) = (Vec::new(), Vec::new());
                    packet.append(&mut body, &mut payload);
                    if !self.deaf.contains(&packet.to().get()) {
                        let now = self.now;
                        self.node(packet.to().get()).message(&body, &payload, now);
                    }
                }
            }
        }
    }

    fn put_as(&mut self, target: u32, seq: u64, len: usize) -> AppliedOutcome {
        let (key, value) = (key_of(seq), vec![7; len]);
        let now = self.now;
        self.node(target).put((&key, &value), seq, now).0
    }

    /// The same, again while members are asked how much room they have.
    fn put_in_the_end(&mut self, target: u32, seq: u64, len: usize) -> AppliedOutcome {
        let mut tries = (0..20).map(|_| {
            let outcome = self.put_as(target, seq, len);
            self.pass(1);
            outcome
        });
        tries.find(|outcome| !is(outcome, ErrorKind::Unavailable)).expect("members answer")
    }

    fn delete_as(&mut self, target: u32, seq: u64) -> AppliedOutcome {
        let (key, now) = (key_of(seq), self.now);
        self.node(target).delete(&key, 1000 + seq, now)
    }

    /// Puts that many records at `target`.
    fn put(&mut self, target: u32, count: u64, len: usize) {
        for _ in 0..count {
            self.seq += 1;
            let outcome = self.put_as(target, self.seq, len);
            assert!(matches!(outcome, AppliedOutcome::Done(_)), "{outcome:?}");
        }
    }

    fn contents(&self) -> Vec<Contents> {
        self.nodes.iter().map(|node| contents(&node.mirrored)).collect()
    }

    fn assert_alike(&self) {
        let all = self.contents();
        assert!(all.iter().all(|one| *one == all[0]), "members differ");
        let points: Vec<_> = self.nodes.iter().map(|node| node.mirrored.point()).collect();
        assert!(points.iter().all(|one| *one == points[0]), "{points:?}");
    }

    fn missed(&self) -> Vec<TargetId> {
        let missed =
            self.reports.iter().filter(|report| matches!(report.change, ReportedChange::Missed));
        missed.map(|report| report.target).collect()
    }
}

const ROOM: u64 = 16 << 20;

#[test]
fn the_next_primary_takes_over_what_the_former_one_has_applied() {
    let mut scene = Scene::new(&[ROOM, ROOM]);
    scene.put(1, 3, 100);
    scene.pass(5);
    // None of these gets to the other before the roles change; more than go into one answer.
    scene.put(1, 150, 100);
    scene.configure(&view(2, 1, &good(&[2, 1])));
    scene.pass(5);
    assert_eq!(scene.missed(), [], "nobody has missed anything");
    scene.assert_alike();
    assert!(scene.nodes[1].mirrored.is_primary());
    // The client never heard of it, and asks again: it is done once.
    let before = scene.nodes[1].mirrored.partition().version();
    assert!(matches!(scene.put_as(2, scene.seq, 100), AppliedOutcome::Done(_)));
    assert_eq!(scene.nodes[1].mirrored.partition().version(), before);
    scene.put(2, 3, 100);
    scene.pass(5);
    scene.assert_alike();
    assert_eq!(scene.contents()[0].records.len(), 156);
}

#[test]
fn members_that_are_not_equally_far_are_so_in_the_next_term() {
    let mut scene = Scene::new(&[ROOM, ROOM, ROOM]);
    scene.deaf = vec![2];
    scene.put(1, 2, 100);
    scene.pass(1);
    scene.deaf = vec![2, 3];
    scene.put(1, 2, 100);
    scene.pass(1);
    scene.deaf.clear();
    let ends = |scene: &Scene| -> Vec<u64> {
        scene.nodes.iter().map(|node| node.mirrored.point().position.get()).collect()
    };
    let [first, second, third] = ends(&scene)[..] else { panic!("three members") };
    assert!(second < third && third < first, "{second} {third} {first}");
    scene.configure(&view(2, 1, &good(&[2, 1, 3])));
    scene.pass(5);
    assert_eq!(scene.missed(), []);
    scene.assert_alike();
    assert_eq!(scene.contents()[0].records.len(), 4);
}

#[test]
fn nobody_waits_for_a_member_that_is_not_good_any_more() {
    let mut scene = Scene::new(&[ROOM, ROOM]);
    scene.deaf = vec![1, 2];
    scene.put(1, 3, 100);
    scene.configure(&view(2, 1, &good(&[2, 1])));
    scene.pass(25);
    assert_eq!(scene.missed(), [], "it has a while to answer");
    assert!(scene.nodes[1].mirrored.is_catching_up());
    assert!(matches!(scene.put_as(2, 4, 100), AppliedOutcome::Failed { .. }));
    scene.pass(30);
    assert!(scene.missed().len() > 1, "it is said again");
    assert!(scene.missed().iter().all(|target| *target == TargetId(1)));
    let without = [(2, MemberConsistency::Good), (1, MemberConsistency::NeedsResync)];
    scene.configure(&view(3, 1, &without));
    scene.pass(1);
    assert!(scene.nodes[1].mirrored.is_primary());
    assert!(matches!(scene.put_as(2, 4, 100), AppliedOutcome::Done(_)));
}

#[test]
fn one_that_has_no_room_for_what_others_have_does_not_lead() {
    // The primary goes on as if the other one had room.
    let rules = MirrorRules { ignores_room: true, ..MirrorRules::default() };
    let mut scene = Scene::with_rules(&[ROOM, 1 << 20], rules);
    scene.deaf = vec![2];
    scene.put(1, 40, 60 << 10);
    scene.configure(&view(2, 1, &good(&[2, 1])));
    scene.deaf.clear();
    scene.pass(10);
    assert!(scene.nodes[1].mirrored.is_catching_up());
    let missed = scene.missed();
    assert!(missed.len() > 1 && missed.iter().all(|target| *target == TargetId(2)), "{missed:?}");
    scene.configure(&view(
        3,
        2,
        &[(1, MemberConsistency::Good), (2, MemberConsistency::NeedsResync)],
    ));
    scene.pass(1);
    assert!(scene.nodes[0].mirrored.is_primary());
    assert_eq!(scene.contents()[0].records.len(), 40);
}

#[test]
fn what_does_not_fit_on_every_member_takes_effect_nowhere() {
    let mut scene = Scene::new(&[ROOM, 1 << 20]);
    let len = 60 << 10;
    let (mut seq, mut done) = (0, Vec::new());
    for _ in 0..40 {
        seq += 1;
        match scene.put_in_the_end(1, seq, len) {
            AppliedOutcome::Done(_) => done.push(seq),
            outcome => assert!(is(&outcome, ErrorKind::NoSpace), "{outcome:?}"),
        }
    }
    scene.pass(5);
    assert!(done.len() > 10 && done.len() < 17, "{} records of 64 KiB in 1 MiB", done.len());
    assert_eq!(scene.missed(), [], "nobody is dropped");
    scene.assert_alike();
    assert_eq!(scene.contents()[0].records.len(), done.len());
    // Full as it is, it can be emptied, and takes something again.
    for gone in &done {
        assert!(matches!(scene.delete_as(1, *gone), AppliedOutcome::Done(_)));
        scene.pass(1);
    }
    scene.assert_alike();
    assert!(matches!(scene.put_in_the_end(1, 100, len), AppliedOutcome::Done(_)));
}

fn is(outcome: &AppliedOutcome, expected: ErrorKind) -> bool {
    matches!(outcome, AppliedOutcome::Failed { kind, .. } if *kind == expected)
}
