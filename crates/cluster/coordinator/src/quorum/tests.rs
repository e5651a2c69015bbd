//! Voters under faults: messages are lost, doubled, late; voters die at any step and lose writes
//! that were not synced.

use std::collections::BTreeMap;

use proptest::prelude::*;
use samite_types::NodeId;
use samite_wire::membership::LeaderAddress;

use super::*;
use crate::leader_key::LeaderSeat;

/// Nodes, and the voters on their flash.
struct World {
    flashes: Vec<Option<(VoterId, VoterState)>>,
    hosts: Vec<Option<VoterHost>>,
    under_way: Vec<(NodeId, NodeId, Vec<u8>)>,
    runs: u64,
    /// Changes that were answered: revision, and the value that was written.
    done: BTreeMap<u64, u64>,
    proposed: BTreeMap<(usize, u64), u64>,
    beats: u64,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Tick(usize),
    Deliver(usize),
    Lose(usize),
    Double(usize),
    Propose(usize),
    /// Dies with the writes that it has not synced, between any two steps of an output.
    Crash(usize, u8),
    /// Dies, and its flash is gone.
    Wipe(usize),
    Start(usize),
    /// The voter in one node is to be replaced by one in another.
    Replace(usize, usize, usize),
    /// A node's voter hears that this one does not belong to the cluster.
    ReplaceAbsent(usize, usize),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let one = prop_oneof![
        120 => (0..8usize).prop_map(Event::Tick),
        300 => (0..64usize).prop_map(Event::Deliver),
        20 => (0..64usize).prop_map(Event::Lose),
        10 => (0..64usize).prop_map(Event::Double),
        60 => (0..8usize).prop_map(Event::Propose),
        10 => (0..8usize, 0..3u8).prop_map(|(node, step)| Event::Crash(node, step)),
        1 => (0..8usize).prop_map(Event::Wipe),
        20 => (0..8usize).prop_map(Event::Start),
        5 => (0..8usize, 0..8usize, 0..8usize)
            .prop_map(|(by, old, new)| Event::Replace(by, old, new)),
        5 => (0..8usize, 0..8usize).prop_map(|(by, gone)| Event::ReplaceAbsent(by, gone)),
    ];
    prop::collection::vec(one, 0..1500)
}

impl World {
    /// With two nodes more than voters.
    fn new(voters: u32) -> Self {
        let nodes: Vec<NodeId> = (0..voters).map(NodeId).collect();
        let configuration = VoterConfiguration::first(&nodes).unwrap();
        let flash = |node| {
            let member = configuration.voter_in(NodeId(node))?;
            Some((member.id, VoterState::new(configuration.clone(), StateRegister::default())))
        };
        let flashes: Vec<_> = (0..voters + 2).map(flash).collect();
        let mut world = Self {
            hosts: flashes.iter().map(|_| None).collect(),
            flashes,
            under_way: Vec::new(),
            runs: 0,
            done: BTreeMap::new(),
            proposed: BTreeMap::new(),
            beats: 0,
        };
        (0..world.hosts.len()).for_each(|index| world.start(index));
        world
    }

    fn run(&mut self) -> u64 {
        self.runs += 1;
        self.runs
    }

    fn start(&mut self, index: usize) {
        if self.hosts[index].is_some() {
            return;
        }
        let who = (NodeId(index as u32), self.run());
        let all = (0..self.hosts.len() as u32).map(NodeId).collect();
        self.hosts[index] = Some(VoterHost::new(who, self.flashes[index].clone(), all).unwrap());
        self.carry_out(index, None);
    }

    /// Carries out the host's output; up to a step of it, if it is to die there.
    fn carry_out(&mut self, index: usize, dies_before: Option<u8>) {
        let run = self.run();
        let Some(host) = &mut self.hosts[index] else { return };
        let output = host.output(run);
        if dies_before == Some(0) {
            self.hosts[index] = None;
            return;
        }
        if output.is_retired {
            self.flashes[index] = None;
        } else if let Some(whole) = output.whole {
            self.flashes[index] = Some(whole);
        }
        if let Some((_, kept)) = &mut self.flashes[index] {
            output.writes.into_iter().for_each(|write| kept.write(write));
        }
        assert_eq!(self.flashes[index], host.saved(), "what is on flash is all that it is");
        if dies_before == Some(1) {
            self.hosts[index] = None;
            return;
        }
        let me = NodeId(index as u32);
        self.under_way.extend(output.messages.into_iter().map(|(to, bytes)| (me, to, bytes)));
        if dies_before.is_some() {
            self.hosts[index] = None;
            return;
        }
        for (number, answer) in output.answers {
            let beat = self.proposed.remove(&(index, number));
            if let (RegisterAnswer::Done(revision), Some(beat)) = (answer, beat) {
                assert_eq!(self.done.insert(revision, beat), None, "one change for each revision");
            }
        }
    }

