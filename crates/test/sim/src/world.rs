//! The world: one queue of events, in the order of a clock that only the queue moves.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use samite_log::memory::MemoryDisk;
use samite_wire::control::incarnation_at;

use crate::audit::AuditSet;
use crate::history::CallHistory;
use crate::message::SimMessage;
use crate::net::{LinkQuality, ProcessPlace, SimNetwork};
use crate::process::{ProcessContext, SimDisk, SimProcess};
use crate::rng::SimRng;
use crate::scenario::ScenarioFault;
use crate::trace::RunTrace;
use crate::voting;

/// Makes the process of a place, with a number that no process before it had.
pub type Boot = Box<dyn Fn(ProcessPlace, u64) -> Box<dyn SimProcess>>;

enum WorldEvent {
    Deliver {
        from: ProcessPlace,
        to: ProcessPlace,
        life: u64,
        number: u64,
        message: SimMessage,
    },
    /// A damaged message arrives.
    Damaged {
        from: ProcessPlace,
        to: ProcessPlace,
        number: u64,
    },
    Broken {
        at: ProcessPlace,
        life: u64,
        peer: ProcessPlace,
    },
    Wake {
        place: ProcessPlace,
        life: u64,
    },
    Begin(ScenarioFault, Duration),
    End(ScenarioFault),
}

/// Something that waits for a process that stands still.
enum StalledItem {
    Message(ProcessPlace, SimMessage),
    Broken(ProcessPlace),
    Wake,
}

/// The place where a process runs, and its properties.
struct ProcessSite {
    process: Option<Box<dyn SimProcess>>,
    /// Counts processes here; the first has 1.
    life: u64,
    disk: SimDisk,
    /// Faults that keep it from running or living.
    crashes: u32,
    pauses: u32,
    held: VecDeque<StalledItem>,
    wake: Option<Duration>,
    /// Its clock: its offset from the world's, and how much faster it goes, in millionths.
    ahead: Duration,
    drift_ppm: i64,
}

impl ProcessSite {
    fn clock(&self, now: Duration) -> Duration {
        let drift = now.as_nanos() as i128 * i128::from(self.drift_ppm) / 1_000_000;
        let shown = (now.as_nanos() as i128 + drift + self.ahead.as_nanos() as i128).max(0);
        Duration::from_nanos(shown as u64)
    }

    /// The world's time at which its clock shows `at`.
    fn world_time(&self, at: Duration) -> Duration {
        let since = (at.as_nanos() as i128 - self.ahead.as_nanos() as i128).max(0);
        let scaled = since * 1_000_000 / i128::from(1_000_000 + self.drift_ppm);
        Duration::from_nanos(scaled as u64 + 1)
    }
}

/// Everything.
pub struct SimWorld {
    now: Duration,
    queue: BTreeMap<(Duration, u64), WorldEvent>,
    next: u64,
    sites: BTreeMap<ProcessPlace, ProcessSite>,
    boot: Boot,
    rng: SimRng,
    /// The links.
    pub network: SimNetwork,
    /// Life of the process at the other end of each connection.
    connections: BTreeMap<(ProcessPlace, ProcessPlace), u64>,
    /// How many connections between two places were damaged, by the pair in order: messages by an
    /// earlier one are lost.
    damaged: BTreeMap<(ProcessPlace, ProcessPlace), u64>,
    usual_links: LinkQuality,
    /// Messages and bytes sent, by [`SimMessage::parts`]' kind.
    pub counts: BTreeMap<u8, (u64, u64)>,
    /// The calls of clients.
    pub history: CallHistory,
    /// The observations of observers.
    pub audit: AuditSet,
    /// The events.
    pub trace: RunTrace,
}

impl SimWorld {
    /// A world without places.
    #[must_use]
    pub fn new(seed: u64, links: LinkQuality, trace: RunTrace, boot: Boot) -> Self {
        let rng = SimRng::new(seed);
        Self {
            now: Duration::ZERO,
            queue: BTreeMap::new(),
            next: 0,
            sites: BTreeMap::new(),
            boot,
            network: SimNetwork::new(rng.fork(2), links),
            rng: rng.fork(3),
            connections: BTreeMap::new(),
            damaged: BTreeMap::new(),
            usual_links: links,
            counts: BTreeMap::new(),
            history: CallHistory::default(),
            audit: AuditSet::default(),
            trace,
        }
    }

