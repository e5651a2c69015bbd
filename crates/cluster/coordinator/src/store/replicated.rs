//! The state in a register that voters in several nodes keep together ([`crate::quorum`]): nothing has to be installed for it.
//!
//! A thread drives this node's voter: it lets time pass for it, hands it the messages of the
//! others, writes its state to flash, and sends its answers. The leader key is read from this
//! node's own copy, which may be old; but a write compares revisions, and is answered when most
//! voters have it.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use samite_types::{Clock, Entropy, Error, ErrorKind, NodeId, Result, SystemClock, SystemEntropy};
use samite_wire::membership::LeaderAddress;

use super::StateStore;
use super::election::{self, ElectionStep, InstanceRole, KeyElection, SwapResult};
use super::parts::{MessageCutter, MessageJoiner};
use crate::ClusterTiming;
use crate::leader_key::{LeaderSeat, ObservedKey};
use crate::quorum::{
    RegisterAnswer, RegisterChange, StateRegister, TICK, VoterConfiguration, VoterFile, VoterHost,
    VoterState,
};

/// Ticks between two looks at which nodes belong to the cluster.
const REPLACE_TICKS: u64 = 10;
/// How long a change may take.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);
/// Most messages and proposals that wait for the voter.
const QUEUE_LEN: usize = 1024;
/// Most of them that are answered with one write to flash.
const BATCH_MAX: usize = 64;
/// Pause before a voter whose flash has failed is opened again.
const REOPEN_PAUSE: Duration = Duration::from_secs(1);

/// Carries messages to voters in other nodes.
pub trait VoterTransport: Send {
    /// Sends `message`, of at most 256 KiB and a few bytes, to the voter in the node `to`. Returns at once; the message may be lost.
    fn send(&mut self, to: NodeId, message: Vec<u8>);
}

/// This node's voter, and its instance of the coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VoterConfig {
    /// The node.
    pub node: NodeId,
    /// Nodes in which the first voters are.
    pub first: Vec<NodeId>,
    /// The voter's file.
    pub path: PathBuf,
    /// Whether it is to outlive the machine's power, and not its processes alone.
    pub is_synced: bool,
    /// The cluster has served before: a missing file is a lost one then, and the voter is replaced by a new one.
    pub is_founded: bool,
    /// Where this instance is reached.
    pub leader: LeaderAddress,
    /// Drawn at random for this instance.
    pub instance: u64,
    /// Times.
    pub timing: ClusterTiming,
}

/// The register, as this node's voter has it.
#[derive(Clone, Debug, Default)]
struct RegisterView {
    /// `None`: the node has no voter.
    leader: Option<ObservedKey>,
    changes: u64,
    /// Revision of the state, 0 when there is none, and the state.
    state: (u64, Arc<[u8]>),
}

#[derive(Debug)]
enum VoterEvent {
    Message(NodeId, Vec<u8>),
    Propose(RegisterChange, SyncSender<RegisterAnswer>),
}

/// Takes messages of other nodes' voters to this one's.
#[derive(Clone, Debug)]
pub struct VoterMailbox(SyncSender<VoterEvent>);

impl VoterMailbox {
    /// A message has come from the voter in the node `from`. It is lost when too many wait.
    pub fn deliver(&self, from: NodeId, message: Vec<u8>) {
        let _ = self.0.try_send(VoterEvent::Message(from, message));
    }
}

/// Keeps the state together with others, and takes part in the election of the instance that may change it.
pub struct ReplicatedStore {
    election: KeyElection,
    events: SyncSender<VoterEvent>,
    view: Arc<Mutex<RegisterView>>,
    /// Nodes that belong to the cluster; none: that is not known.
    nodes: Arc<Mutex<Vec<NodeId>>>,
    is_ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    /// Revision of the state that this instance decides on; 0: there is none yet.
    state_revision: u64,
}

impl fmt::Debug for ReplicatedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplicatedStore").field("election", &self.election).finish_non_exhaustive()
    }
}

impl ReplicatedStore {
    /// Opens this node's voter, and starts the thread that drives it.
    ///
    /// # Errors
    /// `Corrupt`: its file is damaged. `Invalid`: the first voters are too few or too many. The file cannot be read or written.
    pub fn start(
        config: &VoterConfig,
        transport: Box<dyn VoterTransport>,
    ) -> Result<(Self, VoterMailbox)> {
        let (host, file) = open(config)?;
        let (events, taken) = mpsc::sync_channel(QUEUE_LEN);
        let view = Arc::new(Mutex::new(RegisterView::default()));
        let nodes = Arc::new(Mutex::default());
        let is_ended = Arc::new(AtomicBool::new(false));
        let mut driver = VoterDriver {
            config: config.clone(),
            host,
            file,
            transport,
            view: Arc::clone(&view),
            nodes: Arc::clone(&nodes),
            ticks: 0,
            cutter: MessageCutter::new(draw()),
            joiner: MessageJoiner::default(),
            waiting: BTreeMap::new(),
        };
        driver.see();
        let ended = Arc::clone(&is_ended);
        let thread = std::thread::Builder::new()
            .name("voter".into())
            .spawn(move || driver.live(&taken, &ended))
            .map_err(|error| Error::new(ErrorKind::Io, format!("start the voter: {error}")))?;
        let mailbox = VoterMailbox(events.clone());
        let store = Self {
            election: KeyElection::new(config.leader.clone(), config.instance, config.timing),
            events,
            view,
            nodes,
            is_ended,
            thread: Some(thread),
            state_revision: 0,
        };
        Ok((store, mailbox))
    }

