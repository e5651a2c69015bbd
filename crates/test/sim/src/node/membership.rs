//! A node's part in the cluster: heartbeats and the lease that answers them, maps, and the reports
//! of its primaries.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use samite_coordinator::ClusterTiming;
use samite_mirror::{MirrorEffect, MirroredPartition};
use samite_placement::ClusterMap;
use samite_types::{Epoch, ErrorKind, PartitionId, Redundancy, RequestId, Result, TargetId, Term};
use samite_wire::control::{ControlReply, ControlRequest};
use samite_wire::delta::MapDelta;
use samite_wire::membership::{Heartbeat, MemberChanges, MemberReport, NodeLease, NodeStanding};

use super::SimNode;
use crate::message::SimMessage;
use crate::net::ProcessPlace;
use crate::process::ProcessContext;

/// How long an instance may take over an answer; after it, the question counts as lost.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);
/// How long one question for the next map stays under way.
const WATCH_MAX: Duration = Duration::from_secs(2);

/// A request to a coordinator instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AskedInstance {
    Beat,
    Join,
    Map,
    Watch,
    Report,
}

type ReportKey = (Redundancy, PartitionId, TargetId);

/// A node's knowledge of the cluster beside the map.
#[derive(Debug)]
pub(super) struct SimMembership {
    coordinators: u32,
    timing: ClusterTiming,
    lease_until: Duration,
    next_beat: Duration,
    /// When the newest heartbeat that a leader has answered was sent.
    answered: Option<Duration>,
    /// The instance that answered as leader last.
    leader: Option<ProcessPlace>,
    /// Questions under way: when each was sent, and its kind.
    asked: BTreeMap<RequestId, (Duration, ProcessPlace, AskedInstance)>,
    /// Reports of primaries that the leader has not answered.
    reports: BTreeMap<ReportKey, MemberReport>,
    /// The report under way.
    reported: Vec<MemberReport>,
    next_request: u64,
}

impl SimMembership {
    pub(super) const fn new(coordinators: u32, incarnation: u64) -> Self {
        Self {
            coordinators,
            timing: ClusterTiming::DEFAULT,
            lease_until: Duration::ZERO,
            next_beat: Duration::ZERO,
            answered: None,
            leader: None,
            asked: BTreeMap::new(),
            reports: BTreeMap::new(),
            reported: Vec::new(),
            next_request: incarnation << 20,
        }
    }

    pub(super) const fn lease_until(&self) -> Duration {
        self.lease_until
    }

    pub(super) const fn next_heartbeat(&self) -> Duration {
        self.next_beat
    }

    /// A primary noticed something of a member of its group.
    pub(super) fn noticed(
        &mut self,
        (redundancy, partition): (Redundancy, PartitionId),
        (term, epoch): (Term, Epoch),
        effect: &MirrorEffect,
    ) {
        let (target, change) = match effect {
            MirrorEffect::Missed { target, .. } => (*target, MemberChanges::Missed),
            MirrorEffect::Synced { target } => (*target, MemberChanges::Synced),
            MirrorEffect::Broken { target, .. } => (*target, MemberChanges::Broken),
            _ => return,
        };
        let report = MemberReport { redundancy, partition, term, epoch, target, change };
        self.reports.insert((redundancy, partition, target), report);
    }

    pub(super) fn broken(&mut self, peer: ProcessPlace) {
        if self.leader == Some(peer) {
            self.leader = None;
        }
        self.asked.retain(|_, (_, place, _)| *place != peer);
    }

    fn ask(
        &mut self,
        place: ProcessPlace,
        what: AskedInstance,
        request: &ControlRequest,
        context: &mut ProcessContext<'_>,
    ) {
        self.next_request += 1;
        let id = RequestId(self.next_request);
        self.asked.insert(id, (context.now, place, what));
        context.send(place, SimMessage::control(id, request));
    }

    fn is_asking(&self, what: AskedInstance) -> bool {
        self.asked.values().any(|(_, _, asked)| *asked == what)
    }

    fn forget_lost(&mut self, now: Duration) {
        self.asked.retain(|_, (sent, _, what)| {
            let patience = if *what == AskedInstance::Watch { WATCH_MAX } else { ANSWER_TIMEOUT };
            now < *sent + patience
        });
    }
}

impl SimNode {
    /// Says that it lives, to all instances.
    pub(super) fn heartbeat(&mut self, context: &mut ProcessContext<'_>) {
        let serves = self.epoch();
        let membership = &mut self.membership;
        let led_until = membership.answered.map(|sent| sent + membership.timing.lease);
        let heartbeat = Heartbeat {
            node: self.info.node,
            incarnation: self.info.incarnation,
            serves,
            is_led: led_until.is_some_and(|until| context.now <= until),
        };
        membership.forget_lost(context.now);
        membership.next_beat = context.now + membership.timing.heartbeat;
        for instance in 0..membership.coordinators {
            let request = ControlRequest::Heartbeat(heartbeat);
            membership.ask(
                ProcessPlace::Coordinator(instance),
                AskedInstance::Beat,
                &request,
                context,
            );
        }
        self.watch(context);
    }

    /// Sees to it that one question for the next map is under way.
    fn watch(&mut self, context: &mut ProcessContext<'_>) {
        let known = self.epoch();
        let Some(leader) = self.membership.leader.filter(|_| known > Epoch(0)) else { return };
        if !self.membership.is_asking(AskedInstance::Watch) {
            let request = ControlRequest::Watch { node: self.info.node, known };
            self.membership.ask(leader, AskedInstance::Watch, &request, context);
        }
    }

