//! Change stamps: when a directory last changed, and how many directories are in it.
//!
//! A directory's inode does not change when something is made in it. Instead, the operation on the
//! entry also changes a stamp beside it, in the entry's own partition: the time (8 bytes), and the
//! number of directories made less those removed (8 bytes). The directory's time is the maximum
//! over the partitions and its link count the sum, asked for when someone wants them.

use samite_client::{OwnedOutcome, OwnedResult};
use samite_types::{ErrorKind, PartitionId, Result};
use samite_wire::op::{Action, Guard, Operation, ValueData};

use crate::Timestamp;
use crate::records::key::{self, Key};
use crate::records::store::RecordStoreView;

const SUBDIRECTORIES_AT: u32 = 8;

/// The change stamp that a change of one entry leaves.
pub struct EntryMark {
    key: Option<Key>,
    now: Timestamp,
}

impl EntryMark {
    /// For the entry with this key; no stamp when it is no entry's.
    pub fn new(entry: &[u8], now: Timestamp) -> Self {
        let key = key::parse_entry(entry).map(|(parent, _)| key::change_stamp(parent));
        Self { key, now }
    }

    /// The operation that leaves the stamp; `directories` is how many directories came, or went if
    /// negative.
    pub fn actions(&self, directories: i64) -> impl Iterator<Item = Action<'_>> {
        self.key.iter().flat_map(move |key| {
            let count = (directories != 0).then_some(Action::Add {
                key,
                offset: SUBDIRECTORIES_AT,
                delta: directories.cast_unsigned(),
            });
            // Of two clients the slower does not set the time back.
            let to = self.now.0;
            let time = Action::Advance { key, offset: 0, count: 1, to, slack: u64::MAX };
            std::iter::once(time).chain(count)
        })
    }
}

/// Before every other time.
const NEVER: Timestamp = Timestamp(i64::MIN);

/// Time and number of directories by the stamps of a directory together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangeStamps {
    /// Last change of an entry; [`NEVER`] when there was none.
    pub changed: Timestamp,
    /// Directories made in it, less those removed.
    directories: i64,
}

impl ChangeStamps {
    /// Bytes of one change stamp.
    pub const RECORD_LEN: usize = 16;
    /// Nothing was ever made in it.
    pub const NONE: Self = Self { changed: NEVER, directories: 0 };

    /// Adds one partition's stamp.
    pub fn add(&mut self, record: &[u8]) {
        let number = |offset: usize| {
            record
                .get(offset..)
                .and_then(<[u8]>::first_chunk)
                .map_or(0, |raw| i64::from_le_bytes(*raw))
        };
        self.changed = self.changed.max(Timestamp(number(0)));
        self.directories += number(SUBDIRECTORIES_AT as usize);
    }

    /// The stamp of one partition that says the same.
    pub fn record(&self) -> [u8; Self::RECORD_LEN] {
        let mut record = [0; Self::RECORD_LEN];
        record[..8].copy_from_slice(&self.changed.0.to_le_bytes());
        record[8..].copy_from_slice(&self.directories.to_le_bytes());
        record
    }

    /// Directories in it.
    pub fn directories(&self) -> u64 {
        self.directories.try_into().unwrap_or(0)
    }
}

impl RecordStoreView {
    /// Asks every partition for the directory's stamp. The stamps of a node that cannot be reached
    /// are left out: they are gone with the entries, and the directory's other entries can be
    /// reached only by clients that can ask for its attributes.
    pub fn change_stamps(&self, directory: u64) -> Result<ChangeStamps> {
        let key = key::change_stamp(directory);
        let mut stamps = ChangeStamps::NONE;
        match self.run_everywhere(|partition| Operation::get(partition, &key)) {
            Err(error) if is_gone(error.kind()) => {
                for partition in (0..self.dataset.partitions()).map(PartitionId) {
                    match self.run(Operation::get(partition, &key)) {
                        Err(error) if is_gone(error.kind()) => {}
                        outcome => add(&mut stamps, outcome?)?,
                    }
                }
            }
            outcomes => outcomes?.into_iter().try_for_each(|outcome| add(&mut stamps, outcome))?,
        }
        Ok(stamps)
    }

    /// Forgets the times of the stamps, so that the inode's own counts.
    pub fn reset_stamp_times(&self, directory: u64) -> Result<()> {
        let key = key::change_stamp(directory);
        let never = NEVER.0.to_le_bytes();
        let reset = |partition| {
            let reset = Action::Write { key: &key, offset: 0, data: ValueData::Inline(&never) };
            Operation::new(partition, [reset]).guard(Guard::Exists(&key))
        };
        match self.run_everywhere(reset) {
            Err(error) if error.kind() == ErrorKind::Lost => {
                for partition in (0..self.dataset.partitions()).map(PartitionId) {
                    match self.run(reset(partition)) {
                        // There is no stamp.
                        Err(error) if error.kind() == ErrorKind::Lost => {}
                        outcome => drop(outcome?),
                    }
                }
                Ok(())
            }
            outcomes => outcomes.map(drop),
        }
    }
}

/// Whether an error means that a partition's stamp is gone.
const fn is_gone(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Unavailable | ErrorKind::Lost)
}

fn add(stamps: &mut ChangeStamps, outcome: OwnedOutcome) -> Result<()> {
    match outcome {
        OwnedOutcome::Done(results) => {
            if let Some(OwnedResult::Value { data, .. }) = results.first() {
                stamps.add(data);
            }
            Ok(())
        }
        OwnedOutcome::Failed(failure) if failure.kind == ErrorKind::NotFound => Ok(()),
        OwnedOutcome::Failed(failure) => Err(failure.into_error("read marks")),
    }
}