    fn happen(&mut self, event: Event) {
        let count = self.hosts.len();
        match event {
            Event::Tick(index) => {
                let index = index % count;
                if let Some(host) = &mut self.hosts[index] {
                    host.tick();
                }
                self.carry_out(index, None);
            }
            Event::Deliver(number) | Event::Double(number) | Event::Lose(number) => {
                if self.under_way.is_empty() {
                    return;
                }
                let number = number % self.under_way.len();
                let (from, to, bytes) = self.under_way[number].clone();
                if !matches!(event, Event::Double(_)) {
                    self.under_way.remove(number);
                }
                if !matches!(event, Event::Lose(_)) {
                    self.deliver(from, to, &bytes);
                }
            }
            Event::Propose(index) => self.propose(index % count),
            Event::Crash(index, step) => {
                let index = index % count;
                if let Some(host) = &mut self.hosts[index] {
                    host.tick();
                }
                self.proposed.retain(|(node, _), _| *node != index);
                self.carry_out(index, Some(step));
            }
            Event::Wipe(index) => self.wipe(index % count),
            Event::Start(index) => self.start(index % count),
            Event::Replace(by, old, new) => {
                let node = |index| NodeId((index % count) as u32);
                if let Some(host) = &mut self.hosts[by % count] {
                    host.replace(node(old), node(new));
                }
                self.carry_out(by % count, None);
            }
            Event::ReplaceAbsent(by, gone) => self.replace_absent(by, &[gone % count]),
        }
    }

    fn replace_absent(&mut self, by: usize, gone: &[usize]) {
        let count = self.hosts.len();
        let nodes = (0..count).filter(|node| !gone.contains(node));
        let nodes: Vec<NodeId> = nodes.map(|node| NodeId(node as u32)).collect();
        if let Some(host) = &mut self.hosts[by % count] {
            host.replace_absent(&nodes);
        }
        self.carry_out(by % count, None);
    }

    /// A voter's flash is lost. Only where nothing is under way: with two of three gone, or one that has not begun yet, nothing is decided any more.
    fn wipe(&mut self, index: usize) {
        let mut rounds = 0;
        while !self.all_have_begun() || rounds < 20 {
            self.round();
            rounds += 1;
            assert!(rounds < 300, "not all have begun: {:#?}", self.hosts);
        }
        (self.hosts[index], self.flashes[index]) = (None, None);
        self.proposed.retain(|(node, _), _| *node != index);
        // Until the others have noticed.
        for _ in 0..10 {
            self.round_without(Some(index));
        }
    }

    /// Whether every voter of the newest configuration is kept.
    fn all_have_begun(&self) -> bool {
        let newest =
            self.flashes.iter().flatten().max_by_key(|(_, kept)| kept.configuration.number);
        let Some((_, VoterState { configuration, .. })) = newest else { return false };
        configuration.voters.iter().all(|member| {
            let flash = self.flashes[member.node.get() as usize].as_ref();
            flash.is_some_and(|(id, kept)| *id == member.id && kept.configuration == *configuration)
        })
    }

    /// Everybody lives, time passes, and all messages arrive.
    fn round(&mut self) {
        self.round_without(None);
    }

    fn round_without(&mut self, dead: Option<usize>) {
        for index in (0..self.hosts.len()).filter(|index| Some(*index) != dead) {
            self.start(index);
            self.happen(Event::Tick(index));
        }
        for _ in 0..10 {
            for (from, to, bytes) in std::mem::take(&mut self.under_way) {
                self.deliver(from, to, &bytes);
            }
        }
    }

    fn deliver(&mut self, from: NodeId, to: NodeId, bytes: &[u8]) {
        let index = to.get() as usize;
        if let Some(host) = &mut self.hosts[index] {
            host.receive(from, bytes).unwrap();
        }
        self.carry_out(index, None);
    }

    fn propose(&mut self, index: usize) {
        let Some(host) = &mut self.hosts[index] else { return };
        self.beats += 1;
        let leader = LeaderAddress { node: NodeId(index as u32), addresses: Vec::new() };
        let seat = LeaderSeat { leader, instance: index as u64, beat: self.beats };
        let state = self.beats.to_le_bytes().to_vec();
        let Some(register) = host.register() else { return };
        let change = RegisterChange::Swap {
            expected: register.observed().revision,
            seat,
            state: Some((register.state().0, state)),
        };
        if let Some(number) = host.propose(change) {
            self.proposed.insert((index, number), self.beats);
        }
        self.carry_out(index, None);
    }

