//! Checksums of values: CRC-32C of each page of a part, so that bytes that changed by themselves
//! are not taken for what was written.
//!
//! A sum covers the valid bytes of its page. It is made where the bytes pass through the node anyway; pages of blocks that a client has filled have none until
//! the first [`stamp`](PartSums::stamp). A change that leaves old bytes of a page in place checks them first: when they were
//! damaged, the sum that it leaves is a wrong one, so that they are not vouched for now.

use std::cell::Cell;
use std::ops::Range;

use samite_wire::checksum;

use super::value::PART_LEN;

/// Bytes that one sum covers, which have to be read for a small read.
pub(super) const PAGE_LEN: u32 = 4096;
const PAGES: usize = (PART_LEN / PAGE_LEN) as usize;

/// The sums of one part.
#[derive(Debug, Default)]
pub(super) struct PartSums {
    first: u32,
    /// Of the other pages, once one of them is known.
    rest: Option<Box<[u32; PAGES - 1]>>,
    /// One bit for each page whose sum is known.
    known: u16,
    /// The round in which all pages were last found right; 0: none.
    round: Cell<u16>,
}

/// Bytes of page `page`, of which `valid` bytes of the part are valid.
fn page(page: usize, valid: usize) -> Range<usize> {
    let start = page * PAGE_LEN as usize;
    start.min(valid)..(start + PAGE_LEN as usize).min(valid)
}

/// The pages that `range` touches.
fn pages(range: &Range<usize>) -> Range<usize> {
    let len = PAGE_LEN as usize;
    range.start / len..range.end.div_ceil(len)
}

/// Sums of the pages around a change, taken before it is made.
#[derive(Debug)]
pub(super) struct PriorSums {
    /// The bytes that change.
    range: Range<usize>,
    /// Pages that keep old bytes of which nothing is known, and that keep some which are damaged.
    unknown: u16,
    damaged: u16,
    /// The first page goes on after bytes whose sum is known.
    appends: bool,
}

impl PartSums {
    /// Sums of `valid`, the valid bytes of a part.
    pub(super) fn of(valid: &[u8]) -> Self {
        let mut sums = Self::default();
        sums.fill(valid, 0..valid.len());
        sums
    }

    fn get(&self, page: usize) -> Option<u32> {
        if self.known >> page & 1 == 0 {
            return None;
        }
        match page {
            0 => Some(self.first),
            _ => self.rest.as_ref().map(|rest| rest[page - 1]),
        }
    }

    fn set(&mut self, page: usize, sum: u32) {
        self.known |= 1 << page;
        match page {
            0 => self.first = sum,
            _ => self.rest.get_or_insert_default()[page - 1] = sum,
        }
    }

    fn fill(&mut self, valid: &[u8], range: Range<usize>) {
        for index in pages(&range) {
            self.set(index, checksum::of(&valid[page(index, valid.len())]));
        }
    }

    fn is_right(&self, index: usize, valid: &[u8]) -> bool {
        self.get(index).is_none_or(|sum| checksum::of(&valid[page(index, valid.len())]) == sum)
    }

    /// Whether no page that `range` touches is known to be damaged.
    pub(super) fn check(&self, valid: &[u8], range: Range<u32>) -> bool {
        let range = range.start as usize..range.end as usize;
        self.known == 0 || pages(&range).all(|index| self.is_right(index, valid))
    }

    /// The same of all pages, unless they were all found right in this round (which is not 0) already.
    pub(super) fn check_once(&self, valid: &[u8], round: u16) -> bool {
        if self.round.get() == round {
            return true;
        }
        let is_right = self.check(valid, 0..valid.len() as u32);
        if is_right {
            self.round.set(round);
        }
        is_right
    }

    /// Checks all pages, and makes the sums that are missing. Returns a digest of them; `None`: some page is damaged.
    pub(super) fn stamp(&mut self, valid: &[u8]) -> Option<u64> {
        let mut digest = valid.len() as u64;
        for index in pages(&(0..valid.len())) {
            let found = checksum::of(&valid[page(index, valid.len())]);
            if self.get(index).is_some_and(|sum| sum != found) {
                return None;
            }
            self.set(index, found);
            digest =
                (digest.rotate_left(29) ^ u64::from(found)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
        Some(digest)
    }

    /// The sums needed before bytes `at .. end` of a part with these valid bytes change, and any
    /// between them and `at` become zeros.
    pub(super) fn before(&self, valid: &[u8], at: u32, end: u32) -> PriorSums {
        let range = valid.len().min(at as usize)..end as usize;
        let mut before = PriorSums { unknown: 0, damaged: 0, appends: false, range };
        for index in pages(&before.range) {
            let old = page(index, valid.len());
            let is_replaced = before.range.start <= old.start && old.end <= before.range.end;
            if old.is_empty() || is_replaced {
                continue;
            }
            if self.get(index).is_none() {
                before.unknown |= 1 << index;
            } else if before.range.start == valid.len() {
                before.appends = true;
            } else if !self.is_right(index, valid) {
                before.damaged |= 1 << index;
            }
        }
        before
    }

    /// The change is made.
    pub(super) fn after(&mut self, valid: &[u8], before: PriorSums) {
        let PriorSums { range, unknown, damaged, appends } = before;
        self.round.set(0);
        for index in pages(&range) {
            if unknown >> index & 1 == 1 {
                continue;
            }
            let now = page(index, valid.len());
            let sum = match self.get(index) {
                // However the old bytes are, the sum goes on from what they were.
                Some(sum) if appends && now.start < range.start => {
                    checksum::append(sum, &valid[range.start..now.end])
                }
                _ => checksum::of(&valid[now]),
            };
            self.set(index, if damaged >> index & 1 == 1 { !sum } else { sum });
        }
    }

    /// Only the first `to` of the valid bytes stay.
    pub(super) fn cut(&mut self, valid: &[u8], to: u32) {
        let to = to as usize;
        let last = to / PAGE_LEN as usize;
        let kept = page(last, to);
        if !kept.is_empty() && self.get(last).is_some() {
            let is_right = self.is_right(last, valid);
            let sum = checksum::of(&valid[kept]);
            self.set(last, if is_right { sum } else { !sum });
        }
        let stay = pages(&(0..to)).end;
        self.known &= ((1u32 << stay) - 1) as u16;
    }
}
