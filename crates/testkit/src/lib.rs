//! Clusters for tests: nodes as threads of the test ([`LocalCluster`]), or as real processes ([`ProcessCluster`]).
//!
//! Each cluster has a runtime directory of its own in a temporary place, and is gone with everything it made when it is dropped.

mod local;
mod process;

pub use local::{LocalCluster, Options, PATIENT};
pub use process::{ENV_BINARY, ProcessCluster, samite_binary};
