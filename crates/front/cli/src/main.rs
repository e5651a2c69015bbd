//! The `samite` command.

mod cluster;
mod commands;
mod failure;
mod health;
mod log;
mod metric_json;
mod mount_helper;
mod output;
mod paths;
mod service_manager;
mod signals;
mod size;
mod tls;
mod turns;

use std::ffi::OsString;
use std::time::Duration;

use clap::{Parser, Subcommand};

use cluster::ClusterTarget;
use commands::{
    acknowledge, attach, bench, data, dataset, df, down, du, dump, events, fault, files, find,
    host_start, job, key, kv, load, logs, ls, mount, node, object, run, scrub, set, stage, stat,
    status, ticket, tool, up, worker,
};
use failure::{CommandFailure, EXIT_CODES};

const EXAMPLES: &str = "\
Examples:
  samite up --local 2                    start a store of two nodes
  samite stage in ~/data /data           copy a tree into it
  samite run -- grep -r word /samite/data
  samite stage out /data ~/results
  samite down";

/// A store over the memory of a set of nodes, seen as files, objects and records.
///
/// Paths in the store are absolute, from the store's own root: `/data/file`. Programs started by `samite run` see the same
/// file below `/samite`.
#[derive(Parser)]
#[command(name = "samite", version = env!("SAMITE_VERSION"), max_term_width = 100, after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
struct CommandLine {
    /// Cluster to use, `default` unless given here or in SAMITE_CLUSTER
    #[arg(long = "name", global = true, value_name = "CLUSTER")]
    cluster: Option<String>,
    /// Seconds after which a request to the store is given up
    #[arg(long, global = true, value_name = "SECONDS", value_parser = parse_seconds)]
    timeout: Option<Duration>,
    #[command(subcommand)]
    command: TopCommand,
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    text.parse()
        .ok()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .filter(|timeout| !timeout.is_zero())
        .ok_or_else(|| "expected a number of seconds above 0".to_owned())
}

#[derive(Subcommand)]
enum TopCommand {
    Up(up::UpArgs),
    Status(status::StatusArgs),
    Down(down::DownArgs),
    Attach(attach::AttachArgs),
    Detach(attach::DetachArgs),
    HostStart(host_start::HostStartArgs),
    Node(node::NodeArgs),
    Run(run::RunArgs),
    Mount(mount::MountArgs),
    Umount(mount::UmountArgs),
    Stage(stage::StageArgs),
    Ls(ls::LsArgs),
    Cat(data::CatArgs),
    Put(data::PutArgs),
    Get(data::GetArgs),
    Cp(files::CpArgs),
    Mv(files::MvArgs),
    Rm(files::RmArgs),
    Mkdir(files::MkdirArgs),
    Stat(stat::StatArgs),
    Set(set::SetArgs),
    Df(df::DfArgs),
    Du(du::DuArgs),
    Find(find::FindArgs),
    Kv(kv::KvArgs),
    Object(object::ObjectArgs),
    Dataset(dataset::DatasetArgs),
    Dump(dump::DumpArgs),
    Load(load::LoadArgs),
    Fault(fault::FaultArgs),
    Scrub(scrub::ScrubArgs),
    Events(events::EventsArgs),
    Logs(logs::LogsArgs),
    AcknowledgeLoss(acknowledge::AcknowledgeArgs),
    Ticket(ticket::TicketArgs),
    Key(key::KeyArgs),
    Job(job::JobArgs),
    Grep(tool::GrepCommand),
    Wc(tool::WcCommand),
    Sort(tool::SortCommand),
    Count(tool::CountCommand),
    Sum(tool::SumCommand),
    Gen(tool::GenCommand),
    Valsort(tool::ValsortCommand),
    Bench(bench::BenchArgs),
    #[command(hide = true)]
    BenchPeer(bench::PeerArgs),
    #[command(hide = true)]
    Worker(worker::WorkerArgs),
}

fn main() {
    let arguments = arguments().unwrap_or_else(|words| {
        output::complain(&words);
        std::process::exit(failure::ExitCode::Usage as i32);
    });
    let cli = CommandLine::try_parse_from(arguments).unwrap_or_else(|error| {
        if !error.use_stderr() {
            error.exit();
        }
        let text = error.render().to_string();
        eprint!("samite: {}", text.strip_prefix("error: ").unwrap_or(&text));
        std::process::exit(failure::ExitCode::Usage as i32);
    });
    if let Err(failure) = dispatch(cli) {
        if !failure.message.is_empty() {
            output::complain(&failure.message);
        }
        std::process::exit(failure.code as i32);
    }
}

