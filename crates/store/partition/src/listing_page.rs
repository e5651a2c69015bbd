//! Listings under way: entries until a page is full.

use std::ops::ControlFlow;

use samite_backend::{RecordMeta, ScannedRecord};
use samite_wire::op::{BlockRef, ReplyEncoder};

use crate::limits::{LISTED_VALUE_LEN_MAX, LISTED_VALUES_LEN_MAX, LISTING_LEN_MAX};
use crate::outcome::ActionOutput;

/// A listing under way.
pub(crate) struct ListingPage {
    limit: u32,
    len_max: usize,
    complete: bool,
    count: u32,
    entries: Vec<u8>,
}

impl ListingPage {
    /// Of at most `limit` entries, for a reply whose body has `body_left` bytes left.
    pub(crate) fn new(limit: u32, body_left: usize) -> Self {
        Self::of_len(limit, body_left.min(LISTING_LEN_MAX))
    }

    fn of_len(limit: u32, len_max: usize) -> Self {
        Self { limit, len_max, complete: true, count: 0, entries: Vec::new() }
    }

    /// Adds a record, unless the page is full.
    pub(crate) fn add(&mut self, key: &[u8], meta: RecordMeta, value: &[u8]) -> ControlFlow<()> {
        self.add_entry(|entries| {
            ReplyEncoder::encode_list_entry(entries, key, meta.version, meta.len, value);
        })
    }

    fn add_entry(&mut self, encode: impl FnOnce(&mut Vec<u8>)) -> ControlFlow<()> {
        let end = self.entries.len();
        if self.count < self.limit {
            encode(&mut self.entries);
        }
        if self.count == self.limit || self.entries.len() > self.len_max {
            self.entries.truncate(end);
            return self.end();
        }
        self.count += 1;
        ControlFlow::Continue(())
    }

    /// There are more records than it has.
    const fn end(&mut self) -> ControlFlow<()> {
        self.complete = false;
        ControlFlow::Break(())
    }

    /// Bytes of the entries.
    pub(crate) const fn len(&self) -> usize {
        self.entries.len()
    }

    /// The result.
    pub(crate) fn listing(self) -> ActionOutput {
        let Self { complete, count, entries, .. } = self;
        ActionOutput::Listing { complete, count, entries }
    }
}

/// A listing of whole values under way.
pub(crate) struct WholeListing {
    page: ListingPage,
    /// Longest value that is put into it.
    value_len_max: usize,
    /// Bytes of values so far.
    values_len: u64,
}

impl WholeListing {
    /// Of at most `limit` entries and `len_max` bytes.
    pub(crate) fn new(limit: u32, len_max: usize) -> Self {
        // Several values fit a page, which so ends at most that far from full.
        let value_len_max = (len_max / 4).min(LISTED_VALUE_LEN_MAX);
        let mut page = ListingPage::of_len(limit, len_max);
        page.entries.reserve(len_max.min(FIRST_LEN));
        Self { page, value_len_max, values_len: 0 }
    }

    /// How much of each value a scan is to show.
    pub(crate) const fn shown_len(&self) -> u32 {
        // No more than a part of a record.
        self.value_len_max as u32
    }

    /// Adds a record, of which a scan has shown that all of it lies in these blocks, or the first
    /// bytes; unless the page is full.
    pub(crate) fn add(
        &mut self,
        record: &ScannedRecord<'_>,
        blocks: &[BlockRef],
    ) -> ControlFlow<()> {
        let ScannedRecord { key, meta: RecordMeta { version, len }, value } = *record;
        let is_left = blocks.is_empty() && value.len() < len as usize;
        let values_len = self.values_len + if is_left { 0 } else { u64::from(len) };
        if values_len > LISTED_VALUES_LEN_MAX && self.values_len > 0 {
            return self.page.end();
        }
        self.values_len = values_len;
        self.page.add_entry(|entries| {
            if is_left {
                ReplyEncoder::encode_left_entry(entries, key, version, len);
            } else if blocks.is_empty() {
                ReplyEncoder::encode_list_entry(entries, key, version, len, value);
            } else {
                ReplyEncoder::encode_referring_entry(entries, key, version, len, blocks);
            }
        })
    }

    /// Bytes of the entries.
    pub(crate) const fn len(&self) -> usize {
        self.page.len()
    }

    /// The result.
    pub(crate) fn listing(self) -> ActionOutput {
        self.page.listing()
    }
}

/// Bytes of memory that a listing of whole values begins with: enough for most.
const FIRST_LEN: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use samite_types::Version;
    use samite_wire::op::{ListedValue, ListingEntries};

    use super::*;

    /// The keys of a page of records with values of these lengths, by reference or not, and
    /// whether it has all of them; `None` in place of the length of a value that is left.
    fn page(lens: &[u32], in_place: bool, len_max: usize) -> (Vec<Option<usize>>, bool) {
        let mut page = WholeListing::new(4096, len_max);
        for (len, index) in lens.iter().zip(0_u32..) {
            let key = &index.to_be_bytes()[..];
            let meta = RecordMeta { version: Version(1), len: *len };
            let value = vec![7; len.min(&page.shown_len()).to_owned() as usize];
            let block = BlockRef { offset: 0, len: *len, generation: 2 };
            let (value, blocks) =
                if in_place { (&[][..], &[block][..]) } else { (&value[..], &[][..]) };
            if page.add(&ScannedRecord { key, meta, value }, blocks).is_break() {
                break;
            }
        }
        assert!(page.len() <= len_max);
        let ActionOutput::Listing { complete, count, entries } = page.listing() else {
            unreachable!("a listing");
        };
        let entries = ListingEntries::again(complete, count, &entries);
        let value_len = |value: ListedValue<'_>| match value {
            ListedValue::Bytes(bytes) => Some(bytes.len()),
            ListedValue::Blocks(blocks) => Some(blocks.iter().map(|one| one.len as usize).sum()),
            ListedValue::Left => None,
        };
        (entries.entries().map(|entry| value_len(entry.value)).collect(), complete)
    }

    #[test]
    fn a_page_has_so_many_bytes_of_values() {
        let (found, complete) = page(&[4096; 2000], true, REFERRING);
        assert_eq!((found.len(), complete), (1024, false));
        let (found, complete) = page(&[1 << 16; 64], true, REFERRING);
        assert_eq!((found.len(), complete), (64, true));
        let (found, complete) = page(&[0; 5000], true, REFERRING);
        assert!(found.len() > 1000 && !complete, "the page itself was full");
    }

    #[test]
    fn what_is_too_long_for_a_page_is_left_and_the_next_record_follows() {
        let found = page(&[9, 1 << 20, 1 << 16, (1 << 16) + 1, 0], false, 1 << 20);
        assert_eq!(found, (vec![Some(9), None, Some(1 << 16), None, Some(0)], true));
        let found = page(&[300, 200], false, 1000);
        assert_eq!(found, (vec![None, Some(200)], true), "a quarter of the page");
    }

    /// A page that is short for its reply to fit a ring.
    const REFERRING: usize = crate::limits::REFERRING_LISTING_LEN_MAX;
}
