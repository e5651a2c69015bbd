//! The world: nodes, a network, an owner of the map, and clients; and in the end a judge.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Duration;

use samite_mirror::{GroupView, MirrorRules, MirroredPartition};
use samite_types::{Epoch, TargetId, Term};
use samite_wire::control::{GroupMember, MemberConsistency};

use crate::client::{Call, Client, History, Said, TOKEN_LEN, key_of};
use crate::node::{Node, Out, Report, ReportedChange};
use crate::rng::Rng;

const LEASE: Duration = Duration::from_millis(1200);

/// The events, and how often they happen (in 1000 steps).
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub members: u32,
    pub clients: usize,
    pub keys: u64,
    /// Share of reads in 1000 calls.
    pub reads: u64,
    /// Members that are not the primary answer reads, too.
    pub reads_any: bool,
    pub steps: u64,
    pub loses: u64,
    pub repeats: u64,
    pub dies: u64,
    pub cuts: u64,
    /// A primary takes a member for gone that is there.
    pub breaks: u64,
    /// Something else in the map changes.
    pub changes: u64,
    /// Another member is made the primary, although nothing has happened to any.
    pub turns: u64,
    /// A clock jumps ahead.
    pub jumps: u64,
}

impl Plan {
    pub const QUIET: Self = Self {
        members: 2,
        clients: 4,
        keys: 5,
        reads: 300,
        reads_any: false,
        steps: 600,
        loses: 50,
        repeats: 50,
        dies: 0,
        cuts: 0,
        breaks: 0,
        changes: 20,
        turns: 0,
        jumps: 0,
    };
    pub const ROUGH: Self = Self { steps: 1500, dies: 6, cuts: 10, ..Self::QUIET };
}

enum WorldMessage {
    Peer {
        to: TargetId,
        body: Vec<u8>,
        payload: Vec<u8>,
    },
    Report(Report),
    Request {
        to: TargetId,
        call: Call,
    },
    Answer {
        call: Call,
        said: Said,
    },
    Map {
        to: TargetId,
        life: u64,
        view: GroupView,
    },
    /// The answer to a report, by the map of this epoch.
    Told {
        report: Report,
        by: Epoch,
    },
}

pub struct World {
    plan: Plan,
    rules: MirrorRules,
    rng: Rng,
    now: Duration,
    nodes: BTreeMap<TargetId, Node>,
    /// Dead until then.
    dead: BTreeMap<TargetId, Duration>,
    /// Cut off until then.
    cut: BTreeMap<TargetId, Duration>,
    /// The map owner's state: until when each node's lease runs.
    leases: BTreeMap<TargetId, Duration>,
    view: GroupView,
    changed: Epoch,
    /// There has been another primary since, although nothing had happened to the one before.
    turned: Epoch,
    messages: BTreeMap<(Duration, u64), WorldMessage>,
    last_message: u64,
    clients: Vec<Client>,
    history: History,
    is_idle: bool,
}

type Verdict = Result<(), String>;

impl World {
    pub fn new(seed: u64, plan: &Plan, rules: MirrorRules) -> Self {
        let ways = (rules, plan.reads_any);
        let targets: Vec<TargetId> = (1..=plan.members).map(TargetId).collect();
        let member = |target: &TargetId| GroupMember {
            target: *target,
            consistency: MemberConsistency::Good,
        };
        let members: Vec<GroupMember> = targets.iter().map(member).collect();
        let incarnations = vec![0; members.len()];
        let view =
            GroupView { epoch: Epoch(1), term: Term(0), members, incarnations, is_lost: false };
        Self {
            plan: *plan,
            rules,
            rng: Rng::new(seed),
            now: Duration::from_secs(1),
            nodes: targets.iter().map(|target| (*target, Node::new(*target, 0, ways))).collect(),
            dead: BTreeMap::new(),
            cut: BTreeMap::new(),
            leases: targets.iter().map(|target| (*target, Duration::from_secs(2))).collect(),
            view,
            changed: Epoch(1),
            turned: Epoch(1),
            messages: BTreeMap::new(),
            last_message: 0,
            clients: (0..plan.clients).map(Client::new).collect(),
            history: History::default(),
            is_idle: false,
        }
    }

