//! One voter.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use omnipaxos::messages::Message;
use omnipaxos::util::LogEntry;
use omnipaxos::{OmniPaxos, ServerConfig};
use samite_types::{Error, ErrorKind, NodeId, Result};
use serde::{Deserialize, Serialize};

use super::configuration::{VoterConfiguration, VoterId, VoterMember};
use super::journal::{CommandEntry, JournalWrite, LogCommand, VoterJournal, VoterState};
use super::link::{ArrivalAction, MessagePosition, Session, VoterLink};
use super::register::{RegisterAnswer, RegisterChange, StateRegister};

/// How often [`Voter::tick`] is to be called.
pub const TICK: Duration = Duration::from_millis(100);
/// Ticks between two rounds in which voters ask each other how they are. A leader that has died is replaced within three rounds, well before
/// [`crate::ClusterTiming::takeover`] is over; more rounds cost an idle node more.
const ROUND_TICKS: u64 = 2;
/// Ticks after which a message without an effect is sent again.
const RESEND_TICKS: u64 = 3;
/// A voter that was heard in so many ticks lives.
const HEARD_TICKS: u64 = 2 * ROUND_TICKS;
/// Ticks after which a voter that hears most others, and has no part in their decisions, leads
/// them.
const APART_TICKS: u64 = 20;
/// Entries that a log has before it is compacted, unless its host says otherwise; and bytes of state in them.
pub const LOG_LEN_MAX: usize = if cfg!(test) { 10 } else { 1000 };
const LOG_BYTES_MAX: usize = 8 << 20;
/// Most nodes that are remembered to have said that they have no voter.
const VACANT_MAX: usize = 64;
/// A node that has said so in so many ticks lives.
const VACANT_HEARD_TICKS: u64 = 30;
/// A voter that was not heard for so many ticks is replaced, if there is a node for it: a minute.
const SILENT_TICKS: u64 = if cfg!(test) { 60 } else { 600 };
/// Characters of a message that are shown.
const WORDS_MAX: usize = 300;

/// Messages of voters and their nodes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct VoterMessage {
    /// Its writer; 0: a node without a voter.
    pub from: VoterId,
    pub envelope: VoterPayload,
}

/// Messages of voters to each other.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum VoterPayload {
    Of {
        configuration: u32,
        place: MessagePosition,
        message: Message<LogCommand>,
    },
    /// Messages of the receiver go in this session.
    Session {
        configuration: u32,
        session: Session,
    },
    /// The receiver's configuration has ended; this one is in force, and began with this register.
    Moved {
        configuration: VoterConfiguration,
        base: StateRegister,
    },
    /// This run of the sender's node has no voter, and may begin one.
    Vacant {
        run: u64,
    },
    /// The voters; the number is that of the configuration. The answer to a node without a voter
    /// that may not begin one.
    Voters {
        configuration: u32,
        nodes: Vec<NodeId>,
    },
}

/// A node that may begin a voter.
#[derive(Clone, Copy, Debug)]
struct VoterVacancy {
    /// Its run.
    run: u64,
    /// The tick in which it said so last.
    heard: u64,
}

/// The tasks, in this order: write to flash, sync, send, answer.
#[derive(Debug, Default)]
pub struct VoterOutput {
    /// The whole voter is to be written anew: another configuration has begun.
    pub whole: Option<(VoterId, VoterState)>,
    /// It will never vote again: nothing of its state is to be kept.
    pub is_retired: bool,
    /// Writes behind the earlier ones.
    pub writes: Vec<JournalWrite>,
    /// The receiving node, and the message.
    pub messages: Vec<(NodeId, Vec<u8>)>,
    /// Results of changes that were proposed here, by their numbers.
    pub answers: Vec<(u64, RegisterAnswer)>,
}

