//! Where records live: the cluster map, partitions, bounded rendezvous placement, distributions of chunks. Pure.
//!
//! A key's [`hash`] picks its partition, the [`ClusterMap`] gives the target and the node that hold it: one table
//! look-up, nothing to ask. The table is made by the coordinator with [`assign`] and [`arrange`] and travels with the
//! map, so that clients and nodes never have to agree on how it was computed.

mod assign;
mod check;
mod delta;
mod distribution;
mod groups;
mod hash;
mod history;
mod loss;
mod map;

pub use assign::{assign, partitions_for};
pub use check::{
    ADDRESS_LEN_MAX, ADDRESSES_MAX, DATASETS_MAX, MEMBERS_MAX, NODES_MAX, PARTITIONS_MAX,
    REDUNDANCY_MAX, check_dataset_spec, check_node_info,
};
pub use distribution::{Distribution, PATTERN_LEN_MAX, stripe_pattern};
pub use groups::{PlacementTarget, arrange};
pub use hash::{BuildKeyHasher, KeyHasher, hash, shard_of};
pub use history::MapHistory;
pub use loss::{LOSSES_LEN_MAX, PartitionLoss, losses_but_older, losses_without, remaining_losses};
pub use map::ClusterMap;

#[cfg(test)]
mod tests;
