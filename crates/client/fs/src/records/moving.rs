//! Moving an inode to another record, in any partition, so that nothing is lost or doubled
//! whichever process dies.
//!
//! 1. *Freeze*: the source's layout becomes [`DataLayout::Moving`] and an **intent** is put beside
//!    it. From now on every operation on the inode fails its identity guard, and its caller waits
//!    for the move to end.
//! 2. *Decide*: one operation at the destination puts the copy there together with a **verdict**
//!    record. This is when the move happens.
//! 3. *Finish*: the source and the intent go (or the source becomes a pointer to the destination).
//! 4. The verdict goes.
//!
//! A client that has waited too long recovers from the intent alone: it tries to put the verdict
//! "no". If it goes in, the move can not happen any more, and the client thaws the source. If there
//! is a verdict already, the client follows it. A "no" stays until the mover itself has seen it: a
//! slow mover can never decide after a recovery.
//!
//! The open references of the inode ([`crate::sharing::open_references`]) move with it: the freeze lists
//! them, the decision makes them at the destination, and the finish ends those that were ended at
//! the source in between.
//!
//! An exchange is a move whose decision also takes the value at the destination into the verdict,
//! from where the finish moves it to the source.

use std::cell::OnceCell;
use std::time::Duration;

use samite_client::{ClientOperation, OwnedOutcome, OwnedResult};
use samite_types::{Deadline, Epoch, ErrorKind, Result};
use samite_wire::op::{Action, Guard, Operation, ValueData};

use crate::Timestamp;
use crate::records::change_stamps::EntryMark;
use crate::records::inode::{DataLayout, INODE_LEN, Inode, STATE_FROZEN, at};
use crate::records::key::{self, Key};
use crate::records::release_queue::ReferenceRelease;
use crate::records::store::{FoundInode, RecordLocation, RecordStoreView, first_value, malformed};

/// How long an intent, a tombstone or a lock may stand still before others take its owner for dead.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// Time between two looks at what one waits for.
const LOOK_EVERY: Duration = Duration::from_micros(100);

/// Bytes of an open reference in a list of references.
const HOLDER_LEN: usize = 16;

const YES: &[u8] = &[1];
const NO: &[u8] = &[0];

/// The fate of the source in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum MoveFinish {
    /// It goes.
    Delete = 0,
    /// It becomes a pointer ([`DataLayout::Elsewhere`]).
    Point = 1,
    /// The inode that was at the destination, or a whiteout, comes here. Until then its value is in
    /// the verdict.
    Swap = 2,
}

impl MoveFinish {
    const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0 => Self::Delete,
            1 => Self::Point,
            2 => Self::Swap,
            _ => return None,
        })
    }
}

/// A move, as its intent describes it: token, layout of the source, [`MoveFinish`], whether it is a
/// directory, key of the destination with its length, and the open references of the source.
#[derive(Clone, Debug)]
pub struct MoveIntent {
    pub token: u64,
    pub source: RecordLocation,
    pub layout: DataLayout,
    pub finish: MoveFinish,
    pub is_directory: bool,
    pub destination: RecordLocation,
    keys: MoveKeys,
    /// The open references of the source when it was frozen.
    holders: OnceCell<Vec<u8>>,
}

/// The records and values that operations of a move refer to.
#[derive(Clone, Debug)]
struct MoveKeys {
    token: [u8; 8],
    intent: Key,
    verdict: Key,
    /// The verdict that it happens; for [`MoveFinish::Swap`] with the value that comes to the source.
    yes: Vec<u8>,
}

const INTENT_HEADER_LEN: usize = 13;

/// How a decision went.
#[derive(Debug)]
pub enum MoveDecision {
    /// The move happened.
    Done(OwnedOutcome),
    /// One of the caller's own guards failed: which one, from 0. The source is as it was.
    Refused(usize),
    /// Somebody took the mover for dead. The source is as it was; try again.
    Recovered,
}

impl MoveIntent {
    pub fn new(
        token: u64,
        source: RecordLocation,
        (layout, is_directory): (DataLayout, bool),
        finish: MoveFinish,
        destination: RecordLocation,
    ) -> Self {
        let keys = MoveKeys {
            token: token.to_le_bytes(),
            intent: key::intent(&source.key),
            verdict: key::verdict(token),
            yes: YES.to_vec(),
        };
        let holders = OnceCell::new();
        Self { token, source, layout, finish, is_directory, destination, keys, holders }
    }

    /// The same, bringing `value` from the destination to the source ([`MoveFinish::Swap`]).
    pub fn bringing(mut self, value: &[u8]) -> Self {
        self.keys.yes.extend_from_slice(value);
        self
    }

