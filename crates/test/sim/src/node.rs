//! A node: the work of its shards, in the simplest form, with one thread and no socket.
//!
//! `node/membership.rs` beside this file has its part in the cluster: lease, map, reports; `node/flash.rs` its disk.

mod flash;
mod membership;
mod opening;
mod target;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use samite_backend::Backend;
use samite_backend::failing::{CallFailure, FailingBackend};
use samite_mirror::durable::Recovered;
use samite_mirror::{
    ApplyTime, CommitPosition, CommitStatus, GroupView, MirrorEffect, MirroredPartition, PeerPacket,
};
use samite_partition::{AppliedOutcome, NoGrants, RequestContext as OpContext};
use samite_placement::{ClusterMap, MapHistory};
use samite_types::{
    ClientId, DatasetId, Epoch, ErrorKind, NodeId, PartitionId, Redundancy, RequestId, TargetId,
};
use samite_wire::control::{self, NodeInfo, ReadsKind};
use samite_wire::op::OperationRequest;
use samite_wire::peer::PeerMessages;

use crate::message::SimMessage;
use crate::net::ProcessPlace;
use crate::process::{ProcessContext, SimDisk, SimProcess};
use crate::reply;
use crate::rng::SimRng;
use crate::rules::{BrokenRule, RunRules};
use crate::scenario::RunScenario;
use crate::store::HeapBackend;
use flash::SimFlash;
use membership::SimMembership;
use target::SimTarget;

/// Bytes of records that a simulated target may keep: its reserve is 128 of them.
const CAPACITY: u64 = 8 << 10;
/// Of one that nothing fills.
const CAPACITY_AMPLE: u64 = 1 << 30;

/// How often a primary sends a step of a resync, at most.
const RESYNC_PAUSE: Duration = Duration::from_millis(1);
/// Most replies of a partition that wait for members.
const HELD_MAX: usize = 4096;

type SlotId = (DatasetId, PartitionId);

/// A deferred reply: it waits until what it has seen is committed.
struct SimDeferredReply {
    commit_position: CommitPosition,
    to: ProcessPlace,
    id: RequestId,
    is_mutation: bool,
    body: Vec<u8>,
    payload: Vec<u8>,
}

/// One partition here.
struct SimPartition {
    mirrored: MirroredPartition,
    redundancy: Redundancy,
    held: VecDeque<SimDeferredReply>,
}

/// A node process.
pub struct SimNode {
    info: NodeInfo,
    me: TargetId,
    rules: RunRules,
    resync_step_len: usize,
    heap: HeapBackend,
    /// Opens partitions: in the heap, or in a target that remembers.
    backend: Box<dyn Backend>,
    /// A call of a store fails.
    failure: CallFailure,
    /// Most calls before that; 0: none fails.
    failing: u64,
    /// From then on none fails, and no disk is full.
    well_at: Duration,
    /// When its disk is full.
    full: Vec<(Duration, Duration)>,
    /// How long a commit takes, at most; `None`: the target does not remember.
    commit_us: Option<u64>,
    target: Option<SimTarget>,
    /// A partition could not be opened.
    lacks_slots: bool,
    /// The space of the target that something else takes, and until when.
    taken: Option<(u64, Duration)>,
    map: Option<Arc<ClusterMap>>,
    history: MapHistory,
    slots: BTreeMap<SlotId, SimPartition>,
    membership: SimMembership,
    /// Messages to other nodes that leave together.
    outgoing: BTreeMap<TargetId, Vec<PeerPacket>>,
    resync_at: Duration,
    /// How long a batch takes to get to flash, at most; `None`: nothing is logged.
    flash_us: Option<u64>,
    flash: Option<SimFlash>,
    /// The state that a restart has left, until a map says which partitions are to be opened.
    recovered: Recovered,
}

