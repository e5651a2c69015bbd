//! Election of the leader: one key, changed by compare-and-swap. Pure.
//!
//! The leader writes the key again and again. A follower that has seen it unchanged for
//! [`ClusterTiming::takeover`] writes its own name there. The leader counts its time from when it
//! *sent* the last renewal that was confirmed, the follower from when it had the answer that showed
//! it a new revision; so with `leader_validity` below `takeover` there is a time between them in
//! which no instance leads, however long messages travel, as long as clocks go equally fast to a
//! few percent. A write that was given up may still arrive: it then compares a revision that has
//! passed, or it counts as a renewal that its writer does not rely on.
//!
//! A follower may also [challenge](KeyElection::challenge) a leader that renews: it writes the key
//! at once, and the leader finds its next renewal lost. Until then that one may still decide; so an
//! instance that has won the key in this way renews it for the length of `takeover` before it
//! leads, and does not remove it before.

use std::time::Duration;

use samite_wire::membership::LeaderAddress;

use crate::ClusterTiming;
use crate::leader_key::{LeaderSeat, ObservedKey};

/// The rights of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InstanceRole {
    /// Decide, until this point on the monotonic clock.
    Leads {
        /// Exclusive.
        until: Duration,
    },
    /// Send callers on.
    Follows {
        /// The instance that leads, as far as this one knows.
        leader: Option<LeaderAddress>,
    },
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ElectionStep {
    /// Read the key.
    Read,
    /// Write `seat` if the key still has the revision `expected`.
    Swap {
        /// Revision.
        expected: u64,
        /// New content.
        seat: LeaderSeat,
    },
    /// Nothing yet.
    Rest,
}

/// The result of an [`ElectionStep::Swap`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SwapResult {
    /// The key has this revision now.
    Done(u64),
    /// Somebody else was faster.
    Lost(ObservedKey),
    /// No answer: it may have been written, or may be later.
    Unknown,
}

/// So often does an instance try to take the key from a leader that renews it.
const CHALLENGES: u32 = 8;

/// Carries out the steps that are due, by `step`, which says whether there was one. A read may show
/// that the key can be had now: at most a read, a write, and a read after a lost one.
pub(super) fn take_steps(mut step: impl FnMut() -> bool) {
    for _ in 0..3 {
        if !step() {
            break;
        }
    }
}

/// One instance's part in the election.
#[derive(Clone, Debug)]
pub struct KeyElection {
    timing: ClusterTiming,
    seat: LeaderSeat,
    /// The key as last seen, and when that revision was seen first.
    seen: Option<(ObservedKey, Duration)>,
    /// When the last confirmed write of the key was sent, if it was ours.
    renewed: Option<Duration>,
    /// When to do something next.
    due: Duration,
    /// How often to try to take the key from the instance that has it.
    challenges: u32,
    /// It may have been taken so, and has not been seen in our hands yet.
    is_contested: bool,
    /// The instance from which it was taken may decide until then.
    not_before: Duration,
}

impl KeyElection {
    /// For the instance `instance` (drawn at random) that is reached as `leader` says.
    #[must_use]
    pub const fn new(leader: LeaderAddress, instance: u64, timing: ClusterTiming) -> Self {
        let seat = LeaderSeat { leader, instance, beat: 0 };
        Self {
            timing,
            seat,
            seen: None,
            renewed: None,
            due: Duration::ZERO,
            challenges: 0,
            is_contested: false,
            not_before: Duration::ZERO,
        }
    }

    /// Where this instance stands at `now`.
    #[must_use]
    pub fn role(&self, now: Duration) -> InstanceRole {
        if self.leads(now) {
            return InstanceRole::Leads { until: self.leads_until() };
        }
        InstanceRole::Follows { leader: self.leader().cloned() }
    }

    /// Until when this instance leads; in the past if it does not.
    #[must_use]
    pub fn leads_until(&self) -> Duration {
        self.renewed.map_or(Duration::ZERO, |sent| sent + self.timing.leader_validity)
    }

    /// Whether this instance leads (I8: only the holder of the newest revision can save).
    #[must_use]
    pub fn leads(&self, now: Duration) -> bool {
        self.not_before <= now && now < self.leads_until()
    }

