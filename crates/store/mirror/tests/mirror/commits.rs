//! Members whose store remembers: what is committed with what, what of it counts, and what a member
//! that is opened again has.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use samite_backend::failing::{CallFailure, FailingBackend};
use samite_backend::memory_rows::MemoryRows;
use samite_backend::ordered::OrderedTarget;
use samite_backend::{Backend, CommitTarget, WriteBatch};
use samite_mirror::{
    ApplyTime, CommitPosition, CommitStatus, GroupView, MemberCommit, MirrorEffect, MirrorRules,
    MirroredPartition,
};
use samite_partition::{AppliedOutcome, NoGrants, Partition, RequestContext};
use samite_types::{ClientId, DatasetId, Epoch, ErrorKind, PartitionId, Position, Seq};
use samite_types::{TargetId, Term};
use samite_wire::control::{GroupMember, MemberConsistency};
use samite_wire::op::{Action, Operation, ValueData};
use samite_wire::peer::{PeerMessage, PeerMessages};

use crate::rng::Rng;

const NOW: Duration = Duration::from_secs(1);
const ID: (DatasetId, PartitionId) = (DatasetId(1), PartitionId(0));

/// A target, which outlives its members.
struct Target {
    id: u32,
    rows: Arc<MemoryRows>,
    failure: CallFailure,
    target: Arc<OrderedTarget>,
}

impl Target {
    fn new(id: u32) -> Self {
        let rows = Arc::<MemoryRows>::default();
        let target = OrderedTarget::open(rows.clone(), 16 << 20).expect("a target");
        Self { id, rows, failure: CallFailure::default(), target }
    }

    /// A member with what the target has, as a node opens it.
    fn open(&mut self, rules: MirrorRules) -> MirroredPartition {
        self.target = OrderedTarget::open(self.rows.clone(), 16 << 20).expect("a target");
        let backend = Box::new(self.target.backend());
        let mut backend = FailingBackend::new(backend, self.failure.clone());
        let partition = Partition::new(backend.open(ID.0, ID.1).expect("a store"));
        let mut member =
            MirroredPartition::new(partition, ID.0, ID.1, TargetId(self.id)).with_rules(rules);
        member.recover_committed().expect("what was committed can be read");
        member.set_commits();
        member
    }

    fn commit(&self, batch: &WriteBatch) {
        self.target.commit(std::slice::from_ref(batch)).expect("there is room");
    }

    /// Commits all that is to be committed, and tells the member.
    fn commit_all(&self, member: &mut MirroredPartition) {
        while let Some(commit) = member.next_commit() {
            self.commit(&commit.batch);
            member.committed_upto(commit.position);
        }
    }
}

/// A map in which the first of these leads; those of the second list need a resync.
fn view(epoch: u64, term: u32, good: &[u32], behind: &[u32]) -> GroupView {
    let member =
        |consistency| move |target: &u32| GroupMember { target: TargetId(*target), consistency };
    let members: Vec<_> = good
        .iter()
        .map(member(MemberConsistency::Good))
        .chain(behind.iter().map(member(MemberConsistency::NeedsResync)))
        .collect();
    let incarnations = vec![1; members.len()];
    GroupView { epoch: Epoch(epoch), term: Term(term), members, incarnations, is_lost: false }
}

fn put(
    member: &mut MirroredPartition,
    seq: u64,
    (key, value): (&[u8], &[u8]),
) -> (AppliedOutcome, Option<CommitPosition>) {
    let action = Action::Put { key, data: ValueData::Inline(value) };
    let mut operation = Operation::new(ID.1, [action]);
    operation.seq = Seq(seq);
    let context = RequestContext {
        answered_below: Seq(seq),
        is_retry: false,
        name_space_generation: Epoch(u64::MAX),
        body_len_max: 1 << 16,
        now: NOW,
        delegation_term_max: Duration::ZERO,
        reads_in_place: false,
        grants_all_delegations: false,
    };
    let at = ApplyTime { now: NOW, lease_until: NOW * 60 };
    member.apply(ClientId(1), &context, &operation, &mut NoGrants, at)
}