/// A voter. Its driver carries out [`VoterOutput`] after each call; messages may be lost, doubled
/// and come in any order.
pub struct Voter {
    me: VoterId,
    /// Drawn for this run: nothing that an earlier one proposed is answered here.
    run: u64,
    proposed: u64,
    paxos: OmniPaxos<LogCommand, VoterJournal>,
    journal: VoterJournal,
    configuration: VoterConfiguration,
    links: BTreeMap<VoterId, VoterLink>,
    ticks: u64,
    /// Ticks since it had a part in the vote.
    apart: u64,
    base: StateRegister,
    register: StateRegister,
    /// Entries of the log that the register has seen.
    applied: usize,
    output: VoterOutput,
    is_retired: bool,
    /// Nodes that may begin a voter.
    vacant: BTreeMap<NodeId, VoterVacancy>,
    /// The tick in which the configuration began here.
    began: u64,
    /// It has proposed that the configuration ends, for its log is long.
    is_ending: bool,
    log_len_max: usize,
}

impl fmt::Debug for Voter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Voter")
            .field("me", &self.me)
            .field("configuration", &self.configuration)
            .field("applied", &self.applied)
            .field("leader", &self.paxos.get_current_leader())
            .field("accepted", &self.paxos.get_accepted_idx())
            .field("links", &self.links)
            .finish_non_exhaustive()
    }
}

impl Voter {
    /// The voter `me` from its kept state. `run` is drawn at random.
    ///
    /// # Errors
    /// `Invalid`: it is none of the configuration's voters.
    pub fn new(me: VoterId, kept: VoterState, run: u64) -> Result<Self> {
        let (configuration, base) = (kept.configuration.clone(), kept.base.clone());
        let (paxos, journal) = begin(me, kept)?;
        let (register, output) = (base.clone(), VoterOutput::default());
        let links = links(me, &configuration, run);
        let mut voter = Self {
            me,
            run,
            proposed: 0,
            paxos,
            journal,
            configuration,
            links,
            ticks: 0,
            apart: 0,
            base,
            register,
            applied: 0,
            output,
            is_retired: false,
            vacant: BTreeMap::new(),
            began: 0,
            is_ending: false,
            log_len_max: LOG_LEN_MAX,
        };
        voter.apply();
        Ok(voter)
    }

    /// The same, with a log that is compacted when it has so many entries.
    #[must_use]
    pub fn with_log_len_max(self, log_len_max: usize) -> Self {
        Self { log_len_max, ..self }
    }

    /// Lets time pass; to be called every [`TICK`].
    pub fn tick(&mut self) {
        if self.is_retired {
            return;
        }
        self.ticks += 1;
        if self.ticks.is_multiple_of(RESEND_TICKS) {
            let quiet = self
                .links
                .iter_mut()
                .filter_map(|(to, link)| link.was_quiet().then(|| (*to, link.is_new())));
            for (to, is_new) in quiet.collect::<Vec<_>>() {
                if is_new && let Some(member) = self.configuration.member(to) {
                    self.say_moved(member.node);
                }
                self.tell_session(to);
            }
        }
        self.paxos.tick();
        self.join_in();
        self.apply();
    }

    /// The promise of a voter before it was started again may be above the ballot of the voter that
    /// leads the others by now. It follows none then, and the library lets that be as long as the
    /// others are enough.
    fn join_in(&mut self) {
        let others = self.links.keys().filter(|other| self.hears(**other)).count();
        if self.is_ready() || (others + 1) * 2 <= self.configuration.voters.len() {
            self.apart = 0;
            return;
        }
        self.apart += 1;
        if self.apart >= APART_TICKS {
            self.apart = 0;
            self.paxos.try_become_leader();
        }
    }

    /// Whether another voter was heard lately.
    fn hears(&self, other: VoterId) -> bool {
        let heard = self.links.get(&other).and_then(VoterLink::heard);
        heard.is_some_and(|tick| self.ticks <= tick + HEARD_TICKS)
    }

