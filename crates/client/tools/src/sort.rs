//! `sort`: lines in the order of GNU sort, or records of one length.
//!
//! A sort has three parts. `sort-sample` looks at some lines of each piece, of which the command
//! chooses splitters: bounds of ranges of the order. In `sort-run` a task sorts its pieces in memory
//! and writes them to a file of its own. In `sort-merge` a task reads the segments of one range from
//! all those files, and writes them, merged, to their place in the result, or gives them out.

mod args;
mod tasks;

use std::collections::BTreeMap;

use samite_fs::FileSystem;
use samite_job::{InputFile, JobPlan, PlannedTask};
use samite_modules::sort::{LineOrder, RecordOrder, SortKey, SortOptions, SortOrder};
use samite_types::{Error, ErrorKind, Result};
use samite_worker::JobInput;
use samite_worker::messages::{FilePiece, OrderedFile, TaskInputOrder};
use serde::{Deserialize, Serialize};

pub use args::{SortArgs, SortCall};
pub use tasks::{CheckModule, MergeModule, RunModule, SampleModule};

use crate::call::{decode, encode};

/// Bytes of a range, about: a task has one in memory.
const RANGE_LEN: u64 = 32 << 20;
/// A sort of fewer bytes has one range.
const SPLIT_LEN_MIN: u64 = 4 << 20;
/// Most ranges of a sort.
const RANGES_MAX: u64 = 1024;
/// Most tasks that make runs.
const RUNS_MAX: usize = 4096;

/// What decides the order, as tasks are told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SortRule {
    keys: Vec<String>,
    numeric: bool,
    human: bool,
    version: bool,
    folds_case: bool,
    skips_blanks: bool,
    reverse: bool,
    separator: Option<u8>,
    stable: bool,
    unique: bool,
    /// Length of a record, and its key.
    record: Option<(usize, usize, usize)>,
}

/// An order, of lines or of records.
pub(crate) enum ItemOrder {
    Lines(LineOrder),
    Records(RecordOrder),
}

impl SortRule {
    /// Whether items that are equal keep the order that they have in the input.
    #[must_use]
    pub fn keeps_order(&self) -> bool {
        self.stable || self.unique
    }

    /// Whether the length of the result is that of the input.
    #[must_use]
    pub fn keeps_all(&self) -> bool {
        !self.unique
    }

    pub(crate) fn order(&self) -> Result<ItemOrder> {
        use samite_modules::sort::KeyOrdering;
        let invalid = |words: String| Error::new(ErrorKind::Invalid, words);
        if let Some((len, start, end)) = self.record {
            let order = RecordOrder::new(len, start..end);
            let words = || invalid(format!("a record of {len} bytes has no key {start}:{end}"));
            return Ok(ItemOrder::Records(order.ok_or_else(words)?));
        }
        let keys = self.keys.iter().map(|key| SortKey::parse(key).map_err(invalid));
        let ordering = match (self.numeric, self.human, self.version) {
            (true, false, false) => KeyOrdering::Numeric,
            (false, true, false) => KeyOrdering::Human,
            (false, false, true) => KeyOrdering::Version,
            (false, false, false) => KeyOrdering::default(),
            _ => return Err(invalid("two of the options -h, -n and -V are incompatible".into())),
        };
        let options = SortOptions {
            ordering,
            folds_case: self.folds_case,
            skips_blanks: self.skips_blanks,
            reverse: self.reverse,
        };
        let mut order = LineOrder::new(keys.collect::<Result<_>>()?, options);
        if let Some(separator) = self.separator {
            order = order.separator(separator);
        }
        if self.stable {
            order = order.stable();
        }
        if self.unique {
            order = order.unique();
        }
        Ok(ItemOrder::Lines(order))
    }
}

impl ItemOrder {
    fn splitters(&self, samples: Vec<Vec<u8>>, parts: usize) -> Vec<Vec<u8>> {
        fn of(samples: Vec<Vec<u8>>, parts: usize, order: &impl SortOrder) -> Vec<Vec<u8>> {
            samite_modules::sort::splitters(samples, parts, order)
        }
        match self {
            ItemOrder::Lines(order) => of(samples, parts, order),
            ItemOrder::Records(order) => of(samples, parts, order),
        }
    }
}

/// What tasks that make runs need to know.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct RunOrder {
    rule: SortRule,
    splitters: Vec<Vec<u8>>,
    /// Paths of the runs, without the number of the first piece at their ends.
    prefix: Vec<u8>,
}

/// What tasks that merge need to know.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct MergeOrder {
    rule: SortRule,
    /// The result, by path and inode number; `None`: ranges are given out.
    output: Option<(Vec<u8>, u64)>,
    /// Where in the result each range begins.
    offsets: Vec<u64>,
}

/// The lengths of the ranges in each run; a run is known by the number of its first piece.
pub type RunLengths = BTreeMap<u64, Vec<u64>>;

/// How many ranges a sort of so many bytes has.
#[must_use]
pub fn range_count(bytes: u64, nodes: u64) -> usize {
    if bytes < SPLIT_LEN_MIN {
        return 1;
    }
    // All threads of all nodes have some at a time.
    let least = (nodes * 4).min(bytes / (SPLIT_LEN_MIN / 4));
    usize::try_from((bytes / RANGE_LEN).max(least).min(RANGES_MAX)).unwrap_or(1)
}

/// For the tasks of `sort-sample`.
#[must_use]
pub fn sample_arguments(rule: &SortRule, parts: usize) -> Vec<u8> {
    encode(&(rule, parts))
}

