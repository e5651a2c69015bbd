//! A node with one target, and its part of the one group.

use std::time::Duration;

use samite_backend::Backend;
use samite_backend::memory::MemoryBackend;
use samite_mirror::{
    ApplyTime, CommitPosition, CommitStatus, GroupView, MirrorEffect, MirrorRules,
    MirroredPartition, PeerPacket,
};
use samite_partition::{AppliedOutcome, NoGrants, Partition, RequestContext};
use samite_types::{ClientId, DatasetId, Epoch, ErrorKind, PartitionId, Seq, TargetId, Term};
use samite_wire::control::MemberConsistency;
use samite_wire::op::{Action, Operation};
use samite_wire::peer::PeerMessages;

use crate::client::{Call, Client, Said, said};

/// The report of a node.
#[derive(Clone, Copy, Debug)]
pub enum ReportedChange {
    Missed,
    Synced,
}

#[derive(Clone, Copy, Debug)]
pub struct Report {
    pub from: TargetId,
    pub life: u64,
    pub term: Term,
    pub epoch: Epoch,
    pub target: TargetId,
    pub change: ReportedChange,
}

/// The output of a node.
#[derive(Default)]
pub struct Out {
    pub packets: Vec<PeerPacket>,
    pub reports: Vec<Report>,
    pub answers: Vec<(Call, Said)>,
}

pub struct Node {
    pub target: TargetId,
    pub mirrored: MirroredPartition,
    /// The number of its process.
    pub life: u64,
    pub epoch: Epoch,
    /// How far its clock is ahead of the world's.
    pub ahead: Duration,
    /// By its own clock.
    lease_until: Duration,
    held: Vec<(CommitPosition, Call, Said)>,
    others: Vec<TargetId>,
    synced_at: Duration,
    _backend: MemoryBackend,
}

impl Node {
    pub fn new(target: TargetId, life: u64, ways: (MirrorRules, bool)) -> Self {
        Self::of(target, life, 4 << 20, ways)
    }

    /// With room for so many bytes.
    pub fn of(
        target: TargetId,
        life: u64,
        capacity: u64,
        (rules, reads_any): (MirrorRules, bool),
    ) -> Self {
        let mut backend = MemoryBackend::new(capacity, 1).expect("a target");
        let store = backend.open(DatasetId(1), PartitionId(0)).expect("a store");
        let partition = Partition::new(store);
        let mut mirrored = MirroredPartition::new(partition, DatasetId(1), PartitionId(0), target)
            .with_rules(rules);
        mirrored.set_reads_any(reads_any);
        Self {
            target,
            mirrored,
            life,
            epoch: Epoch(0),
            ahead: Duration::ZERO,
            lease_until: Duration::ZERO,
            held: Vec::new(),
            others: Vec::new(),
            synced_at: Duration::ZERO,
            _backend: backend,
        }
    }

    pub fn lease(&mut self, until: Duration) {
        self.lease_until = until + self.ahead;
    }

    /// It takes a member for gone.
    pub fn misses(&mut self, target: TargetId, now: Duration) {
        self.mirrored.unreachable(target, now + self.ahead);
    }

    pub fn configure(&mut self, view: &GroupView, now: Duration) {
        if view.epoch > self.epoch {
            self.epoch = view.epoch;
            self.mirrored.configure(view, now + self.ahead);
            let not_good =
                view.members.iter().filter(|member| member.consistency != MemberConsistency::Good);
            self.others = not_good.map(|member| member.target).collect();
        }
    }

    /// The owner of the map has answered a report.
    pub fn told(&mut self, report: &Report, by: Epoch, now: Duration) {
        if matches!(report.change, ReportedChange::Missed) {
            let said = (report.term, report.epoch);
            self.mirrored.missed_answered(report.target, said, by, now + self.ahead);
        }
    }

    /// One client puts a record, as its operation `seq`, while the node has its lease.
    pub fn put(
        &mut self,
        (key, value): (&[u8], &[u8]),
        seq: u64,
        now: Duration,
    ) -> (AppliedOutcome, Option<CommitPosition>) {
        self.change(Operation::put(PartitionId(0), key, value), seq, now)
    }

    pub fn delete(&mut self, key: &[u8], seq: u64, now: Duration) -> AppliedOutcome {
        self.change(Operation::new(PartitionId(0), [Action::Delete { key }]), seq, now).0
    }

    fn change(
        &mut self,
        mut operation: Operation<'_>,
        seq: u64,
        now: Duration,
    ) -> (AppliedOutcome, Option<CommitPosition>) {
        let at = ApplyTime { now, lease_until: now + Duration::from_secs(60) };
        let context = RequestContext {
            answered_below: Seq(1),
            is_retry: false,
            name_space_generation: Epoch(u64::MAX),
            body_len_max: 1 << 20,
            now: Duration::ZERO,
            delegation_term_max: Duration::ZERO,
            reads_in_place: false,
            grants_all_delegations: false,
        };
        operation.seq = Seq(seq);
        self.mirrored.apply(ClientId(9), &context, &operation, &mut NoGrants, at)
    }

    pub fn request(&mut self, call: Call, clients: &[Client], now: Duration, out: &mut Out) {
        let at = ApplyTime { now: now + self.ahead, lease_until: self.lease_until };
        let client = clients[call.client].id;
        let (outcome, commit_position) = call.carry_out(client, |client, context, operation| {
            self.mirrored.apply(client, context, operation, &mut NoGrants, at)
        });
        let said = said(&outcome);
        match commit_position {
            None => out.answers.push((call, said)),
            Some(commit_position) => self.held.push((commit_position, call, said)),
        }
    }

    pub fn message(&mut self, body: &[u8], payload: &[u8], now: Duration) {
        for message in PeerMessages::new(body, payload) {
            let (envelope, message) = message.expect("members speak the protocol");
            self.mirrored.set_lease(self.lease_until);
            self.mirrored.receive(&envelope, &message, now + self.ahead);
        }
    }

    pub fn settle(&mut self, now: Duration, out: &mut Out) {
        let now = now + self.ahead;
        self.mirrored.tick(now);
        self.mirrored.resync_step(4096, now);
        let report = |from: &Self, target, change| Report {
            from: from.target,
            life: from.life,
            term: from.mirrored.term(),
            epoch: from.epoch,
            target,
            change,
        };
        while let Some(effect) = self.mirrored.next_effect() {
            match effect {
                MirrorEffect::Send(packet) => out.packets.push(packet),
                MirrorEffect::Missed { target, .. } => {
                    out.reports.push(report(self, target, ReportedChange::Missed));
                }
                _ => {}
            }
        }
        if now >= self.synced_at + Duration::from_millis(50) {
            self.synced_at = now;
            for target in self.others.clone() {
                if self.mirrored.ready(target, now) {
                    out.reports.push(report(self, target, ReportedChange::Synced));
                }
            }
        }
        for (commit_position, call, said) in std::mem::take(&mut self.held) {
            match self.mirrored.commit_status(commit_position) {
                CommitStatus::Committed => out.answers.push((call, said)),
                CommitStatus::Lost => out.answers.push((call, Said::Failed(ErrorKind::StaleMap))),
                CommitStatus::Waiting => self.held.push((commit_position, call, said)),
            }
        }
    }
}