    /// Takes reports of primaries to the leader, until it has answered. A report must be true at
    /// this time.
    pub(super) fn report(&mut self, context: &mut ProcessContext<'_>) {
        let known = self.epoch();
        let Some(leader) = self.membership.leader else { return };
        if self.membership.reports.is_empty() || self.membership.is_asking(AskedInstance::Report) {
            return;
        }
        let (slots, now) = (&mut self.slots, context.now);
        self.membership.reports.retain(|_, report| {
            let of_group = slots.iter_mut().filter(|((_, partition), slot)| {
                *partition == report.partition && slot.redundancy == report.redundancy
            });
            let mut group: Vec<_> = of_group.map(|(_, slot)| &mut slot.mirrored).collect();
            let leads = |one: &MirroredPartition| one.is_primary() || one.is_catching_up();
            let is_mine = group.iter().any(|one| leads(one) && one.term() == report.term);
            let is_ready = report.change != MemberChanges::Synced
                || group.iter_mut().all(|one| one.ready(report.target, now));
            if report.change == MemberChanges::Synced {
                // It is ready by the newest map.
                report.epoch = known;
            }
            is_mine && is_ready
        });
        let reports: Vec<MemberReport> = self.membership.reports.values().copied().collect();
        if reports.is_empty() {
            return;
        }
        self.membership.reported.clone_from(&reports);
        let request = ControlRequest::Report { node: self.info.node, known, reports };
        self.membership.ask(leader, AskedInstance::Report, &request, context);
    }

    /// An instance has answered.
    pub(super) fn told(
        &mut self,
        from: ProcessPlace,
        id: RequestId,
        reply: ControlReply,
        context: &mut ProcessContext<'_>,
    ) {
        let Some((sent, _, asked)) = self.membership.asked.remove(&id) else { return };
        match reply {
            ControlReply::Lease(lease) => self.granted(from, sent, &lease, context),
            ControlReply::Map(data) => {
                if asked == AskedInstance::Report {
                    let by = data.as_ref().map_or(self.epoch(), |data| data.epoch);
                    self.reported(by, context.now);
                }
                if let Some(data) = data {
                    self.newer(ClusterMap::new(data), context);
                }
            }
            ControlReply::MapDelta(delta) => {
                if asked == AskedInstance::Report {
                    self.reported(delta.to, context.now);
                }
                self.changed(from, &delta, context);
            }
            ControlReply::NotLeader { .. } if self.membership.leader == Some(from) => {
                self.membership.leader = None;
            }
            _ => {}
        }
        self.watch(context);
    }

    fn granted(
        &mut self,
        from: ProcessPlace,
        sent: Duration,
        lease: &NodeLease,
        context: &mut ProcessContext<'_>,
    ) {
        let membership = &mut self.membership;
        membership.leader = Some(from);
        membership.answered = membership.answered.max(Some(sent));
        if lease.term_us > 0 {
            let until = sent + Duration::from_micros(lease.term_us);
            membership.lease_until = membership.lease_until.max(until);
        }
        if lease.standing == NodeStanding::Stranger && !membership.is_asking(AskedInstance::Join) {
            let request = ControlRequest::Join { info: self.info.clone(), before: 0 };
            return membership.ask(from, AskedInstance::Join, &request, context);
        }
        let known = self.epoch();
        if lease.epoch > known && !self.membership.is_asking(AskedInstance::Map) {
            self.membership.ask(from, AskedInstance::Map, &ControlRequest::Map { known }, context);
        }
    }

    /// The leader has answered the report under way, with the map of `by`.
    fn reported(&mut self, by: Epoch, now: Duration) {
        let reported = std::mem::take(&mut self.membership.reported);
        for report in reported.iter().filter(|report| report.change == MemberChanges::Missed) {
            let of_group = self.slots.iter_mut().filter(|((_, partition), slot)| {
                *partition == report.partition && slot.redundancy == report.redundancy
            });
            for (_, slot) in of_group {
                let said = (report.term, report.epoch);
                slot.mirrored.missed_answered(report.target, said, by, now);
            }
        }
        self.membership.reports.retain(|_, report| !reported.contains(report));
    }

    fn changed(&mut self, from: ProcessPlace, delta: &MapDelta, context: &mut ProcessContext<'_>) {
        let Some(map) = self.map.clone() else { return };
        if delta.to <= map.epoch() {
            return;
        }
        match map.with(delta) {
            Ok(newer) => {
                self.newer(Ok(newer), context);
                if self.epoch() == delta.to {
                    self.history.add(delta.clone());
                }
            }
            Err(_) => {
                let whole = ControlRequest::Map { known: Epoch(0) };
                self.membership.ask(from, AskedInstance::Map, &whole, context);
            }
        }
    }

    fn newer(&mut self, map: Result<ClusterMap>, context: &mut ProcessContext<'_>) {
        match map {
            Ok(map) if map.epoch() <= self.epoch() => {}
            // It speaks of the process before this one, which had records that this one has not.
            Ok(map) if !self.is_named_by(&map) => {}
            Ok(map) => self.take_up(Arc::new(map), context),
            Err(error) => context.audit.violate("maps are lawful", error.to_string()),
        }
    }

    fn is_named_by(&self, map: &ClusterMap) -> bool {
        let info = map.node(self.info.node);
        info.is_none_or(|info| info.incarnation == self.info.incarnation)
    }

    /// Answers a client that looks for a newer map.
    pub(super) fn control(&self, request: &ControlRequest) -> ControlReply {
        match request {
            ControlRequest::Map { known } => self
                .map
                .as_ref()
                .map_or(ControlReply::Map(None), |map| self.history.answer(map, *known)),
            _ => ControlReply::failed(ErrorKind::Unsupported, "not simulated"),
        }
    }
}
