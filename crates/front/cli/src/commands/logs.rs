//! `samite logs`: what nodes log.

use std::time::Duration;

use samite_client::Client;
use samite_client::runtime::ClusterFile;
use samite_launch::process::NodeProcess;
use samite_launch::process_log;
use samite_types::{Error, ErrorKind, NodeId, Result};
use samite_wire::events::{LOG_PART_LEN_MAX, LogPart};

use crate::cluster::ClusterTarget;
use crate::commands::node::parse_node;
use crate::failure::CommandFailure;
use crate::output::{CommandOutput, complain};

/// Between two looks for new lines.
const LOOK: Duration = Duration::from_millis(300);

/// Show the logs of nodes, or change what they log
///
/// Of all nodes unless some are named; a node on this host that has ended is shown, too. The log of
/// a node that logs to stderr is with its service manager or container.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  samite logs
  samite logs n1 --follow
  samite logs --level info,samite_node=debug")]
pub struct LogsArgs {
    /// Nodes
    #[arg(value_name = "NODE", value_parser = parse_node)]
    nodes: Vec<NodeId>,
    /// Last lines of each
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20)]
    lines: usize,
    /// Go on with new lines as they come
    #[arg(short, long)]
    follow: bool,
    /// From now on log this, until the node is started again: error, warn, info, debug, trace, or levels of modules
    #[arg(long, value_name = "FILTER", conflicts_with = "follow")]
    level: Option<String>,
    /// Print a JSON object for each line
    #[arg(long)]
    json: bool,
}

/// Shows or changes.
pub fn run(args: &LogsArgs, target: &ClusterTarget) -> std::result::Result<(), CommandFailure> {
    let file = target.cluster_file()?;
    let client = target.connect_with(&file.nodes, None, &file.setup).ok();
    let logs = NodeLogSource { target, file, client };
    let nodes = logs.nodes(&args.nodes);
    if let Some(filter) = &args.level {
        return logs.set_level(&nodes, filter);
    }
    let (mut shown, mut failed) = (Vec::new(), None);
    for node in nodes {
        match logs.read(node, None) {
            Ok(part) => shown.push((node, part)),
            Err(error) => failed = Some(complained(node, error)),
        }
    }
    let names = shown.len() > 1;
    let mut next = Vec::new();
    let mut out = LogLines { out: CommandOutput::new(), names, json: args.json };
    for (node, part) in &shown {
        let lines: Vec<&[u8]> = lines(&part.bytes).collect();
        for line in &lines[lines.len().saturating_sub(args.lines)..] {
            out.print(*node, line)?;
        }
        next.push((*node, part.at + part.bytes.len() as u64));
    }
    out.out.finish()?;
    if !args.follow || next.is_empty() {
        return failed.map_or(Ok(()), Err);
    }
    loop {
        std::thread::sleep(LOOK);
        let mut out = LogLines { out: CommandOutput::new(), names, json: args.json };
        for (node, from) in &mut next {
            // A node that is gone may come back.
            let Ok(part) = logs.read(*node, Some(*from)) else { continue };
            for line in lines(&part.bytes) {
                out.print(*node, line)?;
            }
            *from = part.at + part.bytes.len() as u64;
        }
        out.out.finish()?;
    }
}

/// Says what went wrong with a node; the others are gone on with.
fn complained(node: NodeId, error: Error) -> CommandFailure {
    complain(format!("{node}: {error}"));
    // It was said.
    CommandFailure::new(CommandFailure::from(error).code, "")
}

fn lines(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes
        .split_inclusive(|byte| *byte == b'\n')
        .map(|line| line.strip_suffix(b"\n").unwrap_or(line))
}

/// Prints lines of logs.
struct LogLines {
    out: CommandOutput,
    /// Each with the node's name.
    names: bool,
    json: bool,
}

impl LogLines {
    fn print(&mut self, node: NodeId, line: &[u8]) -> std::result::Result<(), CommandFailure> {
        if self.json {
            let line = String::from_utf8_lossy(line);
            return self.out.json(&serde_json::json!({ "node": node, "line": line }));
        }
        if self.names {
            self.out.bytes(format!("{node}  ").as_bytes())?;
        }
        self.out.name(line)?;
        self.out.bytes(b"\n")
    }
}

/// The ways to logs.
struct NodeLogSource<'a> {
    target: &'a ClusterTarget,
    file: ClusterFile,
    /// `None`: no node answers.
    client: Option<Client>,
}

impl NodeLogSource<'_> {
    /// The nodes that are asked for: all that are known, unless some are named.
    fn nodes(&self, named: &[NodeId]) -> Vec<NodeId> {
        if !named.is_empty() {
            return named.to_vec();
        }
        let mut nodes: Vec<NodeId> = self.file.nodes.iter().map(|entry| entry.node).collect();
        if let Some(map) = self.client.as_ref().and_then(|client| client.map().ok()) {
            nodes.extend(map.nodes().iter().map(|info| info.node));
        }
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }

    /// As the node tells; from its file if its process has run on this host, and has ended.
    fn read(&self, node: NodeId, from: Option<u64>) -> Result<LogPart> {
        let entry = self.file.nodes.iter().find(|entry| entry.node == node);
        let process = entry.and_then(|entry| entry.process.as_ref());
        let has_ended = process.is_some_and(|process| {
            NodeProcess::started_at(process.pid, process.start_ticks).is_none()
        });
        match &self.client {
            Some(client) if !has_ended => client.node_log(node, from),
            _ => {
                let path = self.target.dir.log_path(node);
                process_log::read_part(&path, from, LOG_PART_LEN_MAX).map_err(|error| {
                    let words = format!("it does not answer, and {}: {error}", path.display());
                    Error::new(ErrorKind::Unavailable, words)
                })
            }
        }
    }

    fn set_level(&self, nodes: &[NodeId], filter: &str) -> std::result::Result<(), CommandFailure> {
        // Without one, this says why.
        let client = match &self.client {
            Some(client) => client,
            None => &self.target.connect()?,
        };
        let mut failed = None;
        for node in nodes {
            match client.set_node_log(*node, filter) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::Invalid => {
                    return Err(CommandFailure::usage(format!("--level: {error}")));
                }
                Err(error) => failed = Some(complained(*node, error)),
            }
        }
        failed.map_or(Ok(()), Err)
    }
}
