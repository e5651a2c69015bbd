//! The input of a task: pieces of files, or partitions of a dataset.

mod files;
mod records;

use std::sync::Arc;

use samite_client::Client;
use samite_fs::CallerContext;
use samite_types::{Error, ErrorKind, NodeId, Result};

use self::files::FileInput;
pub use self::files::TaskFile;
use self::records::RecordInput;
use crate::messages::TaskInputOrder;
use crate::tasks::TaskState;

/// Reads the input of a task, piece by piece. What is read is counted, and ends with an error when
/// the task is cancelled or has taken too long.
pub struct TaskInput {
    source: InputSource,
    state: Arc<TaskState>,
}

enum InputSource {
    Files(Box<FileInput>),
    Records(RecordInput),
}

/// A piece of the input of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputPiece {
    /// Part of a file.
    File {
        /// Number of the file, among those of the job.
        file: u32,
        /// Where the piece begins.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Bytes of the file, when the job began.
        size: u64,
    },
    /// A partition of a dataset.
    Partition,
}

/// A record of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InputRecord<'a> {
    /// Its key, or the key of a group's value without the group.
    pub key: &'a [u8],
    /// Its value.
    pub value: &'a [u8],
}

/// Where a worker is, and as whom it reads.
#[derive(Clone)]
pub struct WorkerPlace {
    /// A client of the store, as the worker's user.
    pub client: Client,
    /// The node that has started the worker: what its primaries have is local.
    pub node: NodeId,
    /// The user.
    pub context: CallerContext,
}

impl TaskInput {
    pub(crate) fn open(
        order: TaskInputOrder,
        place: &WorkerPlace,
        state: Arc<TaskState>,
    ) -> Result<Self> {
        // A dataset of this name may have been made anew since the last task.
        place.client.refresh_map()?;
        let source = match order {
            TaskInputOrder::Files { dataset, files, pieces } => {
                let files = FileInput::open(place, &dataset, files, pieces)?;
                InputSource::Files(Box::new(files))
            }
            TaskInputOrder::Records { dataset, is_raw, range, partitions } => {
                let dataset = place.client.dataset(&dataset)?;
                InputSource::Records(RecordInput::new(place, dataset, is_raw, (range, partitions)))
            }
        };
        Ok(Self { source, state })
    }

    /// Goes to the next piece; what is left of the one before is passed by. `None`: there are no
    /// more. Output that is given from now on is for this piece.
    ///
    /// # Errors
    /// A file cannot be opened; `Interrupted`, `Timeout`: the task is to end.
    pub fn next_piece(&mut self) -> Result<Option<InputPiece>> {
        self.state.check()?;
        match &mut self.source {
            InputSource::Files(files) => files.next_piece(&self.state),
            InputSource::Records(records) => Ok(records.next_piece(&self.state)),
        }
    }

    /// The next bytes of the piece of a file, some 100 KiB; empty at its end.
    ///
    /// # Errors
    /// As of the store, with the file and the offset; `Interrupted`, `Timeout`: the task is to end.
    pub fn read(&mut self) -> Result<&[u8]> {
        self.state.check()?;
        match &mut self.source {
            InputSource::Files(files) => files.read(&self.state),
            InputSource::Records(_) => Err(other_kind("files")),
        }
    }

    /// The bytes of the file after the piece and after what was returned before, some KiB; empty at
    /// the end of the file. For a line that begins in the piece and ends behind it.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_past(&mut self) -> Result<&[u8]> {
        self.state.check()?;
        match &mut self.source {
            InputSource::Files(files) => files.read_past(&self.state),
            InputSource::Records(_) => Err(other_kind("files")),
        }
    }

    /// A number of this task that no other task of the job has: that of its first piece.
    #[must_use]
    pub fn first_piece(&self) -> u64 {
        match &self.source {
            InputSource::Files(files) => files.first_piece(),
            InputSource::Records(records) => records.first_piece(),
        }
    }

    /// Opens a file for writing, which there is already, in the dataset of the files that are read.
    /// A task that runs again writes it again: it is to write the same.
    ///
    /// # Errors
    /// As of the store; `StaleHandle`: the name is not that of the file with this inode number.
    pub fn open_for_writing(&self, path: &[u8], ino: Option<u64>) -> Result<TaskFile> {
        match &self.source {
            InputSource::Files(files) => files.open_for_writing(path, ino, &self.state),
            InputSource::Records(_) => Err(other_kind("files")),
        }
    }

    /// Has `visit` see all records of the partition at hand, in the order of their keys.
    ///
    /// # Errors
    /// As of the store, with the partition; of `visit`; `Interrupted`, `Timeout`: the task is to
    /// end.
    pub fn records(&mut self, visit: &mut dyn FnMut(InputRecord<'_>) -> Result<()>) -> Result<()> {
        match &mut self.source {
            InputSource::Files(_) => Err(other_kind("records")),
            InputSource::Records(records) => records.visit(&self.state, visit),
        }
    }
}

fn other_kind(wanted: &str) -> Error {
    Error::new(ErrorKind::Invalid, format!("this module reads {wanted}, and the input is none"))
}