    /// Takes a message from the node `sender`.
    ///
    /// # Errors
    /// `Corrupt`: it is none.
    pub fn receive(&mut self, sender: NodeId, bytes: &[u8]) -> Result<()> {
        let VoterMessage { from, envelope } = parse_message(bytes)?;
        match envelope {
            VoterPayload::Of { configuration, .. }
            | VoterPayload::Session { configuration, .. }
                if configuration < self.configuration.number =>
            {
                self.say_moved(sender);
            }
            VoterPayload::Of { configuration, place, message } => {
                let is_right = configuration == self.configuration.number
                    && message.get_sender() == from
                    && message.get_receiver() == self.me
                    && !self.is_retired;
                let Some(link) = self.links.get_mut(&from).filter(|_| is_right) else {
                    return Ok(());
                };
                match link.receive(place, self.ticks) {
                    ArrivalAction::Take => {
                        self.paxos.handle_incoming(message);
                        self.apply();
                    }
                    ArrivalAction::Drop => {}
                    ArrivalAction::Tell => self.tell_session(from),
                    ArrivalAction::Lost => {
                        self.paxos.reconnected(from);
                        self.tell_session(from);
                    }
                }
            }
            VoterPayload::Session { configuration, session } => {
                let is_right = configuration == self.configuration.number && !self.is_retired;
                if is_right && self.links.get_mut(&from).is_some_and(|link| link.named(session)) {
                    self.paxos.reconnected(from);
                }
            }
            VoterPayload::Moved { configuration, base } => {
                if configuration.number > self.configuration.number {
                    self.move_on(configuration, base)?;
                }
            }
            VoterPayload::Vacant { run } => self.is_vacant(sender, run),
            VoterPayload::Voters { .. } => {}
        }
        Ok(())
    }

    /// Proposes a change; its number, by which it is answered if the answer is not lost. `None`: nobody leads the vote now.
    pub fn propose(&mut self, change: RegisterChange) -> Option<u64> {
        self.append(CommandEntry::Change(change))
    }

    fn append(&mut self, entry: CommandEntry) -> Option<u64> {
        if !self.is_ready() {
            return None;
        }
        self.proposed += 1;
        let origin = (self.run, self.proposed);
        self.paxos.append(LogCommand { origin, entry }).ok()?;
        self.apply();
        Some(self.proposed)
    }

    /// A run of a node says that it has no voter. If it has lost the one that it had, it gets a new
    /// one: the promises of that one are not known there any more.
    fn is_vacant(&mut self, node: NodeId, run: u64) {
        if self.vacant.len() >= VACANT_MAX && !self.vacant.contains_key(&node) {
            return;
        }
        self.vacant.insert(node, VoterVacancy { run, heard: self.ticks });
        match self.configuration.voter_in(node) {
            Some(member) if member.run == run => self.say_moved(node),
            Some(_) => {
                self.replace(node, node);
            }
            None => self.send(node, self.voters()),
        }
    }

    /// The voters, as a node without a voter is told them.
    fn voters(&self) -> VoterPayload {
        let nodes = self.configuration.voters.iter().map(|member| member.node).collect();
        VoterPayload::Voters { configuration: self.configuration.number, nodes }
    }

    /// These nodes belong to the cluster: a voter in another one, or one that has been silent for long, is replaced by one in a node that may begin it,
    /// if there is one. To be called now and then.
    pub fn replace_absent(&mut self, nodes: &[NodeId]) {
        if !self.leads() || self.is_ending {
            return;
        }
        let is_silent = |member: &VoterMember| {
            let heard = self.links.get(&member.id).and_then(VoterLink::heard).unwrap_or(self.began);
            member.id != self.me && self.ticks > heard + SILENT_TICKS
        };
        let mut voters = self.configuration.voters.iter();
        let gone = voters.find(|member| !nodes.contains(&member.node) || is_silent(member));
        let lives = |vacancy: &VoterVacancy| self.ticks <= vacancy.heard + VACANT_HEARD_TICKS;
        let mut vacant = self.vacant.iter();
        let spare = vacant.find(|(node, vacancy)| {
            nodes.contains(node) && lives(vacancy) && self.configuration.voter_in(**node).is_none()
        });
        if let (Some(gone), Some((node, _))) = (gone, spare) {
            self.replace(gone.node, *node);
        }
    }