    /// The world's time.
    #[must_use]
    pub const fn now(&self) -> Duration {
        self.now
    }

    /// Adds a place, and starts its process.
    pub fn add(&mut self, place: ProcessPlace, ahead: Duration, drift_ppm: i64) {
        let flash = MemoryDisk::new(self.rng.fork(1000 + self.sites.len() as u64).next());
        let site = ProcessSite {
            process: None,
            life: 0,
            disk: SimDisk { files: BTreeMap::new(), flash, rows: Arc::default() },
            crashes: 0,
            pauses: 0,
            held: VecDeque::new(),
            wake: None,
            ahead,
            drift_ppm,
        };
        self.sites.insert(place, site);
        self.start(place);
    }

    /// Plans a fault.
    pub fn plan(&mut self, fault: ScenarioFault, at: Duration, lasts: Duration) {
        self.push(at, WorldEvent::Begin(fault, lasts));
        self.push(at + lasts, WorldEvent::End(fault));
    }

    /// Wakes a process.
    pub fn rouse(&mut self, place: ProcessPlace) {
        self.act(place, |process, context| process.wake(context));
    }

    /// Mends all links, once no fault is planned any more.
    pub fn heal(&mut self) {
        self.network.heal();
    }

    /// The process at a place, if one lives there.
    #[must_use]
    pub fn process<P: SimProcess>(&self, place: ProcessPlace) -> Option<&P> {
        let process: &dyn std::any::Any = &**self.sites.get(&place)?.process.as_ref()?;
        process.downcast_ref()
    }

    /// The same, to be asked.
    pub fn process_mut<P: SimProcess>(&mut self, place: ProcessPlace) -> Option<&mut P> {
        let process: &mut dyn std::any::Any =
            &mut **self.sites.get_mut(&place)?.process.as_mut()?;
        process.downcast_mut()
    }

    /// Lets the next event happen. `false`: there is none before `until`.
    pub fn step(&mut self, until: Duration) -> bool {
        let Some(entry) = self.queue.first_entry() else { return false };
        if entry.key().0 > until {
            return false;
        }
        let ((at, _), event) = entry.remove_entry();
        self.now = at;
        match event {
            WorldEvent::Deliver { from, to, life, number, message } => {
                if number == self.damages_of(from, to) {
                    self.deliver(from, to, life, message);
                }
            }
            WorldEvent::Damaged { from, to, number } => self.damage(from, to, number),
            WorldEvent::Broken { at, life, peer } => self.break_off(at, life, peer),
            WorldEvent::Wake { place, life } => self.fire_timer(place, life),
            WorldEvent::Begin(fault, lasts) => self.begin(fault, lasts),
            WorldEvent::End(fault) => self.end(fault),
        }
        true
    }

    fn push(&mut self, at: Duration, event: WorldEvent) {
        self.next += 1;
        self.queue.insert((at, self.next), event);
    }

    fn damages_of(&self, a: ProcessPlace, b: ProcessPlace) -> u64 {
        self.damaged.get(&(a.min(b), a.max(b))).copied().unwrap_or_default()
    }

    /// A damaged message has come to `to`, which ends the connection. Both ends hear of that, if they can.
    fn damage(&mut self, from: ProcessPlace, to: ProcessPlace, number: u64) {
        if number != self.damages_of(from, to) {
            return;
        }
        self.damaged.insert((from.min(to), from.max(to)), number + 1);
        self.trace.event(self.now, b"damaged");
        self.trace.line(self.now, || format!("{from} -> {to}: damaged, the connection ends"));
        for (at, peer) in [(to, from), (from, to)] {
            let Some(life) = self.sites.get(&at).map(|site| site.life) else { continue };
            match self.network.break_reaches(self.now, peer, at) {
                Some(hears) => self.push(hears, WorldEvent::Broken { at, life, peer }),
                None => drop(self.connections.remove(&(at, peer))),
            }
        }
    }

