//! `samite fault`: make things go wrong, on purpose.

mod log;
mod process;

use std::io::Read;
use std::path::PathBuf;
use std::time::Duration;

use samite_client::faults::ask;
use samite_client::runtime::{ClusterFile, NodeEntry};
use samite_types::fault::{FaultTable, TableError, parse_time};
use samite_types::{Clock, NodeId, SystemClock};
use samite_wire::control::{FaultRequest, FaultStatus};

use crate::cluster::ClusterTarget;
use crate::failure::{CommandFailure, ExitCode, IoContext};
use crate::output::{CommandOutput, complain};

/// How long a node may take to answer.
const ASK_TIMEOUT: Duration = Duration::from_secs(10);

/// Make things go wrong on purpose: frames that are lost, late, doubled, out of order or bent, links that are cut, disks that fail, nodes that stop or die
///
/// A table says what happens, between whom, and when; each node goes by its own. Numbers name nodes, `c` is every client, `*` is anyone. The faults of what a node
/// sends are made by that node, those of what a client sends by the node that receives it. Times count from when the table was set.
///
///   drop|duplicate|reorder|corrupt|reset 15% FROM TO [START [END]]
///   delay 120us FROM TO [START [END]]
///   cut | cut-peer | cut-coordinator FROM TO [START [END]]
///   disk error|full|torn|rot 1% NODE [START [END]]
///   disk slow 5ms NODE [START [END]]
///   memory rot 1% NODE
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct FaultArgs {
    #[command(subcommand)]
    command: FaultCommand,
}

#[derive(clap::Subcommand)]
enum FaultCommand {
    /// Set the table that a file holds, in place of the present one
    #[command(after_help = "\
Examples:
  samite fault load bad-network.faults
  echo 'cut 0 1 0 2s' | samite fault load -")]
    Load {
        /// File; `-` for standard input
        file: PathBuf,
        #[command(flatten)]
        nodes: FaultNodes,
    },
    /// Set a table given here, in place of the present one
    #[command(after_help = "\
Examples:
  samite fault set 'drop 5% * *'
  samite fault set 'seed 7' 'delay 1ms c 0 0 10s' 'corrupt 1% 0 c' --node 0")]
    Set {
        /// Lines of the table
        #[arg(required = true, value_name = "LINE")]
        lines: Vec<String>,
        #[command(flatten)]
        nodes: FaultNodes,
    },
    /// Make no more faults
    #[command(after_help = "Example:\n  samite fault clear")]
    Clear {
        #[command(flatten)]
        nodes: FaultNodes,
    },
    /// Show each node's table, and how much it has harmed
    #[command(visible_alias = "ls", after_help = "Example:\n  samite fault list --json")]
    List {
        #[command(flatten)]
        nodes: FaultNodes,
        /// One JSON object for each node
        #[arg(long)]
        json: bool,
    },
    /// Show what was done and when, in order of time
    ///
    /// A line for each fault: wall-clock time in seconds, fault, source, destination, kind of the frame, its request, its bytes.
    #[command(after_help = "Example:\n  samite fault log --node 1 | tail")]
    Log {
        #[command(flatten)]
        nodes: FaultNodes,
        /// One JSON object for each fault
        #[arg(long)]
        json: bool,
    },
    /// Stop a node's process in its tracks
    ///
    /// It goes on after the time given with `--for`, or with `samite fault resume`.
    #[command(after_help = "\
Examples:
  samite fault pause 1 --for 500ms
  samite fault pause 1")]
    Pause {
        /// Its number
        #[arg(value_name = "NODE", value_parser = parse_node)]
        node: NodeId,
        /// Let it go on after this time, as `10s`
        #[arg(long = "for", value_name = "TIME", value_parser = parse_time)]
        time: Option<Duration>,
    },
    /// Let a node go on that was paused
    #[command(after_help = "Example:\n  samite fault resume 1")]
    Resume {
        /// Its number
        #[arg(value_name = "NODE", value_parser = parse_node)]
        node: NodeId,
    },
    /// Kill a node's process
    #[command(after_help = "Example:\n  samite fault kill 1")]
    Kill {
        /// Its number
        #[arg(value_name = "NODE", value_parser = parse_node)]
        node: NodeId,
    },
}

/// Which nodes.
#[derive(clap::Args)]
struct FaultNodes {
    /// Only this node
    #[arg(long, value_name = "NODE", value_parser = parse_node)]
    node: Option<NodeId>,
}

fn parse_node(text: &str) -> Result<NodeId, String> {
    let number = text.strip_prefix('n').unwrap_or(text);
    number.parse().map(NodeId).map_err(|_| "expected the number of a node".to_owned())
}

impl FaultNodes {
    fn of<'f>(&self, file: &'f ClusterFile) -> Result<Vec<&'f NodeEntry>, CommandFailure> {
        match self.node {
            Some(node) => Ok(vec![entry(file, node)?]),
            None => Ok(file.nodes.iter().collect()),
        }
    }
}