    /// Proposes a change; its result, if that is known in time.
    fn change(&self, change: RegisterChange, timeout: Duration) -> Option<RegisterAnswer> {
        let (answer, answered) = mpsc::sync_channel(1);
        self.events.try_send(VoterEvent::Propose(change, answer)).ok()?;
        answered.recv_timeout(timeout).ok()
    }

    fn swap(
        &mut self,
        expected: u64,
        seat: LeaderSeat,
        state: Option<(u64, Vec<u8>)>,
    ) -> SwapResult {
        match self.change(RegisterChange::Swap { expected, seat, state }, ANSWER_TIMEOUT) {
            Some(RegisterAnswer::Done(revision)) => SwapResult::Done(revision),
            Some(RegisterAnswer::Lost(observed)) => SwapResult::Lost(observed),
            None => SwapResult::Unknown,
        }
    }

    fn campaign_once(&mut self) -> bool {
        let sent = SystemClock.monotonic();
        match self.election.next(sent) {
            ElectionStep::Rest => false,
            ElectionStep::Read => {
                let leader = lock(&self.view).leader.clone();
                match leader {
                    Some(observed) => self.election.observed(sent, observed),
                    None => self.election.unreadable(sent),
                }
                true
            }
            ElectionStep::Swap { expected, seat } => {
                let swapped = self.swap(expected, seat, None);
                self.election.swapped(sent, SystemClock.monotonic(), swapped);
                true
            }
        }
    }
}

impl StateStore for ReplicatedStore {
    fn campaign(&mut self) -> InstanceRole {
        election::take_steps(|| self.campaign_once());
        self.election.role(SystemClock.monotonic())
    }

    fn load(&mut self) -> Result<Option<Vec<u8>>> {
        // This node's voter has carried out the change by which this instance came to lead, and all before it.
        let view = lock(&self.view).clone();
        if view.leader.is_none() {
            let none = "this node has no voter now";
            return Err(Error::new(ErrorKind::Unavailable, none));
        }
        let (revision, state) = view.state;
        self.state_revision = revision;
        Ok((revision != 0).then(|| state.to_vec()))
    }

    fn save(&mut self, state: &[u8]) -> Result<()> {
        let deposed = || Error::new(ErrorKind::Conflict, "another coordinator has taken over");
        let sent = SystemClock.monotonic();
        let Some((expected, seat)) = self.election.renewal_now(sent) else { return Err(deposed()) };
        let swapped = self.swap(expected, seat, Some((self.state_revision, state.to_vec())));
        self.election.swapped(sent, SystemClock.monotonic(), swapped.clone());
        match swapped {
            SwapResult::Done(revision) => {
                self.state_revision = revision;
                Ok(())
            }
            SwapResult::Lost(_) => Err(deposed()),
            SwapResult::Unknown => {
                let words = "most of the voters did not answer in time";
                Err(Error::new(ErrorKind::Unavailable, words))
            }
        }
    }

    fn challenge(&mut self) {
        self.election.challenge();
    }

    fn set_nodes(&mut self, nodes: &[NodeId]) {
        *lock(&self.nodes) = nodes.to_vec();
    }

    fn resign(&mut self) {
        let now = SystemClock.monotonic();
        if let Some(revision) = self.election.resign(now) {
            // Else the others wait until the key is old. They may be ending, too.
            self.change(RegisterChange::Remove(revision), ANSWER_TIMEOUT / 4);
        }
    }
}

impl Drop for ReplicatedStore {
    fn drop(&mut self) {
        self.is_ended.store(true, Ordering::Release);
        self.thread.take().map(JoinHandle::join);
    }
}

/// The voter from its kept state, or one that begins.
fn open(config: &VoterConfig) -> Result<(VoterHost, VoterFile)> {
    let (mut file, mut kept) = VoterFile::open(&config.path, config.is_synced)?;
    let first = VoterConfiguration::first(&config.first)?;
    if kept.is_none()
        && !config.is_founded
        && let Some(member) = first.voter_in(config.node)
    {
        let begun = (member.id, VoterState::new(first.clone(), StateRegister::default()));
        file.begin(&begun)?;
        kept = Some(begun);
    }
    if kept.is_none() && first.voter_in(config.node).is_some() {
        let path = config.path.display();
        tracing::warn!(%path, "this node's voter is not there; the others have to give it a new one");
    }
    let host = VoterHost::new((config.node, draw()), kept, config.first.clone())?;
    Ok((host, file))
}