    fn deliver(&mut self, from: ProcessPlace, to: ProcessPlace, life: u64, message: SimMessage) {
        let Some(site) = self.sites.get_mut(&to) else { return };
        if site.process.is_none() || site.life != life {
            return;
        }
        let (tag, body, payload) = message.parts();
        self.trace.event(self.now, &[tag]);
        self.trace.event(self.now, body);
        self.trace.event(self.now, payload);
        self.trace.line(self.now, || format!("{from} -> {to}: {message}"));
        if site.pauses > 0 {
            site.held.push_back(StalledItem::Message(from, message));
            return;
        }
        self.act(to, |process, context| process.receive(from, message, context));
    }

    fn break_off(&mut self, at: ProcessPlace, life: u64, peer: ProcessPlace) {
        let Some(site) = self.sites.get_mut(&at) else { return };
        if site.process.is_none() || site.life != life {
            return;
        }
        self.trace.event(self.now, b"broken");
        self.trace.line(self.now, || format!("{at}: connection to {peer} is broken"));
        self.connections.remove(&(at, peer));
        if site.pauses > 0 {
            site.held.push_back(StalledItem::Broken(peer));
            return;
        }
        self.act(at, |process, context| process.broken(peer, context));
    }

    fn fire_timer(&mut self, place: ProcessPlace, life: u64) {
        let now = self.now;
        let Some(site) = self.sites.get_mut(&place) else { return };
        if site.process.is_none() || site.life != life || site.wake.is_none_or(|wake| wake > now) {
            return;
        }
        site.wake = None;
        if site.pauses > 0 {
            site.held.push_back(StalledItem::Wake);
            return;
        }
        self.trace.event(self.now, b"wake");
        self.act(place, |process, context| process.wake(context));
    }