    /// Proposes a new voter in `node`, which has said that it has none, in the place of the one in `old`, which never votes again. False: that
    /// cannot be proposed now. Most voters have to live without the new one, which may never begin: else nothing would be decided any more.
    pub fn replace(&mut self, old: NodeId, node: NodeId) -> bool {
        let voters = &self.configuration.voters;
        let lives = |member: &&VoterMember| {
            member.node != old && (member.id == self.me || self.hears(member.id))
        };
        if voters.iter().filter(lives).count() * 2 <= voters.len() {
            return false;
        }
        let Some(VoterVacancy { run, .. }) = self.vacant.get(&node).copied() else { return false };
        let Some(next) = self.configuration.replacing(old, (node, run)) else { return false };
        self.append(CommandEntry::End(next)).is_some()
    }

    /// The tasks since the last call.
    pub fn output(&mut self) -> VoterOutput {
        if !self.is_retired {
            let mut messages = Vec::new();
            self.paxos.take_outgoing_messages(&mut messages);
            for message in messages {
                self.send_message(message);
            }
        }
        let writes = self.journal.take_writes();
        let output = std::mem::take(&mut self.output);
        // Of a voter that is written as a whole these are a part already.
        if output.whole.is_some() { output } else { VoterOutput { writes, ..output } }
    }

    /// The register as far as this voter knows it: all that was decided before the last answer here, perhaps more.
    #[must_use]
    pub const fn register(&self) -> &StateRegister {
        &self.register
    }

    /// All its state on flash, once the output of [`Self::output`] is.
    #[must_use]
    pub fn saved(&self) -> VoterState {
        self.journal.saved()
    }

    /// Its number.
    #[must_use]
    pub const fn id(&self) -> VoterId {
        self.me
    }

    /// The voters.
    #[must_use]
    pub const fn configuration(&self) -> &VoterConfiguration {
        &self.configuration
    }

    /// Another one has taken this voter's place.
    #[must_use]
    pub const fn is_retired(&self) -> bool {
        self.is_retired
    }

    fn leads(&self) -> bool {
        self.paxos.get_current_leader() == Some((self.me, true))
    }

    fn is_ready(&self) -> bool {
        !self.is_retired && matches!(self.paxos.get_current_leader(), Some((_, true)))
    }

    fn send(&mut self, to: NodeId, envelope: VoterPayload) {
        // Every message that is sent can be written down.
        if let Ok(bytes) = postcard::to_stdvec(&VoterMessage { from: self.me, envelope }) {
            self.output.messages.push((to, bytes));
        }
    }

    fn send_message(&mut self, message: Message<LogCommand>) {
        let (to, configuration) = (message.get_receiver(), self.configuration.number);
        if let Some(member) = self.configuration.member(to)
            && let Some(place) = self.links.get_mut(&to).and_then(VoterLink::send)
        {
            self.send(member.node, VoterPayload::Of { configuration, place, message });
        }
    }

    fn tell_session(&mut self, to: VoterId) {
        let configuration = self.configuration.number;
        if let Some(member) = self.configuration.member(to)
            && let Some(session) = self.links.get(&to).map(VoterLink::session)
        {
            self.send(member.node, VoterPayload::Session { configuration, session });
        }
    }

    fn say_moved(&mut self, to: NodeId) {
        let (configuration, base) = (self.configuration.clone(), self.base.clone());
        self.send(to, VoterPayload::Moved { configuration, base });
    }

