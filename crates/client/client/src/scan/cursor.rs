//! One thread's part in a scan: pages that were requested ahead, and the records of one of them.

use std::collections::VecDeque;
use std::fmt;

use samite_types::{Error, ErrorKind, PartitionId, Result, Version};
use samite_wire::limits::{LIST_ENTRIES_MAX, RECORD_LEN_MAX};
use samite_wire::op::{Action, BlockRefs, ListEntry, ListedValue, Operation, WHOLE_VALUES};

use super::{DatasetScan, ScanScope, VisitedRecord};
use crate::members::MemberTarget;
use crate::outcome::{OwnedEntries, OwnedResult};
use crate::{ClientOperation, PendingOperations};

/// Pages that one cursor has requested and not begun to read: each of another partition, so that
/// one is made while another travels. Bounds the memory that a cursor takes, here and at nodes.
const PAGES_AHEAD: usize = 2;

/// Records of a scan, one after the other.
pub struct ScanCursor<'s> {
    scan: &'s DatasetScan,
    /// In the order in which they were requested.
    ahead: VecDeque<PageRequest>,
    page: Option<ScanPage>,
    /// The value of the record at hand, where it is not in the page.
    value: Vec<u8>,
    is_over: bool,
}

/// A page under way.
struct PageRequest {
    partition: PartitionId,
    pending: Result<PendingOperations>,
}

/// A page that is being read.
#[derive(Debug)]
struct ScanPage {
    partition: PartitionId,
    entries: OwnedEntries,
    /// Nothing is behind it.
    is_last: bool,
    /// Where the next entry begins.
    next: usize,
    /// The record at hand, if one was come to.
    current: Option<CurrentRecord>,
}

/// The record at hand.
#[derive(Clone, Copy, Debug)]
struct CurrentRecord {
    /// Where its entry begins.
    at: usize,
    /// Version and length of what was read.
    version: Version,
    len: u32,
    /// Its value is not in the page.
    is_apart: bool,
}

impl<'s> ScanCursor<'s> {
    pub(super) fn new(scan: &'s DatasetScan) -> Self {
        Self { scan, ahead: VecDeque::new(), page: None, value: Vec::new(), is_over: false }
    }

    /// Goes to the next record. `false`: there is none, or others read the rest.
    ///
    /// # Errors
    /// `Lost`: records of a partition died with their nodes; as [`crate::Dataset::execute`]. The
    /// cursor is over then. What it has not come to is left to other cursors.
    pub fn advance(&mut self) -> Result<bool> {
        if self.is_over {
            return Ok(false);
        }
        let step = self.step();
        if !matches!(step, Ok(true)) {
            self.close();
        }
        step
    }