/// Records, and all that is beside them.
fn content(member: &MirroredPartition) -> Vec<u8> {
    let (mut content, mut keys) = (Vec::new(), Vec::new());
    let visited = member.partition().visit_records(b"", &mut |key, meta| {
        content.extend_from_slice(&meta.version.get().to_le_bytes());
        keys.push(key.to_vec());
        ControlFlow::Continue(())
    });
    visited.expect("no call fails");
    for key in keys {
        content.extend_from_slice(&key);
        let found = member.partition().read_record(&key).expect("no call fails");
        found.expect("it is there").1.iter().for_each(|piece| piece.append_to(&mut content));
    }
    member.export(&mut content);
    content
}

/// Messages as they travel: body and payload.
type SentMessages = VecDeque<(Vec<u8>, Vec<u8>)>;

/// Takes the effects: messages as they travel, and whether a member was reported to be broken.
fn effects(member: &mut MirroredPartition) -> (SentMessages, bool) {
    let (mut messages, mut is_broken) = (VecDeque::new(), false);
    while let Some(effect) = member.next_effect() {
        match effect {
            MirrorEffect::Send(packet) => {
                let (mut body, mut payload) = (Vec::new(), Vec::new());
                packet.append(&mut body, &mut payload);
                messages.push_back((body, payload));
            }
            MirrorEffect::Broken { .. } => is_broken = true,
            _ => {}
        }
    }
    (messages, is_broken)
}

fn receive(member: &mut MirroredPartition, (body, payload): &(Vec<u8>, Vec<u8>)) {
    for message in PeerMessages::new(body, payload) {
        let (envelope, message) = message.expect("it decodes");
        member.receive(&envelope, &message, NOW);
    }
}

/// One exchange: the primary's messages, and the answers. Returns the number of messages.
fn exchange(primary: &mut MirroredPartition, other: &mut MirroredPartition) -> usize {
    let (messages, _) = effects(primary);
    messages.iter().for_each(|message| receive(other, message));
    effects(other).0.iter().for_each(|answer| receive(primary, answer));
    messages.len()
}

/// Whatever is committed when, and whenever the node dies: a reply may leave exactly when what it
/// has seen is committed, and a member that is opened again is what was committed last.
#[test]
fn a_member_alone_comes_back_as_it_was_committed_last() {
    for seed in 0..60 {
        let (mut rng, mut target) = (Rng::new(seed), Target::new(1));
        let mut member = target.open(MirrorRules::default());
        member.configure(&view(1, 0, &[1], &[]), NOW);
        let mut epoch = 1;
        let mut committed = (Position(0), None::<Vec<u8>>);
        let mut under_way: Option<(MemberCommit, Vec<u8>)> = None;
        let mut waiting: Vec<CommitPosition> = Vec::new();
        for seq in 1..120 {
            match rng.below(10) {
                0..6 => {
                    let value = vec![seq as u8; 1 + rng.below(3000) as usize];
                    let (done, position) =
                        put(&mut member, seq, (&[b'k', rng.below(5) as u8], &value));
                    assert!(matches!(done, AppliedOutcome::Done(_)), "{done:?}");
                    waiting.push(position.expect("nothing is committed at once"));
                }
                6..8 if under_way.is_none() => {
                    let now = content(&member);
                    under_way = member.next_commit().map(|commit| (commit, now));
                }
                6..9 => {
                    if let Some((commit, content)) = under_way.take() {
                        target.commit(&commit.batch);
                        member.committed_upto(commit.position);
                        committed =
                            (commit.position.expect("a member alone is fit"), Some(content));
                    }
                }
                _ => {
                    // The batch under way is there, or it is not.
                    if let Some((commit, content)) = under_way.take().filter(|_| rng.below(2) == 0)
                    {
                        target.commit(&commit.batch);
                        committed =
                            (commit.position.expect("a member alone is fit"), Some(content));
                    }
                    member = target.open(MirrorRules::default());
                    assert_eq!(member.point().position, committed.0, "seed {seed}");
                    match &committed.1 {
                        Some(before) => assert_eq!(content(&member), *before, "seed {seed}"),
                        None => assert_eq!(member.partition().record_count(), 0),
                    }
                    epoch += 1;
                    member.configure(&view(epoch, epoch as u32, &[1], &[]), NOW);
                    waiting.clear();
                }
            }
            effects(&mut member);
            for waits in &waiting {
                let is_there = waits.position <= committed.0;
                let status = member.commit_status(*waits);
                assert_eq!(status == CommitStatus::Committed, is_there, "seed {seed}: {waits:?}");
            }
        }
    }
}

