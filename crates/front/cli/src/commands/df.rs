//! `samite df`: space.

use clap::ArgAction;
use samite_types::human_bytes;

use crate::cluster::ClusterTarget;
use crate::failure::CommandFailure;
use crate::output::CommandOutput;

/// Show the space of the store
#[derive(clap::Args)]
#[command(
    disable_help_flag = true,
    after_help = "\
Examples:
  samite df -h
  samite df --json"
)]
pub struct DfArgs {
    /// Sizes for people (KiB, MiB, GiB)
    #[arg(short = 'h', long)]
    human: bool,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
}

/// Shows it.
pub fn run(args: &DfArgs, target: &ClusterTarget) -> Result<(), CommandFailure> {
    let files = target.files()?;
    let stat = files.fs.statfs()?;
    let capacity = stat.blocks.saturating_mul(stat.block_len);
    let free = stat.blocks_free.saturating_mul(stat.block_len);
    let used = capacity.saturating_sub(free);
    let mut out = CommandOutput::new();
    if args.json {
        out.json(&serde_json::json!({
            "cluster": target.dir.name(),
            "capacity_bytes": capacity,
            "used_bytes": used,
            "free_bytes": free,
            "files": stat.files,
            "files_free": stat.files_free,
        }))?;
        return out.finish();
    }
    let show = |bytes: u64| if args.human { human_bytes(bytes) } else { bytes.to_string() };
    out.line(format!(
        "{:<16} {:>14} {:>14} {:>14} {:>5}",
        "cluster", "capacity", "used", "free", "use%"
    ))?;
    out.line(format!(
        "{:<16} {:>14} {:>14} {:>14} {:>4}%",
        target.dir.name(),
        show(capacity),
        show(used),
        show(free),
        (u128::from(used) * 100).div_ceil(u128::from(capacity.max(1))),
    ))?;
    out.finish()
}
