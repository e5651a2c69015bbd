//! How far a scan has come.

use samite_types::{DatasetId, Error, ErrorKind, PartitionId, Result};
use samite_wire::limits::KEY_LEN_MAX;

/// Which partitions were walked, and how far.
#[derive(Debug)]
pub(super) struct ScanProgress {
    dataset: DatasetId,
    partitions: u32,
    /// The first partition that nobody has taken yet.
    next: u32,
    /// Of the partitions before, those that are not done.
    open: Vec<OpenPartition>,
}

#[derive(Debug)]
struct OpenPartition {
    partition: PartitionId,
    /// Key of the last record that was visited; empty: none.
    after: Vec<u8>,
    /// A cursor walks it.
    is_taken: bool,
}

impl ScanProgress {
    /// Nothing was visited.
    pub(super) const fn new(dataset: DatasetId, partitions: u32) -> Self {
        Self { dataset, partitions, next: 0, open: Vec::new() }
    }

    /// As far as a token says.
    pub(super) fn from_token(
        token: &ScanToken,
        dataset: DatasetId,
        partitions: u32,
    ) -> Result<Self> {
        if (token.dataset, token.partitions) != (dataset, partitions) {
            let words = "scan: the token is of another dataset";
            return Err(Error::new(ErrorKind::Invalid, words));
        }
        let open = token.open.iter().map(|(partition, after)| OpenPartition {
            partition: *partition,
            after: after.clone(),
            is_taken: false,
        });
        Ok(Self { dataset, partitions, next: token.next, open: open.collect() })
    }

    /// Takes a partition that `is_wanted`, and where to go on in it; others are passed by.
    pub(super) fn take(
        &mut self,
        mut is_wanted: impl FnMut(PartitionId) -> bool,
    ) -> Option<(PartitionId, Vec<u8>)> {
        if let Some(open) = self.open.iter_mut().find(|open| !open.is_taken) {
            open.is_taken = true;
            return Some((open.partition, open.after.clone()));
        }
        while self.next < self.partitions {
            let partition = PartitionId(self.next);
            self.next += 1;
            if is_wanted(partition) {
                self.open.push(OpenPartition { partition, after: Vec::new(), is_taken: true });
                return Some((partition, Vec::new()));
            }
        }
        None
    }

    /// The records of a partition up to this key were visited.
    pub(super) fn advance(&mut self, partition: PartitionId, after: &[u8]) {
        if let Some(open) = self.open.iter_mut().find(|open| open.partition == partition) {
            open.after.clear();
            open.after.extend_from_slice(after);
        }
    }

    /// All records of a partition were visited.
    pub(super) fn finish(&mut self, partition: PartitionId) {
        self.open.retain(|open| open.partition != partition);
    }

    /// Somebody else may go on with a partition.
    pub(super) fn give_back(&mut self, partition: PartitionId) {
        if let Some(open) = self.open.iter_mut().find(|open| open.partition == partition) {
            open.is_taken = false;
        }
    }

    pub(super) fn token(&self) -> ScanToken {
        let open = self.open.iter().map(|open| (open.partition, open.after.clone()));
        ScanToken {
            dataset: self.dataset,
            partitions: self.partitions,
            next: self.next,
            open: open.collect(),
        }
    }
}

/// Where a scan of a dataset has come to, for a scan with the same options that goes on there, in
/// whichever process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanToken {
    dataset: DatasetId,
    partitions: u32,
    next: u32,
    /// Partitions before `next` that are not done, and the last keys that were visited.
    open: Vec<(PartitionId, Vec<u8>)>,
}

/// First byte of a token: the version of its form.
const VERSION: u8 = 1;

impl ScanToken {
    /// A token of a scan of one partition alone ([`super::ScanScope::Partition`]) that has visited
    /// the records up to the key `after`.
    #[must_use]
    pub fn within(dataset: DatasetId, partitions: u32, only: PartitionId, after: &[u8]) -> Self {
        Self { dataset, partitions, next: partitions, open: vec![(only, after.to_vec())] }
    }