/// A primary with three records, and another member that is to be brought up to date.
fn group(primary: &mut Target) -> MirroredPartition {
    let mut member = primary.open(MirrorRules::default());
    member.configure(&view(1, 0, &[1], &[2]), NOW);
    for (seq, key) in [(1, b"a"), (2, b"b"), (3, b"c")] {
        put(&mut member, seq, (key, b"value"));
    }
    effects(&mut member);
    primary.commit_all(&mut member);
    member
}

/// Sends a step of a resync, and takes the answer. Returns whether anything was sent.
fn step(primary: &mut MirroredPartition, other: &mut MirroredPartition) -> bool {
    primary.resync_step(40, NOW);
    exchange(primary, other) > 0
}

#[test]
fn a_member_that_is_brought_up_to_date_has_no_state_before_it_has_everything() {
    let (mut first, mut second) = (Target::new(1), Target::new(2));
    let mut primary = group(&mut first);
    // It had something of its own before.
    let mut other = second.open(MirrorRules::default());
    other.configure(&view(1, 0, &[2], &[]), NOW);
    put(&mut other, 1, (b"z", b"old"));
    effects(&mut other);
    second.commit_all(&mut other);
    other.configure(&view(2, 0, &[1], &[2]), NOW);
    let mut steps = 0;
    while step(&mut primary, &mut other) && !other.is_fit() {
        steps += 1;
        while let Some(commit) = other.next_commit() {
            assert_eq!(commit.position, None, "it is not fit");
            second.commit(&commit.batch);
            other.committed_upto(commit.position);
            let mut again = Target { id: 2, rows: second.rows.clone(), ..Target::new(2) };
            let recovered = again.open(MirrorRules::default());
            assert_eq!(
                (recovered.point().position, recovered.partition().record_count()),
                (Position(0), 0)
            );
        }
    }
    assert!(steps > 2 && other.is_fit(), "{steps}");
    assert!(!primary.ready(TargetId(2), NOW), "it is not committed there");
    second.commit_all(&mut other);
    primary.tick(NOW * 2);
    exchange(&mut primary, &mut other);
    assert!(primary.ready(TargetId(2), NOW));
    let recovered = second.open(MirrorRules::default());
    assert_eq!(content(&recovered), content(&primary));
}

/// A disk that was full for as long as the resync took: the commit that was under way before it
/// says nothing of the records that there are now.
#[test]
fn a_commit_of_records_that_were_replaced_counts_for_nothing() {
    let (mut first, mut second) = (Target::new(1), Target::new(2));
    let mut primary = group(&mut first);
    let mut other = second.open(MirrorRules::default());
    other.configure(&view(1, 0, &[2], &[]), NOW);
    // As many entries as the primary has, and others.
    for (seq, key) in [(1, b"x"), (2, b"y"), (3, b"z")] {
        put(&mut other, seq, (key, b"old"));
    }
    effects(&mut other);
    let old = other.next_commit().expect("there are changes");
    assert_eq!(old.position, Some(primary.point().position));
    other.configure(&view(2, 0, &[1], &[2]), NOW);
    assert!(step(&mut primary, &mut other) && !other.is_fit());
    while !other.is_fit() {
        assert!(step(&mut primary, &mut other), "{other:?}");
    }
    second.commit(&old.batch);
    other.committed_upto(old.position);
    primary.tick(NOW * 2);
    exchange(&mut primary, &mut other);
    assert!(!primary.ready(TargetId(2), NOW * 2), "what is there is not committed");
    second.commit_all(&mut other);
    primary.tick(NOW * 3);
    exchange(&mut primary, &mut other);
    assert!(primary.ready(TargetId(2), NOW * 3));
    assert_eq!(content(&second.open(MirrorRules::default())), content(&primary));
}

