//! Whether records of the sort benchmark are in order, and their checksum: what its program valsort
//! says. Pieces of whole records are summed up anywhere and joined in order.

use serde::{Deserialize, Serialize};

use crate::gensort::{KEY_LEN, RECORD_LEN};

/// What is known of consecutive records.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct SortSummary {
    /// How many there are.
    pub records: u64,
    /// Sum of the CRC-32 of each, of 128 bits.
    pub checksum: u128,
    /// Records whose key is that of the one before.
    pub duplicates: u64,
    /// Records whose key is below that of the one before.
    pub unordered: u64,
    /// Number of the first of those, from 0.
    pub first_unordered: Option<u64>,
    /// First and last key.
    ends: Option<([u8; KEY_LEN], [u8; KEY_LEN])>,
}

impl SortSummary {
    /// Sums up records; bytes at the end that are no whole record are left out.
    #[must_use]
    pub fn of(records: &[u8]) -> SortSummary {
        let mut summary = SortSummary::default();
        for record in records.as_chunks::<RECORD_LEN>().0 {
            let mut key = [0; KEY_LEN];
            key.copy_from_slice(&record[..KEY_LEN]);
            let crc = crc_fast::crc32_iso_hdlc(record);
            summary.append(1, u128::from(crc), (key, key));
        }
        summary
    }

    /// Appends what follows.
    pub fn join(&mut self, next: &SortSummary) {
        let Some(ends) = next.ends else { return };
        let before = self.records;
        self.append(next.records, next.checksum, ends);
        // What comes from another node may be damaged: a wrong sum is better than a panic.
        self.duplicates = self.duplicates.wrapping_add(next.duplicates);
        self.unordered = self.unordered.wrapping_add(next.unordered);
        let first = next.first_unordered.map(|first| before.wrapping_add(first));
        self.first_unordered = self.first_unordered.or(first);
    }

    fn append(&mut self, records: u64, checksum: u128, ends: ([u8; KEY_LEN], [u8; KEY_LEN])) {
        if let Some((_, last)) = self.ends {
            match ends.0.cmp(&last) {
                std::cmp::Ordering::Equal => self.duplicates = self.duplicates.wrapping_add(1),
                std::cmp::Ordering::Less => {
                    self.unordered = self.unordered.wrapping_add(1);
                    self.first_unordered = self.first_unordered.or(Some(self.records));
                }
                std::cmp::Ordering::Greater => {}
            }
        }
        self.ends = Some((self.ends.map_or(ends.0, |(first, _)| first), ends.1));
        self.records = self.records.wrapping_add(records);
        self.checksum = self.checksum.wrapping_add(checksum);
    }

    /// What valsort prints to standard error.
    #[must_use]
    pub fn report(&self) -> String {
        let mut lines = Vec::new();
        if let Some(first) = self.first_unordered {
            lines.push(format!("First unordered record is record {first}"));
        }
        lines.push(format!("Records: {}", self.records));
        lines.push(format!("Checksum: {:x}", self.checksum));
        if self.unordered > 0 {
            lines.push(format!("ERROR - there are {} unordered records", self.unordered));
        } else {
            lines.push(format!("Duplicate keys: {}", self.duplicates));
            lines.push(String::from("SUCCESS - all records are in order"));
        }
        lines.join("\n") + "\n"
    }
}