    /// The record at hand.
    ///
    /// # Panics
    /// When the last call of [`advance`](Self::advance) did not return `true`.
    #[must_use]
    pub fn record(&self) -> VisitedRecord<'_> {
        let at_hand = self.page.as_ref().and_then(|page| {
            let current = page.current?;
            Some((page.partition, current, page.entries.listing().entry_at(current.at)?.0))
        });
        let (partition, current, entry) = at_hand.expect("a record that was come to");
        let CurrentRecord { version, len, is_apart, .. } = current;
        let value = if is_apart { &self.value[..len as usize] } else { entry.bytes() };
        VisitedRecord { partition, key: entry.key, version, len, value }
    }

    fn step(&mut self) -> Result<bool> {
        loop {
            let Some(page) = &mut self.page else {
                if self.open_page()? {
                    continue;
                }
                return Ok(false);
            };
            let at = page.next;
            let Some((entry, next)) = page.entries.listing().entry_at(at) else {
                self.finish_page();
                continue;
            };
            page.next = next;
            let found = match entry.value {
                ListedValue::Bytes(_) => Some((entry.version, entry.total_len, false)),
                ListedValue::Blocks(blocks) if copied(page, blocks, &entry, &mut self.value) => {
                    Some((entry.version, entry.total_len, true))
                }
                ListedValue::Blocks(_) | ListedValue::Left => {
                    ask(self.scan, page.partition, entry.key, &mut self.value)?
                        .map(|(version, len)| (version, len, true))
                }
            };
            // One that was removed meanwhile is passed by.
            if let Some((version, len, is_apart)) = found {
                page.current = Some(CurrentRecord { at, version, len, is_apart });
                return Ok(true);
            }
        }
    }

    /// Waits for the next page, and requests those after it.
    fn open_page(&mut self) -> Result<bool> {
        self.look_ahead(PAGES_AHEAD);
        let Some(PageRequest { partition, pending }) = self.ahead.pop_front() else {
            return Ok(false);
        };
        let dataset = &self.scan.dataset;
        // It may have lain there for long.
        let answered = pending.and_then(|pending| pending.wait_by(dataset.client().deadline()));
        let page = answered.and_then(|outcomes| {
            let outcome = outcomes.into_iter().next().ok_or(ErrorKind::Internal)?;
            match outcome.into_results("scan")?.pop() {
                Some(OwnedResult::Listing { complete, entries }) => Ok((complete, entries)),
                _ => Err(ErrorKind::Corrupt.into()),
            }
        });
        let (is_last, entries) = match page {
            Ok(page) => page,
            Err(error) => {
                self.scan.progress().give_back(partition);
                return Err(error);
            }
        };
        match entries.iter().last() {
            Some(last) if !is_last => {
                let pending = self.request(partition, last.key);
                self.ahead.push_back(PageRequest { partition, pending });
            }
            None if !is_last => {
                self.scan.progress().give_back(partition);
                let cause = "scan: a partition's answer makes no sense";
                return Err(Error::new(ErrorKind::Corrupt, cause));
            }
            _ => self.look_ahead(PAGES_AHEAD),
        }
        self.page = Some(ScanPage { partition, entries, is_last, next: 0, current: None });
        Ok(true)
    }

    /// Requests pages of further partitions until so many are under way.
    fn look_ahead(&mut self, pages: usize) {
        while self.ahead.len() < pages {
            let taken = self.scan.progress().take(|partition| self.is_in_scope(partition));
            let Some((partition, after)) = taken else { return };
            let pending = self.request(partition, &after);
            self.ahead.push_back(PageRequest { partition, pending });
        }
    }

    fn is_in_scope(&self, partition: PartitionId) -> bool {
        match self.scan.scope {
            ScanScope::All => true,
            ScanScope::Partition(only) => partition == only,
            ScanScope::OnHost => {
                let dataset = &self.scan.dataset;
                let view = dataset.client().session().view();
                view.is_some_and(|view| {
                    let member = MemberTarget::reader(dataset);
                    let index = { member }.index(&view, dataset.redundancy(), partition);
                    index.is_ok_and(|index| view.peer_at(index).is_on_host())
                })
            }
        }
    }

    fn request(&self, partition: PartitionId, after: &[u8]) -> Result<PendingOperations> {
        let DatasetScan { dataset, prefix, values, .. } = self.scan;
        let (limit, reverse) = (LIST_ENTRIES_MAX, false);
        let value_len_max = if *values { WHOLE_VALUES } else { 0 };
        let list = Action::List { prefix, after, limit, reverse, value_len_max };
        let pending = dataset.submit(&[Operation::new(partition, [list])])?;
        pending.flush();
        Ok(pending)
    }

    /// All records of the page were visited.
    fn finish_page(&mut self) {
        let Some(page) = self.page.take() else { return };
        let mut progress = self.scan.progress();
        if page.is_last {
            progress.finish(page.partition);
        } else if let Some(last) = page.entries.iter().last() {
            progress.advance(page.partition, last.key);
        }
    }

    /// Leaves what was not come to to others.
    fn close(&mut self) {
        self.is_over = true;
        let mut progress = self.scan.progress();
        for request in self.ahead.drain(..) {
            progress.give_back(request.partition);
        }
        let Some(page) = self.page.take() else { return };
        let current = page.current.and_then(|current| page.entries.listing().entry_at(current.at));
        if let Some((entry, _)) = current {
            progress.advance(page.partition, entry.key);
        }
        progress.give_back(page.partition);
    }
}

impl fmt::Debug for ScanCursor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ScanCursor({:?}, {} pages ahead)", self.page, self.ahead.len())
    }
}

impl Drop for ScanCursor<'_> {
    fn drop(&mut self) {
        self.close();
    }
}

/// Copies a value from the arena to the front of `value`; `false`: it has changed since the page
/// was made, or cannot be reached.
fn copied(
    page: &ScanPage,
    blocks: BlockRefs<'_>,
    entry: &ListEntry<'_>,
    value: &mut Vec<u8>,
) -> bool {
    let Some(arena) = page.entries.arena() else { return false };
    let len = entry.total_len as usize;
    if value.len() < len {
        value.resize(len, 0);
    }
    let mut rest = &mut value[..len];
    for block in blocks.iter() {
        // Together they are as long as the value: that was checked when they came.
        let Some((part, after)) = rest.split_at_mut_checked(block.len as usize) else {
            return false;
        };
        if !arena.copy_out(&block, part) {
            return false;
        }
        rest = after;
    }
    true
}

/// Asks for a record. `None`: there is none any more.
fn ask(
    scan: &DatasetScan,
    partition: PartitionId,
    key: &[u8],
    value: &mut Vec<u8>,
) -> Result<Option<(Version, u32)>> {
    value.resize(RECORD_LEN_MAX, 0);
    let get = ClientOperation::new(Operation::get(partition, key)).into_dest(value);
    let outcome = scan.dataset.execute_one(get)?;
    if outcome.failure().is_some_and(|failure| failure.kind == ErrorKind::NotFound) {
        return Ok(None);
    }
    let results = outcome.into_results("scan")?;
    let (version, _, len) = results.first().ok_or(ErrorKind::Corrupt)?.value()?;
    // No more than it had room for.
    Ok(Some((version, len as u32)))
}