    /// The key is to be taken from the instance that has it, though that renews it. Tried
    /// [`CHALLENGES`] times, as each renewal may come first.
    pub fn challenge(&mut self) {
        let held = |(observed, _): &(ObservedKey, Duration)| {
            observed.revision != 0 && !self.is_own(observed)
        };
        if self.seen.as_ref().is_some_and(held) {
            self.challenges = CHALLENGES;
            self.due = Duration::ZERO;
        }
    }

    /// The instance that has the key, as last seen.
    #[must_use]
    pub fn leader(&self) -> Option<&LeaderAddress> {
        Some(&self.seen.as_ref()?.0.seat.as_ref()?.leader)
    }

    /// The step at `now`.
    #[must_use]
    pub fn next(&mut self, now: Duration) -> ElectionStep {
        if now < self.due {
            return ElectionStep::Rest;
        }
        let Some((observed, since)) = &self.seen else { return ElectionStep::Read };
        let is_free = observed.revision == 0 || now >= *since + self.timing.takeover;
        let is_ours = is_free || self.is_own(observed);
        if !is_ours && self.challenges == 0 {
            return ElectionStep::Read;
        }
        self.is_contested |= !is_ours;
        self.renewal(observed.revision)
    }

    /// A renewal that goes along with another write, whenever that is; `None` when this instance does not lead.
    #[must_use]
    pub fn renewal_now(&self, now: Duration) -> Option<(u64, LeaderSeat)> {
        let (observed, _) = self.seen.as_ref().filter(|_| self.leads(now))?;
        match self.renewal(observed.revision) {
            ElectionStep::Swap { expected, seat } if self.is_own(observed) => {
                Some((expected, seat))
            }
            _ => None,
        }
    }

    fn renewal(&self, expected: u64) -> ElectionStep {
        let beat = self.seat.beat + 1;
        ElectionStep::Swap { expected, seat: LeaderSeat { beat, ..self.seat.clone() } }
    }

    fn is_own(&self, observed: &ObservedKey) -> bool {
        observed.seat.as_ref().is_some_and(|seat| seat.instance == self.seat.instance)
    }

    /// The key was read; `now` is when the answer was there.
    pub fn observed(&mut self, now: Duration, observed: ObservedKey) {
        if self.is_own(&observed) {
            self.seated(now);
        } else {
            self.renewed = None;
        }
        let holder = |observed: &ObservedKey| observed.seat.as_ref().map(|seat| seat.instance);
        let before = self.seen.as_ref().map(|(seen, _)| holder(seen));
        if before.is_some_and(|before| before != holder(&observed)) {
            // That one was not challenged.
            self.challenges = 0;
        }
        // A key that can be had is taken at once; for the rest there is time.
        let is_foreign = !self.is_own(&observed) && observed.revision != 0;
        let waits = is_foreign && self.challenges == 0;
        if self.seen.as_ref().is_none_or(|(seen, _)| *seen != observed) {
            self.seen = Some((observed, now));
        }
        self.due = if waits { now + self.timing.leader_renewal } else { now };
    }

    /// The key is known to be ours.
    fn seated(&mut self, now: Duration) {
        if std::mem::take(&mut self.is_contested) {
            self.not_before = now + self.timing.takeover;
        }
    }

    /// The key could not be read.
    pub fn unreadable(&mut self, now: Duration) {
        self.due = now + self.timing.leader_renewal / 4;
    }

    /// A write of the key, sent at `sent`, has ended at `now`.
    pub fn swapped(&mut self, sent: Duration, now: Duration, swapped: SwapResult) {
        self.seat.beat += 1;
        self.challenges = self.challenges.saturating_sub(1);
        match swapped {
            SwapResult::Done(revision) => {
                self.challenges = 0;
                self.seated(now);
                self.seen = Some((ObservedKey { revision, seat: Some(self.seat.clone()) }, now));
                self.renewed = Some(sent);
                self.due = sent + self.timing.leader_renewal;
            }
            SwapResult::Lost(observed) => self.observed(now, observed),
            SwapResult::Unknown => {
                // The contents that were seen may have passed. How long a foreign leader has been
                // silent counts anew.
                self.seen = None;
                self.due = now + self.timing.leader_renewal / 4;
            }
        }
    }

