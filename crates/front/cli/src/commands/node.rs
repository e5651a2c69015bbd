//! `samite node`: one node in the foreground, and what can be done with the nodes of a cluster.

mod by_hand;
mod change;
mod command;
mod far;
mod serve;
mod upgrade;

pub use by_hand::parse_coordinator as parse_network_address;
pub use change::parse_node;

use crate::cluster::ClusterTarget;
use crate::failure::CommandFailure;

/// Add, drain, remove or restart nodes; without any of these, serve one node
///
/// `samite up` starts the nodes that serve. Such a node has its key, socket and log in the cluster's directory. With `--coordinator` it is one of
/// nodes on several hosts, each started there by hand. SIGTERM, SIGINT and SIGHUP end it in order. SAMITE_LOG sets what is logged, `info` by default.
#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "\
Examples:
  samite node add
  samite node add --host d,e
  samite node drain 2 && samite node remove 2
  samite node --node 1 --nodes 2 --coordinator tcp://a:7001 --listen b:7001 --key-file key"
)]
pub struct NodeArgs {
    #[command(subcommand)]
    change: Option<command::NodeCommand>,
    #[command(flatten)]
    serve: Option<serve::ServeArgs>,
}

/// Does it.
pub fn run(args: &NodeArgs, target: &ClusterTarget) -> Result<(), CommandFailure> {
    match (&args.change, &args.serve) {
        (Some(change), _) => command::run(change, target),
        (None, Some(serve)) => serve::run(serve, target),
        (None, None) => Err(CommandFailure::usage("samite node: what is to be done? See --help")),
    }
}
