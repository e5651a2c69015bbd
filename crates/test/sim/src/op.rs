//! Operations of simulated clients, as values that can be kept, sent and replayed on a model.

use std::fmt;

use samite_types::{ErrorKind, PartitionId, Seq, Version};
use samite_wire::limits::RECORD_LEN_MAX;
use samite_wire::op::{self, Action, ActionResult, Guard, Operation, ValueData};

/// A key, by its place among [`KEYS`].
pub type Key = u8;

/// All keys that there are in a partition: two registers, a log that is only appended to, a counter
/// that is only added to, a name with open references, and the place where it goes when its name is
/// taken away.
pub const KEYS: [&[u8]; 6] = [b"ra", b"rb", b"lg", b"ct", b"hn", b"ho"];
/// Keys that are put, deleted and compared.
pub const REGISTERS: [Key; 2] = [0, 1];
/// Key that is only appended to.
pub const LOG: Key = 2;
/// Key that is only added to.
pub const COUNTER: Key = 3;
/// Key that gets open references and is unlinked to an orphan.
pub const NAME: Key = 4;
/// Key of the orphan.
pub const ORPHAN: Key = 5;

/// A condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpCondition {
    /// [`Guard::Exists`].
    Exists(Key),
    /// [`Guard::Absent`].
    Absent(Key),
    /// [`Guard::BytesAre`] at offset 0.
    Is(Key, Vec<u8>),
}

/// One step of an operation. Numbers are unique in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpStep {
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
pub struct SimOperation {
    /// Conditions.
    pub conds: Vec<OpCondition>,
    /// Steps.
    pub acts: Vec<OpStep>,
}

/// The result of one step, without versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepResultSeen {
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
    /// Of a step that answers with a number.
    Number(u64),
    /// Of a list, and whether that is all there is.
    Listing(Vec<(Vec<u8>, Vec<u8>)>, bool),
}

/// The outcome of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpOutcome {
    /// It took effect.
    Done(Vec<StepResultSeen>),
    /// It had no effect.
    Failed(ErrorKind),
}

/// Bytes that values are filled with; none is longer.
static FILLING: [u8; 64 << 10] = [0x5a; 64 << 10];

/// Longest value that a listing returns here.
const LISTED_LEN_MAX: u32 = 4096;

impl SimOperation {
    /// An operation without conditions.
    #[must_use]
    pub fn of(acts: impl IntoIterator<Item = OpStep>) -> Self {
        Self { conds: Vec::new(), acts: acts.into_iter().collect() }
    }

    /// The same with one more condition.
    #[must_use]
    pub fn when(mut self, cond: OpCondition) -> Self {
        self.conds.push(cond);
        self
    }

    /// Whether it changes records, so that it needs a number.
    #[must_use]
    pub fn is_mutation(&self) -> bool {
        self.acts.iter().any(|act| match act {
            OpStep::Put(..)
            | OpStep::Fill(..)
            | OpStep::Append(..)
            | OpStep::Add(..)
            | OpStep::Delete(_)
            | OpStep::Detach(..) => true,
            OpStep::Get(_) | OpStep::List | OpStep::Hold(..) | OpStep::Release(_) => false,
        })
    }