/// The splitters that `sort-sample` has given.
///
/// # Errors
/// `Corrupt`.
pub fn splitters_of(result: &[u8]) -> Result<Vec<Vec<u8>>> {
    decode(result)
}

/// For the tasks of `sort-run`.
#[must_use]
pub fn run_arguments(rule: &SortRule, splitters: Vec<Vec<u8>>, prefix: &[u8]) -> Vec<u8> {
    encode(&RunOrder { rule: rule.clone(), splitters, prefix: prefix.to_vec() })
}

/// The path of the run of a task.
#[must_use]
pub fn run_path(prefix: &[u8], first_piece: u64) -> Vec<u8> {
    [prefix, first_piece.to_string().as_bytes()].concat()
}

/// What `sort-run` has given.
///
/// # Errors
/// `Corrupt`.
pub fn run_lengths_of(result: &[u8]) -> Result<RunLengths> {
    decode(result)
}

/// Numbers of the first pieces of tasks.
///
/// # Errors
/// `TooLarge`: there are too many.
pub fn first_pieces(plan: &JobPlan) -> Result<Vec<u64>> {
    if plan.tasks.len() > RUNS_MAX {
        let words = format!("a sort of {} runs is too large: {RUNS_MAX} may be", plan.tasks.len());
        return Err(Error::new(ErrorKind::TooLarge, words));
    }
    let first = |task: &PlannedTask| match &task.input {
        TaskInputOrder::Files { pieces, .. } => pieces.first().map_or(0, |piece| piece.number),
        TaskInputOrder::Records { .. } => 0,
    };
    Ok(plan.tasks.iter().map(first).collect())
}

/// Where each range begins in the result, and how long that is.
#[must_use]
pub fn range_offsets(runs: &RunLengths) -> (Vec<u64>, u64) {
    let ranges = runs.values().map(Vec::len).max().unwrap_or(0);
    let mut at = 0;
    let mut offsets = Vec::with_capacity(ranges);
    for range in 0..ranges {
        offsets.push(at);
        at += runs.values().filter_map(|lens| lens.get(range)).sum::<u64>();
    }
    (offsets, at)
}

/// For the tasks of `sort-merge`.
#[must_use]
pub fn merge_arguments(rule: &SortRule, output: Option<(&[u8], u64)>, offsets: &[u64]) -> Vec<u8> {
    let output = output.map(|(path, ino)| (path.to_vec(), ino));
    encode(&MergeOrder { rule: rule.clone(), output, offsets: offsets.to_vec() })
}

/// The plan of `sort-merge`: a task for each range, at the node with the begin of its place in the
/// result. `files`: the runs, in the order of their first pieces.
///
/// # Errors
/// As of the store.
pub fn plan_merge(
    (fs, dataset): (&FileSystem, &str),
    runs: &RunLengths,
    files: &[InputFile],
    output: Option<u64>,
) -> Result<JobPlan> {
    let (offsets, bytes) = range_offsets(runs);
    let mut plan = JobPlan {
        input: JobInput::Files(Vec::new()),
        pieces: Vec::new(),
        tasks: Vec::new(),
        bytes,
        dataset: fs.dataset().clone(),
    };
    let mut starts = vec![0_u64; files.len()];
    for (range, offset) in (0_u32..).zip(&offsets) {
        let (mut ordered, mut pieces, mut bytes) = (Vec::new(), Vec::new(), 0);
        let lens = runs.values().map(|lens| lens.get(range as usize).copied().unwrap_or(0));
        for ((file, start), len) in files.iter().zip(&mut starts).zip(lens) {
            if len == 0 {
                continue;
            }
            let InputFile { path, ino, size, home, .. } = file.clone();
            let index = ordered.len() as u32;
            ordered.push(OrderedFile { number: range, path, ino, size, home });
            let number = plan.pieces.len() as u64;
            pieces.push(FilePiece { number, file: index, offset: *start, len });
            plan.pieces.push(range);
            *start += len;
            bytes += len;
        }
        let Some(first) = ordered.first() else { continue };
        let home = output.map_or(first.home, |ino| fs.data_partition(ino, *offset));
        let node = fs.dataset().node_of(home)?;
        let input = TaskInputOrder::Files { dataset: dataset.to_owned(), files: ordered, pieces };
        plan.tasks.push(PlannedTask { input, home, node, bytes });
    }
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_lie_one_after_the_other() {
        let runs = RunLengths::from([(0, vec![3, 0, 5]), (7, vec![1, 2, 0])]);
        assert_eq!(range_offsets(&runs), (vec![0, 4, 6], 11));
        assert_eq!(range_offsets(&RunLengths::new()), (vec![], 0));
    }

    #[test]
    fn large_sorts_have_more_ranges() {
        assert_eq!(range_count(0, 1), 1);
        assert_eq!(range_count(SPLIT_LEN_MIN - 1, 8), 1);
        assert_eq!(range_count(SPLIT_LEN_MIN, 8), 4);
        assert_eq!(range_count(64 << 20, 1), 4);
        assert_eq!(range_count(2 << 30, 1), 64);
        assert_eq!(range_count(u64::MAX, 1), RANGES_MAX as usize);
    }

    #[test]
    fn a_rule_without_sense_is_refused() {
        let rule = SortRule { record: Some((100, 0, 101)), ..SortRule::default() };
        assert!(rule.order().is_err());
        let rule = SortRule { numeric: true, human: true, ..SortRule::default() };
        assert!(rule.order().is_err());
        let rule = SortRule { keys: vec!["0".into()], ..SortRule::default() };
        assert!(rule.order().is_err());
        assert!(SortRule::default().order().is_ok());
    }
}