    /// Whether there is nothing left.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.next == self.partitions && self.open.is_empty()
    }

    /// The token as bytes, to be kept.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        for number in [self.dataset.get(), self.partitions, self.next, self.open.len() as u32] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        for (partition, after) in &self.open {
            bytes.extend_from_slice(&partition.get().to_le_bytes());
            // No longer than a key.
            bytes.extend_from_slice(&(after.len() as u16).to_le_bytes());
            bytes.extend_from_slice(after);
        }
        bytes
    }

    /// A token from its bytes.
    ///
    /// # Errors
    /// `Invalid`: they are not those of a token.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        Self::parse(bytes).ok_or_else(|| Error::new(ErrorKind::Invalid, "this is no scan token"))
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (version, mut rest) = bytes.split_first()?;
        if *version != VERSION {
            return None;
        }
        let mut number = || {
            let (raw, after) = rest.split_first_chunk()?;
            rest = after;
            Some(u32::from_le_bytes(*raw))
        };
        let (dataset, partitions, next, count) =
            (DatasetId(number()?), number()?, number()?, number()?);
        if next > partitions || count > next {
            return None;
        }
        let mut open: Vec<(PartitionId, Vec<u8>)> = Vec::new();
        for _ in 0..count {
            let (raw, after) = rest.split_first_chunk()?;
            let partition = PartitionId(u32::from_le_bytes(*raw));
            let (raw, after) = after.split_first_chunk()?;
            let len = usize::from(u16::from_le_bytes(*raw));
            let (key, after) = after.split_at_checked(len)?;
            rest = after;
            let is_new = open.iter().all(|(other, _)| *other != partition);
            if len > KEY_LEN_MAX || partition.get() >= next || !is_new {
                return None;
            }
            open.push((partition, key.to_vec()));
        }
        rest.is_empty().then_some(Self { dataset, partitions, next, open })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ID: DatasetId = DatasetId(7);

    #[test]
    fn partitions_are_taken_once_and_again_when_they_were_given_back() {
        let mut progress = ScanProgress::new(ID, 4);
        let take = |progress: &mut ScanProgress| {
            progress.take(|partition| partition.get() != 1).map(|(one, after)| (one.get(), after))
        };
        assert_eq!(take(&mut progress), Some((0, vec![])));
        assert_eq!(take(&mut progress), Some((2, vec![])));
        progress.advance(PartitionId(0), b"k");
        progress.give_back(PartitionId(0));
        assert_eq!(take(&mut progress), Some((0, b"k".to_vec())));
        progress.finish(PartitionId(0));
        assert_eq!(take(&mut progress), Some((3, vec![])));
        assert_eq!(take(&mut progress), None);
        assert!(!progress.token().is_done());
        progress.finish(PartitionId(2));
        progress.finish(PartitionId(3));
        assert!(progress.token().is_done());
    }

    #[test]
    fn a_token_is_of_one_dataset() {
        let token = ScanProgress::new(ID, 4).token();
        assert!(ScanProgress::from_token(&token, ID, 4).is_ok());
        assert!(ScanProgress::from_token(&token, DatasetId(8), 4).is_err());
        assert!(ScanProgress::from_token(&token, ID, 5).is_err());
    }

    proptest! {
        #[test]
        fn tokens_read_back_and_what_is_none_is_refused(
            keys in proptest::collection::btree_map(
                0..50_u32, proptest::collection::vec(any::<u8>(), 0..40), 0..8),
            more in 0..50_u32,
            at in any::<prop::sample::Index>(),
            other in any::<u8>(),
        ) {
            let next = keys.keys().last().map_or(0, |last| last + 1) + more;
            let open = keys.into_iter().map(|(partition, key)| (PartitionId(partition), key));
            let token = ScanToken { dataset: ID, partitions: next + 3, next, open: open.collect() };
            let bytes = token.to_bytes();
            prop_assert_eq!(ScanToken::from_bytes(&bytes).unwrap(), token);
            let at = at.index(bytes.len());
            prop_assert!(ScanToken::from_bytes(&bytes[..at]).is_err());
            let mut bent = bytes;
            bent[at] = other;
            // It is refused, or is another token that makes sense.
            if let Ok(token) = ScanToken::from_bytes(&bent) {
                prop_assert!(token.open.iter().all(|(one, _)| one.get() < token.next));
                prop_assert_eq!(token.to_bytes(), bent);
            }
        }
    }
}
