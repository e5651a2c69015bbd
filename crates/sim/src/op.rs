//! What simulated clients do, as values that can be kept, sent and replayed on a model.

use std::fmt;

use samite_types::{ErrorKind, PartitionId, Seq, Version};
use samite_wire::limits::RECORD_LEN_MAX;
use samite_wire::op::{self, Action, ActionResult, Data, Guard, Operation};

/// A key, by its place among [`KEYS`].
pub type Key = u8;

/// All keys that there are in a partition: two registers, a log that is only appended to, a counter that is only added to, a name that is held,
/// and the place where it goes when its name is taken away.
pub const KEYS: [&[u8]; 6] = [b"ra", b"rb", b"lg", b"ct", b"hn", b"ho"];
/// Keys that are put, deleted and compared.
pub const REGISTERS: [Key; 2] = [0, 1];
/// Key that is only appended to.
pub const LOG: Key = 2;
/// Key that is only added to.
pub const COUNTER: Key = 3;
/// Key that is held and detached.
pub const NAME: Key = 4;
/// Key of what was detached.
pub const ORPHAN: Key = 5;

/// A condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cond {
    /// [`Guard::Exists`].
    Exists(Key),
    /// [`Guard::Absent`].
    Absent(Key),
    /// [`Guard::BytesAre`] at offset 0.
    Is(Key, Vec<u8>),
}

/// One step of an operation. Numbers are unique in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// [`Action::Get`] of all.
    Get(Key),
    /// [`Action::Put`] of a number.
    Put(Key, u64),
    /// [`Action::Put`] of so many bytes, the same each time.
    Fill(Key, u32),
    /// [`Action::Append`] of a number.
    Append(Key, u64),
    /// [`Action::Add`] at offset 0.
    Add(Key, u64),
    /// [`Action::Delete`].
    Delete(Key),
    /// [`Action::List`] of all, with values.
    List,
    /// [`Action::Hold`].
    Hold(Key, u64),
    /// [`Action::Release`].
    Release(u64),
    /// [`Action::Detach`].
    Detach(Key, Key),
}

/// One operation on one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    /// Conditions.
    pub conds: Vec<Cond>,
    /// Steps.
    pub acts: Vec<Act>,
}

/// What one step did or found, without versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Of a get.
    Value(Vec<u8>),
    /// Of a put or append.
    Written {
        /// Where the bytes went.
        offset: u32,
        /// Length after.
        len: u32,
        /// The record is new.
        created: bool,
    },
    /// Of a delete.
    Deleted(bool),
    /// Of what answers with a number.
    Number(u64),
    /// Of a list, and whether that is all there is.
    Listing(Vec<(Vec<u8>, Vec<u8>)>, bool),
}

/// What became of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It took effect.
    Done(Vec<Seen>),
    /// It had no effect.
    Failed(ErrorKind),
}

/// What values are filled with; none is longer.
static FILLING: [u8; 64 << 10] = [0x5a; 64 << 10];

/// Longest value that a listing returns here.
const LISTED_LEN_MAX: u32 = 4096;

impl Op {
    /// An operation without conditions.
    #[must_use]
    pub fn of(acts: impl IntoIterator<Item = Act>) -> Self {
        Self { conds: Vec::new(), acts: acts.into_iter().collect() }
    }

    /// The same with one more condition.
    #[must_use]
    pub fn when(mut self, cond: Cond) -> Self {
        self.conds.push(cond);
        self
    }

    /// Whether it changes records, so that it needs a number.
    #[must_use]
    pub fn is_mutation(&self) -> bool {
        self.acts.iter().any(|act| match act {
            Act::Put(..)
            | Act::Fill(..)
            | Act::Append(..)
            | Act::Add(..)
            | Act::Delete(_)
            | Act::Detach(..) => true,
            Act::Get(_) | Act::List | Act::Hold(..) | Act::Release(_) => false,
        })
    }

    /// Whether any member may answer it, where members answer reads.
    #[must_use]
    pub fn only_reads(&self) -> bool {
        self.acts.iter().all(|act| matches!(act, Act::Get(_) | Act::List))
    }

    /// Hands the operation, in the form in which it travels, to `with`.
    pub fn operation<R>(
        &self,
        partition: PartitionId,
        seq: Seq,
        with: impl FnOnce(&Operation<'_>) -> R,
    ) -> R {
        let numbers: Vec<[u8; 8]> = self
            .acts
            .iter()
            .map(|act| match act {
                Act::Put(_, number) | Act::Append(_, number) => number.to_le_bytes(),
                _ => [0; 8],
            })
            .collect();
        let actions = self.acts.iter().zip(&numbers).map(|(act, number)| match *act {
            Act::Get(key) => Action::Get { key: name(key), offset: 0, len: u32::MAX },
            Act::Put(key, _) => Action::Put { key: name(key), data: Data::Inline(number) },
            Act::Fill(key, len) => {
                Action::Put { key: name(key), data: Data::Inline(&FILLING[..len as usize]) }
            }
            Act::Append(key, _) => Action::Append {
                key: name(key),
                data: Data::Inline(number),
                len_max: RECORD_LEN_MAX as u32,
            },
            Act::Add(key, delta) => Action::Add { key: name(key), offset: 0, delta },
            Act::Delete(key) => Action::Delete { key: name(key) },
            Act::List => Action::List {
                prefix: b"",
                after: b"",
                limit: 64,
                reverse: false,
                value_len_max: LISTED_LEN_MAX,
            },
            Act::Hold(key, token) => Action::Hold { key: name(key), token },
            Act::Release(token) => Action::Release { token },
            Act::Detach(key, to) => Action::Detach { key: name(key), to: name(to) },
        });
        let mut operation = Operation::new(partition, actions);
        operation.seq = seq;
        for cond in &self.conds {
            operation.guards.push(match cond {
                Cond::Exists(key) => Guard::Exists(name(*key)),
                Cond::Absent(key) => Guard::Absent(name(*key)),
                Cond::Is(key, bytes) => Guard::BytesAre { key: name(*key), offset: 0, bytes },
            });
        }
        with(&operation)
    }
}

/// The bytes of a key.
#[must_use]
pub fn name(key: Key) -> &'static [u8] {
    KEYS[usize::from(key)]
}

