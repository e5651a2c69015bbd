//! Keys of a table, made to be compared: a search compares many, and most that it meets have long beginnings in common.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;

/// Bytes of the longest key that lies where it is compared.
const SHORT_LEN_MAX: usize = 32;

/// Words of such a key.
const WORDS: usize = SHORT_LEN_MAX / size_of::<u64>();

/// The key of a record. In the order of bytes.
pub(super) enum RecordKey<'k> {
    /// Followed by zeros.
    Short { len: u8, bytes: [u8; SHORT_LEN_MAX] },
    /// Longer ones.
    Long(Cow<'k, [u8]>),
}

impl Default for RecordKey<'_> {
    /// The one before all others, which no record has.
    fn default() -> Self {
        Self::Short { len: 0, bytes: [0; SHORT_LEN_MAX] }
    }
}

impl<'k> RecordKey<'k> {
    /// To be looked for.
    pub(super) fn of(key: &'k [u8]) -> Self {
        let mut bytes = [0; SHORT_LEN_MAX];
        match bytes.get_mut(..key.len()) {
            Some(start) => {
                start.copy_from_slice(key);
                Self::Short { len: key.len() as u8, bytes }
            }
            None => Self::Long(key.into()),
        }
    }

    /// A copy that owns its bytes.
    pub(super) fn owned(self) -> RecordKey<'static> {
        match self {
            Self::Short { len, bytes } => RecordKey::Short { len, bytes },
            Self::Long(bytes) => RecordKey::Long(bytes.into_owned().into()),
        }
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        match self {
            Self::Short { len, bytes } => &bytes[..usize::from(*len)],
            Self::Long(bytes) => bytes,
        }
    }
}

/// A hash of a key: its high bits say most. Of all its bytes, for keys may differ at their beginning or at their end alone.
pub(super) fn key_hash(key: &[u8]) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |mixed: u64, word: u64| mixed.rotate_left(21) ^ word;
    let (words, rest) = key.as_chunks();
    let len = key.len() as u64;
    let mixed = words.iter().fold(len, |mixed, word| mix(mixed, u64::from_le_bytes(*word)));
    // The last word may repeat some bytes of the one before.
    let last = key.last_chunk().map_or_else(
        || rest.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)),
        |last| u64::from_le_bytes(*last),
    );
    mix(mixed, last).wrapping_mul(ODD)
}

/// Which comes first says the first word in which they differ.
fn words(bytes: &[u8; SHORT_LEN_MAX]) -> [u64; WORDS] {
    let (words, _) = bytes.as_chunks();
    std::array::from_fn(|at| u64::from_be_bytes(words[at]))
}

impl Ord for RecordKey<'_> {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            // Zeros stand for what is not there, which comes before all that may be there.
            (Self::Short { len, bytes }, Self::Short { len: other_len, bytes: other }) => {
                words(bytes).cmp(&words(other)).then(len.cmp(other_len))
            }
            _ => self.as_slice().cmp(other.as_slice()),
        }
    }
}

impl PartialOrd for RecordKey<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for RecordKey<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for RecordKey<'_> {}

impl fmt::Debug for RecordKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Mostly zeros, and many lengths about that of the longest short one.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let byte = || prop_oneof![4 => Just(0_u8), 1 => any::<u8>()];
        prop_oneof![vec(byte(), 0..4), vec(byte(), 6..10), vec(byte(), 29..36)]
    }

    #[test]
    fn keys_that_differ_at_one_place_have_other_hashes() {
        let names: [fn(u32) -> String; 4] = [
            |number| format!("{number}"),
            |number| format!("file.{number}"),
            |number| format!("{number:05}-of-the-same-kind.jpeg"),
            |number| format!("there-are-{number:05}-of-these.jpeg"),
        ];
        for name in names {
            let tags: HashSet<u64> =
                (0..1000).map(|number| key_hash(name(number).as_bytes()) >> 48).collect();
            // Of so many random ones about 992 are different.
            assert!(tags.len() > 970, "{} of {}", tags.len(), name(0));
        }
    }

    proptest! {
        #[test]
        fn keys_are_in_the_order_of_bytes(one in bytes(), other in bytes()) {
            let (key, other_key) = (RecordKey::of(&one), RecordKey::of(&other));
            prop_assert_eq!(key.cmp(&other_key), one.cmp(&other));
            prop_assert_eq!(key == other_key, one == other);
            prop_assert_eq!(key.as_slice(), &one);
            let kept = key.owned();
            prop_assert_eq!(kept.as_slice(), &one);
        }
    }
}
