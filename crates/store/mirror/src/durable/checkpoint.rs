//! The parts of a checkpoint: the copy of a partition, in a file that is there whole or not at all.
//!
//! A file is frames (see [`samite_log::checkpoint`]) of these kinds, told by their first byte:
//!
//! ```text
//!  1  body length u32 │ body │ payload                   records, as a resync sends them; later ones replace earlier ones
//!  2  bytes                                              a part of what the partition is beside its records
//!  3  dataset u32 │ partition u32 │ next frame u64       the end
//! ```

use samite_log::LogDisk;
use samite_log::checkpoint::{UNFINISHED, read_all};
use samite_log::inventory::FileInventory;
use samite_types::{DatasetId, Error, ErrorKind, PartitionId, Position, Result};
use samite_wire::FieldDecoder;
use samite_wire::peer::PeerMessage;

use super::PlaceId;
use crate::copy_source::{CopiedRecord, CopyBatch};
use crate::member::MirroredPartition;

const PREFIX: &str = "checkpoint-";
/// Bytes of state in one frame.
const STATE_PART_LEN: usize = 1 << 20;

mod tag {
    pub(super) const RECORDS: u8 = 1;
    pub(super) const STATE: u8 = 2;
    pub(super) const END: u8 = 3;
}

/// Name of the checkpoint of a partition.
#[must_use]
pub fn name((dataset, partition): PlaceId) -> String {
    format!("{PREFIX}{:08x}-{:08x}", dataset.get(), partition.get())
}

/// The partition as one number, of which there is no other.
#[must_use]
pub fn number((dataset, partition): PlaceId) -> u64 {
    u64::from(dataset.get()) << 32 | u64::from(partition.get())
}

fn name_of(number: u64) -> String {
    // The halves of the combined number.
    name((DatasetId((number >> 32) as u32), PartitionId(number as u32)))
}

fn place_of(name: &str) -> Option<PlaceId> {
    let (dataset, partition) = name.strip_prefix(PREFIX)?.split_once('-')?;
    let number = |text: &str| u32::from_str_radix(text, 16).ok();
    let place = (DatasetId(number(dataset)?), PartitionId(number(partition)?));
    (self::name(place) == name).then_some(place)
}

/// The partitions of which there are checkpoints, of the log `log`. Removes unfinished ones.
///
/// # Errors
/// `Corrupt`: one is missing. Errors of the disk.
pub fn find(disk: &dyn LogDisk, log: u64) -> Result<Vec<PlaceId>> {
    let names = disk.list()?;
    for name in names.iter().filter(|name| name.starts_with(PREFIX) && name.ends_with(UNFINISHED)) {
        disk.remove(name)?;
    }
    let mut places: Vec<PlaceId> = names.iter().filter_map(|name| place_of(name)).collect();
    places.sort_unstable();
    let numbers: Vec<u64> = places.iter().map(|place| number(*place)).collect();
    FileInventory::check(disk, log, &numbers, name_of)?;
    Ok(places)
}

/// The fields of a checkpoint beside the partition itself.
#[derive(Clone, Copy, Debug)]
pub struct LoadedCheckpoint {
    /// The frame of the log that comes after it.
    pub next: u64,
    /// Bytes of the file.
    pub len: u64,
}

/// Reads the checkpoint of `id` into an empty partition.
///
/// # Errors
/// `Corrupt`; errors of the disk; `NoSpace`: there is too little memory.
pub fn load(
    disk: &dyn LogDisk,
    log: u64,
    id: PlaceId,
    member: &mut MirroredPartition,
) -> Result<LoadedCheckpoint> {
    let (mut state, mut end) = (Vec::new(), None);
    let len = read_all(disk, log, &name(id), &mut |bytes| {
        let (tag, rest) = bytes.split_first().ok_or(ErrorKind::Corrupt)?;
        match *tag {
            tag::RECORDS => install(member, rest)?,
            tag::STATE => state.extend_from_slice(rest),
            tag::END => end = Some(read_end(rest)?),
            _ => return Err(Error::new(ErrorKind::Corrupt, "a frame of no known kind")),
        }
        Ok(())
    });
    let wrong = |error: Error| error.context(format_args!("checkpoint {}", name(id)));
    let len = len.map_err(wrong)?;
    match end {
        Some((found, next)) if found == id => {
            member.import(&state).map_err(wrong)?;
            Ok(LoadedCheckpoint { next, len })
        }
        _ => Err(wrong(Error::new(ErrorKind::Corrupt, "it is not of this partition"))),
    }
}

