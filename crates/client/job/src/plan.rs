//! The plan of a job: the pieces of its input, and the tasks that have them.

use std::collections::BTreeMap;
use std::ops::Range;

use samite_client::{Client, Dataset};
use samite_fs::{CallerContext, FileSystem, INLINE_LEN_MAX};
use samite_types::{NodeId, PartitionId, Result};
use samite_worker::messages::{FilePiece, KeyRange, OrderedFile, TASK_LEN_MAX, TaskInputOrder};
use samite_worker::{JobFile, JobInput};

use crate::walk::{FileWalk, InputFile};

/// Most bytes of input of a task.
const TASK_BYTES_MAX: u64 = 64 << 20;
/// Most files of a task.
const TASK_FILES_MAX: usize = 1024;
/// Most pieces of a task.
const TASK_PIECES_MAX: usize = 8192;
/// Most bytes of paths in a task; with the pieces they fit its message.
const TASK_PATHS_MAX: usize = 256 << 10;
/// A job of much input has so many tasks at each node, or more: so that one that is slow does not
/// hold up the others for long.
const TASKS_PER_NODE: u64 = 8;

const _: () = assert!(TASK_PATHS_MAX + TASK_PIECES_MAX * 28 + TASK_FILES_MAX * 40 < TASK_LEN_MAX);

/// The input of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InputSelection {
    /// Files and directories of a dataset of files.
    Files {
        /// The dataset.
        dataset: String,
        /// Their paths.
        paths: Vec<Vec<u8>>,
        /// Directories are walked; else they are an error.
        is_recursive: bool,
    },
    /// Records of a dataset.
    Records {
        /// The dataset.
        dataset: String,
        /// As they lie there, and not as keys and values.
        is_raw: bool,
        /// Which.
        range: KeyRange,
    },
}

/// A planned job.
#[derive(Clone, Debug)]
pub struct JobPlan {
    /// For the module, at the end.
    pub input: JobInput,
    /// The file of each piece; 0 for records.
    pub pieces: Vec<u32>,
    /// The tasks.
    pub tasks: Vec<PlannedTask>,
    /// Bytes of the input, as far as they are known.
    pub bytes: u64,
    /// The dataset with the input.
    pub dataset: Dataset,
}

/// A planned task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedTask {
    /// Its input.
    pub input: TaskInputOrder,
    /// The partition of its first data: the task runs at the node that serves it.
    pub home: PartitionId,
    /// That node, now.
    pub node: NodeId,
    /// Bytes of input, as far as they are known.
    pub bytes: u64,
}

impl PlannedTask {
    /// Whether all its pieces are of these.
    pub(crate) fn is_within(&self, pieces: &Range<u64>) -> bool {
        match &self.input {
            TaskInputOrder::Files { pieces: own, .. } => {
                own.iter().all(|piece| pieces.contains(&piece.number))
            }
            TaskInputOrder::Records { partitions, .. } => {
                partitions.iter().all(|(number, _)| pieces.contains(number))
            }
        }
    }
}

/// Plans a job over this input, as this user. What clients have written to files and not settled is
/// settled by that.
///
/// # Errors
/// As of the store; `IsDirectory`: a directory, and `is_recursive` is not said; `Unsupported`: a
/// fifo, socket or device.
pub fn plan(client: &Client, who: &CallerContext, input: &InputSelection) -> Result<JobPlan> {
    match input {
        InputSelection::Files { dataset, paths, is_recursive } => {
            client.dataset(dataset)?;
            let fs = FileSystem::open(client, dataset)?;
            let mut walk = FileWalk {
                fs: &fs,
                who,
                is_recursive: *is_recursive,
                keeps_directories: false,
                admits: &|_| true,
                failed: &mut |_, error| Err(error),
                found: Vec::new(),
            };
            for path in paths {
                walk.named(path)?;
            }
            plan_files(&fs, dataset, &walk.found, PieceCut::ByNode)
        }
        InputSelection::Records { dataset, is_raw, range } => {
            plan_records(client, dataset, *is_raw, range)
        }
    }
}

/// Pieces of files that are to become a task.
#[derive(Default)]
struct TaskDraft {
    files: Vec<OrderedFile>,
    pieces: Vec<FilePiece>,
    home: Option<PartitionId>,
    bytes: u64,
    paths: usize,
}

/// Makes tasks of pieces, each for one node.
struct TaskCutter<'a> {
    dataset: &'a str,
    drafts: BTreeMap<NodeId, TaskDraft>,
    task_bytes: u64,
    plan: JobPlan,
}

/// How files are cut into the pieces of tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PieceCut {
    /// A task has what lies at one node.
    #[default]
    ByNode,
    /// So, and a file is one piece, at the node with its beginning.
    WholeFiles,
    /// A task has what lies one after the other in the input, wherever that is.
    InOrder,
}

