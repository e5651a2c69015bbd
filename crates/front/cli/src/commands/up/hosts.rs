//! `samite up` on several hosts.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use samite_client::runtime::{ClusterSetup, NodeEntry};
use samite_launch::hosts::list;
use samite_launch::hosts::serving::{HostsPlan, ServingHosts, StartingHosts};
use samite_launch::hosts::session::HostLauncher;
use samite_launch::local;
use samite_transport::host::{host_identity, label_of};
use samite_types::{Entropy as _, Redundancy, SystemEntropy, human_bytes};

use super::UpArgs;
use crate::cluster::{ClusterTarget, FILES_DATASET};
use crate::commands::attach;
use crate::failure::{CommandFailure, ExitCode};
use crate::output::{CommandOutput, complain};
use crate::signals;

/// The arguments of `samite up` about several hosts.
#[derive(clap::Args)]
pub struct HostsArgs {
    /// Start one node on each of these hosts [default, in a job of Slurm or PBS: the job's hosts]
    #[arg(long, value_name = "HOST,…", value_delimiter = ',', conflicts_with = "local")]
    hosts: Vec<String>,
    /// The same, with the hosts in a file, one on each line
    #[arg(long, value_name = "FILE", conflicts_with_all = ["local", "hosts"])]
    hostfile: Option<PathBuf>,
    #[command(flatten)]
    by: LauncherArgs,
    /// Go on without hosts that do not answer or cannot take a node, if so many do [default: all]
    #[arg(long, value_name = "N", conflicts_with = "local")]
    at_least: Option<usize>,
}

/// The way to start nodes on other hosts.
#[derive(clap::Args)]
pub struct LauncherArgs {
    /// The command that runs a program on a host: it is given the host's name, and the program with its arguments [default: `ssh -o BatchMode=yes`; in a job of Slurm srun]
    #[arg(long, value_name = "COMMAND")]
    launcher: Option<String>,
    /// The `samite` binary on the hosts [default: the path of this one]
    #[arg(long, value_name = "PATH")]
    program: Option<String>,
    /// The port on which a node listens on its host [default: a free one, or the one it had]
    #[arg(long, value_name = ":PORT", value_parser = parse_port)]
    listen: Option<u16>,
}

impl LauncherArgs {
    /// The command that was named.
    fn named_launcher(&self) -> Result<Option<HostLauncher>, CommandFailure> {
        let Some(text) = &self.launcher else { return Ok(None) };
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        match words.is_empty() {
            true => Err(CommandFailure::usage("--launcher: no command")),
            false => Ok(Some(HostLauncher::Words(words))),
        }
    }

    /// The command, or the usual one.
    pub fn launcher(&self) -> Result<HostLauncher, CommandFailure> {
        Ok(self.named_launcher()?.unwrap_or_else(|| list::usual_launcher(variable)))
    }

    /// The binary.
    pub fn program(&self) -> Result<String, CommandFailure> {
        if let Some(program) = &self.program {
            return Ok(program.clone());
        }
        let own = std::env::current_exe();
        let own = own
            .map_err(|error| CommandFailure::failed(format!("find the samite binary: {error}")))?;
        Ok(own.display().to_string())
    }

    /// The port.
    pub const fn port(&self) -> Option<u16> {
        self.listen
    }
}

/// A variable of the environment that is not empty.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The hosts in a file.
pub fn hosts_in_file(path: &Path) -> Result<Vec<String>, CommandFailure> {
    let hosts = list::from_file(path);
    hosts.map_err(|error| CommandFailure::usage(format!("--hostfile: {error}")))
}

/// A port, as `:7001` or `7001`.
fn parse_port(text: &str) -> Result<u16, String> {
    let number = text.strip_prefix(':').unwrap_or(text).parse().ok();
    number.filter(|port| *port != 0).ok_or_else(|| "expected a port, as :7001".to_owned())
}

/// Hosts, and the way to run a program on each.
pub type HostsOfCluster = (Vec<String>, HostLauncher);