    /// Lets a process do something, and carries out its requests.
    fn act(
        &mut self,
        place: ProcessPlace,
        does: impl FnOnce(&mut dyn SimProcess, &mut ProcessContext<'_>),
    ) {
        let Some(site) = self.sites.get_mut(&place) else { return };
        let Some(mut process) = site.process.take() else { return };
        let mut context = ProcessContext {
            now: site.clock(self.now),
            world_now: self.now,
            rng: &mut self.rng,
            disk: &mut site.disk,
            history: &mut self.history,
            audit: &mut self.audit,
            trace: &mut self.trace,
            place,
            sends: Vec::new(),
            wake: None,
            is_stopped: false,
        };
        does(&mut *process, &mut context);
        let ProcessContext { sends, wake, is_stopped, .. } = context;
        site.process = Some(process);
        if is_stopped {
            return self.stopped(place, sends);
        }
        if let Some(at) = wake {
            let at = site.world_time(at).max(self.now);
            if site.wake.is_none_or(|wake| wake > at || wake < self.now) {
                site.wake = Some(at);
                let life = site.life;
                self.push(at, WorldEvent::Wake { place, life });
            }
        }
        for (to, message) in sends {
            self.send(place, to, message);
        }
    }

    /// A process has ended itself. The messages that it was about to send may have left.
    fn stopped(&mut self, place: ProcessPlace, sends: Vec<(ProcessPlace, SimMessage)>) {
        if self.rng.chance(500) {
            sends.into_iter().for_each(|(to, message)| self.send(place, to, message));
        }
        let begins_anew = self.rng.micros(50_000, 1_000_000);
        self.kill(place);
        let crash = ScenarioFault::Crash(place);
        self.push(self.now + begins_anew, WorldEvent::End(crash));
    }

    /// Sends a message from one process to another.
    pub fn send(&mut self, from: ProcessPlace, to: ProcessPlace, message: SimMessage) {
        let Some(site) = self.sites.get(&to) else { return };
        let (lives, life) = (site.process.is_some(), site.life);
        let Some(sender) = self.sites.get(&from).map(|site| site.life) else { return };
        if !lives && !self.connections.contains_key(&(from, to)) {
            if let Some(at) = self.network.break_reaches(self.now, to, from) {
                self.push(at, WorldEvent::Broken { at: from, life: sender, peer: to });
            }
            return;
        }
        // The process to which a connection was made hears the messages that are sent over it.
        let life = *self.connections.entry((from, to)).or_insert(life);
        let tag = message.parts().0;
        let len = self.network.len_of(&message);
        let counted = self.counts.entry(tag).or_default();
        *counted = (counted.0 + 1, counted.1 + len as u64);
        let copies = self.network.deliveries(self.now, from, to, len);
        if copies[0].is_none() {
            self.trace.line(self.now, || format!("{from} -> {to}: lost: {message}"));
        }
        let number = self.damages_of(from, to);
        if let (Some(at), true) = (copies[0], self.network.damages(from, to)) {
            return self.push(at, WorldEvent::Damaged { from, to, number });
        }
        for at in copies.into_iter().flatten() {
            self.push(at, WorldEvent::Deliver { from, to, life, number, message: message.clone() });
        }
    }

    fn start(&mut self, place: ProcessPlace) {
        let Some(site) = self.sites.get_mut(&place) else { return };
        site.life += 1;
        let drawn = self.rng.next() | 1;
        let number = match place {
            // A process that starts later has a higher one. Nodes start together, and never again
            // at the same time.
            ProcessPlace::Node(id) => incarnation_at(self.now, u64::from(id) + 1),
            _ => drawn,
        };
        site.process = Some((self.boot)(place, number));
        site.wake = None;
        self.audit.started(place, number);
        self.trace.event(self.now, b"start");
        self.trace.line(self.now, || format!("{place}: starts"));
        self.act(place, |process, context| process.start(context));
    }

    fn crash(&mut self, place: ProcessPlace) {
        let Some(site) = self.sites.get_mut(&place) else { return };
        if let Some(mut process) = site.process.take() {
            process.die(&mut self.rng, &mut site.disk);
        }
        site.disk.flash.crash();
        site.held.clear();
        site.wake = None;
        self.audit.died(place, self.now);
        self.trace.event(self.now, b"crash");
        let ends: Vec<ProcessPlace> = self
            .connections
            .keys()
            .filter(|(from, to)| *from == place || *to == place)
            .map(|(from, to)| if *from == place { *to } else { *from })
            .collect();
        self.connections.retain(|(from, _), _| *from != place);
        for peer in ends {
            let Some(life) = self.sites.get(&peer).map(|site| site.life) else { continue };
            if let Some(at) = self.network.break_reaches(self.now, place, peer) {
                self.push(at, WorldEvent::Broken { at: peer, life, peer: place });
            } else {
                // It finds out when it next sends something that arrives.
                self.connections.remove(&(peer, place));
            }
        }
    }

    fn kill(&mut self, place: ProcessPlace) {
        if let Some(site) = self.sites.get_mut(&place) {
            site.crashes += 1;
            if site.crashes == 1 {
                self.crash(place);
            }
        }
    }

    /// The disk of a dead instance of the coordinator is lost, unless too many are already.
    fn wipe(&mut self, place: ProcessPlace) {
        let ProcessPlace::Coordinator(id) = place else { return };
        let disks = self.sites.iter().filter_map(|(place, site)| match place {
            ProcessPlace::Coordinator(id) => Some((*id, &site.disk)),
            _ => None,
        });
        if voting::may_be_lost(id, disks)
            && let Some(site) = self.sites.get_mut(&place)
        {
            voting::wipe(&mut site.disk);
            self.trace.event(self.now, b"wipe");
            self.trace.line(self.now, || format!("{place}: its disk is lost"));
        }
    }

    fn begin(&mut self, fault: ScenarioFault, lasts: Duration) {
        self.trace.event(self.now, b"fault");
        self.trace.line(self.now, || format!("fault begins: {fault:?} for {lasts:?}"));
        match fault {
            ScenarioFault::Links(quality) => self.network.set_quality(quality),
            ScenarioFault::CutOneWay(from, to) => self.network.cut(from, to),
            ScenarioFault::Cut(from, to) => {
                self.network.cut(from, to);
                self.network.cut(to, from);
            }
            ScenarioFault::Isolate(place) => self.isolate(place, |_| true, SimNetwork::cut),
            ScenarioFault::Seclude(place) => self.isolate(place, is_no_client, SimNetwork::cut),
            ScenarioFault::Sever(place) => self.isolate(place, is_node, SimNetwork::cut),
            ScenarioFault::Mute(place) => self.mute(place, SimNetwork::cut),
            ScenarioFault::Crash(place) => self.kill(place),
            ScenarioFault::Wipe(place) => {
                self.kill(place);
                self.wipe(place);
            }
            ScenarioFault::Pause(place) => {
                if let Some(site) = self.sites.get_mut(&place) {
                    site.pauses += 1;
                }
            }
            ScenarioFault::Jump(place) => {
                if let Some(site) = self.sites.get_mut(&place) {
                    site.ahead += lasts / 2;
                    let life = site.life;
                    if site.wake.is_some() {
                        site.wake = Some(self.now);
                        self.push(self.now, WorldEvent::Wake { place, life });
                    }
                }
            }
        }
    }

    fn end(&mut self, fault: ScenarioFault) {
        self.trace.event(self.now, b"fault ends");
        self.trace.line(self.now, || format!("fault ends: {fault:?}"));
        match fault {
            ScenarioFault::Links(_) => self.network.set_quality(self.usual_links),
            ScenarioFault::CutOneWay(from, to) => self.network.mend(from, to),
            ScenarioFault::Cut(from, to) => {
                self.network.mend(from, to);
                self.network.mend(to, from);
            }
            ScenarioFault::Isolate(place) => self.isolate(place, |_| true, SimNetwork::mend),
            ScenarioFault::Seclude(place) => self.isolate(place, is_no_client, SimNetwork::mend),
            ScenarioFault::Sever(place) => self.isolate(place, is_node, SimNetwork::mend),
            ScenarioFault::Mute(place) => self.mute(place, SimNetwork::mend),
            ScenarioFault::Crash(place) | ScenarioFault::Wipe(place) => {
                if let Some(site) = self.sites.get_mut(&place) {
                    site.crashes -= 1;
                    if site.crashes == 0 {
                        self.start(place);
                    }
                }
            }
            ScenarioFault::Pause(place) => self.resume(place),
            ScenarioFault::Jump(_) => {}
        }
    }

    fn isolate(
        &mut self,
        place: ProcessPlace,
        from: fn(ProcessPlace) -> bool,
        change: impl Fn(&mut SimNetwork, ProcessPlace, ProcessPlace),
    ) {
        let others = self.sites.keys().copied().filter(|other| *other != place && from(*other));
        for other in others.collect::<Vec<_>>() {
            change(&mut self.network, place, other);
            change(&mut self.network, other, place);
        }
    }

    fn mute(
        &mut self,
        place: ProcessPlace,
        change: impl Fn(&mut SimNetwork, ProcessPlace, ProcessPlace),
    ) {
        let nodes = self.sites.keys().copied().filter(|other| *other != place && is_node(*other));
        nodes.for_each(|node| change(&mut self.network, place, node));
    }

    /// A process that stood still finds everything that came meanwhile.
    fn resume(&mut self, place: ProcessPlace) {
        let Some(site) = self.sites.get_mut(&place) else { return };
        site.pauses -= 1;
        if site.pauses > 0 {
            return;
        }
        for held in std::mem::take(&mut site.held) {
            match held {
                StalledItem::Message(from, message) => {
                    self.act(place, |process, context| process.receive(from, message, context));
                }
                StalledItem::Broken(peer) => {
                    self.act(place, |process, context| process.broken(peer, context));
                }
                StalledItem::Wake => self.act(place, |process, context| process.wake(context)),
            }
        }
    }
}

const fn is_node(place: ProcessPlace) -> bool {
    matches!(place, ProcessPlace::Node(_))
}

const fn is_no_client(place: ProcessPlace) -> bool {
    !matches!(place, ProcessPlace::Client(_))
}
