//! Shared memory between a node and the clients on its host.

pub(crate) mod cores;
pub(crate) mod ring;