impl HostsArgs {
    /// The hosts that are named, or those of the job; `None`: neither.
    pub fn hosts(&self) -> Result<Option<HostsOfCluster>, CommandFailure> {
        let launcher = self.by.named_launcher()?;
        let named = if !self.hosts.is_empty() {
            let names = list::check(self.hosts.iter().map(String::as_str));
            let usage = |error| CommandFailure::usage(format!("--hosts: {error}"));
            Some((names.map_err(usage)?, list::ssh()))
        } else if let Some(path) = &self.hostfile {
            Some((hosts_in_file(path)?, list::ssh()))
        } else {
            list::of_job(variable)?
        };
        Ok(named.map(|(hosts, usual)| (hosts, launcher.unwrap_or(usual))))
    }
}

/// Starts the cluster.
pub fn run(
    args: &UpArgs,
    (hosts, launcher): HostsOfCluster,
    target: &ClusterTarget,
) -> Result<(), CommandFailure> {
    let begun = Instant::now();
    check(args, hosts.len())?;
    check_free(target)?;
    let program = args.far.by.program()?;
    let mut key = [0; 32];
    SystemEntropy.fill(&mut key);
    let plan = HostsPlan {
        cluster: target.dir.name().to_owned(),
        key,
        at_least: args.far.at_least.unwrap_or(hosts.len()),
        hosts,
        launcher,
        program,
        port: args.far.by.port(),
        setup: setup(args),
        files_dataset: FILES_DATASET,
    };
    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&interrupted);
    signals::on_stop(move || flag.store(true, Ordering::Relaxed))?;
    let mut nodes = StartingHosts::new(plan);
    let until = begun + Duration::from_secs(args.wait);
    let up = bring_up(&mut nodes, until, &interrupted, target);
    let serving = up.map_err(|(failure, mut late)| {
        late.extend(nodes.give_up());
        let mut words = format!("cluster {}: not started: {}", target.dir.name(), failure.message);
        if !late.is_empty() {
            words.push_str(&format!("; perhaps something is left on {}", late.join(", ")));
        }
        CommandFailure::new(failure.code, words)
    })?;
    for words in nodes.left_out() {
        complain(format!("left out: {words}"));
    }
    report(args, target, &serving, nodes.setup(), begun.elapsed())
}

/// Starts the nodes, waits until they serve, has the hosts keep them, and describes them on this
/// host.
///
/// # Errors
/// With it, hosts that have kept a node and may not have ended it.
fn bring_up(
    nodes: &mut StartingHosts,
    until: Instant,
    interrupted: &AtomicBool,
    target: &ClusterTarget,
) -> Result<ServingHosts, (CommandFailure, Vec<String>)> {
    let serving = start(nodes, until, interrupted).map_err(|failure| (failure, Vec::new()))?;
    let kept = nodes.keep(interrupted).map_err(CommandFailure::from);
    match kept.and_then(|()| describe(nodes, &serving, target)) {
        Ok(()) => Ok(serving),
        Err(failure) => Err((failure, nodes.end_kept(&serving.client))),
    }
}

fn start(
    nodes: &mut StartingHosts,
    until: Instant,
    interrupted: &AtomicBool,
) -> Result<ServingHosts, CommandFailure> {
    let shows = std::io::stderr().is_terminal();
    let mut progress = |what: &str, done: usize, all: usize| {
        if shows {
            eprint!("\r{done} of {all} {what} ");
        }
    };
    let started = nodes.start(until, interrupted, &mut progress);
    let serving = started.and_then(|()| nodes.wait_until_serving(until, interrupted));
    if shows {
        eprint!("\r\x1b[K");
    }
    Ok(serving?)
}

/// Describes the cluster in this command's directory, unless a node on this host has done so there.
fn describe(
    nodes: &StartingHosts,
    serving: &ServingHosts,
    target: &ClusterTarget,
) -> Result<(), CommandFailure> {
    if nodes.describes(&host_identity()?, target.dir.path()) {
        return Ok(());
    }
    attach::write(&serving.client, &serving.map, &target.dir, &nodes.keys(), None).map(drop)
}