    /// Gives up the key, if this instance has it: the revision to compare when it is removed. A key
    /// that was just won from another stays, as no other instance may begin at once either.
    pub fn resign(&mut self, now: Duration) -> Option<u64> {
        let (observed, _) = self.seen.take()?;
        self.renewed = None;
        (self.is_own(&observed) && now >= self.not_before).then_some(observed.revision)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use samite_types::NodeId;

    use super::*;

    /// A key with revisions, as etcd has it.
    #[derive(Default)]
    struct Key {
        revision: u64,
        seat: Option<LeaderSeat>,
        changes: u64,
    }

    impl Key {
        fn observe(&self) -> ObservedKey {
            ObservedKey { revision: self.revision, seat: self.seat.clone() }
        }

        fn apply(&mut self, step: ElectionStep) -> Answer {
            match step {
                ElectionStep::Read => Answer::Read(self.observe()),
                ElectionStep::Swap { expected, seat } if expected == self.revision => {
                    self.changes += 1;
                    (self.revision, self.seat) = (self.changes, Some(seat));
                    Answer::Swapped(SwapResult::Done(self.revision))
                }
                ElectionStep::Swap { .. } => Answer::Swapped(SwapResult::Lost(self.observe())),
                ElectionStep::Rest => unreachable!(),
            }
        }
    }

    #[derive(Clone, Debug)]
    enum Answer {
        Read(ObservedKey),
        Swapped(SwapResult),
    }

    /// A request under way, and its answer once the key's store has seen it.
    #[derive(Clone, Debug)]
    struct Call {
        step: ElectionStep,
        sent: Duration,
        answer: Option<Answer>,
    }

    #[derive(Clone, Copy, Debug)]
    enum Event {
        Start(usize),
        Challenge(usize),
        Apply(usize),
        Deliver(usize),
        GiveUp(usize),
        /// A request that was given up arrives after all.
        Late(usize),
        Pass(u64),
        /// It ends in good order, and another process begins in its place.
        Resign(usize),
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let one = prop_oneof![
            4 => (0..3usize).prop_map(Event::Start),
            1 => (0..3usize).prop_map(Event::Challenge),
            1 => (0..3usize).prop_map(Event::Resign),
            4 => (0..3usize).prop_map(Event::Apply),
            4 => (0..3usize).prop_map(Event::Deliver),
            1 => (0..3usize).prop_map(Event::GiveUp),
            1 => (0..8usize).prop_map(Event::Late),
            4 => (1..400u64).prop_map(Event::Pass),
        ];
        prop::collection::vec(one, 0..400)
    }

    struct World {
        now: Duration,
        key: Key,
        instances: Vec<(KeyElection, Option<Call>)>,
        given_up: Vec<ElectionStep>,
        started: u64,
    }

    fn start(number: u32, instance: u64) -> KeyElection {
        let leader = LeaderAddress { node: NodeId(number), addresses: Vec::new() };
        KeyElection::new(leader, instance, ClusterTiming::DEFAULT)
    }

    impl World {
        fn new() -> Self {
            let instances = (0..3).map(|number| (start(number, number.into()), None)).collect();
            let (now, key) = (Duration::ZERO, Key::default());
            Self { now, key, instances, given_up: Vec::new(), started: 10 }
        }

        fn happen(&mut self, event: Event) {
            let now = self.now;
            match event {
                Event::Pass(ms) => self.now += Duration::from_millis(ms),
                Event::Challenge(index) => self.instances[index].0.challenge(),
                Event::Resign(index) => {
                    self.happen(Event::GiveUp(index));
                    let revision = self.instances[index].0.resign(now);
                    if revision.is_some_and(|revision| revision == self.key.revision) {
                        self.key = Key { changes: self.key.changes, ..Key::default() };
                    }
                    self.started += 1;
                    self.instances[index].0 = start(index as u32, self.started);
                }
                Event::Late(index) => {
                    if index < self.given_up.len() {
                        let step = self.given_up.swap_remove(index);
                        self.key.apply(step);
                    }
                }
                Event::Start(index) => {
                    let (election, call) = &mut self.instances[index];
                    let step = election.next(now);
                    if call.is_none() && step != ElectionStep::Rest {
                        *call = Some(Call { step, sent: now, answer: None });
                    }
                }
                Event::Apply(index) => {
                    if let Some(call) = &mut self.instances[index].1
                        && call.answer.is_none()
                    {
                        call.answer = Some(self.key.apply(call.step.clone()));
                    }
                }
                Event::Deliver(index) => {
                    let (election, call) = &mut self.instances[index];
                    if let Some(Call { sent, answer: Some(answer), .. }) =
                        call.take_if(|call| call.answer.is_some())
                    {
                        match answer {
                            Answer::Read(observed) => election.observed(now, observed),
                            Answer::Swapped(swapped) => election.swapped(sent, now, swapped),
                        }
                    }
                }
                Event::GiveUp(index) => {
                    let (election, call) = &mut self.instances[index];
                    if let Some(call) = call.take() {
                        match call.step {
                            ElectionStep::Swap { .. } => {
                                election.swapped(call.sent, now, SwapResult::Unknown)
                            }
                            _ => election.unreadable(now),
                        }
                        if call.answer.is_none() {
                            self.given_up.push(call.step);
                        }
                    }
                }
            }
        }

        fn leaders(&self) -> Vec<usize> {
            let leads = |index: &usize| self.instances[*index].0.leads(self.now);
            (0..self.instances.len()).filter(leads).collect()
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

        #[test]
        fn never_two_lead_and_soon_one_does(events in events()) {
            let mut world = World::new();
            for event in events {
                world.happen(event);
                prop_assert!(world.leaders().len() <= 1, "{:?}", world.leaders());
            }
            // From here on everything answers at once.
            for index in 0..3 {
                world.happen(Event::GiveUp(index));
            }
            for _ in 0..60 {
                for index in 0..3 {
                    world.happen(Event::Start(index));
                    world.happen(Event::Apply(index));
                    world.happen(Event::Deliver(index));
                }
                world.happen(Event::Pass(50));
                prop_assert!(world.leaders().len() <= 1);
            }
            let leaders = world.leaders();
            prop_assert_eq!(leaders.len(), 1);
            let leader = world.instances[leaders[0]].0.seat.leader.clone();
            for (election, _) in &world.instances {
                prop_assert_eq!(election.leader(), Some(&leader));
            }
            // A renewal that goes along with a state that is saved.
            let now = world.now;
            for (index, (election, _)) in world.instances.iter().enumerate() {
                prop_assert_eq!(election.renewal_now(now).is_some(), index == leaders[0]);
            }
        }
    }

    #[test]
    fn who_resigns_is_followed_at_once() {
        let mut world = World::new();
        let all = [Event::Start(0), Event::Apply(0), Event::Deliver(0)];
        all.into_iter().chain(all).for_each(|event| world.happen(event));
        assert_eq!(world.leaders(), [0]);
        let revision = world.instances[0].0.resign(world.now).unwrap();
        assert_eq!(revision, world.key.revision);
        world.key = Key { changes: world.key.changes, ..Key::default() };
        assert!(world.leaders().is_empty());
        for event in [Event::Start(1), Event::Apply(1), Event::Deliver(1)] {
            world.happen(event);
        }
        for event in [Event::Start(1), Event::Apply(1), Event::Deliver(1)] {
            world.happen(event);
        }
        assert_eq!(world.leaders(), [1]);
    }

    #[test]
    fn who_is_challenged_stops_before_the_other_begins() {
        let mut world = World::new();
        let turn = |world: &mut World, index| {
            for event in [Event::Start(index), Event::Apply(index), Event::Deliver(index)] {
                world.happen(event);
            }
        };
        [0, 0, 1].into_iter().for_each(|index| turn(&mut world, index));
        assert_eq!(world.leaders(), [0]);
        // A renewal that comes first does not help.
        world.happen(Event::Pass(200));
        world.happen(Event::Challenge(1));
        turn(&mut world, 0);
        [1, 1].into_iter().for_each(|index| turn(&mut world, index));
        // The first does not know it yet.
        assert_eq!(world.leaders(), [0]);
        let mut quiet = 0;
        for _ in 0..22 {
            world.happen(Event::Pass(50));
            [0, 1].into_iter().for_each(|index| turn(&mut world, index));
            quiet += u64::from(world.leaders().is_empty()) * 50;
        }
        assert_eq!(world.leaders(), [1]);
        assert!(quiet > 0);
        // It was once, and is no habit.
        for _ in 0..100 {
            world.happen(Event::Pass(50));
            [0, 1].into_iter().for_each(|index| turn(&mut world, index));
            assert_eq!(world.leaders(), [1]);
        }
    }
}
