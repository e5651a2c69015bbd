//! Clusters for tests: nodes as threads of the test ([`LocalCluster`]), or as real processes
//! ([`ProcessCluster`]); and the library that programs are interposed with ([`preload_library`]).
//! Clients and datasets for them are made by [`datasets`]. Tests that a machine cannot run say so
//! by [`skip`]. Several hosts on one machine are [`TestHosts`].
//!
//! Each cluster has a runtime directory of its own in a temporary place, and is gone with
//! everything it made when it is dropped.

pub mod datasets;
mod hosts;
mod local;
mod preload;
mod process;
mod skip;

pub use hosts::{LAUNCHER, TestHost, TestHosts};
pub use local::{LocalCluster, LocalOptions, PATIENT};
pub use preload::preload_library;
pub use process::{ENV_BINARY, ProcessCluster, samite_binary};
pub use skip::{ENV_SKIPS, FUSE, has, has_fuse, is_fuse_there, skip, skip_part};
