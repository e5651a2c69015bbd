//! Targets: places that hold the records of many partitions.

use std::sync::Arc;

use samite_arena::Arena;
use samite_types::{DatasetId, Error, ErrorKind, PartitionId, Result, human_bytes};

use crate::commit::CommitTarget;
use crate::store::RecordStore;

/// How full a target is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TargetUsage {
    /// Bytes it can hold.
    pub capacity: u64,
    /// Bytes in use: values as stored, keys, and what each record costs beside them.
    pub used: u64,
    /// Bytes of the arena whose pages are in place.
    pub populated: u64,
}

/// What a backend offers, or does not. The rest of what the traits say every backend does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackendOffers {
    /// A value reads back as it was written; otherwise it reads back as zeros.
    pub values: bool,
    /// Records of a dataset that are there again after a restart of all nodes.
    pub restart: RestartSource,
    /// Clients on the host can map an arena, in which large values lie.
    pub mapping: bool,
    /// Stored bytes that have changed by themselves are found: they are never read as what was
    /// written, and a scrub tells of them.
    pub damage: bool,
}

/// Where the records of a dataset come from when its nodes have been started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartSource {
    /// From nowhere: they are gone.
    Nothing,
    /// From the logs of the nodes, if the dataset is to be logged.
    Log,
    /// From the target, which remembers them ([`CommitRecords`](crate::CommitRecords)).
    Target,
}

/// One target, as one shard sees it: each shard has its own handle.
pub trait Backend: Send {
    /// Opens the records of one partition: those that were committed, if the target remembers; else
    /// it is empty, and dropping it frees its space.
    fn open(&mut self, dataset: DatasetId, partition: PartitionId) -> Result<Box<dyn RecordStore>>;

    /// How full the target is.
    fn usage(&self) -> TargetUsage;

    /// Makes the target hold `capacity` bytes, while it is used. Not to be called by two threads at
    /// once.
    ///
    /// # Errors
    /// `Unsupported`: it has its size for good. `Invalid`: it cannot be so large, or so small.
    /// `Conflict`: more is in use.
    fn resize(&self, capacity: u64) -> Result<()> {
        let words = format!("it has its size for good, not {}", human_bytes(capacity));
        Err(Error::new(ErrorKind::Unsupported, words))
    }

    /// The arena that clients on this host can map, if there is one.
    fn arena(&self) -> Option<Arc<Arena>>;

    /// Another shard's handle to the same target.
    fn handle(&self) -> Box<dyn Backend>;

    /// What it offers; the same for all targets of this kind.
    fn offers(&self) -> BackendOffers;

    /// The target of its stores, if they remember.
    fn commit_target(&self) -> Option<Arc<dyn CommitTarget>> {
        None
    }
}
