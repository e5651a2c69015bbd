//! A partition that has lost its records: a record that is not there is neither said to be missing
//! nor made, until an operator has acknowledged the loss.

use std::time::Duration;

use samite_mirror::{ApplyTime, GroupView, MirrorRules};
use samite_partition::{ActionOutput, AppliedOutcome, NoGrants, RequestContext};
use samite_types::{ClientId, Epoch, ErrorKind, PartitionId, Seq, TargetId, Term};
use samite_wire::control::{GroupMember, MemberConsistency};
use samite_wire::op::{Action, Guard, Operation, ValueData};

use crate::node::Node;

struct Scene {
    node: Node,
    /// It has another member, which lacks everything.
    is_group: bool,
    seq: u64,
    epoch: u64,
}

impl Scene {
    fn new(is_group: bool) -> Self {
        let node = Node::new(TargetId(1), 0, (MirrorRules::default(), false));
        let mut scene = Self { node, is_group, seq: 0, epoch: 0 };
        scene.configure(false);
        scene
    }

    fn configure(&mut self, is_lost: bool) {
        self.epoch += 1;
        let member = |target, consistency| GroupMember { target: TargetId(target), consistency };
        let mut members = vec![member(1, MemberConsistency::Good)];
        members.extend(self.is_group.then(|| member(2, MemberConsistency::Bad)));
        let incarnations = vec![0; members.len()];
        let view =
            GroupView { epoch: Epoch(self.epoch), term: Term(0), members, incarnations, is_lost };
        self.node.configure(&view, Duration::from_secs(1));
    }

    fn try_it(&mut self, operation: Operation<'_>, is_retry: bool) -> AppliedOutcome {
        if operation.is_mutation() && !is_retry {
            self.seq += 1;
        }
        self.try_as(operation, self.seq, is_retry)
    }

    fn try_as(&mut self, mut operation: Operation<'_>, seq: u64, is_retry: bool) -> AppliedOutcome {
        operation.seq = Seq(seq);
        let context = RequestContext {
            answered_below: Seq(1),
            is_retry,
            name_space_generation: Epoch(u64::MAX),
            body_len_max: 1 << 16,
            now: Duration::ZERO,
            delegation_term_max: Duration::ZERO,
            reads_in_place: false,
            grants_all_delegations: false,
        };
        let at = ApplyTime { now: Duration::from_secs(1), lease_until: Duration::from_secs(60) };
        self.node.mirrored.apply(ClientId(1), &context, &operation, &mut NoGrants, at).0
    }

    /// Why it failed, if it did.
    fn refusal(&mut self, operation: Operation<'_>) -> Option<ErrorKind> {
        match self.try_it(operation, false) {
            AppliedOutcome::Done(_) => None,
            AppliedOutcome::Failed { kind, .. } => Some(kind),
        }
    }
}

fn one<'o>(action: Action<'o>) -> Operation<'o> {
    Operation::new(PartitionId(0), [action])
}

fn list(after: &[u8]) -> Operation<'_> {
    one(Action::List { prefix: b"k", after, limit: 9, reverse: false, value_len_max: 0 })
}

/// Operations that would say that there is no record `new`, or make it.
fn about_what_is_missing() -> Vec<Operation<'static>> {
    let (key, data) = (&b"new"[..], || ValueData::Inline(b"x"));
    vec![
        one(Action::Get { key, offset: 0, len: 9 }),
        one(Action::Put { key, data: data() }),
        one(Action::Put { key, data: data() }).guard(Guard::Absent(key)),
        one(Action::Write { key, offset: 0, data: data() }),
        one(Action::Append { key, data: data(), len_max: 99 }),
        one(Action::Add { key, offset: 0, delta: 1 }),
        one(Action::Truncate { key, len: 0 }),
        one(Action::Delete { key }).guard(Guard::Absent(b"beside")),
        one(Action::Put { key: b"k", data: data() }).guard(Guard::Exists(key)),
        one(Action::List { prefix: key, after: b"", limit: 9, reverse: false, value_len_max: 0 }),
    ]
}

#[test]
fn what_may_have_been_lost_is_neither_missing_nor_made_until_that_is_known() {
    for is_group in [false, true] {
        let mut scene = Scene::new(is_group);
        assert_eq!(scene.refusal(Operation::put(PartitionId(0), b"k", b"v")), None);
        scene.configure(true);
        for operation in about_what_is_missing() {
            let said = format!("{operation:?}");
            assert_eq!(scene.refusal(operation), Some(ErrorKind::Lost), "{said}");
        }
        // A record that is there is read and changed, and the rest is cleared away.
        assert_eq!(scene.refusal(Operation::get(PartitionId(0), b"k")), None);
        assert_eq!(scene.refusal(one(Action::Delete { key: b"new" })), None);
        assert_eq!(scene.refusal(one(Action::DeletePrefix { prefix: b"new", limit: 9 })), None);
        // A listing names the records that are there first.
        let AppliedOutcome::Done(outputs) = scene.try_it(list(b""), false) else {
            panic!("no listing")
        };
        let is_open = |output: &ActionOutput| {
            matches!(output, ActionOutput::Listing { complete: false, count: 1, .. })
        };
        assert!(outputs.iter().all(is_open), "{outputs:?}");
        assert_eq!(scene.refusal(list(b"k")), Some(ErrorKind::Lost));
        // An operation that took effect is answered as it was, also when the record is gone by
        // then.
        let removal = || one(Action::Delete { key: b"k" }).guard(Guard::Exists(b"k"));
        assert!(matches!(scene.try_it(removal(), false), AppliedOutcome::Done(_)));
        assert!(matches!(scene.try_it(removal(), true), AppliedOutcome::Done(_)));
        assert_eq!(scene.refusal(removal()), Some(ErrorKind::Lost));
        // An operation that was refused stays refused: its client knows that it has no effect.
        let put = || Operation::put(PartitionId(0), b"new", b"v");
        assert_eq!(scene.refusal(put()), Some(ErrorKind::Lost));
        let refused = scene.seq;
        assert_eq!(scene.refusal(put()), Some(ErrorKind::Lost));
        let resent = scene.seq;
        scene.try_it(put(), true);
        scene.configure(false);
        for (seq, is_retry) in [(refused, false), (resent, false), (resent, true)] {
            let outcome = scene.try_as(put(), seq, is_retry);
            assert!(
                matches!(outcome, AppliedOutcome::Failed { kind: ErrorKind::Lost, .. }),
                "{outcome:?}"
            );
        }
        assert_eq!(scene.refusal(removal()), Some(ErrorKind::Conflict));
        assert_eq!(
            scene.refusal(Operation::get(PartitionId(0), b"new")),
            Some(ErrorKind::NotFound)
        );
        assert_eq!(scene.refusal(Operation::put(PartitionId(0), b"new", b"v")), None);
    }
}
