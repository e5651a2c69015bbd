//! The voter beside an instance of the coordinator, driven as a node drives it: time passes for it
//! at even intervals, and its state is on flash before any message that rests on it leaves.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use samite_coordinator::quorum::{
    self, JournalWrite, RegisterAnswer, RegisterChange, StateRegister, TICK, VoterConfiguration,
    VoterHost, VoterId, VoterOutput, VoterState,
};
use samite_types::{NodeId, RequestId};
use samite_wire::control;
use serde::Serialize;

use crate::message::SimMessage;
use crate::net::ProcessPlace;
use crate::process::{ProcessContext, SimDisk};
use crate::rng::SimRng;
use crate::rules::{BrokenRule, RunRules};
use crate::scenario::VoterSettings;
use crate::state_request::{KeyState, StateReply, StateRequest};

/// Most messages and changes that wait for it.
const QUEUE_MAX: usize = 1024;
/// Most of them that are answered with one write to flash.
const BATCH_MAX: usize = 64;
/// The place of a voter on its disk: records, of which the first is all of it, and each other one
/// is a later write.
const FILE: &str = "voter";
/// An instance that has this has served before: a voter that is missing is a lost one.
const FOUNDED: &str = "founded";

enum VotingEvent {
    Message(NodeId, Vec<u8>),
    Propose(RequestId, RegisterChange),
}

/// The change under way, and its number once the voter has it.
struct AskedChange {
    id: RequestId,
    number: Option<u64>,
    has_state: bool,
}

/// An answer to the coordinator; `None`: there is none to be had now.
pub type Answered = (RequestId, Option<StateReply>);

/// A voter, or a request for one.
pub struct SimVoter {
    node: NodeId,
    instances: u32,
    voters: VoterSettings,
    rules: RunRules,
    host: Option<VoterHost>,
    due: Duration,
    inbox: VecDeque<VotingEvent>,
    /// Writes on their way to flash, and when they are there.
    writing: Option<(Duration, VoterOutput)>,
    asked: Option<AskedChange>,
    /// Revision of the state that the coordinator decides on.
    state_revision: u64,
    /// The register as it is on flash; `None`: there is no voter.
    view: Option<StateRegister>,
    /// The commands that it takes for decided, where that is the rule to be broken.
    assumed: Option<StateRegister>,
    answers: Vec<Answered>,
}

impl SimVoter {
    /// The voter in the instance `id` of so many.
    #[must_use]
    pub const fn new(id: u32, instances: u32, voters: VoterSettings, rules: RunRules) -> Self {
        Self {
            node: NodeId(id),
            instances,
            voters,
            rules,
            host: None,
            due: Duration::ZERO,
            inbox: VecDeque::new(),
            writing: None,
            asked: None,
            state_revision: 0,
            view: None,
            assumed: None,
            answers: Vec::new(),
        }
    }

    /// The voters, and this one's copy of the register.
    #[must_use]
    pub fn shown(&self) -> Option<(&VoterConfiguration, &StateRegister)> {
        let host = self.host.as_ref()?;
        Some((host.configuration()?, host.register()?))
    }

    /// Begins with the contents of its disk.
    ///
    /// # Panics
    /// If the data that another process wrote there cannot be read.
    pub fn start(&mut self, context: &mut ProcessContext<'_>) {
        let all: Vec<NodeId> = (0..self.instances).map(NodeId).collect();
        let first = VoterConfiguration::first(&all).expect("instances are neither few nor many");
        let mut kept = kept(context.disk);
        let begins =
            !context.disk.files.contains_key(FOUNDED) || self.rules.breaks(BrokenRule::VotesTwice);
        if kept.is_none()
            && begins
            && let Some(member) = first.voter_in(self.node)
        {
            let begun = (member.id, VoterState::new(first, StateRegister::default()));
            write_whole(context.disk, &begun);
            context.disk.files.insert(FOUNDED, Vec::new());
            kept = Some(begun);
        }
        context.note(|| format!("voter {:?}", kept.as_ref().map(|(voter, _)| voter)));
        let run = context.rng.next() | 1;
        let host = VoterHost::new((self.node, run), kept, all).expect("it was a voter");
        self.host = Some(host.with_log_len_max(self.voters.log_len_max));
        self.due = context.now + TICK;
        self.see(context);
    }

    /// A message has come.
    pub fn receive(&mut self, from: ProcessPlace, body: Vec<u8>) {
        if let ProcessPlace::Coordinator(id) = from {
            self.queue(VotingEvent::Message(NodeId(id), body));
        }
    }