/// What a decoded outcome says, and the version at which its mutation took effect, if it tells.
#[must_use]
pub fn seen(outcome: &op::Outcome<'_>) -> (Outcome, Option<Version>) {
    let results = match outcome {
        op::Outcome::Failed(failure) => return (Outcome::Failed(failure.kind), None),
        op::Outcome::Done(results) => results,
    };
    let mut at = None;
    let seen = results.iter().map(|result| match result {
        ActionResult::Value { data, .. } => Seen::Value(bytes(data)),
        ActionResult::Written { version, offset, total_len, created } => {
            at = Some(*version);
            Seen::Written { offset: *offset, len: *total_len, created: *created }
        }
        ActionResult::Deleted { existed } => Seen::Deleted(*existed),
        ActionResult::Number(number) => Seen::Number(*number),
        ActionResult::Listing(listing) => Seen::Listing(
            listing.entries().map(|entry| (entry.key.to_vec(), entry.value.to_vec())).collect(),
            listing.complete,
        ),
    });
    (Outcome::Done(seen.collect()), at)
}

fn bytes(data: &[Data<'_>]) -> Vec<u8> {
    let mut all = Vec::new();
    for data in data {
        match data {
            Data::Inline(bytes) => all.extend_from_slice(bytes),
            Data::Zeros(len) => all.resize(all.len() + *len as usize, 0),
            // Nobody shares an arena here.
            Data::Blocks(_) => {}
        }
    }
    all
}

/// The numbers of which a value is made.
pub fn numbers(value: &[u8]) -> impl Iterator<Item = u64> {
    value.as_chunks::<8>().0.iter().map(|number| u64::from_le_bytes(*number))
}

fn show(f: &mut fmt::Formatter<'_>, value: &[u8]) -> fmt::Result {
    f.debug_list().entries(numbers(value)).finish()
}

fn text(key: Key) -> &'static str {
    std::str::from_utf8(name(key)).unwrap_or("?")
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for cond in &self.conds {
            match cond {
                Cond::Exists(key) => write!(f, "if {} ", text(*key))?,
                Cond::Absent(key) => write!(f, "if no {} ", text(*key))?,
                Cond::Is(key, value) => {
                    write!(f, "if {}=", text(*key))?;
                    show(f, value)?;
                    f.write_str(" ")?;
                }
            }
        }
        for (index, act) in self.acts.iter().enumerate() {
            f.write_str(if index > 0 { ", " } else { "" })?;
            match act {
                Act::Get(key) => write!(f, "get {}", text(*key))?,
                Act::Put(key, number) => write!(f, "put {} {number}", text(*key))?,
                Act::Fill(key, len) => write!(f, "fill {} {len}", text(*key))?,
                Act::Append(key, number) => write!(f, "append {} {number}", text(*key))?,
                Act::Add(key, delta) => write!(f, "add {} {delta}", text(*key))?,
                Act::Delete(key) => write!(f, "delete {}", text(*key))?,
                Act::List => f.write_str("list")?,
                Act::Hold(key, token) => write!(f, "hold {} {token}", text(*key))?,
                Act::Release(token) => write!(f, "release {token}")?,
                Act::Detach(key, to) => write!(f, "detach {} {}", text(*key), text(*to))?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seen = match self {
            Self::Failed(kind) => return write!(f, "failed: {kind:?}"),
            Self::Done(seen) => seen,
        };
        for (index, seen) in seen.iter().enumerate() {
            f.write_str(if index > 0 { ", " } else { "" })?;
            match seen {
                Seen::Value(value) => show(f, value)?,
                Seen::Written { offset, len, created } => {
                    write!(
                        f,
                        "written at {offset} of {len}{}",
                        if *created { ", new" } else { "" }
                    )?;
                }
                Seen::Deleted(existed) => write!(f, "deleted: {existed}")?,
                Seen::Number(number) => write!(f, "{number}")?,
                Seen::Listing(entries, complete) => {
                    f.write_str(if *complete { "" } else { "some of: " })?;
                    for (key, value) in entries {
                        write!(f, "{}=", String::from_utf8_lossy(key))?;
                        show(f, value)?;
                        f.write_str(" ")?;
                    }
                }
            }
        }
        Ok(())
    }
}