impl SimNode {
    /// A node with nothing in memory.
    #[must_use]
    pub fn new(info: NodeInfo, scenario: &RunScenario) -> Self {
        let me = info.targets[0].target;
        let membership = SimMembership::new(scenario.coordinators, info.incarnation);
        let room = scenario.room.get(info.node.get() as usize).copied();
        let heap = HeapBackend::new(room.map_or(CAPACITY_AMPLE, |_| CAPACITY));
        let failure = CallFailure::default();
        let backend = FailingBackend::new(Box::new(heap.clone()), failure.clone());
        let node = info.node.get();
        let taken = room.map(|room| {
            let taken = heap.quota().charge_some(heap.quota().free().saturating_sub(room));
            (taken, scenario.well_at())
        });
        Self {
            info,
            me,
            rules: scenario.rules,
            resync_step_len: scenario.resync_step_len,
            heap,
            backend: Box::new(backend),
            failure,
            failing: scenario.failing.get(node as usize).copied().unwrap_or_default(),
            well_at: scenario.well_at(),
            full: scenario.full_of(node),
            commit_us: scenario.commit_us,
            target: None,
            lacks_slots: false,
            taken,
            map: None,
            history: MapHistory::default(),
            slots: BTreeMap::new(),
            membership,
            outgoing: BTreeMap::new(),
            resync_at: Duration::ZERO,
            flash_us: scenario.flash_us,
            flash: None,
            recovered: Recovered::new(),
        }
    }

    /// Opens its disk, and reads its contents.
    fn recover(&mut self, context: &mut ProcessContext<'_>) {
        if self.failing > 0 && context.world_now < self.well_at {
            self.failure.set(context.rng.between(1, self.failing));
        }
        if let Some(commit_us) = self.commit_us {
            let failing = (&self.failure, context.rng.chance(500));
            match SimTarget::open(&context.disk.rows, commit_us, failing, self.rules) {
                Ok((target, backend)) => (self.target, self.backend) = (Some(target), backend),
                Err(error) => return context.stop(&format!("open the target: {error}")),
            }
        }
        let Some(flash_us) = self.flash_us else { return };
        let parts =
            (self.info.targets[0].storage, flash_us, self.rules.breaks(BrokenRule::EarlyFlash));
        let opened = SimFlash::open(&context.disk.flash, parts, &mut |id| self.member(id));
        match opened {
            Ok((flash, recovered)) => {
                context.note(|| format!("recovers {:?}", recovered.values()));
                (self.flash, self.recovered) = (Some(flash), recovered);
            }
            Err(error) => context.audit.violate("disks read back", error.to_string()),
        }
    }

    /// Its id.
    #[must_use]
    pub const fn id(&self) -> NodeId {
        self.info.node
    }

    /// The map by which it serves.
    #[must_use]
    pub const fn map(&self) -> Option<&Arc<ClusterMap>> {
        self.map.as_ref()
    }

    /// A partition of the simulated dataset, if it has it.
    #[must_use]
    pub fn partition(&self, partition: PartitionId) -> Option<&MirroredPartition> {
        self.slots.iter().find(|((_, id), _)| *id == partition).map(|(_, slot)| &slot.mirrored)
    }

    fn epoch(&self) -> Epoch {
        self.map.as_ref().map_or(Epoch(0), |map| map.epoch())
    }

    /// Serves a request. `None`: its reply is deferred.
    fn serve(
        &mut self,
        to: ProcessPlace,
        id: RequestId,
        client: ClientId,
        (body, payload): (&[u8], &[u8]),
        context: &mut ProcessContext<'_>,
    ) -> Option<reply::Encoded> {
        let epoch = self.epoch();
        let Ok(request) = OperationRequest::decode(body, payload) else {
            context.audit.violate("requests decode", format!("at {}", self.info.node));
            return Some(reply::refusal(ErrorKind::Corrupt, epoch));
        };
        // Simulated clients send one operation at a time.
        let (header, operation) = (&request.header, &request.operations[0]);
        let slot_id = (header.dataset, operation.partition);
        if let Err(kind) = self.admit(header.map_epoch, slot_id, operation.only_reads()) {
            return Some(reply::refusal(kind, epoch));
        }
        let at = ApplyTime { now: context.now, lease_until: self.membership.lease_until() };
        let Some(slot) = self.slots.get_mut(&slot_id) else {
            return Some(reply::refusal(ErrorKind::Busy, epoch));
        };
        if slot.held.len() == HELD_MAX {
            return Some(reply::refusal(ErrorKind::Busy, epoch));
        }
        let op_context = OpContext {
            answered_below: header.answered_below,
            is_retry: header.is_retry,
            name_space_generation: header.name_space_generation,
            body_len_max: 64 << 10,
            now: context.now,
            delegation_term_max: Duration::ZERO,
            reads_in_place: false,
            grants_all_delegations: false,
        };
        let (outcome, commit_position) =
            slot.mirrored.apply(client, &op_context, operation, &mut NoGrants, at);
        if matches!(outcome, AppliedOutcome::Done(_)) {
            context.history.done(id, context.world_now);
        }
        let is_mutation = operation.is_mutation();
        let (body, payload) = reply::encode(&[outcome], epoch);
        let now = match commit_position {
            None => Some((body, payload)),
            Some(commit_position) => {
                slot.held.push_back(SimDeferredReply {
                    commit_position,
                    to,
                    id,
                    is_mutation,
                    body,
                    payload,
                });
                None
            }
        };
        self.carry_out(slot_id, context);
        now
    }