    fn intent(&self) -> Vec<u8> {
        let mut value = Vec::with_capacity(INTENT_HEADER_LEN + self.destination.key.len());
        value.extend_from_slice(&self.token.to_le_bytes());
        value.extend_from_slice(&[
            self.layout as u8,
            self.finish as u8,
            u8::from(self.is_directory),
        ]);
        // A key is far shorter than 64 KiB.
        value.extend_from_slice(&(self.destination.key.len() as u16).to_le_bytes());
        value.extend_from_slice(&self.destination.key);
        value
    }

    fn holders(&self) -> &[u8] {
        self.holders.get().map_or(&[], Vec::as_slice)
    }

    fn verdict(&self) -> RecordLocation {
        RecordLocation { key: self.keys.verdict.clone(), partition: self.destination.partition }
    }

    fn is_within(&self) -> bool {
        self.source.partition == self.destination.partition
    }
}

impl RecordStoreView {
    fn parse_intent(&self, source: &RecordLocation, value: &[u8]) -> Result<MoveIntent> {
        let (token, rest) = value.split_first_chunk::<8>().ok_or_else(malformed)?;
        let ([layout, finish, is_directory, low, high], rest) =
            rest.split_first_chunk::<5>().ok_or_else(malformed)?;
        let key_len = usize::from(u16::from_le_bytes([*low, *high]));
        let (destination, holders) = rest.split_at_checked(key_len).ok_or_else(malformed)?;
        let layout = DataLayout::from_code(*layout).ok_or_else(malformed)?;
        let finish = MoveFinish::from_code(*finish).ok_or_else(malformed)?;
        let intended = MoveIntent::new(
            u64::from_le_bytes(*token),
            source.clone(),
            (layout, *is_directory == 1),
            finish,
            self.location(Key::from_slice(destination)),
        );
        Ok(MoveIntent { holders: OnceCell::from(holders.to_vec()), ..intended })
    }

    /// Freezes `node`, and notes where handles on it will find it. False: it has changed since it was read.
    pub fn freeze(&self, node: &FoundInode, intended: &MoveIntent) -> Result<bool> {
        let source = &intended.source;
        let pointer = self.location(key::location(node.inode.ino));
        let destination = &intended.destination.key;
        let intent_key = &intended.keys.intent;
        let intent = intended.intent();
        let freeze = Operation::new(
            source.partition,
            [
                state(source, intended.is_directory, true),
                Action::Write {
                    key: &source.key,
                    offset: at::LAYOUT,
                    data: ValueData::Inline(&[DataLayout::Moving as u8]),
                },
                Action::Put { key: intent_key, data: ValueData::Inline(&intent) },
                Action::Holders { key: &source.key },
            ],
        )
        .guard(Guard::VersionIs(&source.key, node.version))
        .guard(Guard::Absent(intent_key));
        let mut ops = vec![ClientOperation::new(freeze)];
        if node.has_location() && intended.finish != MoveFinish::Point {
            let note = Operation::put(pointer.partition, &pointer.key, destination);
            ops.push(ClientOperation::new(note));
        }
        let frozen = self.run_all(&mut ops)?.into_iter().next();
        let Some(OwnedOutcome::Done(results)) = frozen else { return Ok(false) };
        let Some(OwnedResult::Value { data: holders, .. }) = results.into_iter().nth(3) else {
            return Err(malformed());
        };
        if !holders.is_empty() {
            // The process that finishes the move has to know of them.
            let add = Action::Append {
                key: intent_key,
                data: ValueData::Inline(&holders),
                len_max: u32::MAX,
            };
            let op = Operation::new(source.partition, [add]).guard(Guard::BytesAre {
                key: intent_key,
                offset: 0,
                bytes: &intended.keys.token,
            });
            let added = self.run(op);
            if added.as_ref().is_err_and(|error| error.kind() == ErrorKind::NoSpace) {
                self.thaw(intended)?;
            }
            if !added?.is_done() {
                return Ok(false);
            }
            // Set once: a move is frozen once.
            let _ = intended.holders.set(holders);
        }
        Ok(true)
    }

    /// Notes where handles on `node` will find it, before it goes there in one operation.
    pub fn note_location(&self, node: &FoundInode, destination: &RecordLocation) -> Result<()> {
        if !node.has_location() {
            return Ok(());
        }
        let location = self.location(key::location(node.inode.ino));
        self.run(Operation::put(location.partition, &location.key, &destination.key)).map(drop)
    }

