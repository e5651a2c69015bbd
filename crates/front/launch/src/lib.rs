//! Starting the nodes of a cluster, and ending them: plans, processes, and the files that tell of
//! both. Knows no command line: commands make a plan of theirs, and report what came of it.
//!
//! [`local`] starts nodes on this host, [`hosts`] one on each of several, by a launcher. What does
//! not depend on the host of a node is beside it, too: the arguments of a node's process
//! ([`node_command`]), the record of a durable store ([`cluster_record`]), directories of nodes and
//! what they keep on flash ([`directories`], [`aside`]).
//!
//! Errors are those of the system (`Io`), or say by their kind what is wrong: `Conflict`,
//! `NotFound`, `Unavailable` (it does not serve in time), `Invalid` (the plan makes no sense).
//! Messages name the options of `samite up`, by which plans are usually made.

pub mod aside;
pub mod cluster_record;
mod connect;
pub mod directories;
mod etcd_members;
pub mod hosts;
mod io_context;
mod key_change;
pub mod local;
pub mod memory;
pub mod mounts;
pub mod node_command;
pub mod node_life;
pub mod process;
pub mod process_log;

pub use connect::{cluster_config, connect};
pub use key_change::change_key;
