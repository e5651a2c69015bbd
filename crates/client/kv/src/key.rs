//! How keys of the view become keys of records.
//!
//! ```text
//! v KEY              the value of KEY, when it fits one record
//! m KEY              else its manifest; a key never has both
//! V len PLACE KEY    the same two in the group PLACE
//! M len PLACE KEY
//! c id index tag     one chunk of a large value
//! W hash id          chunks that are not in place yet, or no more; see
//!                    `samite_client::drafts`
//! ```

use samite_client::Dataset;
use samite_types::{Error, ErrorKind, PartitionId, Result};
use samite_wire::limits::{KEY_LEN_MAX, VIEW_KEY_LEN_MAX};
use smallvec::SmallVec;

/// Longest placement key of a group, in bytes.
pub const GROUP_LEN_MAX: usize = 60;

const _: () = assert!(VIEW_KEY_LEN_MAX + GROUP_LEN_MAX + 2 <= KEY_LEN_MAX);

/// A record's key; short ones stay on the stack.
pub(crate) type RawKey = SmallVec<[u8; 64]>;

/// The keys of a view: all that belong to no group, or those of one.
#[derive(Clone, Debug)]
pub(crate) struct KeyScope {
    value_prefix: RawKey,
    manifest_prefix: RawKey,
    /// The one partition of a group.
    partition: Option<PartitionId>,
}

/// Where a key's records are.
#[derive(Clone, Debug)]
pub(crate) struct KeyPlace {
    pub(crate) partition: PartitionId,
    /// Key of the value.
    pub(crate) value: RawKey,
    /// Key of the manifest.
    pub(crate) manifest: RawKey,
}

/// What a record of a dataset of keys and values is, by its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredRecord<'k> {
    /// The value of a key.
    Value(&'k [u8]),
    /// A key whose value is too large for one record: [`crate::KvView::get`] gives it.
    Large(&'k [u8]),
    /// The value of a key in a group: the group's placement key, and the key.
    GroupValue(&'k [u8], &'k [u8]),
    /// The same of a large one.
    GroupLarge(&'k [u8], &'k [u8]),
    /// A part of a large value, or a note about one; or no record of the view.
    Part,
}

impl<'k> StoredRecord<'k> {
    /// The record with this key.
    #[must_use]
    pub fn of_key(raw: &'k [u8]) -> Self {
        let in_group = |rest: &'k [u8]| {
            let (len, rest) = rest.split_first()?;
            rest.split_at_checked(usize::from(*len))
        };
        match raw.split_first() {
            Some((b'v', key)) => Self::Value(key),
            Some((b'm', key)) => Self::Large(key),
            Some((b'V', rest)) => {
                in_group(rest).map_or(Self::Part, |(place, key)| Self::GroupValue(place, key))
            }
            Some((b'M', rest)) => {
                in_group(rest).map_or(Self::Part, |(place, key)| Self::GroupLarge(place, key))
            }
            _ => Self::Part,
        }
    }
}

impl KeyScope {
    /// Keys without a group.
    pub(crate) fn ungrouped() -> Self {
        Self {
            value_prefix: RawKey::from_slice(b"v"),
            manifest_prefix: RawKey::from_slice(b"m"),
            partition: None,
        }
    }

    /// Keys of the group `place`.
    pub(crate) fn group(dataset: &Dataset, place: &[u8]) -> Result<Self> {
        if place.len() > GROUP_LEN_MAX {
            let cause =
                format!("placement key of {} bytes; the limit is {GROUP_LEN_MAX}", place.len());
            return Err(Error::new(ErrorKind::TooLarge, cause));
        }
        let prefix = |tag: u8| {
            // Checked: the length fits a byte.
            let mut prefix = RawKey::from_slice(&[tag, place.len() as u8]);
            prefix.extend_from_slice(place);
            prefix
        };
        Ok(Self {
            value_prefix: prefix(b'V'),
            manifest_prefix: prefix(b'M'),
            partition: Some(dataset.partition_of(place)),
        })
    }

    /// Where the records of `key` are.
    pub(crate) fn place(&self, dataset: &Dataset, key: &[u8]) -> Result<KeyPlace> {
        check_key(key)?;
        let join = |prefix: &RawKey| {
            let mut raw = RawKey::with_capacity(prefix.len() + key.len());
            raw.extend_from_slice(prefix);
            raw.extend_from_slice(key);
            raw
        };
        Ok(KeyPlace {
            partition: self.partition.unwrap_or_else(|| dataset.partition_of(key)),
            value: join(&self.value_prefix),
            manifest: join(&self.manifest_prefix),
        })
    }

    /// The prefixes of the records of values and of manifests.
    pub(crate) fn prefixes(&self) -> [&[u8]; 2] {
        [&self.value_prefix, &self.manifest_prefix]
    }

    /// The only partition in which keys can be.
    pub(crate) const fn partition(&self) -> Option<PartitionId> {
        self.partition
    }
}

fn check_key(key: &[u8]) -> Result<()> {
    match key.len() {
        0 => Err(Error::new(ErrorKind::Invalid, "the key is empty")),
        1..=VIEW_KEY_LEN_MAX => Ok(()),
        len => Err(Error::new(
            ErrorKind::TooLarge,
            format!("key of {len} bytes; the limit is {VIEW_KEY_LEN_MAX}"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_say_what_they_are() {
        use StoredRecord::{GroupLarge, GroupValue, Large, Part, Value};
        let cases: [(&[u8], StoredRecord<'_>); 8] = [
            (b"vkey", Value(b"key")),
            (b"mkey", Large(b"key")),
            (b"V\x02abkey", GroupValue(b"ab", b"key")),
            (b"M\x00key", GroupLarge(b"", b"key")),
            (b"V\x09short", Part),
            (b"V", Part),
            (b"cchunk", Part),
            (b"", Part),
        ];
        for (raw, expected) in cases {
            assert_eq!(StoredRecord::of_key(raw), expected, "{raw:?}");
        }
    }
}
