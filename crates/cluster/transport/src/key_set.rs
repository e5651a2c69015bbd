//! The keys of a cluster that count: one, or two while one follows another.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use samite_types::{Entropy, Error, ErrorKind, Result};
use samite_wire::ticket::KeyNumbers;

use crate::authorities::TlsAuthorities;
use crate::key::ClusterKey;

/// Length of a key in an encoded set, with its number.
const ENTRY_LEN: usize = 4 + ClusterKey::LEN;

/// The cluster keys that a node or an owner knows: the current one, and while keys are changed the
/// one before it or the one after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterKeys {
    /// Comes of the cluster's first key.
    id: [u8; Self::ID_LEN],
    current: ClusterKey,
    other: Option<ClusterKey>,
}

impl ClusterKeys {
    /// This key alone.
    #[must_use]
    pub fn new(current: ClusterKey) -> Self {
        Self { id: current.cluster_id(), current, other: None }
    }

    /// The first key of a new cluster.
    #[must_use]
    pub fn generate(entropy: &dyn Entropy) -> Self {
        Self::new(ClusterKey::generate(entropy))
    }

    /// Tells the cluster from others of the same name; it stays when keys are changed.
    #[must_use]
    pub const fn id(&self) -> &[u8; Self::ID_LEN] {
        &self.id
    }

    /// The key that connections are made with and tickets are signed with.
    #[must_use]
    pub const fn current(&self) -> &ClusterKey {
        &self.current
    }

    /// The other key that counts: a lower number is the one before, a higher one the one after.
    #[must_use]
    pub const fn other(&self) -> Option<&ClusterKey> {
        self.other.as_ref()
    }

    /// The key of this number, if it counts.
    #[must_use]
    pub fn find(&self, number: u32) -> Option<&ClusterKey> {
        [Some(&self.current), self.other.as_ref()]
            .into_iter()
            .flatten()
            .find(|key| key.number() == number)
    }

    /// The newest key: the one that is to be the only one when keys are being changed.
    #[must_use]
    pub fn newest(&self) -> &ClusterKey {
        match &self.other {
            Some(other) if other.number() > self.current.number() => other,
            _ => &self.current,
        }
    }

    /// The numbers of the current key and of the other one.
    #[must_use]
    pub fn numbers(&self) -> KeyNumbers {
        KeyNumbers {
            current: self.current.number(),
            other: self.other.as_ref().map(ClusterKey::number),
        }
    }

    /// With a key that is to follow; the same again changes nothing.
    ///
    /// # Errors
    /// `Conflict`: it does not follow the current one, or another key has its number, or the key
    /// before still counts.
    pub fn with_next(&self, next: &ClusterKey) -> Result<Self> {
        let conflict = |words: &str| {
            let (number, current) = (next.number(), self.current.number());
            let words = format!("cluster key {number} cannot follow key {current} here: {words}");
            Err(Error::new(ErrorKind::Conflict, words))
        };
        match self.find(next.number()) {
            Some(known) if known.as_bytes() == next.as_bytes() => return Ok(self.clone()),
            Some(_) => return conflict("another key has this number"),
            None => {}
        }
        if self.other.is_some() {
            return conflict("the key before it still counts");
        }
        if self.current.number().checked_add(1) != Some(next.number()) {
            return conflict("the numbers do not follow each other");
        }
        Ok(Self { other: Some(next.clone()), ..self.clone() })
    }

    /// With the key of this number as the current one; the other one counts still.
    ///
    /// # Errors
    /// `Conflict`: there is none.
    pub fn switched(&self, number: u32) -> Result<Self> {
        match &self.other {
            _ if self.current.number() == number => Ok(self.clone()),
            Some(other) if other.number() == number => {
                let (current, other) = (other.clone(), Some(self.current.clone()));
                Ok(Self { id: self.id, current, other })
            }
            _ => {
                let words = format!("cluster key {number} is not known here");
                Err(Error::new(ErrorKind::Conflict, words))
            }
        }
    }

    /// With the key of this number alone, which is the current one.
    ///
    /// # Errors
    /// `Conflict`: another one is.
    pub fn finished(&self, number: u32) -> Result<Self> {
        let current = self.current.number();
        if current != number {
            let words = format!("cluster key {current} is the current one, and not key {number}");
            return Err(Error::new(ErrorKind::Conflict, words));
        }
        Ok(Self { other: None, ..self.clone() })
    }

