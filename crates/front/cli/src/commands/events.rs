//! `samite events`: what happened in a store.

mod follower;

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, UNIX_EPOCH};

use samite_wire::events::StoreEvent;

use crate::cluster::ClusterTarget;
use crate::failure::{CommandFailure, IoContext};
use crate::output::{CommandOutput, complain};
use follower::EventFollower;

/// Between two looks for new events.
const LOOK: Duration = Duration::from_millis(500);

/// Show what happened in the store: nodes that came and went, failovers, resyncs, losses, full targets
///
/// Since the start, as the node that has been there longest tells; each node remembers the last 4,096.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  samite events
  samite events --follow --json
  samite events --follow --exec 'curl -fsS --json @- https://alerts.example/samite'")]
pub struct EventsArgs {
    /// Go on with new events as they come
    #[arg(short, long)]
    follow: bool,
    /// Only events from now on
    #[arg(long, requires = "follow")]
    new: bool,
    /// For each event run this with `sh -c`, one after the other: the event as JSON on its standard input, its kind in SAMITE_EVENT
    #[arg(long, value_name = "COMMAND")]
    exec: Option<String>,
    /// Print a JSON object for each event
    #[arg(long)]
    json: bool,
}

/// Shows.
pub fn run(args: &EventsArgs, target: &ClusterTarget) -> Result<(), CommandFailure> {
    let client = target.connect()?;
    let mut follower = EventFollower::default();
    let mut events = follower.look(&client)?;
    if args.new {
        events.clear();
    }
    loop {
        tell(args, &events)?;
        if !args.follow {
            return Ok(());
        }
        std::thread::sleep(LOOK);
        // While no node answers there is nothing to tell; they may come back.
        events = follower.look(&client).unwrap_or_default();
    }
}

fn tell(args: &EventsArgs, events: &[StoreEvent]) -> Result<(), CommandFailure> {
    let mut out = CommandOutput::new();
    for event in events {
        if args.json {
            out.json(&as_json(event))?;
        } else {
            let (time, kind) = (time(event), event.kind.name());
            out.line(format!("{time}  {kind:<13}  {}", event.words))?;
        }
    }
    out.finish()?;
    let Some(command) = &args.exec else { return Ok(()) };
    for event in events {
        if let Err(failure) = execute(command, event) {
            complain(format!("--exec: {}", failure.message));
        }
    }
    Ok(())
}

fn time(event: &StoreEvent) -> String {
    humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_micros(event.at_us)).to_string()
}

fn as_json(event: &StoreEvent) -> serde_json::Value {
    serde_json::json!({
        "time": time(event),
        "kind": event.kind,
        "node": event.node,
        "epoch": event.epoch,
        "words": event.words,
    })
}

/// Runs the command for an event, and waits for it.
fn execute(command: &str, event: &StoreEvent) -> Result<(), CommandFailure> {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).env("SAMITE_EVENT", event.kind.name()).stdin(Stdio::piped());
    let mut child = shell.spawn().doing("start sh")?;
    if let Some(mut input) = child.stdin.take() {
        // A command that does not read it need not.
        let _ = writeln!(input, "{}", as_json(event));
    }
    let status = child.wait().doing("wait for the command")?;
    match status.success() {
        true => Ok(()),
        false => Err(CommandFailure::failed(format!("{command:?} ended with {status}"))),
    }
}
