//! What can be done with the nodes of a cluster, and who does it.

use samite_launch::local;
use samite_types::NodeId;

use super::change::{self, parse_node};
use super::far;
use super::upgrade;
use crate::cluster::ClusterTarget;
use crate::failure::CommandFailure;
use crate::output::CommandOutput;
use crate::size::parse_size;

#[derive(clap::Subcommand)]
pub enum NodeCommand {
    /// Start one more node, or one on each of some other hosts; partitions move there in the background
    #[command(after_help = "Examples:\n  samite node add\n  samite node add --host d,e")]
    Add {
        #[command(flatten)]
        hosts: far::AddedHostsArgs,
        /// Seconds to wait for the node to serve
        #[arg(long, value_name = "SECONDS", default_value_t = 60)]
        wait: u64,
    },
    /// Move a node's partitions to the others, and wait until it holds none
    #[command(after_help = "Example:\n  samite node drain 2")]
    Drain {
        /// Its number
        #[arg(value_parser = parse_node)]
        node: NodeId,
        /// Use it again instead
        #[arg(long)]
        undo: bool,
        /// Seconds to wait until it holds nothing
        #[arg(long, value_name = "SECONDS", default_value_t = 600)]
        wait: u64,
    },
    /// End a node for good that holds nothing any more, or is dead
    #[command(after_help = "Examples:\n  samite node remove 2\n  samite node remove 2 --force")]
    Remove {
        /// Its number
        #[arg(value_parser = parse_node)]
        node: NodeId,
        /// It is dead and will not come back: what it held is made again from other copies
        #[arg(long)]
        force: bool,
    },
    /// Have the memory of a node hold more records, or fewer, while it serves
    #[command(after_help = "Example:\n  samite node resize 1 16G")]
    Resize {
        /// Its number
        #[arg(value_parser = parse_node)]
        node: NodeId,
        /// Memory for records from now on
        #[arg(value_name = "SIZE", value_parser = parse_size)]
        memory: u64,
    },
    /// Start a dead node again, with the same number and directory
    #[command(
        after_help = "Examples:\n  samite node restart 1\n  samite node restart 1 --renew\n  samite node restart 1 --host b"
    )]
    Restart {
        /// Its number
        #[arg(value_parser = parse_node)]
        node: NodeId,
        /// What it kept on flash is damaged: set that aside, under another name, and bring the node up to date from the other members
        #[arg(long)]
        renew: bool,
        #[command(flatten)]
        host: far::RestartHostArgs,
        /// Seconds to wait for the node to serve
        #[arg(long, value_name = "SECONDS", default_value_t = 60)]
        wait: u64,
    },
    /// Restart nodes in turn by this build of samite, while programs work
    ///
    /// Ends a node in order and starts it again, once the others have whole copies of all that it holds. Programs see pauses, and no errors.
    #[command(after_help = "Examples:\n  samite node upgrade\n  samite node upgrade 0 1")]
    Upgrade {
        /// Their numbers [default: all on this host]
        #[arg(value_parser = parse_node, value_name = "NODE")]
        nodes: Vec<NodeId>,
        /// Seconds to wait for a node to serve, and for copies to be whole
        #[arg(long, value_name = "SECONDS", default_value_t = 600)]
        wait: u64,
    },
}

/// Does it.
pub fn run(command: &NodeCommand, target: &ClusterTarget) -> Result<(), CommandFailure> {
    let far = match command {
        NodeCommand::Add { hosts, wait } => match hosts.hosts()? {
            names if names.is_empty() => None,
            names => Some(far::add(hosts, names, target, *wait)?),
        },
        NodeCommand::Restart { node, host, wait, .. } => {
            let name = host.host()?;
            name.map(|name| far::restart(host, name, target, (*node, *wait))).transpose()?
        }
        NodeCommand::Resize { node, memory } => Some(change::resize(target, *node, *memory)?),
        NodeCommand::Drain { .. } | NodeCommand::Remove { .. } | NodeCommand::Upgrade { .. } => {
            None
        }
    };
    let mut out = CommandOutput::new();
    if let Some(line) = far {
        out.line(line)?;
        return out.finish();
    }
    // Only one changes the cluster's file at a time.
    let _lock = local::lock(&target.dir, change::LOCK_TIMEOUT)?;
    let file = target.cluster_file()?;
    let line = match command {
        NodeCommand::Add { wait, .. } => change::add(target, file, *wait)?,
        NodeCommand::Drain { node, undo, wait } => {
            change::drain(target, &file, *node, *undo, *wait)?
        }
        NodeCommand::Remove { node, force } => change::remove(target, file, *node, *force)?,
        NodeCommand::Restart { node, renew, wait, .. } => {
            change::restart(target, file, (*node, *renew), *wait)?
        }
        NodeCommand::Upgrade { nodes, wait } => upgrade::upgrade(target, nodes, *wait)?,
        NodeCommand::Resize { .. } => return out.finish(),
    };
    out.line(line)?;
    out.finish()
}