fn entry(file: &ClusterFile, node: NodeId) -> Result<&NodeEntry, CommandFailure> {
    file.nodes
        .iter()
        .find(|entry| entry.node == node)
        .ok_or_else(|| CommandFailure::new(ExitCode::NotFound, format!("there is no node {node}")))
}

/// Does it.
pub fn run(args: &FaultArgs, target: &ClusterTarget) -> Result<(), CommandFailure> {
    match &args.command {
        FaultCommand::Load { file, nodes } => {
            let text = read(file)?;
            let named = |error| CommandFailure::usage(format!("{}: {error}", file.display()));
            set(target, nodes, text.parse().map_err(named)?)
        }
        FaultCommand::Set { lines, nodes } => {
            let table: Result<FaultTable, TableError> = lines.join("\n").parse();
            set(target, nodes, table.map_err(|error| CommandFailure::usage(error.to_string()))?)
        }
        FaultCommand::Clear { nodes } => {
            keep(target, nodes, None)?;
            ask_all(target, nodes, &FaultRequest::Clear, &mut |_, _| Ok(()))
        }
        FaultCommand::List { nodes, json } => list(target, nodes, *json),
        FaultCommand::Log { nodes, json } => log::run(target, nodes, *json),
        FaultCommand::Pause { node, time } => process::pause(target, *node, *time),
        FaultCommand::Resume { node } => process::resume(target, *node),
        FaultCommand::Kill { node } => process::kill(target, *node),
    }
}

fn read(file: &PathBuf) -> Result<String, CommandFailure> {
    let mut text = String::new();
    let what = format_args!("read {}", file.display()).to_string();
    if file.as_os_str() == "-" {
        std::io::stdin().read_to_string(&mut text).doing(what)?;
    } else {
        text = std::fs::read_to_string(file).doing(what)?;
    }
    Ok(text)
}

/// Sets the same table everywhere, with one start.
fn set(
    target: &ClusterTarget,
    nodes: &FaultNodes,
    mut table: FaultTable,
) -> Result<(), CommandFailure> {
    table.start.get_or_insert_with(|| SystemClock.realtime());
    keep(target, nodes, Some(&table))?;
    ask_all(target, nodes, &FaultRequest::Set(table.to_string()), &mut |_, _| Ok(()))
}

/// Has nodes that start later go by `table`, or by none.
fn keep(
    target: &ClusterTarget,
    nodes: &FaultNodes,
    table: Option<&FaultTable>,
) -> Result<(), CommandFailure> {
    let file = target.cluster_file()?;
    for entry in nodes.of(&file)? {
        let path = target.dir.fault_table_path(entry.node);
        match table {
            Some(table) => std::fs::write(&path, table.to_string())
                .doing(format_args!("write {}", path.display()))?,
            None => match std::fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(error).doing(format_args!("remove {}", path.display()));
                }
                _ => {}
            },
        }
    }
    Ok(())
}

fn list(target: &ClusterTarget, nodes: &FaultNodes, json: bool) -> Result<(), CommandFailure> {
    let mut out = CommandOutput::new();
    let done = ask_all(target, nodes, &FaultRequest::List, &mut |node, status| {
        let lines: Vec<&str> = status.table.as_deref().unwrap_or_default().lines().collect();
        let FaultStatus { frames, writes, .. } = status;
        if json {
            return out.json(&serde_json::json!({
                "node": node, "table": status.table.as_ref().map(|_| &lines), "frames": frames,
                "writes": writes,
            }));
        }
        if status.table.is_none() {
            return out.line(format!("{node}: no faults"));
        }
        out.line(format!("{node}: {frames} frames and {writes} writes harmed"))?;
        lines.iter().try_for_each(|line| out.line(format!("  {line}")))
    });
    out.finish()?;
    done
}

/// Asks nodes one by one; a node that fails does not keep the others from being asked.
fn ask_all(
    target: &ClusterTarget,
    nodes: &FaultNodes,
    request: &FaultRequest,
    take: &mut dyn FnMut(NodeId, &FaultStatus) -> Result<(), CommandFailure>,
) -> Result<(), CommandFailure> {
    let file = target.cluster_file()?;
    let mut failed = None;
    for entry in nodes.of(&file)? {
        let config = target.config_of(std::slice::from_ref(entry))?;
        match ask(&config, request.clone(), target.timeout().unwrap_or(ASK_TIMEOUT)) {
            Ok(status) => take(entry.node, &status)?,
            Err(error) => {
                let failure =
                    CommandFailure::from(error.context(format_args!("node {}", entry.node)));
                complain(&failure.message);
                failed = Some(failure.code);
            }
        }
    }
    failed.map_or(Ok(()), |code| Err(CommandFailure::new(code, "")))
}