    pub fn run(&mut self) -> Verdict {
        for _ in 0..self.plan.steps {
            self.mishap();
            self.step();
        }
        // Everything is mended; every client that waits must get an answer, and all members must
        // become good.
        self.is_idle = true;
        self.cut.clear();
        for _ in 0..6000 {
            self.step();
            if self.dead.is_empty() && self.is_at_rest() {
                return self.judge();
            }
        }
        Err(format!(
            "no rest: {:?}, {:?}",
            self.view,
            self.nodes.values().map(|node| &node.mirrored).collect::<Vec<_>>()
        ))
    }

    fn is_at_rest(&self) -> bool {
        let good =
            self.view.members.iter().all(|member| member.consistency == MemberConsistency::Good);
        let mut points = self.nodes.values().map(|node| node.mirrored.point());
        let first = points.next();
        good && points.all(|point| Some(point) == first)
            && self.clients.iter().all(|client| client.waiting.is_none())
    }

    /// Never the last node that has everything and can be reached.
    fn may_spare(&self, target: TargetId) -> bool {
        // A node that is about to be called late may not be counted on.
        let is_reported = |message: &WorldMessage| match message {
            WorldMessage::Report(report) => matches!(report.change, ReportedChange::Missed),
            _ => false,
        };
        if self.messages.values().any(is_reported) {
            return false;
        }
        self.view.members.iter().any(|member| {
            let node = self.nodes.get(&member.target);
            member.target != target
                && member.consistency == MemberConsistency::Good
                && !self.cut.contains_key(&member.target)
                && node.is_some_and(|node| node.epoch > Epoch(0))
        })
    }

    fn mishap(&mut self) {
        let target = TargetId(self.rng.below(u64::from(self.plan.members)) as u32 + 1);
        let until = self.now + Duration::from_millis(self.rng.below(3000));
        let (dies, is_cut) = (self.plan.dies, self.plan.cuts);
        let (dies, is_cut) = (self.rng.per_mille(dies), self.rng.per_mille(is_cut));
        let breaks = self.rng.per_mille(self.plan.breaks);
        if self.plan.jumps > 0 && self.rng.per_mille(self.plan.jumps) {
            let by = Duration::from_millis(self.rng.below(2000));
            self.nodes
                .values_mut()
                .filter(|node| node.target == target)
                .for_each(|node| node.ahead += by);
        }
        if !self.may_spare(target) {
            return;
        }
        if breaks {
            let now = self.now;
            self.nodes.values_mut().for_each(|node| node.misses(target, now));
        }
        if dies && self.nodes.remove(&target).is_some() {
            self.dead.insert(target, until);
        }
        if is_cut {
            self.cut.insert(target, until);
        }
    }

    fn step(&mut self) {
        self.now += Duration::from_micros(self.rng.below(30_000));
        let now = self.now;
        self.cut.retain(|_, until| *until > now);
        self.dead.retain(|target, until| {
            let back = *until <= now;
            if back {
                let ways = (self.rules, self.plan.reads_any);
                self.nodes.insert(*target, Node::new(*target, now.as_nanos() as u64, ways));
            }
            !back
        });
        self.keep_map();
        let mut out = Out::default();
        while let Some(entry) = self.messages.first_entry().filter(|entry| entry.key().0 <= now) {
            let message = entry.remove();
            self.deliver(message, &mut out);
        }
        for node in self.nodes.values_mut() {
            node.settle(now, &mut out);
        }
        if !self.is_idle || self.clients.iter().any(|client| client.waiting.is_some()) {
            self.call();
        }
        self.send_all(out);
    }