fn install(member: &mut MirroredPartition, bytes: &[u8]) -> Result<()> {
    let mut decoder = FieldDecoder::new(bytes);
    let len = decoder.u32("records length")? as usize;
    let body = decoder.bytes(len, "records")?;
    match PeerMessage::decode(body, decoder.rest())? {
        PeerMessage::Records { records, .. } => member.install(&records),
        _ => Err(Error::new(ErrorKind::Corrupt, "a message that is no records")),
    }
}

fn end_frame((dataset, partition): PlaceId, next: u64) -> Vec<u8> {
    let mut bytes = vec![tag::END];
    bytes.extend_from_slice(&dataset.get().to_le_bytes());
    bytes.extend_from_slice(&partition.get().to_le_bytes());
    bytes.extend_from_slice(&next.to_le_bytes());
    bytes
}

fn read_end(bytes: &[u8]) -> Result<(PlaceId, u64)> {
    let mut decoder = FieldDecoder::new(bytes);
    let id = (DatasetId(decoder.u32("dataset")?), PartitionId(decoder.u32("partition")?));
    let next = decoder.u64("next frame")?;
    decoder.finish("end of a checkpoint")?;
    Ok((id, next))
}

fn records_frame(copied: &[CopiedRecord]) -> Vec<u8> {
    let records = copied.iter().map(CopiedRecord::as_copy);
    let message = PeerMessage::Records { attempt: 0, step: 0, records: records.collect() };
    let mut frame = vec![tag::RECORDS, 0, 0, 0, 0];
    message.encode(&mut frame);
    let len = (frame.len() - 5) as u32;
    frame[1..5].copy_from_slice(&len.to_le_bytes());
    message.payload(&mut |bytes| frame.extend_from_slice(bytes));
    frame
}

/// The next frames of the checkpoint of a partition.
#[derive(Debug)]
pub enum CheckpointPiece {
    /// More are to come.
    Some(Vec<Vec<u8>>),
    /// The last ones. They are true with all that the log says below frame `next`, so the frames
    /// below must be on flash before the checkpoint is finished; and then no frame below it is
    /// needed for this partition.
    Last {
        /// Frames.
        frames: Vec<Vec<u8>>,
        /// The last entry that the copy has seen.
        position: Position,
    },
}

/// Copies about `len_max` more bytes of the checkpoint that [`MirroredPartition::begin_checkpoint`]
/// began; `next` is the frame that the log writes next.
///
/// # Errors
/// `NotFound`: the partition is being replaced, and the copy is no more. Errors of the store.
pub fn copy(
    member: &mut MirroredPartition,
    id: PlaceId,
    next: u64,
    len_max: usize,
) -> Result<CheckpointPiece> {
    Ok(match member.checkpoint_step(len_max)? {
        None | Some(CopyBatch::Compare { .. }) => {
            return Err(Error::new(ErrorKind::NotFound, "its partition is being replaced"));
        }
        Some(CopyBatch::Records(records)) => CheckpointPiece::Some(vec![records_frame(&records)]),
        Some(CopyBatch::Last(records)) => {
            let mut frames = vec![records_frame(&records)];
            let mut state = Vec::new();
            member.export(&mut state);
            let parts = state.chunks(STATE_PART_LEN);
            frames.extend(parts.map(|part| [&[tag::STATE], part].concat()));
            frames.push(end_frame(id, next));
            CheckpointPiece::Last { frames, position: member.point().position }
        }
    })
}
