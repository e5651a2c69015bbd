//! `samite worker`: a worker process, which a node starts; not for people.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use samite_client::runtime::{NodeEntry, RuntimeDir, TicketFile};
use samite_client::{Client, ClientOptions, ClusterConfig};
use samite_fs::CallerContext;
use samite_tools::{
    CheckModule, CountModule, GenModule, GrepModule, MergeModule, RunModule, SampleModule,
    SumModule, ValsortModule, WcModule,
};
use samite_types::NodeId;
use samite_wire::worker::WorkerKind;
use samite_worker::ModuleRegistry;
use samite_worker::input::WorkerPlace;
use samite_worker::runtime::{WorkerSettings, serve};

use crate::failure::{CommandFailure, IoContext};

/// The modules that this program has.
pub const MODULES: ModuleRegistry = ModuleRegistry(&[
    &GrepModule,
    &WcModule,
    &CountModule,
    &SumModule,
    &GenModule,
    &ValsortModule,
    &CheckModule,
    &SampleModule,
    &RunModule,
    &MergeModule,
]);

/// Longest time of a request of a worker: a node that dies is waited for.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Time that the node has to give out a ticket.
const TICKET_TIMEOUT: Duration = Duration::from_secs(10);

/// Run tasks for a node, which starts this and talks to it by standard input
#[derive(clap::Args)]
pub struct WorkerArgs {
    /// What it runs
    #[arg(long, value_name = "KIND", value_parser = parse_kind)]
    kind: WorkerKind,
    /// The node
    #[arg(long, value_name = "N")]
    node: u32,
    /// Threads that carry out tasks
    #[arg(long, value_name = "N", default_value_t = 1)]
    cores: u16,
    /// Longest time of a task
    #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
    task_seconds: u64,
    /// The cluster's directory
    #[arg(long, value_name = "DIR", required_unless_present = "tickets")]
    dir: Option<PathBuf>,
    /// A socket that gives out tickets, for users who have no such directory
    #[arg(long, value_name = "PATH", conflicts_with = "dir")]
    tickets: Option<PathBuf>,
}

fn parse_kind(text: &str) -> Result<WorkerKind, String> {
    WorkerKind::of_name(text).ok_or_else(|| format!("{text:?} is no kind of worker"))
}

/// Serves until the node closes standard input.
pub fn run(args: &WorkerArgs) -> Result<(), CommandFailure> {
    let WorkerKind::Native = args.kind;
    let socket = std::io::stdin().as_fd().try_clone_to_owned().doing("standard input")?;
    let node = NodeId(args.node);
    // Unless it makes something, the umask has no effect.
    let context = CallerContext::of_process(0o077);
    let place = WorkerPlace { client: connect(args)?, node, context };
    let task_time = Duration::from_secs(args.task_seconds);
    let settings = WorkerSettings { cores: args.cores, task_time };
    Ok(serve(UnixStream::from(socket), &place, MODULES, settings)?)
}

fn connect(args: &WorkerArgs) -> Result<Client, CommandFailure> {
    let options = ClientOptions { timeout: TIMEOUT, ..ClientOptions::default() };
    if let Some(socket) = &args.tickets {
        let file = TicketFile::request(socket, TICKET_TIMEOUT)?;
        let nodes = NodeEntry::on_network(&file.nodes);
        let addresses = nodes.iter().flat_map(NodeEntry::addresses).collect();
        let (cluster, credential) = (file.cluster.clone(), file.credential()?);
        let config = ClusterConfig { cluster, addresses, credential, home: None };
        return Ok(Client::connect(&config, options)?);
    }
    let path = args.dir.clone().unwrap_or_default();
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let parent = path.parent().map(PathBuf::from).unwrap_or_default();
    let dir = RuntimeDir::at(parent).and_then(|base| base.cluster(name));
    let dir = dir.map_err(|error| CommandFailure::usage(format!("--dir: {error}")))?;
    Ok(Client::from_cluster_dir(&dir, options)?)
}