    fn call(&mut self) {
        let now = self.now;
        for index in 0..self.clients.len() {
            if self.is_idle && self.clients[index].waiting.is_none() {
                continue;
            }
            let (kinds, history) = ((self.plan.keys, self.plan.reads), &mut self.history);
            let client = &mut self.clients[index];
            let Some(call) = client.call(index, &mut self.rng, kinds, now, history) else {
                continue;
            };
            // Mostly by the newest map.
            let right = self.view.members[0].target;
            let any = TargetId(self.rng.below(u64::from(self.plan.members)) as u32 + 1);
            let by_map = if self.plan.reads_any { 400 } else { 800 };
            let to = if self.rng.per_mille(by_map) { right } else { any };
            self.send(WorldMessage::Request { to, call });
        }
    }

    fn send_all(&mut self, out: Out) {
        for packet in out.packets {
            let (mut body, mut payload) = (Vec::new(), Vec::new());
            packet.append(&mut body, &mut payload);
            if !self.is_idle && self.rng.per_mille(self.plan.repeats) {
                let (body, payload) = (body.clone(), payload.clone());
                self.send(WorldMessage::Peer { to: packet.to(), body, payload });
            }
            let is_lost = !self.is_idle && self.rng.per_mille(self.plan.loses);
            // A cut link is cut both ways; messages that are under way arrive.
            let from = TargetId(u32::from_le_bytes(body[16..20].try_into().expect("four bytes")));
            if !is_lost && !self.cut.contains_key(&from) && !self.cut.contains_key(&packet.to()) {
                self.send(WorldMessage::Peer { to: packet.to(), body, payload });
            }
        }
        for report in out.reports {
            if !self.cut.contains_key(&report.from) {
                self.send(WorldMessage::Report(report));
            }
        }
        for (call, said) in out.answers {
            self.send(WorldMessage::Answer { call, said });
        }
    }

    fn send(&mut self, message: WorldMessage) {
        let fast = self.rng.below(5_000);
        let slow = if self.rng.per_mille(30) { self.rng.below(900_000) } else { 0 };
        let at = self.now + Duration::from_micros(fast + slow);
        self.last_message += 1;
        self.messages.insert((at, self.last_message), message);
    }

    fn deliver(&mut self, message: WorldMessage, out: &mut Out) {
        let now = self.now;
        match message {
            WorldMessage::Peer { to, body, payload } => {
                if let Some(node) = self.nodes.get_mut(&to) {
                    node.message(&body, &payload, now);
                }
            }
            WorldMessage::Report(report) => {
                self.report(report);
                let by = self.view.epoch;
                self.send(WorldMessage::Told { report, by });
            }
            WorldMessage::Request { to, call } => {
                if let Some(node) = self.nodes.get_mut(&to) {
                    node.request(call, &self.clients, now, out);
                }
            }
            WorldMessage::Answer { call, said } => {
                self.clients[call.client].answered(&call, &said, now, &mut self.history);
            }
            WorldMessage::Told { report, by } => {
                if let Some(node) = self.nodes.get_mut(&report.from)
                    && node.life == report.life
                {
                    node.told(&report, by, now);
                }
            }
            WorldMessage::Map { to, life, view } => {
                if let Some(node) = self.nodes.get_mut(&to).filter(|node| node.life == life) {
                    node.configure(&view, now);
                }
            }
        }
    }

