//! What is said between a job and the workers that carry out its tasks. `postcard`; the node that
//! passes it on does not look into it.

use samite_types::{Error, ErrorKind, PartitionId, Result};
use samite_wire::limits::WORKER_MESSAGE_LEN_MAX;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Most bytes of output in one answer.
pub const OUTPUT_LEN_MAX: usize = WORKER_MESSAGE_LEN_MAX - (64 << 10);
/// Longest description of a task, in bytes.
pub const TASK_LEN_MAX: usize = WORKER_MESSAGE_LEN_MAX - (64 << 10);
/// Most tasks that one question is about.
pub const POLLED_MAX: usize = 256;

/// One run of a task: it is repeated when its node dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TaskAttempt {
    /// The job.
    pub job: u64,
    /// The task, among those of the job.
    pub task: u32,
    /// Which run, from 0.
    pub attempt: u32,
}

/// Asks a worker. A request that comes twice has the effect of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WorkerRequest {
    /// Begin a task. Answer: [`WorkerAnswer::Done`].
    Begin(TaskAttempt, TaskOrder),
    /// How far tasks of a job are, and their output: when there is some, or one has ended, or at the
    /// latest after this time. Answer: [`WorkerAnswer::Progress`].
    Poll {
        /// The tasks.
        tasks: Vec<TaskPoll>,
        /// Tasks whose end was received: they are forgotten.
        ended: Vec<TaskAttempt>,
        /// Milliseconds; [`POLL_WAIT_MAX`](crate::runtime::POLL_WAIT_MAX) at most.
        wait_ms: u32,
    },
    /// End all tasks of a job. Answer: [`WorkerAnswer::Done`].
    Cancel {
        /// The job.
        job: u64,
    },
}

/// A question about one task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskPoll {
    /// The task.
    pub of: TaskAttempt,
    /// Number of the last [`TaskProgress::batch`] that was received; 0: none. It is not sent again.
    pub taken: u64,
}

/// A worker's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WorkerAnswer {
    /// It is so.
    Done,
    /// The tasks that were asked for, in the same order.
    Progress(Vec<TaskProgress>),
    /// It cannot be: the code of an [`ErrorKind`], and words.
    Refused(u8, String),
}

/// Counts of a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskCounts {
    /// Records, or files begun.
    pub records: u64,
    /// Bytes of input that lay at the worker's node.
    pub bytes_local: u64,
    /// Bytes of input that came from other nodes.
    pub bytes_moved: u64,
    /// Bytes of output.
    pub bytes_returned: u64,
    /// Microseconds since the task began to run.
    pub micros: u64,
}

impl TaskCounts {
    /// Bytes of input.
    #[must_use]
    pub const fn input(&self) -> u64 {
        self.bytes_local + self.bytes_moved
    }

    /// Both together.
    pub fn add(&mut self, other: &Self) {
        self.records += other.records;
        self.bytes_local += other.bytes_local;
        self.bytes_moved += other.bytes_moved;
        self.bytes_returned += other.bytes_returned;
        self.micros += other.micros;
    }
}

/// How far a task is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskProgress {
    /// Its counts so far.
    pub counts: TaskCounts,
    /// Number of this part of the output; the same as before when there was none since.
    pub batch: u64,
    /// Output after that of the batch that was taken.
    pub output: Vec<PieceOutput>,
    /// It has ended, and its output is complete with this.
    pub end: Option<TaskEnd>,
}

/// How a task has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TaskEnd {
    /// It is done.
    Done,
    /// It has failed: the code of an [`ErrorKind`], and words.
    Failed(u8, String),
}

/// Output of a module for a piece of the input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PieceOutput {
    /// Number of the piece, among those of the job.
    pub piece: u64,
    /// Bytes, after those of the piece that came before.
    pub bytes: Vec<u8>,
}

/// A task as it is ordered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskOrder {
    /// The module.
    pub module: String,
    /// What the module made of its words.
    pub arguments: Vec<u8>,
    /// The input.
    pub input: TaskInputOrder,
    /// What the job may take of the worker.
    pub limits: JobLimits,
}

/// What the tasks of one job may take at one worker, beside the limits of the worker itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobLimits {
    /// Threads; 0: as many as the worker has.
    pub cores: u16,
    /// Milliseconds of a task; 0: as many as the worker gives.
    pub task_ms: u64,
}

/// The input of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TaskInputOrder {
    /// Parts of files.
    Files {
        /// The dataset of the files.
        dataset: String,
        /// The files.
        files: Vec<OrderedFile>,
        /// The parts, in the order of their numbers.
        pieces: Vec<FilePiece>,
    },
    /// Records. Each partition is a piece.
    Records {
        /// The dataset.
        dataset: String,
        /// Whether they are taken as keys and values, or as they lie there.
        is_raw: bool,
        /// Which of them.
        range: KeyRange,
        /// Numbers of pieces, and their partitions.
        partitions: Vec<(u64, PartitionId)>,
    },
}

/// A file of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderedFile {
    /// Number, among the files of the job.
    pub number: u32,
    /// Path from the root of the store.
    pub path: Vec<u8>,
    /// Inode number: another file that has got the name meanwhile is not read.
    pub ino: u64,
    /// Bytes, when the job began.
    pub size: u64,
    /// The partition with its data, if it is so small that they lie beside its name.
    pub home: PartitionId,
}

/// A part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilePiece {
    /// Number, among the pieces of the job.
    pub number: u64,
    /// Index in the task's files.
    pub file: u32,
    /// Where it begins.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// Keys, by their first bytes and by their order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyRange {
    /// They begin with this.
    pub prefix: Vec<u8>,
    /// They are not before this one.
    pub from: Vec<u8>,
    /// They are before this one; `None`: to the end.
    pub to: Option<Vec<u8>>,
}

impl KeyRange {
    /// Whether a key is in it.
    #[must_use]
    pub fn has(&self, key: &[u8]) -> bool {
        key.starts_with(&self.prefix)
            && key >= self.from.as_slice()
            && self.to.as_ref().is_none_or(|to| key < to.as_slice())
    }
}

/// A message as it travels.
#[must_use]
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    postcard::to_stdvec(message).expect("serializing to memory cannot fail for these types")
}

/// A message that has come.
///
/// # Errors
/// `Corrupt`: it is none, or longer than there may be.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    let corrupt = || Error::new(ErrorKind::Corrupt, "a message of a job makes no sense");
    if bytes.len() > WORKER_MESSAGE_LEN_MAX {
        return Err(corrupt());
    }
    let (message, rest) = postcard::take_from_bytes(bytes).map_err(|_| corrupt())?;
    if rest.is_empty() { Ok(message) } else { Err(corrupt()) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ranges_of_keys() {
        let range = KeyRange { prefix: b"a".into(), from: b"ab".into(), to: Some(b"ad".into()) };
        let has: Vec<bool> =
            [&b"aa"[..], b"ab", b"ac9", b"ad", b"b"].iter().map(|key| range.has(key)).collect();
        assert_eq!(has, [false, true, true, false, false]);
        assert!(KeyRange::default().has(b""));
    }

    proptest! {
        #[test]
        fn garbage_is_refused_or_is_a_message(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(request) = decode::<WorkerRequest>(&bytes) {
                prop_assert_eq!(decode::<WorkerRequest>(&encode(&request)).unwrap(), request);
            }
            if let Ok(answer) = decode::<WorkerAnswer>(&bytes) {
                prop_assert_eq!(decode::<WorkerAnswer>(&encode(&answer)).unwrap(), answer);
            }
        }
    }
}
