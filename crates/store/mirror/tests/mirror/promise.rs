//! A member that was said to be up to date, and then does not answer: whether it is gone on without is for the coordinator to say, which may not have heard
//! the one or the other yet.

use std::time::Duration;

use samite_mirror::{CommitPosition, CommitStatus, GroupView, MirrorRules};
use samite_types::{Epoch, TargetId, Term};
use samite_wire::control::{GroupMember, MemberConsistency};

use crate::node::{Node, Out, Report, ReportedChange};

const STEP: Duration = Duration::from_millis(20);

fn view(epoch: u64) -> GroupView {
    let member = |target, consistency| GroupMember { target: TargetId(target), consistency };
    let members =
        vec![member(1, MemberConsistency::Good), member(2, MemberConsistency::NeedsResync)];
    GroupView {
        epoch: Epoch(epoch),
        term: Term(0),
        members,
        incarnations: vec![0, 0],
        is_lost: false,
    }
}

fn pass_on(out: &Out, to: &mut Node, now: Duration) {
    for packet in &out.packets {
        let (mut body, mut payload) = (Vec::new(), Vec::new());
        packet.append(&mut body, &mut payload);
        to.message(&body, &payload, now);
    }
}

struct Scene {
    primary: Node,
    other: Node,
    now: Duration,
}

impl Scene {
    fn new(rules: MirrorRules) -> Self {
        let node = |target| Node::new(TargetId(target), 0, (rules, false));
        let mut scene = Self { primary: node(1), other: node(2), now: Duration::from_secs(1) };
        scene.configure(1);
        scene
    }

    fn configure(&mut self, epoch: u64) {
        self.primary.configure(&view(epoch), self.now);
        self.other.configure(&view(epoch), self.now);
    }

    /// Some time passes. Returns the reports of the primary; `hears`: the other one is there.
    fn pass(&mut self, hears: bool) -> Vec<Report> {
        self.now += STEP;
        let (mut out, mut back) = (Out::default(), Out::default());
        self.primary.settle(self.now, &mut out);
        if hears {
            pass_on(&out, &mut self.other, self.now);
            self.other.settle(self.now, &mut back);
            pass_on(&back, &mut self.primary, self.now);
        }
        out.reports
    }

    /// Until there is such a report.
    fn report(&mut self, hears: bool, is_it: fn(&ReportedChange) -> bool) -> Report {
        let mut passed = (0..200).flat_map(|_| self.pass(hears));
        passed.find(|report| is_it(&report.change)).expect("it is reported")
    }

    fn put(&mut self) -> CommitPosition {
        // The other one is asked first how much room it has.
        let asked = self.primary.put((b"k", b"v"), 1, self.now);
        assert!(asked.1.is_none(), "{asked:?}");
        self.pass(true);
        let (outcome, commit_position) = self.primary.put((b"k", b"v"), 1, self.now);
        commit_position.unwrap_or_else(|| panic!("it waits for the other member: {outcome:?}"))
    }

    /// The status of a change that the other member has not got, when the next map says nothing of
    /// the group.
    fn after_another_map(&mut self) -> (CommitPosition, Report, CommitStatus) {
        self.report(true, |change| matches!(change, ReportedChange::Synced));
        let commit_position = self.put();
        let missed = self.report(false, |change| matches!(change, ReportedChange::Missed));
        self.configure(2);
        (0..100).for_each(|_| drop(self.pass(false)));
        (commit_position, missed, self.primary.mirrored.commit_status(commit_position))
    }
}

#[test]
fn a_map_that_says_nothing_of_the_group_makes_no_report_void() {
    let mut scene = Scene::new(MirrorRules::default());
    let (commit_position, missed, status) = scene.after_another_map();
    assert_eq!(status, CommitStatus::Waiting, "the report that it is up to date may come still");
    // The answer may come before the map does.
    scene.primary.told(&missed, Epoch(3), scene.now);
    scene.pass(false);
    assert_eq!(scene.primary.mirrored.commit_status(commit_position), CommitStatus::Waiting);
    scene.configure(3);
    scene.pass(false);
    assert_eq!(scene.primary.mirrored.commit_status(commit_position), CommitStatus::Committed);
}

#[test]
fn the_answer_may_come_behind_the_map() {
    let mut scene = Scene::new(MirrorRules::default());
    let (commit_position, missed, _) = scene.after_another_map();
    scene.configure(3);
    scene.primary.told(&missed, Epoch(3), scene.now);
    scene.pass(false);
    assert_eq!(scene.primary.mirrored.commit_status(commit_position), CommitStatus::Committed);
}

#[test]
fn whoever_takes_any_map_for_the_answer_goes_on_too_early() {
    let mut scene = Scene::new(MirrorRules { forgets_promises: true, ..MirrorRules::default() });
    assert_eq!(scene.after_another_map().2, CommitStatus::Committed);
}