    /// Leases, and the consequences of their end.
    fn keep_map(&mut self) {
        let now = self.now;
        for (target, node) in &mut self.nodes {
            let is_stranger = is_stranger(node, &self.view);
            // A node whose lease was over may have been a primary, and not know that it is none.
            let was_gone = self.leases.get(target).is_none_or(|until| *until < now);
            let is_behind = was_gone && node.epoch < self.changed;
            if !self.cut.contains_key(target) && !is_stranger && !is_behind {
                node.lease(now + LEASE);
                self.leases.insert(*target, now + LEASE);
            }
        }
        if !self.is_idle && self.rng.per_mille(self.plan.changes) {
            self.view.epoch = Epoch(self.view.epoch.get() + 1);
        }
        if !self.is_idle && self.rng.per_mille(self.plan.turns) {
            self.turn();
        }
        let mut view = self.view.clone();
        for (member, incarnation) in view.members.iter().zip(&mut view.incarnations) {
            // A member that is called good for the records of another process joins when that is
            // put right.
            if let Some(node) = self.nodes.get(&member.target)
                && !self.cut.contains_key(&member.target)
                && !is_stranger(node, &self.view)
            {
                *incarnation = node.life;
            }
        }
        let over = |target: &TargetId| self.leases.get(target).is_none_or(|until| *until < now);
        let has = |view: &GroupView, except: TargetId| {
            view.members.iter().any(|member| {
                member.target != except
                    && member.consistency == MemberConsistency::Good
                    && !over(&member.target)
            })
        };
        for index in 0..view.members.len() {
            let member = view.members[index];
            let is_empty =
                self.nodes.get(&member.target).is_some_and(|node| node.epoch == Epoch(0));
            let is_gone = over(&member.target) || is_empty && self.view.epoch > Epoch(1);
            if is_gone && member.consistency == MemberConsistency::Good && has(&view, member.target)
            {
                view.members[index].consistency = MemberConsistency::NeedsResync;
            }
        }
        if view.members[0].consistency != MemberConsistency::Good
            && let Some(next) = view.members.iter().position(|member| {
                member.consistency == MemberConsistency::Good && !over(&member.target)
            })
        {
            view.members.swap(0, next);
            view.incarnations.swap(0, next);
            view.term = Term(view.term.get() + 1);
        }
        if view != self.view {
            self.publish(view);
        }
        for target in self.nodes.keys().copied().collect::<Vec<_>>() {
            let node = &self.nodes[&target];
            let is_behind = node.epoch < self.view.epoch && !is_stranger(node, &self.view);
            let life = node.life;
            if is_behind && !self.cut.contains_key(&target) && self.rng.per_mille(300) {
                let view = self.view.clone();
                self.send(WorldMessage::Map { to: target, life, view });
            }
        }
    }

    /// Makes another member the primary, if all are there and up to date.
    fn turn(&mut self) {
        let is_there = |member: &GroupMember| {
            member.consistency == MemberConsistency::Good
                && self.nodes.contains_key(&member.target)
                && !self.cut.contains_key(&member.target)
                && self.knows_its_place(member.target)
        };
        if !self.view.members.iter().all(is_there) {
            return;
        }
        let mut view = self.view.clone();
        let next = self.rng.below(view.members.len() as u64 - 1) as usize + 1;
        view.members.swap(0, next);
        view.incarnations.swap(0, next);
        view.term = Term(view.term.get() + 1);
        self.publish(view);
        self.turned = self.view.epoch;
    }

    /// Whether it is known not to answer readers as the primary that it has been.
    fn knows_its_place(&self, target: TargetId) -> bool {
        self.nodes.get(&target).is_none_or(|node| node.epoch >= self.turned)
    }

    fn publish(&mut self, view: GroupView) {
        self.view = GroupView { epoch: Epoch(self.view.epoch.get() + 1), ..view };
        self.changed = self.view.epoch;
    }

    fn report(&mut self, report: Report) {
        let view = &self.view;
        let is_old = report.term != view.term || report.epoch < self.changed;
        if is_old || view.members[0].target != report.from {
            return;
        }
        let mut next = view.clone();
        let Some(member) = next.members.iter_mut().find(|member| member.target == report.target)
        else {
            return;
        };
        let is_over = self.leases.get(&report.target).is_none_or(|until| *until < self.now);
        match (report.change, member.consistency) {
            (ReportedChange::Synced, MemberConsistency::NeedsResync) if !is_over => {
                member.consistency = MemberConsistency::Good;
            }
            (ReportedChange::Missed, MemberConsistency::Good)
                if !self.knows_its_place(report.target) =>
            {
                return;
            }
            (ReportedChange::Missed, MemberConsistency::Good) => {
                member.consistency = MemberConsistency::NeedsResync;
            }
            // Earlier reports of it count for nothing any more.
            (ReportedChange::Missed, MemberConsistency::NeedsResync) => {}
            _ => return,
        }
        self.publish(next);
    }

