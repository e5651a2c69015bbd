//! `samite acknowledge-loss`: takes note of what is lost.

use samite_placement::{PartitionLoss, remaining_losses};
use samite_types::DatasetId;
use samite_wire::control::LostRecords;

use crate::cluster::ClusterTarget;
use crate::failure::{CommandFailure, ExitCode};
use crate::health::{self, loss_words};
use crate::output::CommandOutput;

/// Take note of what is lost
///
/// Where a node died that had the only copy of something, `samite status` says LOST, and whatever is not found there is an error and not an absence: looking it up, listing, and
/// making it. This command ends that: what is gone is missing from then on, and can be made. It names what it acknowledges, brings nothing back, and asks nothing. What
/// is lost while it works stays told, of the same partitions, too.
///
/// Exits with 0 when nothing of it is lost (any more), 3 when the cluster is not up, 4 when there is no such dataset.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  samite acknowledge-loss
  samite acknowledge-loss files kv
  samite acknowledge-loss --json")]
pub struct AcknowledgeArgs {
    /// Only of these datasets; of all unless given
    #[arg(value_name = "DATASET")]
    datasets: Vec<String>,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// Acknowledges what the newest map says.
pub fn run(args: &AcknowledgeArgs, target: &ClusterTarget) -> Result<(), CommandFailure> {
    let client = target.connect()?;
    let map = client.refresh_map()?;
    let mut ids: Vec<DatasetId> = Vec::new();
    for name in &args.datasets {
        let none = || CommandFailure::new(ExitCode::NotFound, format!("dataset {name}: none such"));
        ids.push(map.dataset(name).ok_or_else(none)?.id);
    }
    let is_meant = |id: &DatasetId| args.datasets.is_empty() || ids.contains(id);
    let mut seen: Vec<LostRecords> = map.data().losses.clone();
    seen.iter_mut().for_each(|lost| lost.datasets.retain(is_meant));
    seen.retain(|lost| !lost.datasets.is_empty());
    if !seen.is_empty() {
        client.acknowledge_loss(map.epoch(), seen.clone())?;
    }
    // A loss that was found meanwhile is not acknowledged.
    let later = client.refresh_map()?;
    let losses: Vec<PartitionLoss> =
        map.losses_named(&remaining_losses(&seen, &later.data().losses));
    let left = later.losses_known();
    let mut out = CommandOutput::new();
    if args.json {
        out.json(&serde_json::json!({
            "acknowledged": health::losses_as_json(&losses),
            "left": health::losses_as_json(&left),
        }))?;
    } else if seen.is_empty() {
        out.line("nothing is lost")?;
    } else {
        if !losses.is_empty() {
            out.line(format!("acknowledged: {}", loss_words(&losses)))?;
        }
        if !left.is_empty() {
            out.line(format!("still lost: {}", loss_words(&left)))?;
        }
    }
    out.finish()
}
