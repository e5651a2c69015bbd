//! What keeps clients out of each other's way: delegations, open references, file locks.

pub mod delegated;
pub mod delegated_lookup;
pub mod locks;
pub mod open_references;
pub mod open_snapshot;
