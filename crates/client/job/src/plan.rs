//! The plan of a job: the pieces of its input, and the tasks that have them.

use std::collections::BTreeMap;

use samite_client::{Client, Dataset};
use samite_fs::{CallerContext, FileAttributes, FileKind, FileSystem, INLINE_LEN_MAX};
use samite_types::{Error, ErrorKind, NodeId, PartitionId, Result};
use samite_worker::messages::{FilePiece, KeyRange, OrderedFile, TASK_LEN_MAX, TaskInputOrder};
use samite_worker::{JobFile, JobInput};

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
            let mut walk = FileWalk { fs: &fs, who, is_recursive: *is_recursive, files: vec![] };
            for path in paths {
                walk.named(path)?;
            }
            plan_files(&fs, dataset, walk.files)
        }
        InputSelection::Records { dataset, is_raw, range } => {
            plan_records(client, dataset, *is_raw, range)
        }
    }
}

/// A file of the input.
struct InputFile {
    path: Vec<u8>,
    ino: u64,
    size: u64,
    home: PartitionId,
}

/// Finds the files of a job.
struct FileWalk<'a> {
    fs: &'a FileSystem,
    who: &'a CallerContext,
    is_recursive: bool,
    files: Vec<InputFile>,
}

impl FileWalk<'_> {
    fn named(&mut self, path: &[u8]) -> Result<()> {
        let attr = self.fs.stat(self.who, path, true)?;
        if attr.kind == FileKind::Directory {
            if self.is_recursive {
                return self.tree(path.to_vec());
            }
            let words = format!("{}: it is a directory", String::from_utf8_lossy(path));
            return Err(Error::new(ErrorKind::IsDirectory, words));
        }
        let (parent, name) = split(path);
        let parent = self.fs.stat(self.who, parent, true)?;
        self.file(path.to_vec(), &attr, self.fs.entry_partition(parent.ino, name))
    }

    fn file(&mut self, path: Vec<u8>, attr: &FileAttributes, home: PartitionId) -> Result<()> {
        if attr.kind != FileKind::File {
            let words = format!("{}: it is no file", String::from_utf8_lossy(&path));
            return Err(Error::new(ErrorKind::Unsupported, words));
        }
        // Before any task begins: the worker checks it again.
        self.fs.access(self.who, &path, 4, true)?;
        self.files.push(InputFile { path, ino: attr.ino, size: attr.size, home });
        Ok(())
    }

    /// All files below a directory, by name; symbolic links in it are not followed.
    fn tree(&mut self, root: Vec<u8>) -> Result<()> {
        let mut waiting = vec![root];
        while let Some(dir) = waiting.pop() {
            let ino = self.fs.stat(self.who, &dir, true)?.ino;
            let mut handle = self.fs.read_dir(self.who, dir.as_slice())?;
            let mut entries = Vec::new();
            while let Some(entry) = handle.next_entry()? {
                if !matches!(&*entry.name, b"." | b"..") {
                    entries.push(entry);
                }
            }
            entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
            let mut below = Vec::new();
            for entry in entries {
                let mut path = dir.clone();
                if path.last() != Some(&b'/') {
                    path.push(b'/');
                }
                path.extend_from_slice(&entry.name);
                match entry.kind {
                    FileKind::Directory => below.push(path),
                    FileKind::File => {
                        let home = self.fs.entry_partition(ino, &entry.name);
                        // The listing's size of a file that is being written may lag behind.
                        let attr = match entry.attr {
                            Some(attr) if attr.size <= INLINE_LEN_MAX && attr.size > 0 => attr,
                            _ => self.fs.stat(self.who, &path, false)?,
                        };
                        self.file(path, &attr, home)?;
                    }
                    _ => {}
                }
            }
            waiting.extend(below.into_iter().rev());
        }
        Ok(())
    }
}

/// The directory of a path, and the name in it.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |at| at + 1);
    let path = &path[..end];
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(0) | None => (b"/", path.strip_prefix(b"/").unwrap_or(path)),
        Some(at) => (&path[..at], &path[at + 1..]),
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

fn plan_files(fs: &FileSystem, dataset: &str, files: Vec<InputFile>) -> Result<JobPlan> {
    let bytes = files.iter().map(|file| file.size).sum::<u64>();
    let nodes = fs.client().map()?.nodes().len().max(1) as u64;
    let listed = files.iter().map(|file| JobFile { path: file.path.clone(), size: file.size });
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
            let node = fs.dataset().node_of(home)?;
            let start = at;
            // Chunks of the same node that lie one after the other.
            loop {
                at = file.size.min((at / chunk_len + 1) * chunk_len);
                let goes_on = at < file.size && at - start < task_bytes;
                if !goes_on || fs.dataset().node_of(place(at))? != node {
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
            let InputFile { path, ino, size, home } = file;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_a_directory_and_a_name() {
        let cases: [(&[u8], &[u8], &[u8]); 4] = [
            (b"/a", b"/", b"a"),
            (b"/a/b", b"/a", b"b"),
            (b"/a/b//", b"/a", b"b"),
            (b"a", b"/", b"a"),
        ];
        for (path, dir, name) in cases {
            assert_eq!(split(path), (dir, name));
        }
    }
}
