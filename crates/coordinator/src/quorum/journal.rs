//! What a voter has to find again: the log of commands, and what it has promised.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use omnipaxos::ballot_leader_election::Ballot;
use omnipaxos::storage::{Snapshot, StopSign, Storage, StorageOp, StorageResult};
use serde::{Deserialize, Serialize};

use super::configuration::Configuration;
use super::register::{Change, Register};

/// An entry of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// Who is told what came of it: a number drawn by a run of a voter, and the command's own.
    pub origin: (u64, u64),
    pub entry: Entry,
}

/// What a command does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Entry {
    /// Changes the register.
    Change(Change),
    /// Ends the configuration; this one comes next. The library has stop signs for that; but when the leader changes it may count one twice, and
    /// then decides nothing any more. So it is an entry like others, after which the voters heed none.
    End(Configuration),
}

impl omnipaxos::storage::Entry for Command {
    type Snapshot = NoSnapshot;
}

/// There are none: when the log is long, a new configuration begins with what it has come to. (What the library's snapshots would hold may
/// include an entry that is accepted, and is not decided.)
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoSnapshot;

impl Snapshot<Command> for NoSnapshot {
    fn create(_entries: &[Command]) -> Self {
        Self
    }

    fn merge(&mut self, _delta: Self) {}

    fn use_snapshots() -> bool {
        false
    }
}

/// One thing that has to be on flash.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Write {
    /// Entries after those that are there.
    Append(Vec<Command>),
    /// Entries from this index on, in place of those that are there.
    Replace(usize, Vec<Command>),
    /// The newest ballot that the voter takes part in.
    Promise(Ballot),
    /// The ballot in which the log's last entry was accepted.
    Accepted(Ballot),
    /// So many entries are decided.
    Decided(usize),
}

/// A voter as it is on flash.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    /// Who it is, and with whom it votes.
    pub configuration: Configuration,
    /// The register as it was when these voters began.
    pub base: Register,
    log: Vec<Command>,
    decided: usize,
    promise: Option<Ballot>,
    accepted: Option<Ballot>,
}

impl Kept {
    /// A voter that has never voted.
    #[must_use]
    pub const fn new(configuration: Configuration, base: Register) -> Self {
        Self { configuration, base, log: Vec::new(), decided: 0, promise: None, accepted: None }
    }

    /// Carries out a write.
    pub fn write(&mut self, write: Write) {
        match write {
            Write::Append(entries) => self.log.extend(entries),
            Write::Replace(from, entries) => {
                self.log.truncate(from);
                self.log.extend(entries);
            }
            Write::Promise(ballot) => self.promise = Some(ballot),
            Write::Accepted(ballot) => self.accepted = Some(ballot),
            Write::Decided(index) => self.decided = index,
        }
    }
}

/// A voter's log as the library sees it. What it writes is in memory at once, and waits here to be written to flash.
#[derive(Clone, Debug)]
pub struct Journal(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    kept: Kept,
    writes: Vec<Write>,
    /// Bytes of state in the log.
    state_len: usize,
}

impl Journal {
    pub fn new(kept: Kept) -> Self {
        let state_len = state_len(&kept.log);
        Self(Arc::new(Mutex::new(Inner { kept, writes: Vec::new(), state_len })))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is to be written to flash before anything is sent.
    pub fn take_writes(&self) -> Vec<Write> {
        std::mem::take(&mut self.inner().writes)
    }

    /// All that it is.
    pub fn kept(&self) -> Kept {
        self.inner().kept.clone()
    }

    /// Bytes of state that the log holds beside the register.
    pub fn state_len(&self) -> usize {
        self.inner().state_len
    }

    fn write(&self, write: Write) -> StorageResult<()> {
        let mut inner = self.inner();
        inner.kept.write(write.clone());
        match &write {
            Write::Append(entries) => inner.state_len += state_len(entries),
            Write::Replace(..) => inner.state_len = state_len(&inner.kept.log),
            Write::Promise(_) | Write::Accepted(_) | Write::Decided(_) => {}
        }
        inner.writes.push(write);
        Ok(())
    }

    fn entries(&self, from: usize, to: usize) -> Vec<Command> {
        let inner = self.inner();
        let to = to.min(inner.kept.log.len());
        inner.kept.log[from.min(to)..to].to_vec()
    }
}

/// Bytes of state in `entries`.
fn state_len(entries: &[Command]) -> usize {
    let len = |command: &Command| match &command.entry {
        Entry::Change(Change::Swap { state: Some((_, state)), .. }) => state.len(),
        _ => 0,
    };
    entries.iter().map(len).sum()
}

/// Of what is not made use of.
fn unused() -> Box<dyn std::error::Error> {
    "the log is neither trimmed nor stopped".into()
}

impl Storage<Command> for Journal {
    fn write_atomically(&mut self, ops: Vec<StorageOp<Command>>) -> StorageResult<()> {
        for op in ops {
            self.write(match op {
                StorageOp::AppendEntry(entry) => Write::Append(vec![entry]),
                StorageOp::AppendEntries(entries) => Write::Append(entries),
                StorageOp::AppendOnPrefix(from, entries) => Write::Replace(from, entries),
                StorageOp::SetPromise(ballot) => Write::Promise(ballot),
                StorageOp::SetDecidedIndex(index) => Write::Decided(index),
                StorageOp::SetAcceptedRound(ballot) => Write::Accepted(ballot),
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

    fn append_entry(&mut self, entry: Command) -> StorageResult<()> {
        self.write(Write::Append(vec![entry]))
    }

    fn append_entries(&mut self, entries: Vec<Command>) -> StorageResult<()> {
        self.write(Write::Append(entries))
    }

    fn append_on_prefix(&mut self, from: usize, entries: Vec<Command>) -> StorageResult<()> {
        self.write(Write::Replace(from, entries))
    }

    fn set_promise(&mut self, promise: Ballot) -> StorageResult<()> {
        self.write(Write::Promise(promise))
    }

    fn set_decided_idx(&mut self, index: usize) -> StorageResult<()> {
        self.write(Write::Decided(index))
    }

    fn get_decided_idx(&self) -> StorageResult<usize> {
        Ok(self.inner().kept.decided)
    }

    fn set_accepted_round(&mut self, accepted: Ballot) -> StorageResult<()> {
        self.write(Write::Accepted(accepted))
    }

    fn get_accepted_round(&self) -> StorageResult<Option<Ballot>> {
        Ok(self.inner().kept.accepted)
    }

    fn get_entries(&self, from: usize, to: usize) -> StorageResult<Vec<Command>> {
        Ok(self.entries(from, to))
    }

    fn get_log_len(&self) -> StorageResult<usize> {
        Ok(self.inner().kept.log.len())
    }

    fn get_suffix(&self, from: usize) -> StorageResult<Vec<Command>> {
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
