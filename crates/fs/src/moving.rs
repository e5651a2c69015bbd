//! Moving an inode to another record, in any partition, so that nothing is lost or doubled whoever dies.
//!
//! 1. *Freeze*: the source's layout becomes [`Layout::Moving`] and an **intent** is put beside it. From now on every
//!    operation on
//!    the inode fails its identity guard, and whoever made it waits for the move to end.
//! 2. *Decide*: one operation at the destination puts the copy there together with a **verdict** record. This is the
//!    moment at which
//!    the move happens.
//! 3. *Finish*: the source and the intent go (or the source becomes a pointer to the destination).
//! 4. The verdict goes.
//!
//! Someone who has waited too long recovers from the intent alone: he tries to put the verdict "no". If it goes in,
//! the move can not
//! happen any more, and he thaws the source. If there is a verdict already, he does what it says. A "no" stays until
//! the mover itself has seen it: a slow mover can never decide after a recovery.

use std::time::Duration;

use samite_client::{Op, OwnedOutcome};
use samite_types::{Deadline, Epoch, ErrorKind, Result};
use samite_wire::op::{Action, Data, Guard, Operation};

use crate::inode::{INODE_LEN, Layout, STATE_FROZEN, at};
use crate::key::{self, Key};
use crate::marks::EntryMark;
use crate::store::{Home, Node, malformed};
use crate::{FileSystem, Timestamp};

/// How long an intent, a seal or a lock may stand still before others take its owner for dead.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// Time between two looks at what one waits for.
const LOOK_EVERY: Duration = Duration::from_micros(100);

const YES: &[u8] = &[1];
const NO: &[u8] = &[0];

/// What becomes of the source in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Finish {
    /// It goes.
    Delete = 0,
    /// It becomes a pointer ([`Layout::Elsewhere`]).
    Point = 1,
}

/// A move, as its intent describes it: token, layout of the source, [`Finish`], whether it is a directory, key of the
/// destination.
#[derive(Clone, Debug)]
pub struct Move {
    pub token: u64,
    pub source: Home,
    pub layout: Layout,
    pub finish: Finish,
    pub is_directory: bool,
    pub destination: Home,
    keys: MoveKeys,
}

/// What operations of a move refer to.
#[derive(Clone, Debug)]
struct MoveKeys {
    token: [u8; 8],
    intent: Key,
    verdict: Key,
}

const INTENT_HEADER_LEN: usize = 11;

/// How a decision went.
#[derive(Debug)]
pub enum Decision {
    /// The move happened.
    Done(OwnedOutcome),
    /// One of the caller's own guards did not hold: which one, from 0. The source is as it was.
    Refused(usize),
    /// Somebody took the mover for dead. The source is as it was; try again.
    Recovered,
}

impl Move {
    pub fn new(
        token: u64,
        source: Home,
        (layout, is_directory): (Layout, bool),
        finish: Finish,
        destination: Home,
    ) -> Self {
        let keys = MoveKeys {
            token: token.to_le_bytes(),
            intent: key::intent(&source.key),
            verdict: key::verdict(token),
        };
        Self { token, source, layout, finish, is_directory, destination, keys }
    }

    fn intent(&self) -> Vec<u8> {
        let mut value = Vec::with_capacity(INTENT_HEADER_LEN + self.destination.key.len());
        value.extend_from_slice(&self.token.to_le_bytes());
        value.extend_from_slice(&[
            self.layout as u8,
            self.finish as u8,
            u8::from(self.is_directory),
        ]);
        value.extend_from_slice(&self.destination.key);
        value
    }
}

impl FileSystem {
    fn parse_intent(&self, source: &Home, value: &[u8]) -> Result<Move> {
        let (token, rest) = value.split_first_chunk::<8>().ok_or_else(malformed)?;
        let ([layout, finish, is_directory], destination) =
            rest.split_first_chunk::<3>().ok_or_else(malformed)?;
        let layout = Layout::from_code(*layout).ok_or_else(malformed)?;
        let finish = if *finish == Finish::Delete as u8 { Finish::Delete } else { Finish::Point };
        Ok(Move::new(
            u64::from_le_bytes(*token),
            source.clone(),
            (layout, *is_directory == 1),
            finish,
            self.store().home(Key::from_slice(destination)),
        ))
    }

