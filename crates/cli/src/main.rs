//! The `samite` command.

mod cluster;
mod commands;
mod failure;
mod health;
mod local;
mod output;
mod paths;
mod signals;
mod size;
mod turns;

use std::time::Duration;

use clap::{Parser, Subcommand};

use cluster::Target;
use commands::{
    acknowledge, bench, data, dataset, df, down, fault, files, kv, ls, mount, node, object, run,
    scrub, set, stage, stat, status, up,
};
use failure::{EXIT_CODES, Failure};

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
#[command(name = "samite", version, max_term_width = 100, after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
struct Cli {
    /// Cluster to use, `default` unless given here or in SAMITE_CLUSTER
    #[arg(long = "name", global = true, value_name = "CLUSTER")]
    cluster: Option<String>,
    /// Seconds after which a request to the store is given up
    #[arg(long, global = true, value_name = "SECONDS", value_parser = parse_seconds)]
    timeout: Option<Duration>,
    #[command(subcommand)]
    command: Command,
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    text.parse()
        .ok()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .filter(|timeout| !timeout.is_zero())
        .ok_or_else(|| "expected a number of seconds above 0".to_owned())
}

#[derive(Subcommand)]
enum Command {
    Up(up::Args),
    Status(status::Args),
    Down(down::Args),
    Node(node::Args),
    Run(run::Args),
    Mount(mount::MountArgs),
    Umount(mount::UmountArgs),
    Stage(stage::Args),
    Ls(ls::Args),
    Cat(data::CatArgs),
    Put(data::PutArgs),
    Get(data::GetArgs),
    Cp(files::CpArgs),
    Mv(files::MvArgs),
    Rm(files::RmArgs),
    Mkdir(files::MkdirArgs),
    Stat(stat::Args),
    Set(set::Args),
    Df(df::Args),
    Kv(kv::Args),
    Object(object::Args),
    Dataset(dataset::Args),
    Fault(fault::Args),
    Scrub(scrub::Args),
    AcknowledgeLoss(acknowledge::Args),
    Bench(bench::Args),
    #[command(hide = true)]
    BenchPeer(bench::PeerArgs),
}

fn main() {
    let cli = Cli::try_parse().unwrap_or_else(|error| {
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

fn dispatch(cli: Cli) -> Result<(), Failure> {
    let target = Target::new(cli.cluster, cli.timeout)?;
    let tells_of_nodes = matches!(cli.command, Command::Status(_) | Command::Node(_));
    carry_out(cli.command, &target).map_err(|failure| match failure.code {
        failure::ExitCode::Unreachable if !tells_of_nodes => {
            let ended = health::ended_nodes(&target);
            let lines = std::iter::once(failure.message).chain(ended);
            Failure::new(failure.code, lines.collect::<Vec<_>>().join("\n"))
        }
        _ => failure,
    })
}

fn carry_out(command: Command, target: &Target) -> Result<(), Failure> {
    match command {
        Command::Up(args) => up::run(&args, target),
        Command::Status(args) => status::run(&args, target),
        Command::Down(args) => down::run(&args, target),
        Command::Node(args) => node::run(&args, target),
        Command::Run(args) => run::run(&args, target),
        Command::Mount(args) => mount::mount(&args, target),
        Command::Umount(args) => mount::umount(&args, target),
        Command::Stage(args) => stage::run(&args, target),
        Command::Ls(args) => ls::run(&args, target),
        Command::Cat(args) => data::cat(&args, target),
        Command::Put(args) => data::put(&args, target),
        Command::Get(args) => data::get(&args, target),
        Command::Cp(args) => files::cp(&args, target),
        Command::Mv(args) => files::mv(&args, target),
        Command::Rm(args) => files::rm(&args, target),
        Command::Mkdir(args) => files::mkdir(&args, target),
        Command::Stat(args) => stat::run(&args, target),
        Command::Set(args) => set::run(&args, target),
        Command::Df(args) => df::run(&args, target),
        Command::Kv(args) => kv::run(&args, target),
        Command::Object(args) => object::run(&args, target),
        Command::Dataset(args) => dataset::run(&args, target),
        Command::Fault(args) => fault::run(&args, target),
        Command::Scrub(args) => scrub::run(&args, target),
        Command::AcknowledgeLoss(args) => acknowledge::run(&args, target),
        Command::Bench(args) => bench::run(&args),
        Command::BenchPeer(args) => bench::peer(&args),
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
        let command = super::Cli::command();
        command.clone().debug_assert();
        check(&command, "samite");
    }
}