    /// Checks that this node may serve the partition, by the newest map it has.
    fn admit(
        &self,
        known: Epoch,
        (dataset, partition): SlotId,
        only_reads: bool,
    ) -> std::result::Result<(), ErrorKind> {
        let map = self.map.as_ref().ok_or(ErrorKind::Busy)?;
        let is_behind = known > map.epoch();
        let unknown = if is_behind { ErrorKind::Busy } else { ErrorKind::NotFound };
        let dataset = map.dataset_by_id(dataset).ok_or(unknown)?;
        let by_members = dataset.spec.reads == ReadsKind::Any && only_reads;
        let reads_anywhere = self.rules.mirror().reads_anywhere || by_members;
        match map.target_of(dataset.spec.redundancy, partition) {
            Some(target) if target == self.me => Ok(()),
            Some(_) if reads_anywhere && self.slots.contains_key(&(dataset.id, partition)) => {
                Ok(())
            }
            Some(_) if is_behind => Err(ErrorKind::Busy),
            Some(_) => Err(ErrorKind::StaleMap),
            None => Err(ErrorKind::Invalid),
        }
    }

    /// Takes up a newer map.
    fn take_up(&mut self, map: Arc<ClusterMap>, context: &mut ProcessContext<'_>) {
        context.audit.saw_map(context.place, map.epoch(), context.world_now);
        self.map = Some(map);
        self.open_all(context);
    }

    /// Opens the partitions of which this node is a member by its map, has all take up the map, and
    /// lets go of the others.
    fn open_all(&mut self, context: &mut ProcessContext<'_>) {
        let Some(map) = self.map.clone() else { return };
        let epoch = map.epoch();
        self.lacks_slots = false;
        let stored = self.target.as_mut().map(SimTarget::take_stored).unwrap_or_default();
        for dataset in map.datasets() {
            let Some(table) = map.table(dataset.spec.redundancy) else { continue };
            for (group, partition) in table.groups.iter().zip((0..).map(PartitionId)) {
                let is_member = group.members.iter().any(|member| member.target == self.me);
                let slot_id = (dataset.id, partition);
                let is_wanted = is_member || self.recovered.contains_key(&slot_id);
                if is_wanted && !self.slots.contains_key(&slot_id) {
                    match self.open(slot_id, &dataset.spec) {
                        Ok(slot) => drop(self.slots.insert(slot_id, slot)),
                        Err(error) => {
                            context.note(|| format!("opens {slot_id:?}: {error}"));
                            self.lacks_slots = true;
                        }
                    }
                }
                if let Some(slot) = self.slots.get_mut(&slot_id) {
                    let view = GroupView::new(epoch, group, |target| map.incarnation_of(target));
                    let is_lost = map.is_lost(dataset.id, partition)
                        && !self.rules.breaks(BrokenRule::LossUntold);
                    let view = GroupView { is_lost, ..view };
                    slot.mirrored.configure(&view, context.now);
                    self.carry_out(slot_id, context);
                }
                if !is_member {
                    self.let_go(slot_id, stored.contains(&slot_id));
                }
            }
        }
    }

