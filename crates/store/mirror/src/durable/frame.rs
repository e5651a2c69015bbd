//! The contents of a frame of the log.
//!
//! ```text
//!  dataset u32                                             the dataset is no more
//!  dataset u32 │ partition u32                             what is known of the partition does not count any more
//!  dataset u32 │ partition u32 │ length u32 │ entry │ its data    what has happened to the partition
//! ```

use samite_types::{DatasetId, PartitionId};
use samite_wire::peer::PartitionLogEntry;
use samite_wire::{FieldDecoder, WireError};

use super::PlaceId;
use crate::log::LogEntry;

/// Bytes that the entry of an operation may have beside the request that brought the operation.
pub const OVERHEAD: usize = 128;

/// The contents of a frame.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "mostly it is an entry, and it lives for one call")]
pub enum PartitionFrame<'a> {
    /// An event of a partition.
    Entry(PlaceId, PartitionLogEntry<'a>),
    /// Earlier frames of a partition do not count any more.
    Discarded(PlaceId),
    /// A dataset is no more.
    Dropped(DatasetId),
}

/// Of [`PartitionFrame::Entry`].
pub fn encode_entry(out: &mut Vec<u8>, id: PlaceId, entry: &LogEntry) {
    encode_discarded(out, id);
    out.extend_from_slice(&(entry.body().len() as u32).to_le_bytes());
    out.extend_from_slice(entry.body());
    for piece in entry.payload() {
        piece.append_to(out);
    }
}

/// Of [`PartitionFrame::Discarded`].
pub fn encode_discarded(out: &mut Vec<u8>, (dataset, partition): PlaceId) {
    encode_dropped(out, dataset);
    out.extend_from_slice(&partition.get().to_le_bytes());
}

/// Of [`PartitionFrame::Dropped`].
pub fn encode_dropped(out: &mut Vec<u8>, dataset: DatasetId) {
    out.extend_from_slice(&dataset.get().to_le_bytes());
}

/// Reads a frame.
///
/// # Errors
/// It is none of these.
pub fn decode(bytes: &[u8]) -> Result<PartitionFrame<'_>, WireError> {
    let mut decoder = FieldDecoder::new(bytes);
    let dataset = DatasetId(decoder.u32("dataset")?);
    if decoder.rest().is_empty() {
        return Ok(PartitionFrame::Dropped(dataset));
    }
    let id = (dataset, PartitionId(decoder.u32("partition")?));
    if decoder.rest().is_empty() {
        return Ok(PartitionFrame::Discarded(id));
    }
    let len = decoder.u32("entry length")? as usize;
    let body = decoder.bytes(len, "entry")?;
    Ok(PartitionFrame::Entry(id, PartitionLogEntry::decode(body, decoder.rest())?))
}