    /// No two voters have different registers at the same revision, and the answered value is the
    /// one that is there.
    fn check(&self) {
        let mut seen: BTreeMap<u64, &StateRegister> = BTreeMap::new();
        for register in self.hosts.iter().flatten().filter_map(VoterHost::register) {
            let first = seen.entry(register.changes()).or_insert(register);
            assert_eq!(*first, register, "two registers of one revision");
            let (revision, state) = register.state();
            if let (Some(beat), Some(raw)) = (self.done.get(&revision), state.first_chunk()) {
                assert_eq!(*beat, u64::from_le_bytes(*raw), "an answered change is another one");
            }
        }
    }

    /// From here on everything works: a change is decided within a bounded time.
    fn settle(&mut self) {
        self.under_way.clear();
        let answered = self.done.len();
        let newest = self.done.keys().last().copied().unwrap_or(0);
        for round in 0..400 {
            self.round();
            if round % 4 == 0 {
                self.propose(round / 4 % self.hosts.len());
            }
            self.check();
            if self.done.len() > answered + 3 {
                break;
            }
        }
        assert!(self.done.len() > answered + 3, "nothing is decided any more: {:#?}", self.hosts);
        let last = self.done.keys().last().copied().unwrap_or(0);
        assert!(last > newest, "what was answered is forgotten");
        self.all_follow();
    }

    /// No voter is left behind.
    fn all_follow(&mut self) {
        let voters = |world: &Self| -> Vec<(u32, u64)> {
            let hosts = world.hosts.iter().flatten();
            let shown = hosts.filter_map(|host| {
                Some((host.configuration()?.number, host.register()?.changes()))
            });
            shown.collect()
        };
        for _ in 0..200 {
            self.round();
            let all = voters(self);
            if self.all_have_begun() && all.iter().all(|one| *one == all[0]) {
                return;
            }
        }
        panic!("some voters do not follow: {:#?}", self.hosts);
    }
}

/// A node is gone for good: another one gets its voter, and the change outlives the death of one more.
#[test]
fn the_voter_of_a_removed_node_is_replaced() {
    let mut world = World::new(3);
    (0..30).for_each(|_| world.round());
    for round in 0..100 {
        world.hosts[1] = None;
        for by in [0, 2, 3, 4] {
            world.replace_absent(by, &[1]);
        }
        world.round_without(Some(1));
        if round == 50 {
            let configuration = world.hosts[0].as_ref().and_then(VoterHost::configuration).unwrap();
            let mut nodes: Vec<u32> =
                configuration.voters.iter().map(|member| member.node.get()).collect();
            nodes.sort_unstable();
            assert_eq!(nodes, [0, 2, 3]);
        }
    }
    world.hosts[0] = None;
    for _ in 0..60 {
        world.round_without(Some(0));
        world.propose(2);
    }
    assert!(!world.done.is_empty(), "n2 and n3 decide without n0 and n1");
}

/// A node that knows only of nodes that do not vote any more finds the voters.
#[test]
fn a_node_without_a_voter_learns_who_votes() {
    let mut world = World::new(3);
    (0..30).for_each(|_| world.round());
    for _ in 0..50 {
        for by in 0..4 {
            world.replace_absent(by, &[0]);
        }
        world.round();
    }
    assert!(world.hosts[0].as_ref().unwrap().register().is_none(), "n0 has lost its voter");
    let run = world.run();
    world.hosts[4] = Some(VoterHost::new((NodeId(4), run), None, vec![NodeId(0)]).unwrap());
    for _ in 0..100 {
        for by in 0..5 {
            world.replace_absent(by, &[0, 3]);
        }
        world.round();
    }
    assert!(world.hosts[4].as_ref().unwrap().register().is_some(), "n4 votes for n3");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn voters_agree_and_forget_nothing(voters in prop_oneof![Just(3u32), Just(5)], events in events()) {
        let mut world = World::new(voters);
        for event in events {
            world.happen(event);
            world.check();
        }
        world.settle();
    }

    #[test]
    fn any_bytes_are_refused_or_taken(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut world = World::new(3);
        let _ = world.hosts[0].as_mut().unwrap().receive(NodeId(1), &bytes);
        world.carry_out(0, None);
    }
}
