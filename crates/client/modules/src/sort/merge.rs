//! Merging of sorted sources by a tree of losers: one comparison a level for each item.

use std::cmp::Ordering;

use super::compare::SortOrder;

/// Sorted items, one after the other.
pub trait SortedSource<E> {
    /// The item at which it is; `None` behind the last.
    fn current(&self) -> Option<&[u8]>;

    /// Goes to the next item.
    ///
    /// # Errors
    /// What keeps the next item from being had.
    fn advance(&mut self) -> Result<(), E>;
}

/// Lines that come in blocks, from another node.
pub struct LineStream<F> {
    fill: F,
    block: Vec<u8>,
    start: usize,
    end: usize,
    has_ended: bool,
}

impl<F> std::fmt::Debug for LineStream<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LineStream").field("buffered", &self.block.len()).finish()
    }
}

impl<F> LineStream<F> {
    /// Lines that `fill` appends, of which the last may be incomplete; it says whether there were
    /// any.
    ///
    /// # Errors
    /// Those of `fill`.
    pub fn new<E>(fill: F) -> Result<Self, E>
    where
        F: FnMut(&mut Vec<u8>) -> Result<bool, E>,
    {
        let mut stream = LineStream { fill, block: Vec::new(), start: 0, end: 0, has_ended: false };
        stream.find_end()?;
        Ok(stream)
    }

    fn find_end<E>(&mut self) -> Result<(), E>
    where
        F: FnMut(&mut Vec<u8>) -> Result<bool, E>,
    {
        let mut searched = self.start;
        loop {
            if let Some(len) = memchr::memchr(b'\n', &self.block[searched..]) {
                self.end = searched + len;
                return Ok(());
            }
            self.block.drain(..self.start);
            self.start = 0;
            searched = self.block.len();
            if self.has_ended || !(self.fill)(&mut self.block)? {
                self.has_ended = true;
                self.end = self.block.len();
                return Ok(());
            }
        }
    }
}

impl<E, F: FnMut(&mut Vec<u8>) -> Result<bool, E>> SortedSource<E> for LineStream<F> {
    fn current(&self) -> Option<&[u8]> {
        (self.start < self.block.len()).then(|| &self.block[self.start..self.end])
    }

    fn advance(&mut self) -> Result<(), E> {
        self.start = (self.end + 1).min(self.block.len());
        self.find_end()
    }
}

/// Records of one length in memory.
#[derive(Debug)]
pub struct RecordCursor<'a> {
    records: &'a [u8],
    len: usize,
}

impl<'a> RecordCursor<'a> {
    /// Records of `len` bytes.
    #[must_use]
    pub fn new(records: &'a [u8], len: usize) -> Self {
        RecordCursor { records, len }
    }
}

impl<E> SortedSource<E> for RecordCursor<'_> {
    fn current(&self) -> Option<&[u8]> {
        self.records.get(..self.len)
    }

    fn advance(&mut self) -> Result<(), E> {
        self.records = self.records.get(self.len..).unwrap_or_default();
        Ok(())
    }
}

/// Gives the items of all `sources` to `sink`, in order; of equal ones, those of earlier sources
/// first.
///
/// # Errors
/// Those of sources and sink.
pub fn merge<E, S: SortedSource<E>>(
    sources: &mut [S],
    order: &impl SortOrder,
    sink: &mut dyn FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let mut tree = LoserTree::new(sources, order);
    let mut last: Option<Vec<u8>> = None;
    while let Some(winner) = tree.winner()
        && let Some(item) = tree.sources[winner].current()
    {
        if order.is_unique() {
            let is_known = |last: &Vec<u8>| order.compare(last, item) == Ordering::Equal;
            if !last.as_ref().is_some_and(is_known) {
                sink(item)?;
                let last = last.get_or_insert_default();
                last.clear();
                last.extend_from_slice(item);
            }
        } else {
            sink(item)?;
        }
        tree.advance()?;
    }
    Ok(())
}

struct LoserTree<'a, S, O> {
    sources: &'a mut [S],
    order: &'a O,
    prefixes: Vec<u64>,
    /// The winner, then the loser of each comparison; position 0 is the winner's.
    nodes: Vec<usize>,
}

impl<'a, S, O: SortOrder> LoserTree<'a, S, O> {
    fn new<E>(sources: &'a mut [S], order: &'a O) -> Self
    where
        S: SortedSource<E>,
    {
        let prefix = |source: &S| source.current().map_or(0, |item| order.prefix(item));
        let prefixes = sources.iter().map(prefix).collect();
        let count = sources.len();
        let mut tree = LoserTree { sources, order, prefixes, nodes: vec![0; count] };
        // Winners of all nodes; leaves are behind them.
        let mut winners: Vec<usize> = (0..2 * count).map(|at| at.saturating_sub(count)).collect();
        for node in (1..count).rev() {
            let (one, other) = (winners[2 * node], winners[2 * node + 1]);
            let one_wins = tree.is_before(one, other);
            winners[node] = if one_wins { one } else { other };
            tree.nodes[node] = if one_wins { other } else { one };
        }
        if count > 1 {
            tree.nodes[0] = winners[1];
        }
        tree
    }

    fn winner(&self) -> Option<usize> {
        self.nodes.first().copied()
    }

    /// Whether the item of source `one` comes before that of `other`. Sources that ended lose.
    fn is_before<E>(&self, one: usize, other: usize) -> bool
    where
        S: SortedSource<E>,
    {
        match (self.sources[one].current(), self.sources[other].current()) {
            (Some(first), Some(second)) => {
                let prefixes = self.prefixes[one].cmp(&self.prefixes[other]);
                let items = prefixes.then_with(|| self.order.compare(first, second));
                items.then(one.cmp(&other)) == Ordering::Less
            }
            (first, second) => first.is_some() || (second.is_none() && one < other),
        }
    }

    /// Goes on in the source of the winner and finds the next.
    fn advance<E>(&mut self) -> Result<(), E>
    where
        S: SortedSource<E>,
    {
        let mut winner = self.nodes[0];
        self.sources[winner].advance()?;
        let order = self.order;
        self.prefixes[winner] = self.sources[winner].current().map_or(0, |item| order.prefix(item));
        let mut node = (winner + self.sources.len()) / 2;
        while node > 0 {
            if !self.is_before(winner, self.nodes[node]) {
                std::mem::swap(&mut winner, &mut self.nodes[node]);
            }
            node /= 2;
        }
        self.nodes[0] = winner;
        Ok(())
    }
}