    /// The same keys, for a cluster whose nodes show TLS certificates that these authorities have
    /// signed.
    #[must_use]
    pub fn with_authorities(self, authorities: &TlsAuthorities) -> Self {
        let with = |key: ClusterKey| key.with_authorities(authorities.clone());
        Self { id: self.id, current: with(self.current), other: self.other.map(with) }
    }

    /// The bytes of a key file: the 32 bytes of a first key alone; else the id, then number and key
    /// of each, the current one first.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let is_first = self.current.number() == ClusterKey::FIRST;
        if is_first && self.other.is_none() && self.id == self.current.cluster_id() {
            return self.current.as_bytes().to_vec();
        }
        let mut bytes = self.id.to_vec();
        for key in [Some(&self.current), self.other.as_ref()].into_iter().flatten() {
            bytes.extend_from_slice(&key.number().to_le_bytes());
            bytes.extend_from_slice(key.as_bytes());
        }
        bytes
    }

    /// Longest key file, in bytes.
    pub const LEN_MAX: usize = Self::ID_LEN + 2 * ENTRY_LEN;
    /// Length of [`ClusterKeys::id`], in bytes.
    pub const ID_LEN: usize = 8;

    /// Reads a key file.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`]: it has another length than one or two keys have, or the same number
    /// twice.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let corrupt = |words: String| Error::new(ErrorKind::Corrupt, words);
        if let Ok(first) = bytes.try_into() {
            return Ok(Self::new(ClusterKey::new(first)));
        }
        let (id, keys) = bytes.split_first_chunk().unwrap_or((&[0; Self::ID_LEN], &[]));
        let (entries, rest) = keys.as_chunks::<ENTRY_LEN>();
        let keys: Vec<ClusterKey> = entries.iter().filter_map(entry).collect();
        let id = *id;
        match &keys[..] {
            [key] if rest.is_empty() => Ok(Self { id, current: key.clone(), other: None }),
            [key, other] if rest.is_empty() && key.number() != other.number() => {
                Ok(Self { id, current: key.clone(), other: Some(other.clone()) })
            }
            _ => {
                let len = bytes.len();
                Err(corrupt(format!("cluster key: {len} bytes that are not one or two keys")))
            }
        }
    }
}

fn entry(bytes: &[u8; ENTRY_LEN]) -> Option<ClusterKey> {
    let (number, key) = bytes.split_first_chunk::<4>()?;
    Some(ClusterKey::numbered(key.try_into().ok()?, u32::from_le_bytes(*number)))
}

impl From<ClusterKey> for ClusterKeys {
    fn from(key: ClusterKey) -> Self {
        Self::new(key)
    }
}

/// The keys of a node, which all of its threads see.
#[derive(Clone)]
pub struct SharedKeys(Arc<RwLock<Arc<ClusterKeys>>>);

impl SharedKeys {
    /// These keys.
    #[must_use]
    pub fn new(keys: ClusterKeys) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(keys))))
    }

    /// The keys as they are now.
    #[must_use]
    pub fn load(&self) -> Arc<ClusterKeys> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Other keys from now on. Connections that are there stay.
    pub fn store(&self, keys: ClusterKeys) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(keys);
    }
}

impl From<ClusterKey> for SharedKeys {
    fn from(key: ClusterKey) -> Self {
        Self::new(ClusterKeys::new(key))
    }
}

impl fmt::Debug for SharedKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.load().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_first_key_alone_is_its_bytes() {
        let set = ClusterKeys::new(ClusterKey::new([7; 32]));
        assert_eq!(set.to_bytes(), [7; 32]);
        assert_eq!(ClusterKeys::parse(&[7; 32]).unwrap(), set);
        assert!(ClusterKeys::parse(&[7; 31]).is_err() && ClusterKeys::parse(&[]).is_err());
    }

    proptest! {
        #[test]
        fn key_files_are_read_as_they_are_written(
            id in any::<[u8; 8]>(),
            current in (any::<u32>(), any::<[u8; 32]>()),
            other in proptest::option::of((any::<u32>(), any::<[u8; 32]>())),
            garbage in proptest::collection::vec(any::<u8>(), 0..160),
        ) {
            let key = |(number, bytes)| ClusterKey::numbered(bytes, number);
            let other = other.filter(|(number, _)| *number != current.0);
            let set = ClusterKeys { id, current: key(current), other: other.map(key) };
            prop_assert_eq!(ClusterKeys::parse(&set.to_bytes()).unwrap(), set);
            if let Ok(read) = ClusterKeys::parse(&garbage) {
                prop_assert_eq!(ClusterKeys::parse(&read.to_bytes()).unwrap(), read);
            }
        }
    }
}