/// A number of a run; not 0.
fn draw() -> u64 {
    SystemEntropy.next_u64().max(1)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The state of the thread.
struct VoterDriver {
    config: VoterConfig,
    host: VoterHost,
    file: VoterFile,
    transport: Box<dyn VoterTransport>,
    view: Arc<Mutex<RegisterView>>,
    nodes: Arc<Mutex<Vec<NodeId>>>,
    ticks: u64,
    cutter: MessageCutter,
    joiner: MessageJoiner,
    /// Proposals without an answer, and when they were made.
    waiting: BTreeMap<u64, (Instant, SyncSender<RegisterAnswer>)>,
}

impl VoterDriver {
    /// Runs until the store is dropped. A voter that panics begins again with its kept state.
    fn live(&mut self, events: &Receiver<VoterEvent>, is_ended: &AtomicBool) {
        while catch_unwind(AssertUnwindSafe(|| self.run(events, is_ended))).is_err() {
            tracing::error!("this node's voter has panicked");
            self.begin_again(is_ended);
        }
    }

    fn run(&mut self, events: &Receiver<VoterEvent>, is_ended: &AtomicBool) {
        let mut due = Instant::now() + TICK;
        while !is_ended.load(Ordering::Acquire) {
            let first = events.recv_timeout(due.saturating_duration_since(Instant::now()));
            if matches!(first, Err(RecvTimeoutError::Disconnected)) {
                return;
            }
            let rest = if first.is_ok() { BATCH_MAX - 1 } else { 0 };
            for event in first.into_iter().chain(events.try_iter().take(rest)) {
                self.take(event);
            }
            let now = Instant::now();
            if now >= due {
                self.tick();
                self.waiting.retain(|_, (asked, _)| now < *asked + ANSWER_TIMEOUT);
                // Time in which it stood still is not made up for.
                due = now + TICK;
            }
            if let Err(error) = self.carry_out() {
                tracing::error!(%error, "this node's voter");
                self.begin_again(is_ended);
            }
        }
    }

    fn tick(&mut self) {
        self.host.tick();
        self.ticks += 1;
        if self.ticks.is_multiple_of(REPLACE_TICKS) {
            let nodes = lock(&self.nodes).clone();
            if !nodes.is_empty() {
                self.host.replace_absent(&nodes);
            }
        }
    }

    fn take(&mut self, event: VoterEvent) {
        match event {
            VoterEvent::Message(from, message) => {
                let received = match self.joiner.join(from, &message) {
                    Ok(Some(message)) => self.host.receive(from, &message),
                    Ok(None) => Ok(()),
                    Err(error) => Err(error),
                };
                if let Err(error) = received {
                    tracing::warn!(%from, %error, "voter");
                }
            }
            VoterEvent::Propose(change, answer) => {
                // Unanswered, it is one of which nothing is known.
                if let Some(number) = self.host.propose(change) {
                    self.waiting.insert(number, (Instant::now(), answer));
                }
            }
        }
    }

    /// Writes, and then sends and answers (I9).
    fn carry_out(&mut self) -> Result<()> {
        let output = self.host.output(draw());
        self.file.write(&output)?;
        self.see();
        for (to, message) in output.messages {
            for part in self.cutter.cut(&message) {
                self.transport.send(to, part);
            }
        }
        for (number, answer) in output.answers {
            if let Some((_, asked)) = self.waiting.remove(&number) {
                // The caller may have given up.
                let _ = asked.try_send(answer);
            }
        }
        Ok(())
    }

    /// Shows the register to the coordinator.
    fn see(&self) {
        let mut view = lock(&self.view);
        let Some(register) = self.host.register() else {
            view.leader = None;
            return;
        };
        if view.leader.is_some() && view.changes == register.changes() {
            return;
        }
        view.leader = Some(register.observed());
        view.changes = register.changes();
        let (revision, state) = register.state();
        if view.state.0 != revision {
            view.state = (revision, state.into());
        }
    }

    /// Its state in memory may not be on flash: the voter is the one on flash.
    fn begin_again(&mut self, is_ended: &AtomicBool) {
        self.waiting.clear();
        while !is_ended.load(Ordering::Acquire) {
            std::thread::sleep(REOPEN_PAUSE);
            // It had one: without its file it has lost it.
            let config = VoterConfig { is_founded: true, ..self.config.clone() };
            match open(&config) {
                Ok((host, file)) => {
                    (self.host, self.file) = (host, file);
                    return;
                }
                Err(error) => tracing::error!(%error, "this node's voter"),
            }
        }
    }
}
