//! Keys of a table, made to be compared: a search compares many, and most that it meets have long beginnings in common.

use std::cmp::Ordering;
use std::fmt;

/// Bytes of the longest key that lies where it is compared.
const SHORT_LEN_MAX: usize = 32;

/// Words of such a key.
const WORDS: usize = SHORT_LEN_MAX / size_of::<u64>();

/// The key of a record. In the order of bytes.
#[derive(Clone)]
pub(super) enum Key {
    /// Followed by zeros.
    Short { len: u8, bytes: [u8; SHORT_LEN_MAX] },
    /// Longer ones.
    Long(Box<[u8]>),
}

impl Key {
    pub(super) fn new(key: &[u8]) -> Self {
        Self::short(key).unwrap_or_else(|| Self::Long(key.into()))
    }

    /// `None`: it is long.
    pub(super) fn short(key: &[u8]) -> Option<Self> {
        let mut bytes = [0; SHORT_LEN_MAX];
        bytes.get_mut(..key.len())?.copy_from_slice(key);
        Some(Self::Short { len: key.len() as u8, bytes })
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        match self {
            Self::Short { len, bytes } => &bytes[..usize::from(*len)],
            Self::Long(bytes) => bytes,
        }
    }
}

/// Which comes first says the first word in which they differ.
fn words(bytes: &[u8; SHORT_LEN_MAX]) -> [u64; WORDS] {
    let (words, _) = bytes.as_chunks();
    std::array::from_fn(|at| u64::from_be_bytes(words[at]))
}

impl Ord for Key {
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

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Key {}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice().fmt(f)
    }
}