    fn judge(&self) -> Verdict {
        let mut nodes = self.nodes.values().map(|node| &node.mirrored);
        let first = contents(nodes.next().ok_or("no node")?);
        for other in nodes {
            if contents(other) != first {
                return Err(format!("{other:?} differs"));
            }
        }
        let mut order: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        let is_listed = |key: &[u8]| key.starts_with(b"record-");
        for (key, _, value) in first.records.iter().filter(|record| is_listed(&record.0)) {
            let tokens = value.as_chunks::<TOKEN_LEN>().0;
            let tokens = tokens.iter().map(|token| u64::from_le_bytes(*token)).collect();
            let number = String::from_utf8_lossy(key)[7..].parse().map_err(|_| "a key")?;
            order.insert(number, tokens);
        }
        self.judge_tokens(&order)?;
        self.judge_reads(&order)?;
        if self.history.answers < 20 {
            return Err("hardly anything was answered".into());
        }
        Ok(())
    }

    fn judge_tokens(&self, order: &BTreeMap<u64, Vec<u64>>) -> Verdict {
        let mut times: BTreeMap<u64, usize> = BTreeMap::new();
        order.values().flatten().for_each(|token| *times.entry(*token).or_default() += 1);
        for (token, count) in &times {
            if *count > 1 {
                return Err(format!("{token:x} was done {count} times"));
            }
            if self.history.refused.contains(token) {
                return Err(format!("{token:x} was refused and done"));
            }
        }
        for token in self.history.done.keys() {
            if !times.contains_key(token) {
                return Err(format!("{token:x} was acknowledged and is lost"));
            }
        }
        for tokens in order.values() {
            let mut latest = Duration::ZERO;
            for token in tokens {
                if self.history.done.get(token).is_some_and(|done| *done < latest) {
                    return Err(format!("{token:x} was done before what came first"));
                }
                latest = latest.max(self.history.asked[token].1);
            }
        }
        Ok(())
    }

    /// Reads are prefixes of the record's later value, and none misses bytes that were
    /// acknowledged, or read, before it was asked for.
    fn judge_reads(&self, order: &BTreeMap<u64, Vec<u64>>) -> Verdict {
        for (key, value, asked, answered) in &self.history.reads {
            let none = Vec::new();
            let tokens = order.get(key).unwrap_or(&none);
            let whole: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
            if !whole.starts_with(value) {
                return Err(format!("a read of {key} at {answered:?} saw what never was"));
            }
            for token in &tokens[value.len() / TOKEN_LEN..] {
                if self.history.done.get(token).is_some_and(|done| done < asked) {
                    return Err(format!("a read of {key} at {asked:?} missed {token:x}"));
                }
            }
        }
        for (key, value, _, answered) in &self.history.reads {
            let later =
                self.history.reads.iter().filter(|read| read.0 == *key && read.2 > *answered);
            if later.clone().any(|read| read.1.len() < value.len()) {
                return Err(format!("reads of {key} went back after {answered:?}"));
            }
        }
        Ok(())
    }
}

/// Whether a process that has never had a map is called good for the records of another one.
fn is_stranger(node: &Node, view: &GroupView) -> bool {
    node.life > 0
        && node.epoch == Epoch(0)
        && view.members.iter().any(|member| {
            member.target == node.target && member.consistency == MemberConsistency::Good
        })
}

#[derive(PartialEq, Eq)]
pub struct Contents {
    pub records: Vec<(Vec<u8>, u64, Vec<u8>)>,
    state: Vec<u8>,
}

pub fn contents(mirrored: &MirroredPartition) -> Contents {
    let partition = mirrored.partition();
    let mut records = Vec::new();
    let visit = &mut |key: &[u8], meta: samite_backend::RecordMeta| {
        let mut value = Vec::new();
        if let Ok(Some((_, pieces))) = partition.read_record(key) {
            pieces.iter().for_each(|piece| piece.append_to(&mut value));
        }
        records.push((key.to_vec(), meta.version.get(), value));
        ControlFlow::Continue(())
    };
    partition.visit_records(&[], visit).expect("a scan");
    let mut state = Vec::new();
    mirrored.export(&mut state);
    assert!(records.iter().all(|record| record.0.len() == key_of(0).len()));
    Contents { records, state }
}