/// Whether a member that has missed an entry, and then got another one that does not follow on its
/// state, commits anything.
fn commits_unfit(rules: MirrorRules) -> bool {
    let (mut first, mut second) = (Target::new(1), Target::new(2));
    let mut primary = first.open(MirrorRules::default());
    primary.configure(&view(1, 0, &[1, 2], &[]), NOW);
    let mut other = second.open(rules);
    other.configure(&view(1, 0, &[1, 2], &[]), NOW);
    put(&mut primary, 1, (b"a", b"value"));
    exchange(&mut primary, &mut other);
    second.commit_all(&mut other);
    assert!(other.is_fit() && other.next_commit().is_none());
    // The store does not answer for one entry.
    put(&mut primary, 2, (b"b", b"value"));
    second.failure.set(1);
    exchange(&mut primary, &mut other);
    assert!(!other.is_fit() && other.failed().is_none());
    // The records that it then gets belong to no entry.
    primary.configure(&view(2, 0, &[1], &[2]), NOW);
    other.configure(&view(2, 0, &[1], &[2]), NOW);
    other.next_commit().is_some_and(|commit| commit.position.is_some()) || {
        (0..4).any(|_| {
            step(&mut primary, &mut other);
            !other.is_fit()
                && other.next_commit().is_some_and(|commit| {
                    second.commit(&commit.batch);
                    other.committed_upto(commit.position);
                    commit.position.is_some()
                })
        })
    }
}

#[test]
fn a_member_that_does_not_follow_commits_no_state() {
    assert!(!commits_unfit(MirrorRules::default()));
    assert!(commits_unfit(MirrorRules { commits_unfit: true, ..MirrorRules::default() }));
}

/// Whichever call fails while a long value is written: the other member is told all of it, or
/// nothing, and then nobody is told that it is there.
#[test]
fn an_entry_has_all_its_bytes_or_there_is_none() {
    let value: Vec<u8> = (0..40_000u32).map(|at| at as u8).collect();
    let mut told = [0; 2];
    for number in 1..20 {
        let mut first = Target::new(1);
        let mut primary = first.open(MirrorRules::default());
        primary.configure(&view(1, 0, &[1, 2], &[]), NOW);
        let mut other = Target::new(2).open(MirrorRules::default());
        other.configure(&view(1, 0, &[1, 2], &[]), NOW);
        // It tells how much room it has.
        put(&mut primary, 1, (b"k", b"short"));
        for _ in 0..3 {
            exchange(&mut primary, &mut other);
        }
        first.failure.set(number);
        let (outcome, _) = put(&mut primary, 2, (b"k", &value));
        first.failure.set(0);
        let (messages, _) = effects(&mut primary);
        let mut entries = 0;
        for (body, payload) in &messages {
            for message in PeerMessages::new(body, payload) {
                let (_, message) = message.expect("it decodes");
                let PeerMessage::Entry(entry) = &message else { continue };
                let samite_wire::peer::EntryEvent::Applied { operation, .. } = &entry.event else {
                    continue;
                };
                let Action::Put { data: ValueData::Inline(bytes), .. } = &operation.actions[0]
                else {
                    panic!("{operation:?}");
                };
                assert_eq!(*bytes, value, "call {number}");
                entries += 1;
            }
        }
        let is_done = matches!(outcome, AppliedOutcome::Done(_));
        assert_eq!(entries, usize::from(is_done), "call {number}: {outcome:?}");
        assert!(is_done || primary.failed().is_none() || primary.next_commit().is_none());
        told[entries] += 1;
    }
    assert!(told.iter().all(|times| *times > 1), "{told:?}");
}

/// A resync whose source cannot be read once is tried again, and nobody is called broken.
#[test]
fn a_resync_that_cannot_be_read_is_tried_again() {
    let mut failed = 0;
    for number in 1..6 {
        let (mut first, mut second) = (Target::new(1), Target::new(2));
        let mut primary = group(&mut first);
        let mut other = second.open(MirrorRules::default());
        other.configure(&view(1, 0, &[1], &[2]), NOW);
        first.failure.set(number);
        let mut now = NOW;
        for _ in 0..200 {
            now += Duration::from_millis(100);
            primary.resync_step(40, now);
            let (messages, is_broken) = effects(&mut primary);
            assert!(!is_broken, "call {number}");
            messages.iter().for_each(|message| receive(&mut other, message));
            second.commit_all(&mut other);
            effects(&mut other).0.iter().for_each(|answer| receive(&mut primary, answer));
            primary.tick(now);
        }
        first.failure.set(0);
        failed += first.failure.failed();
        assert!(primary.ready(TargetId(2), now), "call {number}");
        assert_eq!(content(&other), content(&primary));
        assert_eq!(primary.failed(), None::<ErrorKind>);
    }
    assert!(failed > 2, "{failed}");
}