/// Plans a job over files that were found.
///
/// # Errors
/// As of the store.
pub fn plan_files(
    fs: &FileSystem,
    dataset: &str,
    files: &[InputFile],
    cut: PieceCut,
) -> Result<JobPlan> {
    let bytes = files.iter().map(|file| file.size).sum::<u64>();
    let nodes = fs.client().map()?.nodes().len().max(1) as u64;
    let listed = files.iter().map(|file| {
        let (path, size, is_directory) = (file.path.clone(), file.size, file.is_directory);
        JobFile { path, size, is_directory }
    });
    let plan = JobPlan {
        input: JobInput::Files(listed.collect()),
        pieces: Vec::new(),
        tasks: Vec::new(),
        bytes,
        dataset: fs.dataset().clone(),
    };
    let chunk_len = fs.chunk_len();
    let task_bytes = (bytes / (nodes * TASKS_PER_NODE)).clamp(chunk_len, TASK_BYTES_MAX);
    let mut cutter = TaskCutter { dataset, drafts: BTreeMap::new(), task_bytes, plan };
    for (file, number) in files.iter().zip(0_u32..) {
        let mut at = 0;
        while at < file.size {
            let is_small = file.size <= INLINE_LEN_MAX;
            let place = |at| if is_small { file.home } else { fs.data_partition(file.ino, at) };
            let home = place(at);
            let node = match (cut, cutter.drafts.first_key_value()) {
                (PieceCut::InOrder, Some((node, _))) => *node,
                _ => fs.dataset().node_of(home)?,
            };
            let start = at;
            // Chunks of the same node that lie one after the other.
            loop {
                at = file.size.min((at / chunk_len + 1) * chunk_len);
                if cut == PieceCut::WholeFiles {
                    at = file.size;
                }
                let goes_on = at < file.size && at - start < task_bytes;
                let is_anywhere = cut == PieceCut::InOrder;
                if !goes_on || !is_anywhere && fs.dataset().node_of(place(at))? != node {
                    break;
                }
            }
            cutter.add((number, file), (start, at - start), (node, home));
        }
    }
    Ok(cutter.finish())
}

impl TaskCutter<'_> {
    fn add(
        &mut self,
        (number, file): (u32, &InputFile),
        (offset, len): (u64, u64),
        (node, home): (NodeId, PartitionId),
    ) {
        let piece_number = self.plan.pieces.len() as u64;
        self.plan.pieces.push(number);
        let draft = self.drafts.entry(node).or_default();
        if draft.files.last().is_none_or(|last| last.number != number) {
            draft.paths += file.path.len();
            let InputFile { path, ino, size, home, .. } = file;
            let (path, ino, size, home) = (path.clone(), *ino, *size, *home);
            draft.files.push(OrderedFile { number, path, ino, size, home });
        }
        // It has at least the one.
        let index = draft.files.len() as u32 - 1;
        draft.pieces.push(FilePiece { number: piece_number, file: index, offset, len });
        draft.home.get_or_insert(home);
        draft.bytes += len;
        if draft.bytes >= self.task_bytes
            || draft.files.len() >= TASK_FILES_MAX
            || draft.pieces.len() >= TASK_PIECES_MAX
            || draft.paths >= TASK_PATHS_MAX
        {
            self.cut(node);
        }
    }

    fn cut(&mut self, node: NodeId) {
        let Some(draft) = self.drafts.remove(&node) else { return };
        let TaskDraft { files, pieces, home, bytes, .. } = draft;
        let Some(home) = home else { return };
        let input = TaskInputOrder::Files { dataset: self.dataset.to_owned(), files, pieces };
        self.plan.tasks.push(PlannedTask { input, home, node, bytes });
    }

    fn finish(mut self) -> JobPlan {
        let nodes: Vec<NodeId> = self.drafts.keys().copied().collect();
        nodes.into_iter().for_each(|node| self.cut(node));
        self.plan
    }
}

fn plan_records(client: &Client, name: &str, is_raw: bool, range: &KeyRange) -> Result<JobPlan> {
    let dataset = client.dataset(name)?;
    let mut by_node: BTreeMap<NodeId, Vec<(u64, PartitionId)>> = BTreeMap::new();
    for number in 0..dataset.partitions() {
        let partition = PartitionId(number);
        let at_node = by_node.entry(dataset.node_of(partition)?).or_default();
        at_node.push((u64::from(number), partition));
    }
    let mut tasks = Vec::new();
    for (node, partitions) in by_node {
        let per_task = partitions.len().div_ceil(TASKS_PER_NODE as usize).min(TASK_PIECES_MAX);
        for part in partitions.chunks(per_task) {
            let Some((_, home)) = part.first() else { continue };
            let (home, partitions) = (*home, part.to_vec());
            let (dataset, range) = (name.to_owned(), range.clone());
            let input = TaskInputOrder::Records { dataset, is_raw, range, partitions };
            tasks.push(PlannedTask { input, home, node, bytes: 0 });
        }
    }
    Ok(JobPlan {
        input: JobInput::Records(name.to_owned()),
        pieces: vec![0; dataset.partitions() as usize],
        tasks,
        bytes: 0,
        dataset,
    })
}
