//! `samite key`: the cluster key.

use std::time::Duration;

use clap::Subcommand;
use samite_types::ErrorKind;

use crate::cluster::ClusterTarget;
use crate::failure::{CommandFailure, ExitCode};
use crate::output::CommandOutput;

/// Time for each request to a node, unless the command line gives another.
const STEP_TIMEOUT: Duration = Duration::from_secs(10);

/// Change the cluster key
#[derive(clap::Args)]
pub struct KeyArgs {
    #[command(subcommand)]
    command: KeyCommand,
}

#[derive(Subcommand)]
enum KeyCommand {
    /// Put a new cluster key in the place of the present one, while the store serves
    ///
    /// Every node has to be reached. Programs that use the store go on; they read the key file again when they connect anew. Tickets
    /// that the key before has signed are refused from then on. A change that was cut off goes on when this is called again.
    #[command(after_help = "\
Examples:
  samite key rotate
  samite key rotate --keep-before     # tickets count still, until it is called again")]
    Rotate {
        /// The key before counts still, so that holders of tickets can renew them; call it again to drop that key
        #[arg(long)]
        keep_before: bool,
    },
}

/// Does it.
pub fn run(args: &KeyArgs, target: &ClusterTarget) -> Result<(), CommandFailure> {
    let KeyCommand::Rotate { keep_before } = args.command;
    let file = target.cluster_file()?;
    let map = target.connect()?.refresh_map()?;
    let timeout = target.timeout().unwrap_or(STEP_TIMEOUT);
    let changed = samite_launch::change_key(&target.dir, &file, &map, keep_before, timeout);
    let number = changed.map_err(|error| match error.kind() {
        ErrorKind::NotFound => CommandFailure::new(
            ExitCode::NotFound,
            format!("{error}; the owner of store {} has it", target.dir.name()),
        ),
        _ => error.into(),
    })?;
    let mut out = CommandOutput::new();
    out.line(match keep_before {
        true => format!("cluster key {number} is in use; the key before it counts still"),
        false => format!("cluster key {number} is in use, and no other counts"),
    })?;
    out.finish()
}
