//! What stands on flash of durable partitions, and how they come back from it: the frames of a log ([`frame`]), checkpoints ([`checkpoint`]), and what both
//! lead to after a restart ([`recover`]). Who writes them, and when, is the driver's business: the node's shards, the simulator.

pub mod checkpoint;
pub mod frame;
mod recovery;
mod tracks;

use samite_types::{DatasetId, PartitionId};

pub use recovery::{Recovered, RecoveredLog, recover};
pub use tracks::LogTracks;

/// A partition of a dataset.
pub type PlaceId = (DatasetId, PartitionId);
