//! The record that stands for an object, and the keys of its chunks.
//!
//! ```text
//! o NAME             header:  format u8 = 1 | unused [u8; 7] | len u64 | id [u8; 16] | chunk_len u32 | unused u32
//! d id index(be64)   chunk
//! O hash id          header of an object that is to take the place of NAME; see
//!                    `samite_client::drafts`
//! ```

use samite_types::{Entropy, Error, ErrorKind, Result, SystemEntropy};
use samite_wire::limits::{RECORD_LEN_MAX, VIEW_KEY_LEN_MAX};
use smallvec::SmallVec;

const FORMAT: u8 = 1;

/// Bytes of a header.
pub(crate) const HEADER_LEN: usize = 40;
/// Offset of the object's length within its header.
pub(crate) const LEN_AT: u32 = 8;
/// Offset of the id within the header.
pub(crate) const ID_AT: u32 = 16;

/// Prefix of the keys of headers.
pub(crate) const HEADER_PREFIX: &[u8] = b"o";

/// The first bytes of the keys of chunks.
pub(crate) const CHUNK_KIND: u8 = b'd';

/// The first bytes of the keys of drafts.
pub(crate) const DRAFT_KIND: u8 = b'O';

/// An object's identity: a name that is used again is another object.
pub(crate) type ObjectId = [u8; 16];
/// Key of a header; short ones stay on the stack.
pub(crate) type HeaderKey = SmallVec<[u8; 64]>;
/// Key of a chunk.
pub(crate) type ChunkKey = [u8; 25];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ObjectHeader {
    pub(crate) len: u64,
    pub(crate) id: ObjectId,
    pub(crate) chunk_len: u32,
}

impl ObjectHeader {
    /// The header of a new object.
    pub(crate) fn fresh(chunk_len: u32) -> Self {
        let mut id = [0; 16];
        SystemEntropy.fill(&mut id);
        Self { len: 0, id, chunk_len }
    }

    pub(crate) fn encode(&self) -> [u8; HEADER_LEN] {
        let mut raw = [0; HEADER_LEN];
        raw[0] = FORMAT;
        raw[8..16].copy_from_slice(&self.len.to_le_bytes());
        raw[16..32].copy_from_slice(&self.id);
        raw[32..36].copy_from_slice(&self.chunk_len.to_le_bytes());
        raw
    }

    pub(crate) fn decode(raw: &[u8]) -> Result<Self> {
        let corrupt = || Error::new(ErrorKind::Corrupt, "the object's header is damaged");
        let raw: &[u8; HEADER_LEN] = raw.try_into().map_err(|_| corrupt())?;
        let field = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| raw[at + i]));
        let header = Self {
            len: field(8),
            id: std::array::from_fn(|i| raw[16 + i]),
            // The upper half is the unused field behind it.
            chunk_len: field(32) as u32,
        };
        let is_sane = raw[0] == FORMAT
            && header.chunk_len.is_power_of_two()
            && header.chunk_len as usize <= RECORD_LEN_MAX;
        if is_sane { Ok(header) } else { Err(corrupt()) }
    }
}

/// The object's length, from the first bytes of its header.
pub(crate) fn len_of(head: &[u8]) -> Option<u64> {
    head.get(8..16)?.try_into().ok().map(u64::from_le_bytes)
}

/// Key of the header of the object `name`.
pub(crate) fn header_key(name: &[u8]) -> Result<HeaderKey> {
    match name.len() {
        0 => Err(Error::new(ErrorKind::Invalid, "the name is empty")),
        1..=VIEW_KEY_LEN_MAX => {
            let mut key = HeaderKey::with_capacity(1 + name.len());
            key.extend_from_slice(HEADER_PREFIX);
            key.extend_from_slice(name);
            Ok(key)
        }
        len => Err(Error::new(
            ErrorKind::TooLarge,
            format!("name of {len} bytes; the limit is {VIEW_KEY_LEN_MAX}"),
        )),
    }
}

/// The first bytes of the keys of all chunks of an object.
pub(crate) fn chunk_prefix(id: &ObjectId) -> [u8; 17] {
    let mut key = [CHUNK_KIND; 17];
    key[1..].copy_from_slice(id);
    key
}

/// Key of chunk `index`.
pub(crate) fn chunk_key(id: &ObjectId, index: u64) -> ChunkKey {
    let mut key = [0; 25];
    key[..17].copy_from_slice(&chunk_prefix(id));
    key[17..].copy_from_slice(&index.to_be_bytes());
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_round_trip_and_damage_is_noticed() {
        let header = ObjectHeader { len: 1 << 40, ..ObjectHeader::fresh(1 << 16) };
        let raw = header.encode();
        assert_eq!(ObjectHeader::decode(&raw).unwrap(), header);
        assert_eq!(len_of(&raw[..16]), Some(1 << 40));
        assert!(ObjectHeader::decode(&raw[..39]).is_err());
        assert!(ObjectHeader::decode(&[0; HEADER_LEN]).is_err());
    }
}
