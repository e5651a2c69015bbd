//! Which partition a record of the view is in, by its key.

use samite_client::record_placement::RecordPlacement;

use crate::manifest::{CHUNK_KIND, DRAFT_KIND};

/// Bytes of an id, and of the hash before it in the key of a draft.
const ID_LEN: usize = 16;
const HASH_LEN: usize = 8;
/// Bytes of the index and the tag behind the id of a chunk.
const CHUNK_TAIL_LEN: usize = 4 + 8;

/// Where the view keeps the record with this key; `None`: it is none of its records.
#[must_use]
pub fn record_placement(key: &[u8]) -> Option<RecordPlacement<'_>> {
    let (kind, rest) = key.split_first()?;
    match *kind {
        b'v' | b'm' if !rest.is_empty() => Some(RecordPlacement::Hashed(rest)),
        b'V' | b'M' => {
            let (len, rest) = rest.split_first()?;
            rest.get(..usize::from(*len)).map(RecordPlacement::Hashed)
        }
        CHUNK_KIND if rest.len() == ID_LEN + CHUNK_TAIL_LEN => {
            let (object, tail) = rest.split_at(ID_LEN);
            let index = u32::from_be_bytes(*tail.first_chunk()?);
            Some(RecordPlacement::Chunk { object, number: index.into() })
        }
        DRAFT_KIND if rest.len() == HASH_LEN + ID_LEN => {
            Some(RecordPlacement::Draft { chunks: ([CHUNK_KIND], &rest[HASH_LEN..]) })
        }
        _ => None,
    }
}
