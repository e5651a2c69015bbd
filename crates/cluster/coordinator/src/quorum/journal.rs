//! The state that a voter has to find again: the log of commands, and its promises.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use omnipaxos::ballot_leader_election::Ballot;
use omnipaxos::storage::{Snapshot, StopSign, Storage, StorageOp, StorageResult};
use serde::{Deserialize, Serialize};

use super::configuration::VoterConfiguration;
use super::register::{RegisterChange, StateRegister};

/// An entry of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogCommand {
    /// The receiver of the result: a number drawn by a run of a voter, and the command's own.
    pub origin: (u64, u64),
    pub entry: CommandEntry,
}

/// The effect of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CommandEntry {
    /// Changes the register.
    Change(RegisterChange),
    /// Ends the configuration; this one comes next. The library has stop signs for that; but when the leader changes it may count one twice, and
    /// then decides nothing any more. So it is an entry like others, after which the voters heed none.
    End(VoterConfiguration),
}

impl omnipaxos::storage::Entry for LogCommand {
    type Snapshot = NoSnapshot;
}

/// There are none: when the log is long, a new configuration begins with its result. (The library's
/// snapshots may include an entry that is accepted, and is not decided.)
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoSnapshot;

impl Snapshot<LogCommand> for NoSnapshot {
    fn create(_entries: &[LogCommand]) -> Self {
        Self
    }

    fn merge(&mut self, _delta: Self) {}

    fn use_snapshots() -> bool {
        false
    }
}

/// One write that has to be on flash.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum JournalWrite {
    /// Entries after those that are there.
    Append(Vec<LogCommand>),
    /// Entries from this index on, in place of those that are there.
    Replace(usize, Vec<LogCommand>),
    /// The newest ballot that the voter takes part in.
    Promise(Ballot),
    /// The ballot in which the log's last entry was accepted.
    Accepted(Ballot),
    /// So many entries are decided.
    Decided(usize),
}

/// A voter as it is on flash.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VoterState {
    /// The identity of the voter, and the set with which it votes.
    pub configuration: VoterConfiguration,
    /// The register as it was when these voters began.
    pub base: StateRegister,
    log: Vec<LogCommand>,
    decided: usize,
    promise: Option<Ballot>,
    accepted: Option<Ballot>,
}

impl VoterState {
    /// A voter that has never voted.
    #[must_use]
    pub const fn new(configuration: VoterConfiguration, base: StateRegister) -> Self {
        Self { configuration, base, log: Vec::new(), decided: 0, promise: None, accepted: None }
    }

    /// Carries out a write.
    pub fn write(&mut self, write: JournalWrite) {
        match write {
            JournalWrite::Append(entries) => self.log.extend(entries),
            JournalWrite::Replace(from, entries) => {
                self.log.truncate(from);
                self.log.extend(entries);
            }
            JournalWrite::Promise(ballot) => self.promise = Some(ballot),
            JournalWrite::Accepted(ballot) => self.accepted = Some(ballot),
            JournalWrite::Decided(index) => self.decided = index,
        }
    }
}

/// A voter's log as the library sees it. Its writes are in memory at once, and wait here to be
/// written to flash.
#[derive(Clone, Debug)]
pub struct VoterJournal(Arc<Mutex<JournalInner>>);

#[derive(Debug)]
struct JournalInner {
    kept: VoterState,
    writes: Vec<JournalWrite>,
    /// Bytes of state in the log.
    state_len: usize,
}

impl VoterJournal {
    pub fn new(kept: VoterState) -> Self {
        let state_len = state_len(&kept.log);
        Self(Arc::new(Mutex::new(JournalInner { kept, writes: Vec::new(), state_len })))
    }

    fn inner(&self) -> MutexGuard<'_, JournalInner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes to flash before any message is sent.
    pub fn take_writes(&self) -> Vec<JournalWrite> {
        std::mem::take(&mut self.inner().writes)
    }

    /// Its whole state.
    pub fn saved(&self) -> VoterState {
        self.inner().kept.clone()
    }

    /// Bytes of state in the log beside the register.
    pub fn state_len(&self) -> usize {
        self.inner().state_len
    }

    fn write(&self, write: JournalWrite) -> StorageResult<()> {
        let mut inner = self.inner();
        inner.kept.write(write.clone());
        match &write {
            JournalWrite::Append(entries) => inner.state_len += state_len(entries),
            JournalWrite::Replace(..) => inner.state_len = state_len(&inner.kept.log),
            JournalWrite::Promise(_) | JournalWrite::Accepted(_) | JournalWrite::Decided(_) => {}
        }
        inner.writes.push(write);
        Ok(())
    }