    /// Carries out the commands that were decided.
    fn apply(&mut self) {
        let entries = self.paxos.read_decided_suffix(self.applied).unwrap_or_default();
        for entry in entries {
            let LogEntry::Decided(LogCommand { origin: (run, number), entry }) = entry else {
                // The log is not trimmed, and has no snapshots nor stop signs.
                continue;
            };
            self.applied += 1;
            match entry {
                CommandEntry::Change(change) => {
                    let answer = self.register.apply(&change);
                    if run == self.run {
                        self.output.answers.push((number, answer));
                    }
                }
                // A command that was decided after it has no effect anywhere, and is not answered.
                CommandEntry::End(next) => {
                    // It was made from a lawful one.
                    let _ = self.move_on(next, self.register.clone());
                    return;
                }
            }
        }
        let is_long = self.applied > self.log_len_max || self.journal.state_len() > LOG_BYTES_MAX;
        if is_long && self.leads() && !self.is_ending {
            // The next configuration begins with the register, and without a log.
            let number = self.configuration.number + 1;
            let next = VoterConfiguration { number, ..self.configuration.clone() };
            self.is_ending = true;
            self.is_ending = self.append(CommandEntry::End(next)).is_some();
        }
    }

    /// Another configuration is in force: votes in this one are over.
    fn move_on(&mut self, configuration: VoterConfiguration, base: StateRegister) -> Result<()> {
        if !configuration.has(self.me) {
            self.is_retired = true;
            self.configuration = configuration;
            self.base = base;
            return Ok(());
        }
        let kept = VoterState::new(configuration.clone(), base.clone());
        // The last messages of the old configuration help voters that do not know of its end.
        let mut messages = Vec::new();
        self.paxos.take_outgoing_messages(&mut messages);
        messages.into_iter().for_each(|message| self.send_message(message));
        let last = std::mem::take(&mut self.output);
        let led = self.leads();
        (self.paxos, self.journal) = begin(self.me, kept)?;
        if led {
            self.paxos.try_become_leader();
        }
        (self.register, self.applied, self.is_ending) = (base.clone(), 0, false);
        self.links = links(self.me, &configuration, self.run);
        self.began = self.ticks;
        self.configuration = configuration;
        self.base = base;
        self.output = VoterOutput { whole: Some((self.me, self.journal.saved())), ..last };
        for member in self.configuration.voters.clone() {
            if member.id != self.me {
                self.say_moved(member.node);
            }
        }
        Ok(())
    }
}

/// The message.
pub(super) fn parse_message(bytes: &[u8]) -> Result<VoterMessage> {
    let corrupt = |error| Error::new(ErrorKind::Corrupt, format!("message of a voter: {error}"));
    postcard::from_bytes(bytes).map_err(corrupt)
}

/// The message, in words for people.
#[must_use]
pub fn words(bytes: &[u8]) -> String {
    match parse_message(bytes) {
        Ok(VoterMessage { from, envelope }) => {
            let whole = format!("{envelope:?}");
            let shown: String = whole.chars().take(WORDS_MAX).collect();
            format!("voter {from}: {shown}")
        }
        Err(error) => error.to_string(),
    }
}

fn links(
    me: VoterId,
    configuration: &VoterConfiguration,
    run: u64,
) -> BTreeMap<VoterId, VoterLink> {
    let others = configuration.voters.iter().map(|member| member.id).filter(|id| *id != me);
    others.map(|id| (id, VoterLink::new(run))).collect()
}

fn begin(
    me: VoterId,
    kept: VoterState,
) -> Result<(OmniPaxos<LogCommand, VoterJournal>, VoterJournal)> {
    let invalid = |words: String| Error::new(ErrorKind::Invalid, format!("voter {me}: {words}"));
    if !kept.configuration.has(me) {
        return Err(invalid(format!("it is none of {:?}", kept.configuration.voters)));
    }
    let server = ServerConfig {
        pid: me,
        election_tick_timeout: ROUND_TICKS,
        resend_message_tick_timeout: RESEND_TICKS,
        flush_batch_tick_timeout: 1,
        ..ServerConfig::default()
    };
    let cluster = kept.configuration.cluster();
    let journal = VoterJournal::new(kept);
    let paxos = cluster
        .build_for_server(server, journal.clone())
        .map_err(|error| invalid(error.to_string()))?;
    Ok((paxos, journal))
}
