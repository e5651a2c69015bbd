//! Which partition a record of the view is in, by its key.

use samite_client::record_placement::RecordPlacement;

use crate::header::{CHUNK_KIND, DRAFT_KIND};

const ID_LEN: usize = 16;
/// Bytes of a hash, and of an index.
const NUMBER_LEN: usize = 8;

/// Where the view keeps the record with this key; `None`: it is none of its records.
#[must_use]
pub fn record_placement(key: &[u8]) -> Option<RecordPlacement<'_>> {
    let (kind, rest) = key.split_first()?;
    match *kind {
        b'o' if !rest.is_empty() => Some(RecordPlacement::Hashed(rest)),
        CHUNK_KIND if rest.len() == ID_LEN + NUMBER_LEN => {
            let (object, index) = rest.split_at(ID_LEN);
            let number = u64::from_be_bytes(*index.first_chunk()?);
            Some(RecordPlacement::Chunk { object, number })
        }
        DRAFT_KIND if rest.len() == NUMBER_LEN + ID_LEN => {
            Some(RecordPlacement::Draft { chunks: ([CHUNK_KIND], &rest[NUMBER_LEN..]) })
        }
        _ => None,
    }
}