/// The command line, also when mount(8) has called.
fn arguments() -> Result<Vec<OsString>, String> {
    let Some(call) = mount_helper::read(std::env::args_os()) else {
        return Ok(std::env::args_os().collect());
    };
    let call = call?;
    if let Some(dir) = &call.runtime_dir {
        mount_helper::use_runtime_dir(dir);
    }
    if call.arguments.is_empty() {
        std::process::exit(0);
    }
    Ok(call.arguments)
}

fn dispatch(cli: CommandLine) -> Result<(), CommandFailure> {
    let target = ClusterTarget::new(cli.cluster, cli.timeout)?;
    let tells_of_nodes = matches!(cli.command, TopCommand::Status(_) | TopCommand::Node(_));
    carry_out(cli.command, &target).map_err(|failure| match failure.code {
        failure::ExitCode::Unreachable if !tells_of_nodes => {
            let ended = health::ended_nodes(&target);
            let lines = std::iter::once(failure.message).chain(ended);
            CommandFailure::new(failure.code, lines.collect::<Vec<_>>().join("\n"))
        }
        _ => failure,
    })
}

fn carry_out(command: TopCommand, target: &ClusterTarget) -> Result<(), CommandFailure> {
    match command {
        TopCommand::Up(args) => up::run(&args, target),
        TopCommand::Status(args) => status::run(&args, target),
        TopCommand::Down(args) => down::run(&args, target),
        TopCommand::Attach(args) => attach::attach(&args, target),
        TopCommand::Detach(args) => attach::detach(&args, target),
        TopCommand::HostStart(args) => host_start::run(&args, target),
        TopCommand::Node(args) => node::run(&args, target),
        TopCommand::Run(args) => run::run(&args, target),
        TopCommand::Mount(args) => mount::mount(&args, target),
        TopCommand::Umount(args) => mount::umount(&args, target),
        TopCommand::Stage(args) => stage::run(&args, target),
        TopCommand::Ls(args) => ls::run(&args, target),
        TopCommand::Cat(args) => data::cat(&args, target),
        TopCommand::Put(args) => data::put(&args, target),
        TopCommand::Get(args) => data::get(&args, target),
        TopCommand::Cp(args) => files::cp(&args, target),
        TopCommand::Mv(args) => files::mv(&args, target),
        TopCommand::Rm(args) => files::rm(&args, target),
        TopCommand::Mkdir(args) => files::mkdir(&args, target),
        TopCommand::Stat(args) => stat::run(&args, target),
        TopCommand::Set(args) => set::run(&args, target),
        TopCommand::Df(args) => df::run(&args, target),
        TopCommand::Du(args) => du::run(&args, target),
        TopCommand::Find(args) => find::run(&args, target),
        TopCommand::Kv(args) => kv::run(&args, target),
        TopCommand::Object(args) => object::run(&args, target),
        TopCommand::Dataset(args) => dataset::run(&args, target),
        TopCommand::Dump(args) => dump::run(&args, target),
        TopCommand::Load(args) => load::run(&args, target),
        TopCommand::Fault(args) => fault::run(&args, target),
        TopCommand::Scrub(args) => scrub::run(&args, target),
        TopCommand::Events(args) => events::run(&args, target),
        TopCommand::Logs(args) => logs::run(&args, target),
        TopCommand::AcknowledgeLoss(args) => acknowledge::run(&args, target),
        TopCommand::Ticket(args) => ticket::run(&args, target),
        TopCommand::Key(args) => key::run(&args, target),
        TopCommand::Bench(args) => bench::run(&args),
        TopCommand::BenchPeer(args) => bench::peer(&args),
        TopCommand::Job(args) => job::run(&args, target),
        TopCommand::Grep(args) => tool::grep(&args, target),
        TopCommand::Sort(args) => tool::sort(&args, target),
        TopCommand::Wc(args) => tool::wc(&args, target),
        TopCommand::Count(args) => tool::count(&args, target),
        TopCommand::Sum(args) => tool::sum(&args, target),
        TopCommand::Gen(args) => tool::generate(&args, target),
        TopCommand::Valsort(args) => tool::valsort(&args, target),
        TopCommand::Worker(args) => worker::run(&args),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    /// Every command, however deep, says what it does and shows how it is used.
    #[test]
    fn every_command_has_help_and_an_example() {
        fn check(command: &clap::Command, path: &str) {
            if command.is_hide_set() {
                return;
            }
            assert!(command.get_about().is_some(), "{path}: no description");
            let example = command.get_after_help().is_some_and(|help| {
                help.to_string().contains("Example") && help.to_string().contains("samite ")
            });
            assert!(example || command.has_subcommands(), "{path}: no example");
            for sub in command.get_subcommands() {
                check(sub, &format!("{path} {}", sub.get_name()));
            }
        }
        let command = super::CommandLine::command();
        command.clone().debug_assert();
        check(&command, "samite");
    }
}
