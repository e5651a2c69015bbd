//! The record that stands for a large value: which chunks it is made of.
//!
//! ```text
//! format u8 = 1 | unused [u8; 7] | total_len u64 | id [u8; 16] | tag u64 per chunk
//! ```
//!
//! Chunk `i` is the record `c id i tag`; tag 0 is a hole. Chunks never change: a client that
//! changes a part of a value writes new ones under new tags and swaps the manifest, so a reader of
//! the old manifest sees the old value whole, or finds a chunk gone and starts again.

use samite_client::Dataset;
use samite_placement::hash;
use samite_types::{Entropy, Error, ErrorKind, PartitionId, Result, SystemEntropy};
use samite_wire::limits::{RECORD_LEN_MAX, VALUE_LEN_MAX};

/// Bytes of a manifest before its tags.
pub(crate) const HEAD_LEN: usize = 32;
/// Longest manifest, in bytes.
pub(crate) const MANIFEST_LEN_MAX: usize =
    HEAD_LEN + 8 * (VALUE_LEN_MAX as usize).div_ceil(CHUNK_LEN);
/// Bytes of a chunk.
pub(crate) const CHUNK_LEN: usize = RECORD_LEN_MAX;

/// The first bytes of the keys of chunks.
pub(crate) const CHUNK_KIND: u8 = b'c';
/// The first bytes of the keys of drafts; see [`samite_client::drafts`].
pub(crate) const DRAFT_KIND: u8 = b'W';

const FORMAT: u8 = 1;
const CHUNK_KEY_LEN: usize = 1 + 16 + 4 + 8;

/// Key of a chunk's record.
pub(crate) type ChunkKey = [u8; CHUNK_KEY_LEN];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ValueManifest {
    pub(crate) total_len: u64,
    pub(crate) id: [u8; 16],
    pub(crate) tags: Vec<u64>,
}

impl ValueManifest {
    /// A manifest of no chunks under an id of its own.
    pub(crate) fn fresh() -> Self {
        let mut id = [0; 16];
        SystemEntropy.fill(&mut id);
        Self { total_len: 0, id, tags: Vec::new() }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut raw = vec![FORMAT, 0, 0, 0, 0, 0, 0, 0];
        raw.extend_from_slice(&self.total_len.to_le_bytes());
        raw.extend_from_slice(&self.id);
        for tag in &self.tags {
            raw.extend_from_slice(&tag.to_le_bytes());
        }
        raw
    }

    pub(crate) fn decode(raw: &[u8]) -> Result<Self> {
        let corrupt = || Error::new(ErrorKind::Corrupt, "the manifest of a large value is damaged");
        let (head, tags) = raw.split_at_checked(HEAD_LEN).ok_or_else(corrupt)?;
        let total_len = total_len_of(head).ok_or_else(corrupt)?;
        let id = head[16..].try_into().map_err(|_| corrupt())?;
        let tags: Vec<u64> = tags
            .chunks_exact(8)
            .filter_map(|raw| raw.try_into().ok().map(u64::from_le_bytes))
            .collect();
        let is_whole = raw.len() == HEAD_LEN + 8 * tags.len()
            && total_len <= VALUE_LEN_MAX
            && tags.len() == (total_len as usize).div_ceil(CHUNK_LEN);
        if is_whole { Ok(Self { total_len, id, tags }) } else { Err(corrupt()) }
    }

    /// Key of the record of chunk `index`.
    pub(crate) fn chunk_key(&self, index: usize) -> ChunkKey {
        let mut key = [0; CHUNK_KEY_LEN];
        key[0] = CHUNK_KIND;
        key[1..17].copy_from_slice(&self.id);
        key[17..21].copy_from_slice(&(index as u32).to_be_bytes());
        key[21..].copy_from_slice(&self.tags[index].to_be_bytes());
        key
    }

    /// Partition of chunk `index`.
    pub(crate) fn chunk_partition(&self, dataset: &Dataset, index: usize) -> PartitionId {
        dataset.chunk_partition(hash(&self.id), index as u64)
    }

    /// Bytes of chunk `index` as far as they belong to the value.
    pub(crate) fn chunk_len(&self, index: usize) -> usize {
        let start = (index * CHUNK_LEN) as u64;
        self.total_len.saturating_sub(start).min(CHUNK_LEN as u64) as usize
    }

    /// Gives the chunk another tag: it will be another record.
    pub(crate) fn renew(&mut self, index: usize) {
        // 0 is a hole.
        self.tags[index] = SystemEntropy.next_u64().max(1);
    }
}

/// The length of the value, from the first bytes of its manifest.
pub(crate) fn total_len_of(head: &[u8]) -> Option<u64> {
    let raw = head.get(8..16)?.try_into().ok()?;
    (head[0] == FORMAT).then(|| u64::from_le_bytes(raw))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifests_round_trip_and_damage_is_noticed() {
        let mut manifest = ValueManifest::fresh();
        manifest.total_len = 2 * CHUNK_LEN as u64 + 5;
        manifest.tags = vec![1, 0, u64::MAX];
        let raw = manifest.encode();
        assert_eq!(ValueManifest::decode(&raw).unwrap(), manifest);
        assert_eq!(manifest.chunk_len(2), 5);
        assert_eq!(total_len_of(&raw[..16]), Some(manifest.total_len));
        for len in 0..raw.len() {
            assert!(ValueManifest::decode(&raw[..len]).is_err(), "{len}");
        }
        assert!(ValueManifest::decode(&[9; 64]).is_err());
    }
}
