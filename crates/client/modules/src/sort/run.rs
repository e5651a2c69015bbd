//! Sorted runs of lines.

use std::cmp::Ordering;
use std::ops::Range;

use super::compare::SortOrder;
use super::merge::SortedSource;
use super::order::LineOrder;
use crate::piece::{LineEnding, TextPiece};

#[derive(Clone, Copy, Debug)]
struct LineRef {
    prefix: u64,
    offset: usize,
    len: usize,
}

/// Lines in order, in memory.
#[derive(Debug)]
pub struct SortedRun<'o> {
    order: &'o LineOrder,
    text: Vec<u8>,
    lines: Vec<LineRef>,
    is_sorted: bool,
}

impl<'o> SortedRun<'o> {
    /// A run of no lines.
    #[must_use]
    pub fn new(order: &'o LineOrder) -> Self {
        SortedRun { order, text: Vec::new(), lines: Vec::new(), is_sorted: true }
    }

    /// Adds the lines that start in `piece`. `more` appends bytes that follow it, and says whether
    /// there were any.
    ///
    /// # Errors
    /// Those of `more`.
    pub fn add<E>(
        &mut self,
        piece: &TextPiece<'_>,
        more: &mut dyn FnMut(&mut Vec<u8>) -> Result<bool, E>,
    ) -> Result<(), E> {
        let lines = piece.lines(LineEnding::Newline, more)?;
        let from = self.text.len();
        self.text.extend_from_slice(lines.whole);
        self.text.extend_from_slice(&lines.crossing);
        let added = &self.text[from..];
        let mut start = 0;
        let last = added.last().filter(|last| **last != b'\n').map(|_| added.len());
        for end in memchr::memchr_iter(b'\n', added).chain(last) {
            let prefix = self.order.prefix(&added[start..end]);
            self.lines.push(LineRef { prefix, offset: from + start, len: end - start });
            start = end + 1;
        }
        self.is_sorted = false;
        Ok(())
    }

    /// Bytes of memory in use.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.text.len() + self.lines.len() * size_of::<LineRef>()
    }

    /// Puts the lines in order; with `-u`, the first of equal ones stays.
    pub fn sort(&mut self) {
        if std::mem::replace(&mut self.is_sorted, true) {
            return;
        }
        let (text, order) = (&self.text, self.order);
        let bytes = |line: &LineRef| &text[line.offset..line.offset + line.len];
        let compare = |one: &LineRef, other: &LineRef| {
            let prefixes = one.prefix.cmp(&other.prefix);
            prefixes.then_with(|| order.compare(bytes(one), bytes(other)))
        };
        if order.keeps_order() {
            self.lines.sort_by(compare);
        } else {
            self.lines.sort_unstable_by(compare);
        }
        if order.is_unique() {
            self.lines.dedup_by(|next, first| compare(first, next) == Ordering::Equal);
        }
    }

    /// How many lines there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// A line, by its position.
    ///
    /// # Panics
    /// There are not so many.
    #[must_use]
    pub fn line(&self, index: usize) -> &[u8] {
        let line = &self.lines[index];
        &self.text[line.offset..line.offset + line.len]
    }

    /// Up to `count` lines, evenly spread over the sorted run.
    #[must_use]
    pub fn sample(&self, count: usize) -> Vec<Vec<u8>> {
        let count = count.min(self.len());
        let at = |index: usize| (2 * index + 1) * self.len() / (2 * count);
        (0..count).map(|index| self.line(at(index)).to_vec()).collect()
    }

    /// Cuts the sorted run: one range of positions more than there are `splitters`. Lines that
    /// compare equal are in the same range, in all runs.
    #[must_use]
    pub fn ranges(&self, splitters: &[Vec<u8>]) -> Vec<Range<usize>> {
        let mut ranges = Vec::with_capacity(splitters.len() + 1);
        let mut start = 0;
        for splitter in splitters {
            let before = |line: &LineRef| {
                let bytes = &self.text[line.offset..line.offset + line.len];
                self.order.compare(bytes, splitter) == Ordering::Less
            };
            let end = start + self.lines[start..].partition_point(before);
            ranges.push(start..end);
            start = end;
        }
        ranges.push(start..self.len());
        ranges
    }

    /// Appends the lines of `range` to `out`, each with a newline.
    ///
    /// # Panics
    /// The range is not one of the run.
    pub fn write(&self, range: Range<usize>, out: &mut Vec<u8>) {
        for index in range {
            out.extend_from_slice(self.line(index));
            out.push(b'\n');
        }
    }

    /// The lines of `range` as a source for a merge.
    #[must_use]
    pub fn cursor(&self, range: Range<usize>) -> RunCursor<'_> {
        RunCursor { run: self, range }
    }
}

/// Lines of a run, one after the other.
#[derive(Debug)]
pub struct RunCursor<'r> {
    run: &'r SortedRun<'r>,
    range: Range<usize>,
}

impl<E> SortedSource<E> for RunCursor<'_> {
    fn current(&self) -> Option<&[u8]> {
        (!self.range.is_empty()).then(|| self.run.line(self.range.start))
    }

    fn advance(&mut self) -> Result<(), E> {
        self.range.start += 1;
        Ok(())
    }
}

/// Items that cut the order into `parts` ranges of about the same size, chosen of samples of all
/// runs, each run sampled alike.
pub fn splitters(mut samples: Vec<Vec<u8>>, parts: usize, order: &impl SortOrder) -> Vec<Vec<u8>> {
    samples.sort_by(|one, other| order.compare(one, other));
    let count = samples.len();
    let mut chosen: Vec<Vec<u8>> =
        (1..parts).filter_map(|part| samples.get(part * count / parts).cloned()).collect();
    chosen.dedup_by(|next, first| order.compare(first, next) == Ordering::Equal);
    chosen
}