    /// Freezes `node`, and notes where handles on it will find it. False: it has changed since it was read.
    pub(crate) fn freeze(&self, node: &Node, intended: &Move) -> Result<bool> {
        let source = &intended.source;
        let location = self.store().home(key::location(node.inode.ino));
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
                    data: Data::Inline(&[Layout::Moving as u8]),
                },
                Action::Put { key: intent_key, data: Data::Inline(&intent) },
            ],
        )
        .guard(Guard::VersionIs(&source.key, node.version))
        .guard(Guard::Absent(intent_key));
        let mut ops = vec![Op::new(freeze)];
        if node.has_location() && intended.finish == Finish::Delete {
            let note = Operation::put(location.partition, &location.key, destination);
            ops.push(Op::new(note));
        }
        let outcomes = self.store().run_all(&mut ops)?;
        Ok(outcomes.first().is_some_and(OwnedOutcome::is_done))
    }

    /// Notes where handles on `node` will find it, before it goes there in one operation.
    pub(crate) fn note_location(&self, node: &Node, destination: &Home) -> Result<()> {
        if !node.has_location() {
            return Ok(());
        }
        let home = self.store().home(key::location(node.inode.ino));
        self.store().run(Operation::put(home.partition, &home.key, &destination.key)).map(drop)
    }

    /// Decides a move whose source is frozen: `value` goes to the destination if `guards` hold; `actions` run in the same
    /// operation, before it. Then finishes it, or thaws the source.
    pub(crate) fn decide<'k>(
        &self,
        decided: &'k Move,
        value: &'k [u8],
        epoch: Epoch,
        guards: impl IntoIterator<Item = Guard<'k>>,
        actions: impl IntoIterator<Item = Action<'k>>,
    ) -> Result<Decision> {
        let verdict = &decided.keys.verdict;
        let mut op = Operation::new(decided.destination.partition, []).reveal(INODE_LEN as u32);
        op.guards.push(Guard::Absent(verdict));
        op.guards.extend(guards);
        op.actions.extend(actions);
        op.actions.push(Action::Put { key: &decided.destination.key, data: Data::Inline(value) });
        op.actions.push(Action::Put { key: verdict, data: Data::Inline(YES) });
        let outcome = match self.store().run(Op::new(op).under_lease(epoch)) {
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
                Decision::Done(outcome)
            }
            OwnedOutcome::Failed(failure) if failure.index == 0 => Decision::Recovered,
            OwnedOutcome::Failed(failure) => {
                let index = usize::from(failure.index) - 1;
                self.thaw(decided)?;
                Decision::Refused(index)
            }
        };
        self.forget_verdict(decided)?;
        Ok(decision)
    }

    fn forget_verdict(&self, decided: &Move) -> Result<()> {
        let verdict = &decided.keys.verdict;
        let op = Operation::new(decided.destination.partition, [Action::Delete { key: verdict }]);
        self.store().run(op).map(drop)
    }

    fn finish(&self, decided: &Move) -> Result<()> {
        let source = &decided.source.key;
        let elsewhere = [Layout::Elsewhere as u8];
        let mark = EntryMark::new(source, Timestamp::now());
        let mut op = Operation::new(decided.source.partition, []);
        match decided.finish {
            Finish::Delete => {
                op.actions.push(Action::Delete { key: source });
                op.actions.extend(mark.actions(if decided.is_directory { -1 } else { 0 }));
            }
            Finish::Point => op.actions.extend([
                state(&decided.source, decided.is_directory, false),
                Action::Write { key: source, offset: at::LAYOUT, data: Data::Inline(&elsewhere) },
                Action::Truncate { key: source, len: INODE_LEN as u32 },
            ]),
        }
        self.end(decided, op)
    }

    /// Undoes a freeze.
    pub(crate) fn thaw(&self, decided: &Move) -> Result<()> {
        let layout = [decided.layout as u8];
        let op = Operation::new(
            decided.source.partition,
            [
                state(&decided.source, decided.is_directory, false),
                Action::Write {
                    key: &decided.source.key,
                    offset: at::LAYOUT,
                    data: Data::Inline(&layout),
                },
            ],
        );
        self.end(decided, op)
    }

    /// Runs `op` at the source and removes the intent, unless somebody else has done it.
    fn end<'k>(&self, decided: &'k Move, mut op: Operation<'k>) -> Result<()> {
        let MoveKeys { token, intent, .. } = &decided.keys;
        op.guards.push(Guard::BytesAre { key: intent, offset: 0, bytes: token });
        op.actions.push(Action::Delete { key: intent });
        self.store().run(op).map(drop)
    }

    /// Waits until the move from `source` has ended; ends it when nothing happens for [`PATIENCE`].
    pub(crate) fn await_move(&self, source: &Home) -> Result<()> {
        let intent = Home { key: key::intent(&source.key), partition: source.partition };
        let Some(value) = self.outlast(&intent)? else { return Ok(()) };
        let stuck = self.parse_intent(source, &value)?;
        let verdict = key::verdict(stuck.token);
        let op = Operation::new(
            stuck.destination.partition,
            [Action::Put { key: &verdict, data: Data::Inline(NO) }],
        )
        .guard(Guard::Absent(&verdict))
        .reveal(1);
        match self.store().run(op)? {
            OwnedOutcome::Failed(failure)
                if failure.current.as_ref().is_some_and(|found| found.bytes == YES) =>
            {
                self.finish(&stuck)?;
                self.forget_verdict(&stuck)
            }
            _ => self.thaw(&stuck),
        }
    }

    /// Looks at a record until it is gone (`None`) or changed (`None` too), or has been the same for [`PATIENCE`].
    pub(crate) fn outlast(&self, home: &Home) -> Result<Option<Vec<u8>>> {
        let Some((version, value)) = self.store().value(home)? else { return Ok(None) };
        let end = Deadline::after(PATIENCE);
        while end.remaining().is_some() {
            pause();
            match self.store().value(home)? {
                Some((now, _)) if now == version => {}
                _ => return Ok(None),
            }
        }
        Ok(Some(value))
    }
}

/// Sets the state byte of a record, which operations that do not know its inode are guarded by.
fn state(home: &Home, is_directory: bool, is_frozen: bool) -> Action<'_> {
    const STATES: [&[u8]; 4] = [&[0], &[1], &[STATE_FROZEN], &[STATE_FROZEN | 1]];
    let state = STATES[usize::from(is_directory) + 2 * usize::from(is_frozen)];
    Action::Write { key: &home.key, offset: at::STATE, data: Data::Inline(state) }
}

/// Sleeps for a moment.
pub fn pause() {
    let nap = rustix::time::Timespec { tv_sec: 0, tv_nsec: LOOK_EVERY.as_nanos() as i64 };
    // Woken early by a signal: the caller looks again, which does no harm.
    let _ = rustix::thread::nanosleep(&nap);
}