    fn entries(&self, from: usize, to: usize) -> Vec<LogCommand> {
        let inner = self.inner();
        let to = to.min(inner.kept.log.len());
        inner.kept.log[from.min(to)..to].to_vec()
    }
}

/// Bytes of state in `entries`.
fn state_len(entries: &[LogCommand]) -> usize {
    let len = |command: &LogCommand| match &command.entry {
        CommandEntry::Change(RegisterChange::Swap { state: Some((_, state)), .. }) => state.len(),
        _ => 0,
    };
    entries.iter().map(len).sum()
}

/// Of parts that are not made use of.
fn unused() -> Box<dyn std::error::Error> {
    "the log is neither trimmed nor stopped".into()
}

impl Storage<LogCommand> for VoterJournal {
    fn write_atomically(&mut self, ops: Vec<StorageOp<LogCommand>>) -> StorageResult<()> {
        for op in ops {
            self.write(match op {
                StorageOp::AppendEntry(entry) => JournalWrite::Append(vec![entry]),
                StorageOp::AppendEntries(entries) => JournalWrite::Append(entries),
                StorageOp::AppendOnPrefix(from, entries) => JournalWrite::Replace(from, entries),
                StorageOp::SetPromise(ballot) => JournalWrite::Promise(ballot),
                StorageOp::SetDecidedIndex(index) => JournalWrite::Decided(index),
                StorageOp::SetAcceptedRound(ballot) => JournalWrite::Accepted(ballot),
                StorageOp::SetCompactedIdx(0)
                | StorageOp::Trim(0)
                | StorageOp::SetStopsign(None)
                | StorageOp::SetSnapshot(None) => continue,
                StorageOp::SetCompactedIdx(_)
                | StorageOp::Trim(_)
                | StorageOp::SetStopsign(Some(_))
                | StorageOp::SetSnapshot(Some(_)) => return Err(unused()),
            })?;
        }
        Ok(())
    }

    fn append_entry(&mut self, entry: LogCommand) -> StorageResult<()> {
        self.write(JournalWrite::Append(vec![entry]))
    }

    fn append_entries(&mut self, entries: Vec<LogCommand>) -> StorageResult<()> {
        self.write(JournalWrite::Append(entries))
    }

    fn append_on_prefix(&mut self, from: usize, entries: Vec<LogCommand>) -> StorageResult<()> {
        self.write(JournalWrite::Replace(from, entries))
    }

    fn set_promise(&mut self, promise: Ballot) -> StorageResult<()> {
        self.write(JournalWrite::Promise(promise))
    }

    fn set_decided_idx(&mut self, index: usize) -> StorageResult<()> {
        self.write(JournalWrite::Decided(index))
    }

    fn get_decided_idx(&self) -> StorageResult<usize> {
        Ok(self.inner().kept.decided)
    }

    fn set_accepted_round(&mut self, accepted: Ballot) -> StorageResult<()> {
        self.write(JournalWrite::Accepted(accepted))
    }

    fn get_accepted_round(&self) -> StorageResult<Option<Ballot>> {
        Ok(self.inner().kept.accepted)
    }

    fn get_entries(&self, from: usize, to: usize) -> StorageResult<Vec<LogCommand>> {
        Ok(self.entries(from, to))
    }

    fn get_log_len(&self) -> StorageResult<usize> {
        Ok(self.inner().kept.log.len())
    }

    fn get_suffix(&self, from: usize) -> StorageResult<Vec<LogCommand>> {
        Ok(self.entries(from, usize::MAX))
    }

    fn get_promise(&self) -> StorageResult<Option<Ballot>> {
        Ok(self.inner().kept.promise)
    }

    fn set_stopsign(&mut self, stop: Option<StopSign>) -> StorageResult<()> {
        stop.map_or(Ok(()), |_| Err(unused()))
    }

    fn get_stopsign(&self) -> StorageResult<Option<StopSign>> {
        Ok(None)
    }

    fn trim(&mut self, index: usize) -> StorageResult<()> {
        if index == 0 { Ok(()) } else { Err(unused()) }
    }

    fn set_compacted_idx(&mut self, index: usize) -> StorageResult<()> {
        if index == 0 { Ok(()) } else { Err(unused()) }
    }

    fn get_compacted_idx(&self) -> StorageResult<usize> {
        Ok(0)
    }

    fn set_snapshot(&mut self, snapshot: Option<NoSnapshot>) -> StorageResult<()> {
        snapshot.map_or(Ok(()), |_| Err(unused()))
    }

    fn get_snapshot(&self) -> StorageResult<Option<NoSnapshot>> {
        Ok(None)
    }
}