    /// Carries out the effects of a partition.
    fn carry_out(&mut self, slot_id: SlotId, context: &mut ProcessContext<'_>) {
        let Some(slot) = self.slots.get_mut(&slot_id) else { return };
        while let Some(effect) = slot.mirrored.next_effect() {
            match effect {
                MirrorEffect::Send(packet) => {
                    self.outgoing.entry(packet.to()).or_default().push(packet)
                }
                MirrorEffect::Append(entry) => {
                    if let Some(flash) = &mut self.flash {
                        flash.append(slot_id, &entry);
                    }
                }
                MirrorEffect::Discard => {
                    if let Some(flash) = &mut self.flash {
                        flash.discard(slot_id);
                    }
                }
                MirrorEffect::Checkpoint => {
                    if let Some(flash) = &mut self.flash {
                        flash.want_checkpoint(slot_id);
                    }
                }
                MirrorEffect::Committed | MirrorEffect::Leads | MirrorEffect::Deposed => {}
                MirrorEffect::Missed { kind: ErrorKind::NoSpace, target } => {
                    let words = format!("{:?}: {target}", slot.mirrored);
                    context.audit.violate("no member is dropped for want of room", words);
                }
                effect => {
                    let term = slot.mirrored.term();
                    let epoch = self.map.as_ref().map_or(Epoch(0), |map| map.epoch());
                    context.note(|| format!("{:?}: {effect:?}", slot.mirrored));
                    let group = (slot.redundancy, slot_id.1);
                    self.membership.noticed(group, (term, epoch), &effect);
                }
            }
        }
        Self::release(slot_id, slot, self.map.as_ref(), context);
    }

    /// Sends the replies whose fate is known.
    fn release(
        slot_id: SlotId,
        slot: &mut SimPartition,
        map: Option<&Arc<ClusterMap>>,
        context: &mut ProcessContext<'_>,
    ) {
        let epoch = map.map_or(Epoch(0), |map| map.epoch());
        while let Some(held) = slot.held.front() {
            let status = slot.mirrored.commit_status(held.commit_position);
            if status == CommitStatus::Waiting {
                break;
            }
            let Some(SimDeferredReply { to, id, is_mutation, body, payload, .. }) =
                slot.held.pop_front()
            else {
                break;
            };
            if status == CommitStatus::Lost {
                let (body, payload) = reply::refusal(ErrorKind::StaleMap, epoch);
                context.send(to, SimMessage::Reply { id, body, payload });
                continue;
            }
            if is_mutation {
                let (dataset, partition) = slot_id;
                let (place, now, term) = (context.place, context.world_now, slot.mirrored.term());
                context.audit.acknowledged(place, dataset, partition, term, now);
            }
            context.send(to, SimMessage::Reply { id, body, payload });
        }
    }

    fn peer(
        &mut self,
        from: ProcessPlace,
        (body, payload): (&[u8], &[u8]),
        context: &mut ProcessContext<'_>,
    ) {
        for message in PeerMessages::new(body, payload) {
            let Ok((envelope, message)) = message else {
                return context.audit.violate("messages decode", format!("from {from}"));
            };
            let slot_id = (envelope.dataset, envelope.partition);
            if let Some(slot) = self.slots.get_mut(&slot_id) {
                slot.mirrored.set_lease(self.membership.lease_until());
                slot.mirrored.receive(&envelope, &message, context.now);
                self.carry_out(slot_id, context);
            }
        }
    }

    /// Lets time pass for all partitions, and resyncs go on.
    fn tick(&mut self, context: &mut ProcessContext<'_>) {
        let now = context.now;
        if self.lacks_slots {
            self.open_all(context);
        }
        if let Some((taken, _)) = self.taken.take_if(|(_, until)| context.world_now >= *until) {
            self.heap.quota().uncharge(taken);
        }
        let resyncs = now >= self.resync_at;
        let ids: Vec<SlotId> = self.slots.keys().copied().collect();
        for slot_id in ids {
            let Some(slot) = self.slots.get_mut(&slot_id) else { continue };
            let mut is_due = false;
            if slot.mirrored.next_tick().is_some_and(|at| at <= now) {
                slot.mirrored.tick(now);
                is_due = true;
            }
            if resyncs && slot.mirrored.resyncing().next().is_some() {
                slot.mirrored.resync_step(self.resync_step_len, now);
                self.resync_at = now + RESYNC_PAUSE;
                is_due = true;
            }
            if is_due {
                self.carry_out(slot_id, context);
            }
        }
    }

