//! `samite host-start`: one host's part in `samite up --hosts`.

use std::io::BufReader;

use samite_launch::hosts::start;

use crate::cluster::ClusterTarget;
use crate::failure::CommandFailure;

/// Start a node on this host, for `samite up --hosts`
///
/// `samite up` has its launcher run this on each host, and tells it on standard input what to start: lines of JSON, the cluster's key among them. When standard input ends before
/// `up` has said that the node stays, the node ends, and nothing of it is left.
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  samite up --hosts a,b --launcher 'ssh -o BatchMode=yes'")]
pub struct HostStartArgs {
    /// Return when the node ends, for launchers that end what they have started
    #[arg(long)]
    stay: bool,
}

/// Starts it.
pub fn run(args: &HostStartArgs, target: &ClusterTarget) -> Result<(), CommandFailure> {
    let (input, mut output) = (BufReader::new(std::io::stdin()), std::io::stdout());
    Ok(start::run(&target.runtime, input, &mut output, args.stay)?)
}