    fn queue(&mut self, event: VotingEvent) {
        if self.inbox.len() < QUEUE_MAX {
            self.inbox.push_back(event);
        }
    }

    /// The coordinator wants this. Answers come by [`Self::answers`].
    pub fn ask(&mut self, id: RequestId, request: StateRequest, context: &mut ProcessContext<'_>) {
        let register = self.assumed.as_ref().or(self.view.as_ref());
        match request {
            StateRequest::Read => {
                let key = register.map(|register| {
                    let observed = register.observed();
                    KeyState { revision: observed.revision, seat: observed.seat }
                });
                self.answers.push((id, key.map(StateReply::Key)));
            }
            StateRequest::Load => {
                let Some(register) = register else { return };
                let (revision, state) = register.state();
                let state = (revision != 0).then(|| state.to_vec());
                self.state_revision = revision;
                self.answers.push((id, Some(StateReply::State(state))));
            }
            StateRequest::Swap { expected, seat, state } => {
                let has_state = state.is_some();
                let state = state.map(|state| (self.state_revision, state));
                self.asked = Some(AskedChange { id, number: None, has_state });
                self.queue(VotingEvent::Propose(
                    id,
                    RegisterChange::Swap { expected, seat, state },
                ));
                self.pump(context);
            }
        }
    }

    /// The coordinator does not wait any more.
    pub fn forget(&mut self) {
        self.asked = None;
    }

    /// The answers that there are.
    pub fn answers(&mut self) -> Vec<Answered> {
        std::mem::take(&mut self.answers)
    }

    /// Does the work that is due.
    pub fn pump(&mut self, context: &mut ProcessContext<'_>) {
        if let Some((there, output)) = self.writing.take() {
            if context.now < there {
                self.writing = Some((there, output));
                return context.wake_at(there);
            }
            self.written(output, context);
        }
        loop {
            for _ in 0..BATCH_MAX {
                let Some(event) = self.inbox.pop_front() else { break };
                self.take(event, context);
            }
            let Some(host) = &mut self.host else { return };
            if context.now >= self.due {
                host.tick();
                // Time in which it stood still is not made up for.
                self.due = context.now + TICK;
            }
            let output = host.output(context.rng.next() | 1);
            let writes = output.whole.is_some() || output.is_retired || !output.writes.is_empty();
            if writes && self.voters.flash_us > 0 {
                let longest = self.voters.flash_us;
                let there = context.now + context.rng.micros(longest / 10, longest);
                self.writing = Some((there, output));
                return context.wake_at(there);
            }
            self.written(output, context);
            if self.inbox.is_empty() {
                return context.wake_at(self.due);
            }
        }
    }

    /// It dies. Of the writes on their way to flash, more or less is there.
    pub fn die(&mut self, rng: &mut SimRng, disk: &mut SimDisk) {
        if let Some((_, mut output)) = self.writing.take() {
            match rng.below(3) {
                0 => return,
                1 => output.writes.clear(),
                _ => {}
            }
            self.write(&mut output, disk);
        }
    }

    fn take(&mut self, event: VotingEvent, context: &mut ProcessContext<'_>) {
        let Some(host) = &mut self.host else { return };
        match event {
            VotingEvent::Message(from, body) => {
                // The library ends in a panic when messages of others contradict the decisions that
                // it knows.
                let receives = AssertUnwindSafe(|| host.receive(from, &body));
                match std::panic::catch_unwind(receives) {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => {
                        context.audit.violate("voters understand each other", error.to_string());
                    }
                    Err(_) => {
                        let words = format!("{}: {}", context.place, quorum::words(&body));
                        context.audit.violate("voters do not contradict each other", words);
                        self.host = None;
                    }
                }
            }
            VotingEvent::Propose(id, change) => {
                let number = host.propose(change.clone());
                if let Some(asked) = self.asked.as_mut().filter(|asked| asked.id == id) {
                    asked.number = number;
                    self.assume(&change);
                }
            }
        }
    }

    /// Takes a change of its own key for decided, where that is the rule to be broken.
    fn assume(&mut self, change: &RegisterChange) {
        let RegisterChange::Swap { seat, .. } = change else { return };
        if !self.rules.breaks(BrokenRule::OldTerm) {
            return;
        }
        let Some(mut register) = self.assumed.clone().or_else(|| self.view.clone()) else { return };
        if register.observed().seat.is_some_and(|held| held.instance == seat.instance) {
            let answer = register.apply(change);
            self.assumed = Some(register);
            self.answer(answer);
        }
    }

