//! The data of durable partitions on flash, and how the partitions come back from it: the frames of
//! a log ([`frame`]), checkpoints ([`checkpoint`]), and the state to which both lead after a
//! restart ([`recover`]). Writing them, and when, is the driver's business: the node's shards, the
//! simulator.

pub mod checkpoint;
pub mod frame;
mod recovery;
mod tracks;

use samite_types::{DatasetId, PartitionId};

pub use recovery::{Recovered, RecoveredLog, recover};
pub use tracks::LogTracks;

/// A partition of a dataset.
pub type PlaceId = (DatasetId, PartitionId);