    /// Lets the disk do its work, and tells partitions which entries have come to be on it.
    fn step_flash(&mut self, context: &mut ProcessContext<'_>) {
        let Self { flash: Some(flash), slots, .. } = self else { return };
        let stepped = flash.step(context.now, context.rng, &mut |id, use_it| {
            if let Some(slot) = slots.get_mut(&id) {
                use_it(&mut slot.mirrored);
            }
        });
        let there = match stepped {
            Ok(there) => there,
            Err(error) => {
                return context.audit.violate("disks take what they are given", error.to_string());
            }
        };
        for (slot_id, position) in there {
            if let Some(slot) = self.slots.get_mut(&slot_id) {
                slot.mirrored.logged(position);
                self.carry_out(slot_id, context);
            }
        }
    }

    /// At the end of every request batch: the collected messages leave, and the next batch is
    /// planned.
    fn end_turn(&mut self, context: &mut ProcessContext<'_>) {
        self.report(context);
        self.step_flash(context);
        self.step_target(context);
        for (target, packets) in std::mem::take(&mut self.outgoing) {
            let (mut body, mut payload) = (Vec::new(), Vec::new());
            packets.iter().for_each(|packet| packet.append(&mut body, &mut payload));
            context.send(ProcessPlace::Node(target.get()), SimMessage::Peer { body, payload });
        }
        let ticks = self.slots.values().filter_map(|slot| slot.mirrored.next_tick()).min();
        ticks.into_iter().for_each(|at| context.wake_at(at));
        if self.slots.values().any(|slot| slot.mirrored.resyncing().next().is_some()) {
            context.wake_at(self.resync_at.max(context.now));
        }
        let flash = self.flash.as_ref().and_then(|flash| flash.next_step(context.now));
        let target = self.next_target_step();
        flash.into_iter().chain(target).for_each(|at| context.wake_at(at));
        context.wake_at(self.membership.next_heartbeat());
    }
}

impl SimProcess for SimNode {
    fn start(&mut self, context: &mut ProcessContext<'_>) {
        self.trouble(context);
        self.recover(context);
        self.heartbeat(context);
        self.end_turn(context);
    }

    fn receive(
        &mut self,
        from: ProcessPlace,
        message: SimMessage,
        context: &mut ProcessContext<'_>,
    ) {
        self.trouble(context);
        match message {
            SimMessage::Request { id, client, body, payload } => {
                let served = self.serve(from, id, client, (&body, &payload), context);
                if let Some((body, payload)) = served {
                    context.send(from, SimMessage::Reply { id, body, payload });
                }
            }
            SimMessage::Peer { body, payload } => self.peer(from, (&body, &payload), context),
            SimMessage::Control { id, body } => {
                let reply = match control::decode(&body) {
                    Ok(request) => self.control(&request),
                    Err(_) => control::ControlReply::failed(ErrorKind::Corrupt, "control request"),
                };
                context.send(from, SimMessage::control_reply(id, &reply));
            }
            SimMessage::ControlReply { id, body } => {
                if let Ok(reply) = control::decode(&body) {
                    self.told(from, id, reply, context);
                }
            }
            SimMessage::Reply { .. }
            | SimMessage::Keeper { .. }
            | SimMessage::KeeperReply { .. } => {}
            SimMessage::Vote { .. } => {}
        }
        self.tick(context);
        self.end_turn(context);
    }

    fn broken(&mut self, peer: ProcessPlace, context: &mut ProcessContext<'_>) {
        self.membership.broken(peer);
        self.end_turn(context);
    }

    fn wake(&mut self, context: &mut ProcessContext<'_>) {
        self.trouble(context);
        if context.now >= self.membership.next_heartbeat() {
            self.heartbeat(context);
        }
        self.tick(context);
        self.end_turn(context);
    }

    fn die(&mut self, rng: &mut SimRng, _: &mut SimDisk) {
        if let Some(flash) = &mut self.flash {
            flash.die(rng);
        }
        if let Some(target) = &mut self.target {
            target.die(rng);
        }
    }
}
