//! What keeps the records of a dataset beyond the node's process.

use std::sync::Arc;

use crate::commit_thread::TargetThreads;

/// What keeps the records of a dataset beyond the node's process.
pub(crate) enum RecordKeeping {
    /// Nothing does.
    Nothing,
    /// The shard's log, and checkpoints.
    Log,
    /// Their target, which remembers.
    Target(Arc<TargetThreads>),
    /// Their target would, and cannot be used.
    Unusable,
}

impl RecordKeeping {
    /// Whether replies wait for it.
    pub(crate) const fn waits(&self) -> bool {
        !matches!(self, Self::Nothing)
    }

    /// The threads of the target that remembers.
    pub(crate) const fn threads(&self) -> Option<&Arc<TargetThreads>> {
        match self {
            Self::Target(threads) => Some(threads),
            Self::Nothing | Self::Log | Self::Unusable => None,
        }
    }
}
