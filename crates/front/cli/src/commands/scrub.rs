//! `samite scrub`: reads all that the nodes hold, now.

use std::time::{Duration, Instant};

use samite_client::Client;
use samite_types::{NodeId, human_bytes};
use samite_wire::status::ScrubStatus;

use crate::cluster::ClusterTarget;
use crate::failure::{CommandFailure, ExitCode};
use crate::health::{loss_words, losses_as_json};
use crate::output::CommandOutput;

/// How often nodes are asked how far they are.
const LOOK: Duration = Duration::from_millis(50);
/// Damaged records are put right within this time of being found, or are not for now.
const REPAIR: Duration = Duration::from_secs(3);

/// Look for damage in all that the nodes hold, and mend it
///
/// Nodes do so by themselves in the background; this does it at once, and tells. Records whose bytes are not what was written are put right from another
/// member, and members of a mirror group that hold different records get those of the primary.
///
/// Records that are lost, for the nodes that had them in memory died, cannot be looked at: it says so until `samite acknowledge-loss`.
///
/// Exits with 0 when all is right, 1 when something was mended, 6 when something is damaged that no member has whole, or lost.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  samite scrub
  samite scrub files --json")]
pub struct ScrubArgs {
    /// Only this dataset
    #[arg(value_name = "DATASET")]
    dataset: Option<String>,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
    /// Tell on standard error how far it is
    #[arg(long)]
    progress: bool,
}

/// A node that scrubs.
struct ScrubbingNode {
    node: NodeId,
    number: u64,
    before: ScrubStatus,
}

/// Scrubs.
pub fn run(args: &ScrubArgs, target: &ClusterTarget) -> Result<(), CommandFailure> {
    let client = target.connect()?;
    let map = client.map()?;
    let dataset = match &args.dataset {
        None => None,
        Some(name) => {
            let known = map.dataset(name);
            let none = || CommandFailure::usage(format!("there is no dataset {name}"));
            Some(known.ok_or_else(none)?.id)
        }
    };
    let mut under = Vec::new();
    for info in map.nodes() {
        let before = client.node_status(info.node)?.scrub;
        let number = client.scrub(info.node, dataset)?;
        under.push(ScrubbingNode { node: info.node, number, before });
    }
    let found = wait(args, &client, &under)?;
    let left = found.left;
    let mut losses = client.refresh_map()?.losses_known();
    losses.retain(|loss| args.dataset.as_ref().is_none_or(|name| *name == loss.dataset));
    let mut out = CommandOutput::new();
    if args.json {
        out.json(&serde_json::json!({
            "records": found.records, "bytes": found.bytes, "damaged": found.damaged,
            "repaired": found.repaired, "evened": found.evened, "left": left, "losses": losses_as_json(&losses),
        }))?;
    } else {
        out.line(format!(
            "{} records ({}) looked at: {} damaged, {} repaired, {} ranges of other members made equal",
            found.records,
            human_bytes(found.bytes),
            found.damaged,
            found.repaired,
            found.evened,
        ))?;
    }
    out.finish()?;
    if !losses.is_empty() {
        let more = match left {
            0 => String::new(),
            left => format!("; and {left} records are damaged"),
        };
        let words = format!("lost: {}{more}", loss_words(&losses));
        return Err(CommandFailure::new(ExitCode::Damaged, words));
    }
    if left > 0 {
        let words = format!("{left} records are damaged, and no member has them whole");
        return Err(CommandFailure::new(ExitCode::Damaged, words));
    }
    if found.damaged + found.evened > 0 {
        return Err(CommandFailure::reported());
    }
    Ok(())
}

/// Waits until all have looked at everything, and what can be mended is. Returns what was found.
fn wait(
    args: &ScrubArgs,
    client: &Client,
    under: &[ScrubbingNode],
) -> Result<ScrubStatus, CommandFailure> {
    let mut done_at: Option<Instant> = None;
    loop {
        let mut all = ScrubStatus::default();
        let mut is_done = true;
        for ScrubbingNode { node, number, before } in under {
            let now = client.node_status(*node)?.scrub;
            is_done &= now.done >= *number;
            all.records += now.records - before.records;
            all.bytes += now.bytes - before.bytes;
            all.damaged += now.damaged - before.damaged;
            all.repaired += now.repaired - before.repaired;
            all.evened += now.evened - before.evened;
            all.left += now.left;
        }
        if args.progress {
            eprintln!("samite: {} records, {}", all.records, human_bytes(all.bytes));
        }
        if is_done {
            let since = *done_at.get_or_insert_with(Instant::now);
            // For a short time, records that other members compare are on their way.
            let is_settled = all.left == 0 && since.elapsed() >= 4 * LOOK;
            if is_settled || since.elapsed() >= REPAIR {
                return Ok(all);
            }
        }
        std::thread::sleep(LOOK);
    }
}