/// Refuses options that several hosts cannot have.
fn check(args: &UpArgs, hosts: usize) -> Result<(), CommandFailure> {
    let refused = [
        (args.durable.is_some(), "--durable"),
        (args.coordinator.is_some(), "--coordinator"),
        (args.no_tcp, "--no-tcp"),
        (args.metrics.is_some(), "--metrics"),
        (args.tls.has_files(), "--tls-cert"),
    ];
    if let Some((_, option)) = refused.iter().find(|(is_given, _)| *is_given) {
        return Err(CommandFailure::usage(format!("{option} is for --local only, so far")));
    }
    let least = args.far.at_least.unwrap_or(hosts);
    if least == 0 || least > hosts {
        return Err(CommandFailure::usage(format!(
            "--at-least: 1 to {hosts}, the hosts there are"
        )));
    }
    if usize::from(args.mirror) > least {
        let words = format!("--mirror {}: there may be only {least} nodes", args.mirror);
        return Err(CommandFailure::usage(words));
    }
    Ok(())
}

/// Refuses a name that is used here.
fn check_free(target: &ClusterTarget) -> Result<(), CommandFailure> {
    let dir = &target.dir;
    // No host but those with nodes claims it.
    local::check_not_attached(dir)?;
    if local::living_nodes(dir).is_empty() {
        return Ok(());
    }
    let name = dir.name();
    Err(CommandFailure::new(
        ExitCode::Conflict,
        format!(
            "cluster {name}: up already; `samite down --name {name}` ends that, another --name starts a second one"
        ),
    ))
}

fn setup(args: &UpArgs) -> ClusterSetup {
    ClusterSetup {
        redundancy: Redundancy(args.mirror),
        reads: args.reads,
        memory_bytes: args.memory.unwrap_or(0),
        shards: args.shards,
        partitions: args.partitions,
        tcp: true,
        tls: args.tls.is_on(),
        scrub_interval_us: args.scrub_interval.map(|time| time.as_micros() as u64),
        is_founded: true,
        ..ClusterSetup::default()
    }
}

fn report(
    args: &UpArgs,
    target: &ClusterTarget,
    serving: &ServingHosts,
    setup: &ClusterSetup,
    elapsed: Duration,
) -> Result<(), CommandFailure> {
    let (name, map) = (target.dir.name(), &serving.map);
    let mut out = CommandOutput::new();
    let capacity = |targets: &[samite_wire::control::TargetInfo]| -> u64 {
        targets.iter().map(|target| target.capacity_bytes).sum()
    };
    if args.json {
        let nodes = map.nodes().iter().map(|info| {
            serde_json::json!({
                "node": info.node, "host": label_of(&info.host), "addresses": info.addresses,
                "memory_bytes": capacity(&info.targets),
            })
        });
        out.json(&serde_json::json!({
            "cluster": name,
            "nodes": nodes.collect::<Vec<_>>(),
            "mirror": setup.redundancy,
            "partitions": map.partitions(),
            "coordinators": setup.coordinators,
            "epoch": map.epoch(),
            "seconds": elapsed.as_secs_f64(),
        }))?;
        return out.finish();
    }
    let count = map.nodes().len();
    let (plural, partitions) = (if count == 1 { "" } else { "s" }, map.partitions());
    let seconds = elapsed.as_secs_f64();
    let mirrored = match setup.redundancy.get() {
        1 => String::new(),
        copies => format!(", mirrored on {copies}"),
    };
    out.line(format!(
        "cluster {name}: serving, {count} host{plural}, {partitions} partitions{mirrored}, after {seconds:.2} s"
    ))?;
    for info in map.nodes() {
        let network = NodeEntry::from_map(info, None, "").network_address().unwrap_or_default();
        let memory = human_bytes(capacity(&info.targets));
        out.line(format!("  {}  on {}  {memory}  {network}", info.node, label_of(&info.host)))?;
    }
    if count > 1 && setup.redundancy.get() == 1 {
        let words = "  nothing is mirrored: a host that dies takes its data with it (--mirror 2)";
        out.line(words)?;
    }
    if count > 1 && setup.coordinators == 1 {
        out.line(
            "  n0 alone keeps the cluster map: its death stops all until it is started again",
        )?;
    }
    let option = ClusterTarget::option_for(name);
    out.line(format!("next: samite run{option} -- ls /samite     end: samite down{option}"))?;
    out.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_numbers_with_or_without_a_colon() {
        assert_eq!((parse_port(":7001"), parse_port("80")), (Ok(7001), Ok(80)));
        for bad in ["", ":", ":0", "h:1", "70000"] {
            assert!(parse_port(bad).is_err(), "{bad:?}");
        }
    }
}