    /// Whether any member may answer it, where members answer reads.
    #[must_use]
    pub fn only_reads(&self) -> bool {
        self.acts.iter().all(|act| matches!(act, OpStep::Get(_) | OpStep::List))
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
                OpStep::Put(_, number) | OpStep::Append(_, number) => number.to_le_bytes(),
                _ => [0; 8],
            })
            .collect();
        let actions = self.acts.iter().zip(&numbers).map(|(act, number)| match *act {
            OpStep::Get(key) => Action::Get { key: name(key), offset: 0, len: u32::MAX },
            OpStep::Put(key, _) => Action::Put { key: name(key), data: ValueData::Inline(number) },
            OpStep::Fill(key, len) => {
                Action::Put { key: name(key), data: ValueData::Inline(&FILLING[..len as usize]) }
            }
            OpStep::Append(key, _) => Action::Append {
                key: name(key),
                data: ValueData::Inline(number),
                len_max: RECORD_LEN_MAX as u32,
            },
            OpStep::Add(key, delta) => Action::Add { key: name(key), offset: 0, delta },
            OpStep::Delete(key) => Action::Delete { key: name(key) },
            OpStep::List => Action::List {
                prefix: b"",
                after: b"",
                limit: 64,
                reverse: false,
                value_len_max: LISTED_LEN_MAX,
            },
            OpStep::Hold(key, token) => Action::Hold { key: name(key), token },
            OpStep::Release(token) => Action::Release { token },
            OpStep::Detach(key, to) => Action::Detach { key: name(key), to: name(to) },
        });
        let mut operation = Operation::new(partition, actions);
        operation.seq = seq;
        for cond in &self.conds {
            operation.guards.push(match cond {
                OpCondition::Exists(key) => Guard::Exists(name(*key)),
                OpCondition::Absent(key) => Guard::Absent(name(*key)),
                OpCondition::Is(key, bytes) => {
                    Guard::BytesAre { key: name(*key), offset: 0, bytes }
                }
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

/// The results in a decoded outcome, and the version at which its mutation took effect, if it
/// tells.
#[must_use]
pub fn seen(outcome: &op::OperationOutcome<'_>) -> (OpOutcome, Option<Version>) {
    let results = match outcome {
        op::OperationOutcome::Failed(failure) => return (OpOutcome::Failed(failure.kind), None),
        op::OperationOutcome::Done(results) => results,
    };
    let mut at = None;
    let seen = results.iter().map(|result| match result {
        ActionResult::Value { data, .. } => StepResultSeen::Value(bytes(data)),
        ActionResult::Written { version, offset, total_len, created } => {
            at = Some(*version);
            StepResultSeen::Written { offset: *offset, len: *total_len, created: *created }
        }
        ActionResult::Deleted { existed } => StepResultSeen::Deleted(*existed),
        ActionResult::Number(number) => StepResultSeen::Number(*number),
        ActionResult::Listing(listing) => StepResultSeen::Listing(
            listing.entries().map(|entry| (entry.key.to_vec(), entry.bytes().to_vec())).collect(),
            listing.complete,
        ),
    });
    (OpOutcome::Done(seen.collect()), at)
}

fn bytes(data: &[ValueData<'_>]) -> Vec<u8> {
    let mut all = Vec::new();
    for data in data {
        match data {
            ValueData::Inline(bytes) => all.extend_from_slice(bytes),
            ValueData::Zeros(len) => all.resize(all.len() + *len as usize, 0),
            // No process shares an arena here.
            ValueData::Blocks(_) => {}
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

impl fmt::Display for SimOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for cond in &self.conds {
            match cond {
                OpCondition::Exists(key) => write!(f, "if {} ", text(*key))?,
                OpCondition::Absent(key) => write!(f, "if no {} ", text(*key))?,
                OpCondition::Is(key, value) => {
                    write!(f, "if {}=", text(*key))?;
                    show(f, value)?;
                    f.write_str(" ")?;
                }
            }
        }
        for (index, act) in self.acts.iter().enumerate() {
            f.write_str(if index > 0 { ", " } else { "" })?;
            match act {
                OpStep::Get(key) => write!(f, "get {}", text(*key))?,
                OpStep::Put(key, number) => write!(f, "put {} {number}", text(*key))?,
                OpStep::Fill(key, len) => write!(f, "fill {} {len}", text(*key))?,
                OpStep::Append(key, number) => write!(f, "append {} {number}", text(*key))?,
                OpStep::Add(key, delta) => write!(f, "add {} {delta}", text(*key))?,
                OpStep::Delete(key) => write!(f, "delete {}", text(*key))?,
                OpStep::List => f.write_str("list")?,
                OpStep::Hold(key, token) => write!(f, "hold {} {token}", text(*key))?,
                OpStep::Release(token) => write!(f, "release {token}")?,
                OpStep::Detach(key, to) => write!(f, "detach {} {}", text(*key), text(*to))?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for OpOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seen = match self {
            Self::Failed(kind) => return write!(f, "failed: {kind:?}"),
            Self::Done(seen) => seen,
        };
        for (index, seen) in seen.iter().enumerate() {
            f.write_str(if index > 0 { ", " } else { "" })?;
            match seen {
                StepResultSeen::Value(value) => show(f, value)?,
                StepResultSeen::Written { offset, len, created } => {
                    write!(
                        f,
                        "written at {offset} of {len}{}",
                        if *created { ", new" } else { "" }
                    )?;
                }
                StepResultSeen::Deleted(existed) => write!(f, "deleted: {existed}")?,
                StepResultSeen::Number(number) => write!(f, "{number}")?,
                StepResultSeen::Listing(entries, complete) => {
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
