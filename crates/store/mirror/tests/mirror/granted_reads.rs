//! A member with a read lease, and a primary whose clock jumps ahead and that goes on without it:
//! not before the read lease is over.

use std::time::Duration;

use samite_mirror::{ApplyTime, CommitPosition, CommitStatus, GroupView, MirrorRules};
use samite_partition::NoGrants;
use samite_types::{ClientId, Epoch, TargetId, Term};
use samite_wire::control::{GroupMember, MemberConsistency};

use crate::client::{Call, CallAction, Said, said};
use crate::node::{Node, Out};

const STEP: Duration = Duration::from_millis(10);
const CLIENT: ClientId = ClientId(9);

fn view(epoch: u64, other: MemberConsistency) -> GroupView {
    let member = |target, consistency| GroupMember { target: TargetId(target), consistency };
    let members = vec![member(1, MemberConsistency::Good), member(2, other)];
    GroupView {
        epoch: Epoch(epoch),
        term: Term(0),
        members,
        incarnations: vec![0, 0],
        is_lost: false,
    }
}

struct Scene {
    primary: Node,
    other: Node,
    now: Duration,
    seq: u64,
}

impl Scene {
    /// With one record that both have, and a read lease of the other.
    fn granted(rules: MirrorRules) -> Self {
        let node = |target| Node::new(TargetId(target), 0, (rules, true));
        let (now, seq) = (Duration::from_secs(1), 0);
        let mut scene = Self { primary: node(1), other: node(2), now, seq };
        scene.primary.configure(&view(1, MemberConsistency::Good), now);
        scene.other.configure(&view(1, MemberConsistency::Good), now);
        // The other one has to say how much room it has.
        scene.pass(1);
        scene.append();
        scene.pass(50);
        assert!(!scene.reads(), "nothing is granted before somebody asks");
        scene.pass(2);
        assert!(scene.reads());
        scene
    }

    /// Some time passes, and messages arrive.
    fn pass(&mut self, times: usize) {
        for _ in 0..times {
            self.now += STEP;
            let until = self.now + Duration::from_secs(1);
            self.primary.lease(until);
            for _ in 0..2 {
                for (from, to) in [(0, 1), (1, 0)] {
                    let mut out = Out::default();
                    let nodes = [&mut self.primary, &mut self.other];
                    nodes[from].settle(self.now, &mut out);
                    for packet in out.packets {
                        let (mut body, mut payload) = (Vec::new(), Vec::new());
                        packet.append(&mut body, &mut payload);
                        nodes[to].message(&body, &payload, self.now);
                    }
                }
            }
        }
    }

    fn call(&mut self, action: CallAction) -> Call {
        self.seq += 1;
        Call { client: 0, seq: self.seq, action, token: self.seq, is_retry: false }
    }

    /// A change; the position that its answer waits for.
    fn append(&mut self) -> Option<CommitPosition> {
        let call = self.call(CallAction::Append { key: 1 });
        let now = self.now + self.primary.ahead;
        let at = ApplyTime { now, lease_until: now + Duration::from_secs(1) };
        let mirrored = &mut self.primary.mirrored;
        let (outcome, commit_position) = call.carry_out(CLIENT, |client, context, operation| {
            mirrored.apply(client, context, operation, &mut NoGrants, at)
        });
        assert!(matches!(said(&outcome), Said::Done), "{outcome:?}");
        commit_position
    }

    /// Whether the other member answers a read now.
    fn reads(&mut self) -> bool {
        let call = self.call(CallAction::Read { key: 1 });
        let at = ApplyTime { now: self.now, lease_until: Duration::ZERO };
        let mirrored = &mut self.other.mirrored;
        let (outcome, commit_position) = call.carry_out(CLIENT, |client, context, operation| {
            mirrored.apply(client, context, operation, &mut NoGrants, at)
        });
        commit_position.is_none() && matches!(said(&outcome), Said::Value(_))
    }

    /// The primary's clock jumps, and it goes on without the other member, which hears nothing any more. Whether that still answers when a change is committed.
    fn answers_too_late(&mut self) -> bool {
        self.primary.ahead = Duration::from_secs(5);
        let without = view(2, MemberConsistency::NeedsResync);
        self.primary.configure(&without, self.now);
        let commit_position = self.append();
        let waits = |scene: &Self| {
            commit_position
                .is_some_and(|t| scene.primary.mirrored.commit_status(t) != CommitStatus::Committed)
        };
        for _ in 0..200 {
            if !waits(self) {
                return self.reads();
            }
            self.now += STEP;
            self.primary.settle(self.now, &mut Out::default());
        }
        panic!("it is never committed");
    }
}

#[test]
fn granted_reads_outlast_a_jump_of_the_clock() {
    assert!(!Scene::granted(MirrorRules::default()).answers_too_late());
}

#[test]
fn whoever_trusts_its_clock_goes_on_too_early() {
    let rules = MirrorRules { trusts_jumps: true, ..MirrorRules::default() };
    assert!(Scene::granted(rules).answers_too_late());
}