    /// The writes to flash are there now.
    fn written(&mut self, mut output: VoterOutput, context: &mut ProcessContext<'_>) {
        self.write(&mut output, context.disk);
        self.see(context);
        for (to, body) in output.messages {
            context.send(ProcessPlace::Coordinator(to.get()), SimMessage::Vote { body });
        }
        for (number, answer) in output.answers {
            if self.asked.as_ref().is_some_and(|asked| asked.number == Some(number)) {
                self.answer(answer);
            }
        }
    }

    fn write(&self, output: &mut VoterOutput, disk: &mut SimDisk) {
        if output.is_retired {
            disk.files.remove(FILE);
            return;
        }
        if let Some(whole) = &output.whole {
            write_whole(disk, whole);
        }
        if self.rules.breaks(BrokenRule::ForgetsLog) {
            output.writes.retain(|write| matches!(write, JournalWrite::Promise(_)));
        }
        if !output.writes.is_empty() {
            append(disk.files.entry(FILE).or_default(), &output.writes);
        }
    }

    fn answer(&mut self, answer: RegisterAnswer) {
        let Some(AskedChange { id, has_state, .. }) = self.asked.take() else { return };
        let reply = match answer {
            RegisterAnswer::Done(revision) => {
                if has_state {
                    self.state_revision = revision;
                }
                StateReply::Swapped(revision)
            }
            RegisterAnswer::Lost(observed) => {
                StateReply::Key(KeyState { revision: observed.revision, seat: observed.seat })
            }
        };
        self.answers.push((id, Some(reply)));
    }

    /// Shows the register to the coordinator.
    fn see(&mut self, context: &mut ProcessContext<'_>) {
        let register = self.host.as_ref().and_then(VoterHost::register);
        let changes = register.map(StateRegister::changes);
        if changes == self.view.as_ref().map(StateRegister::changes) {
            return;
        }
        if let Some(register) = register {
            let digest = xxhash_rust::xxh3::xxh3_64(&control::encode(register));
            context.audit.register(context.place, register.changes(), digest, context.world_now);
        }
        self.view = register.cloned();
        self.assumed.take_if(|assumed| changes.is_some_and(|seen| seen >= assumed.changes()));
    }
}

fn append(file: &mut Vec<u8>, content: &impl Serialize) {
    let record = control::encode(content);
    file.extend((record.len() as u64).to_le_bytes());
    file.extend(record);
}

fn write_whole(disk: &mut SimDisk, whole: &(VoterId, VoterState)) {
    let mut file = Vec::new();
    append(&mut file, whole);
    disk.files.insert(FILE, file);
}

/// The voter on a disk.
///
/// # Panics
/// If it cannot be read.
fn kept(disk: &SimDisk) -> Option<(VoterId, VoterState)> {
    let mut rest = &disk.files.get(FILE)?[..];
    let mut record = || {
        let (len, after) = rest.split_first_chunk()?;
        let (content, after) = after.split_at(u64::from_le_bytes(*len) as usize);
        rest = after;
        Some(content)
    };
    let (voter, mut kept): (VoterId, VoterState) =
        control::decode(record()?).expect("a voter was written");
    while let Some(content) = record() {
        let writes: Vec<JournalWrite> =
            control::decode(content).expect("what it wrote was written");
        writes.into_iter().for_each(|write| kept.write(write));
    }
    Some((voter, kept))
}

/// Loses the contents of a disk, but for the knowledge that something was.
pub fn wipe(disk: &mut SimDisk) {
    disk.files.clear();
    disk.files.insert(FOUNDED, Vec::new());
}

/// Whether most voters of the newest configuration are on disks, without the one of the instance
/// `id`: else, lost, it would take decisions with it. A voter that does not know of that
/// configuration yet will hear of it.
pub fn may_be_lost<'d>(id: u32, disks: impl Iterator<Item = (u32, &'d SimDisk)>) -> bool {
    let all: Vec<_> = disks.filter_map(|(at, disk)| Some((at, kept(disk)?))).collect();
    let newest = all.iter().map(|(_, (_, kept))| &kept.configuration);
    let Some(newest) = newest.max_by_key(|configuration| configuration.number) else {
        return false;
    };
    let votes = |(at, (voter, _)): &&(u32, (VoterId, VoterState))| {
        let member = newest.voter_in(NodeId(*at));
        *at != id && member.is_some_and(|member| member.id == *voter)
    };
    all.iter().filter(votes).count() * 2 > newest.voters.len()
}