    /// Decides a move (I16) whose source is frozen: `value` goes to the destination if no one of `guards`
    /// fails; `actions` run in the same operation, before it. Then finishes it, or thaws the
    /// source.
    pub fn decide<'k>(
        &self,
        decided: &'k MoveIntent,
        value: &'k [u8],
        epoch: Epoch,
        guards: impl IntoIterator<Item = Guard<'k>>,
        actions: impl IntoIterator<Item = Action<'k>>,
    ) -> Result<MoveDecision> {
        let verdict = &decided.keys.verdict;
        let mut op = Operation::new(decided.destination.partition, []).reveal(INODE_LEN as u32);
        op.guards.push(Guard::Absent(verdict));
        op.guards.extend(guards);
        op.actions.extend(actions);
        let to = &decided.destination.key;
        if decided.finish == MoveFinish::Swap {
            op.actions.push(Action::MoveHolds { from: to, to: verdict });
        }
        op.actions.push(Action::Put { key: to, data: ValueData::Inline(value) });
        if decided.is_within() {
            op.actions.push(Action::MoveHolds { from: &decided.source.key, to });
        } else if !decided.holders().is_empty() {
            op.actions.push(Action::SetHolders { key: to, holders: decided.holders() });
        }
        op.actions.push(Action::Put { key: verdict, data: ValueData::Inline(&decided.keys.yes) });
        let outcome = match self.run(ClientOperation::new(op).under_lease(epoch)) {
            // The node said that it did nothing.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::StaleLease | ErrorKind::NoSpace | ErrorKind::Invalid
                ) =>
            {
                self.thaw(decided)?;
                return Err(error);
            }
            result => result?,
        };
        let decision = match outcome {
            OwnedOutcome::Done(_) => {
                self.finish(decided)?;
                MoveDecision::Done(outcome)
            }
            OwnedOutcome::Failed(failure) if failure.index == 0 => MoveDecision::Recovered,
            OwnedOutcome::Failed(failure) => {
                let index = usize::from(failure.index) - 1;
                self.thaw(decided)?;
                MoveDecision::Refused(index)
            }
        };
        self.forget_verdict(decided)?;
        Ok(decision)
    }

    fn forget_verdict(&self, decided: &MoveIntent) -> Result<()> {
        let verdict = &decided.keys.verdict;
        let op = Operation::new(decided.destination.partition, [Action::Delete { key: verdict }]);
        self.run(op).map(drop)
    }

    fn finish(&self, decided: &MoveIntent) -> Result<()> {
        let source = &decided.source.key;
        let elsewhere = [DataLayout::Elsewhere as u8];
        let stamp = EntryMark::new(source, Timestamp::now());
        let incoming = match decided.finish {
            MoveFinish::Swap => match self.incoming(decided)? {
                Some(value) => value,
                // Nothing is left of the verdict: another one has finished it.
                None => return Ok(()),
            },
            _ => Vec::new(),
        };
        let coming = match decided.finish {
            MoveFinish::Swap => self.holders_of(&decided.verdict())?,
            _ => Vec::new(),
        };
        let mut op = Operation::new(decided.source.partition, [Action::Holders { key: source }]);
        match decided.finish {
            MoveFinish::Delete => {
                op.actions.push(Action::Delete { key: source });
                op.actions.extend(stamp.actions(-i64::from(decided.is_directory)));
            }
            MoveFinish::Swap => {
                let comes = i64::from(Inode::decode(&incoming)?.is_directory());
                op.actions.push(Action::Put { key: source, data: ValueData::Inline(&incoming) });
                op.actions.push(Action::SetHolders { key: source, holders: &coming });
                op.actions.extend(stamp.actions(comes - i64::from(decided.is_directory)));
            }
            MoveFinish::Point => op.actions.extend([
                state(&decided.source, decided.is_directory, false),
                Action::Write {
                    key: source,
                    offset: at::LAYOUT,
                    data: ValueData::Inline(&elsewhere),
                },
                Action::Truncate { key: source, len: INODE_LEN as u32 },
                Action::SetHolders { key: source, holders: &[] },
            ]),
        }
        match self.end(decided, op)? {
            OwnedOutcome::Done(results) if !decided.is_within() => {
                let left = first_value(results)?;
                self.release_missing(decided, &left)
            }
            _ => Ok(()),
        }
    }

    fn holders_of(&self, location: &RecordLocation) -> Result<Vec<u8>> {
        let op = Operation::new(location.partition, [Action::Holders { key: &location.key }]);
        first_value(self.run(op)?.into_results("who holds it")?)
    }

    /// References that were ended at the source since it was frozen end at the destination, too.
    fn release_missing(&self, decided: &MoveIntent, left: &[u8]) -> Result<()> {
        let of = |list: &[u8]| list.as_chunks::<HOLDER_LEN>().0.to_vec();
        let left = of(left);
        for holder in of(decided.holders()).into_iter().filter(|holder| !left.contains(holder)) {
            let token = holder.first_chunk().map_or(0, |raw| u64::from_le_bytes(*raw));
            let partition = decided.destination.partition;
            self.release(ReferenceRelease { partition, token, ino: 0, is_urgent: true })?;
        }
        self.flush_urgent()
    }

    /// The value that comes to the source of an exchange: the mover knows it, others find it in the verdict.
    fn incoming(&self, decided: &MoveIntent) -> Result<Option<Vec<u8>>> {
        if let [_, value @ ..] = &decided.keys.yes[..]
            && !value.is_empty()
        {
            return Ok(Some(value.to_vec()));
        }
        let found = self.value(&decided.verdict())?;
        Ok(found.and_then(|(_, value)| value.strip_prefix(YES).map(<[u8]>::to_vec)))
    }

    /// Undoes a freeze.
    pub fn thaw(&self, decided: &MoveIntent) -> Result<()> {
        let layout = [decided.layout as u8];
        let op = Operation::new(
            decided.source.partition,
            [
                state(&decided.source, decided.is_directory, false),
                Action::Write {
                    key: &decided.source.key,
                    offset: at::LAYOUT,
                    data: ValueData::Inline(&layout),
                },
            ],
        );
        self.end(decided, op).map(drop)
    }

    /// Runs `op` at the source and removes the intent, unless another client has done it.
    fn end<'k>(&self, decided: &'k MoveIntent, mut op: Operation<'k>) -> Result<OwnedOutcome> {
        let MoveKeys { token, intent, .. } = &decided.keys;
        op.guards.push(Guard::BytesAre { key: intent, offset: 0, bytes: token });
        op.actions.push(Action::Delete { key: intent });
        self.run(op)
    }

    /// Waits until the move from `source` has ended; ends it when nothing happens for [`PATIENCE`].
    pub fn await_move(&self, source: &RecordLocation) -> Result<()> {
        self.outlast_move(source).map(drop)
    }

    /// The same. True: the mover was taken for dead.
    pub fn outlast_move(&self, source: &RecordLocation) -> Result<bool> {
        let intent = RecordLocation { key: key::intent(&source.key), partition: source.partition };
        let Some(value) = self.outlast(&intent)? else { return Ok(false) };
        let stuck = self.parse_intent(source, &value)?;
        let verdict = key::verdict(stuck.token);
        let op = Operation::new(
            stuck.destination.partition,
            [
                // Finds the reserve of a full store, as what removes something does: a name that nobody could thaw could not be removed.
                Action::Delete { key: &verdict },
                Action::Put { key: &verdict, data: ValueData::Inline(NO) },
            ],
        )
        .guard(Guard::Absent(&verdict))
        .reveal(1);
        match self.run(op)? {
            OwnedOutcome::Failed(failure)
                if failure.current.as_ref().is_some_and(|found| found.bytes == YES) =>
            {
                self.finish(&stuck)?;
                self.forget_verdict(&stuck)?;
            }
            _ => self.thaw(&stuck)?,
        }
        Ok(true)
    }

    /// Looks at a record until it is gone (`None`) or changed (`None` too), or has been the same for [`PATIENCE`].
    pub fn outlast(&self, location: &RecordLocation) -> Result<Option<Vec<u8>>> {
        let Some((version, value)) = self.value(location)? else { return Ok(None) };
        let end = Deadline::after(PATIENCE);
        while end.remaining().is_some() {
            pause();
            match self.value(location)? {
                Some((now, _)) if now == version => {}
                _ => return Ok(None),
            }
        }
        Ok(Some(value))
    }
}

/// Sets the state byte of a record, which operations that do not know its inode are guarded by.
fn state(location: &RecordLocation, is_directory: bool, is_frozen: bool) -> Action<'_> {
    const STATES: [&[u8]; 4] = [&[0], &[1], &[STATE_FROZEN], &[STATE_FROZEN | 1]];
    let state = STATES[usize::from(is_directory) + 2 * usize::from(is_frozen)];
    Action::Write { key: &location.key, offset: at::STATE, data: ValueData::Inline(state) }
}

/// Sleeps for a short time.
pub fn pause() {
    let pause = rustix::time::Timespec { tv_sec: 0, tv_nsec: LOOK_EVERY.as_nanos() as i64 };
    // Woken early by a signal: the caller looks again, which is always safe.
    let _ = rustix::thread::nanosleep(&pause);
}
