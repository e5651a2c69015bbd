//! `samite status`: how a cluster is.

use std::time::Duration;

use samite_client::runtime::{ClusterFile, ClusterSetup, NodeEntry};
use samite_fs::FileSystem;
use samite_launch::{local, mounts, node_life};
use samite_placement::ClusterMap;
use samite_types::{NodeId, Redundancy, Result as SamiteResult, human_bytes};
use samite_wire::control::{NodeReachability, NodeState};
use samite_wire::status::{NodeMetrics, NodeStatus};

use crate::cluster::{ClusterTarget, FILES_DATASET};
use crate::failure::{CommandFailure, ExitCode};
use crate::health::{HealthWord, health, loss_words, losses_as_json};
use crate::metric_json::samples_as_json;
use crate::output::CommandOutput;

/// How long a node may take to answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Show how a cluster is: nodes, space, datasets, mirror groups
///
/// The first word says it all: OK; DEGRADED, when a node or a mirror is missing, or a record is damaged; LOST, when records are gone that nobody has any more,
/// until `samite acknowledge-loss`.
///
/// Exits with 0 when it is OK, 3 when the cluster is not up or a node does not answer, 6 when it is LOST, 7 when it is DEGRADED and all nodes answer.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  samite status
  samite status --json | python3 -m json.tool
  samite status > /dev/null || echo \"something is wrong: $?\"
  samite status --all")]
pub struct StatusArgs {
    /// List the clusters of this user instead
    #[arg(long)]
    all: bool,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// Shows the cluster, or all.
pub fn run(args: &StatusArgs, target: &ClusterTarget) -> Result<(), CommandFailure> {
    if args.all { all(args, target) } else { one(args, target) }
}

fn all(args: &StatusArgs, target: &ClusterTarget) -> Result<(), CommandFailure> {
    let mut out = CommandOutput::new();
    let mut clusters = Vec::new();
    for name in target.runtime.clusters()? {
        let dir = target.runtime.cluster(&name)?;
        let living = local::living_nodes(&dir).len();
        let file = dir.read_cluster_file().ok();
        let expected = file.as_ref().map(|file| file.nodes.len()).unwrap_or_default();
        let is_attached = file.is_some_and(|file| file.is_attached);
        clusters.push((name, living, expected, is_attached));
    }
    if args.json {
        let list: Vec<_> = clusters
            .iter()
            .map(|(name, living, nodes, is_attached)| {
                serde_json::json!({
                    "cluster": name, "living": living, "nodes": nodes, "attached": is_attached,
                })
            })
            .collect();
        out.json(&list)?;
    } else {
        for (name, living, nodes, is_attached) in &clusters {
            match is_attached {
                true => out.line(format!("{name}  attached, {nodes} nodes on other hosts"))?,
                false => out.line(format!("{name}  {living} of {nodes} nodes live"))?,
            }
        }
    }
    out.finish()
}

fn one(args: &StatusArgs, target: &ClusterTarget) -> Result<(), CommandFailure> {
    let file = target.cluster_file()?;
    let ask_all = || -> Vec<(&NodeEntry, SamiteResult<NodeStatus>)> {
        file.nodes.iter().map(|entry| (entry, ask(target, entry))).collect()
    };
    let mut answers = ask_all();
    let client = target.connect_to(&file.nodes, Some(TIMEOUT));
    let has_abandoned =
        answers.iter().any(|(_, answer)| answer.as_ref().is_ok_and(|status| status.abandoned > 0));
    if let (true, Ok(client)) = (has_abandoned, &client)
        && FileSystem::open(client, FILES_DATASET).and_then(|fs| fs.sweep_orphans()).is_ok()
    {
        answers = ask_all();
    }
    let map = client.and_then(|client| client.map());
    let state = |entry: &NodeEntry| map.as_ref().map_or("unknown", |map| state_of(map, entry.node));
    // The newest of those that know one: a leader is followed by all before long.
    let leader = answers.iter().filter_map(|(_, answer)| answer.as_ref().ok()?.leader).next_back();
    let word = word(map.as_ref().ok().map(|map| &**map), &answers);
    let losses = map.as_ref().map_or_else(|_| Vec::new(), |map| map.losses_known());
    let mut out = CommandOutput::new();
    if args.json {
        let nodes: Vec<_> = answers
            .iter()
            .map(|(entry, answer)| node_as_json(target, entry, answer, state(entry)))
            .collect();
        out.json(&serde_json::json!({
            "cluster": file.cluster,
            "created_s": file.created_s,
            "health": word.text(),
            "losses": losses_as_json(&losses),
            "epoch": map.as_ref().ok().map(|map| map.epoch()),
            "partitions": map.as_ref().ok().map(|map| map.partitions()),
            "datasets": map.as_ref().ok().map(|map| {
                map.datasets().iter().map(|dataset| dataset.spec.name.clone()).collect::<Vec<_>>()
            }),
            "leader": leader,
            "tls": file.setup.tls,
            "groups": map.as_ref().ok().map(|map| groups(map).collect::<Vec<_>>()),
            "nodes": nodes,
        }))?;
    } else {
        match losses.is_empty() {
            true => out.line(word.text())?,
            false => out.line(format!("{}  {}", word.text(), loss_words(&losses)))?,
        }
        if let Ok(map) = &map {
            head(&mut out, &file.cluster, map)?;
            mirrors(&mut out, map, leader, &answers)?;
        }
        durable(&mut out, &answers)?;
        tls(&mut out, &file.setup)?;
        table(&mut out, &answers, state)?;
        workers(&mut out, &answers)?;
        ends(&mut out, target, &file, &answers)?;
    }
    out.finish()?;
    end(&file.cluster, word, &answers)
}

/// How the command ends when the cluster is so.
fn end(
    cluster: &str,
    word: HealthWord,
    answers: &[(&NodeEntry, SamiteResult<NodeStatus>)],
) -> Result<(), CommandFailure> {
    let silent: Vec<String> = answers
        .iter()
        .filter_map(|(entry, answer)| {
            let words = answer.as_ref().err()?.to_string();
            // The caller knows which cluster it is.
            let prefix = format!("cluster {cluster}: ");
            Some(format!("{} does not answer: {}", entry.node, words.replace(&prefix, "")))
        })
        .collect();
    let message = match silent.is_empty() {
        true => String::new(),
        false => format!("cluster {}: {}", cluster, silent.join("; ")),
    };
    match word {
        HealthWord::Lost => Err(CommandFailure::new(ExitCode::Damaged, message)),
        _ if !silent.is_empty() => Err(CommandFailure::new(ExitCode::Unreachable, message)),
        HealthWord::Degraded => Err(CommandFailure::new(ExitCode::Degraded, message)),
        HealthWord::Ok => Ok(()),
    }
}

/// How the cluster is, by its map and what its nodes say.
fn word(
    map: Option<&ClusterMap>,
    answers: &[(&NodeEntry, SamiteResult<NodeStatus>)],
) -> HealthWord {
    let is_whole = |answer: &SamiteResult<NodeStatus>| {
        answer.as_ref().is_ok_and(|status| status.scrub.left == 0)
    };
    match HealthWord::of(map) {
        HealthWord::Ok if !answers.iter().all(|(_, answer)| is_whole(answer)) => {
            HealthWord::Degraded
        }
        word => word,
    }
}

/// Each node is asked by a client of its own, so that a dead one does not stand in the way of the others.
fn ask(target: &ClusterTarget, entry: &NodeEntry) -> SamiteResult<NodeStatus> {
    target
        .connect_to(std::slice::from_ref(entry), Some(TIMEOUT))
        .and_then(|client| client.node_status(entry.node))
}

/// A node, and all that it tells of itself.
fn node_as_json(
    target: &ClusterTarget,
    entry: &NodeEntry,
    answer: &SamiteResult<NodeStatus>,
    state: &str,
) -> serde_json::Value {
    let socket = entry.process.as_ref().map(|process| &process.socket);
    match answer {
        Ok(status) => {
            let metrics = ask_metrics(target, entry).ok();
            serde_json::json!({
                "node": entry.node, "pid": status.pid, "socket": socket, "tcp": entry.tcp,
                "host": entry.host, "serving": true, "state": state, "status": status,
                "metrics_address": metrics.as_ref().and_then(|all| all.address.as_ref()),
                "metrics": metrics.as_ref().map(|all| samples_as_json(&all.samples)),
            })
        }
        Err(error) => serde_json::json!({
            "node": entry.node, "pid": entry.pid(), "socket": socket, "tcp": entry.tcp,
            "host": entry.host, "serving": false, "state": state, "error": error.message(),
            "ended": node_life::ended(&target.dir, entry),
        }),
    }
}

/// The metrics of a node; one of another version may have none.
fn ask_metrics(target: &ClusterTarget, entry: &NodeEntry) -> SamiteResult<NodeMetrics> {
    target
        .connect_to(std::slice::from_ref(entry), Some(TIMEOUT))
        .and_then(|client| client.node_metrics(entry.node))
}

/// The line about the whole.
fn head(out: &mut CommandOutput, cluster: &str, map: &ClusterMap) -> Result<(), CommandFailure> {
    let names: Vec<&str> =
        map.datasets().iter().map(|dataset| dataset.spec.name.as_str()).collect();
    out.line(format!(
        "cluster {cluster}: epoch {}, {} partitions, datasets: {}",
        map.epoch().get(),
        map.partitions(),
        if names.is_empty() { "none".to_owned() } else { names.join(", ") },
    ))
}

/// The line about what is on flash, if anything is.
fn durable(
    out: &mut CommandOutput,
    answers: &[(&NodeEntry, SamiteResult<NodeStatus>)],
) -> Result<(), CommandFailure> {
    let statuses = answers.iter().filter_map(|(_, answer)| answer.as_ref().ok());
    let (log, checkpoints) = statuses.fold((0, 0), |(log, checkpoints), status| {
        (log + status.log_bytes, checkpoints + status.checkpoint_bytes)
    });
    if log + checkpoints == 0 {
        return Ok(());
    }
    let (log, checkpoints) = (human_bytes(log), human_bytes(checkpoints));
    out.line(format!("durable: logs of {log}, checkpoints of {checkpoints}"))
}

/// The line about TLS, where there is tcp.
fn tls(out: &mut CommandOutput, setup: &ClusterSetup) -> Result<(), CommandFailure> {
    if !setup.tcp {
        return Ok(());
    }
    let tls = match (setup.tls, &setup.tls_files) {
        (false, _) => "off",
        (true, None) => "on, with keys that come of the cluster key",
        (true, Some(_)) => "on, with certificates from files",
    };
    out.line(format!("tls on tcp: {tls}"))
}

/// The state of a node in the cluster map.
fn state_of(map: &ClusterMap, node: NodeId) -> &'static str {
    match map.state(node) {
        Some(NodeState { reachability: NodeReachability::Offline, .. }) => "offline",
        Some(NodeState { reachability: NodeReachability::ProbablyOffline, .. }) => "late",
        Some(NodeState { is_draining: true, .. }) => "draining",
        Some(_) => "online",
        None => "unknown",
    }
}

/// The groups of each redundancy, with that.
fn groups(map: &ClusterMap) -> impl Iterator<Item = serde_json::Value> {
    map.data().tables.iter().map(|table| {
        let health = health(map, table.redundancy);
        serde_json::json!({ "mirror": table.redundancy, "health": health })
    })
}

/// A line for each table of mirror groups; nothing where nothing is mirrored.
fn mirrors(
    out: &mut CommandOutput,
    map: &ClusterMap,
    leader: Option<NodeId>,
    answers: &[(&NodeEntry, SamiteResult<NodeStatus>)],
) -> Result<(), CommandFailure> {
    let tables = map.data().tables.iter().filter(|table| table.redundancy.get() > 1);
    let redundancies: Vec<Redundancy> = tables.map(|table| table.redundancy).collect();
    if redundancies.is_empty() {
        return Ok(());
    }
    let leader = leader.map_or("no coordinator leads".to_owned(), |node| format!("{node} leads"));
    let sum = |figure: fn(&NodeStatus) -> u64| -> u64 {
        answers.iter().filter_map(|(_, answer)| answer.as_ref().ok()).map(figure).sum()
    };
    let sent = sum(|status| status.resync_bytes);
    for redundancy in redundancies {
        let of = health(map, redundancy);
        out.line(format!(
            "mirrored on {}: {} groups healthy, {} degraded, {} waiting, {} moving; {} members to bring up to date ({} sent); {leader}",
            redundancy.get(), of.healthy, of.degraded, of.waiting, of.moving, of.resyncing, human_bytes(sent),
        ))?;
    }
    let lacking = sum(|status| status.resyncs_without_room);
    if lacking > 0 {
        out.line(format!(
            "{lacking} of them wait for room: remove something, or add a node (samite node add)"
        ))?;
    }
    Ok(())
}

/// A line for each process that has ended and should not have.
fn ends(
    out: &mut CommandOutput,
    target: &ClusterTarget,
    file: &ClusterFile,
    answers: &[(&NodeEntry, SamiteResult<NodeStatus>)],
) -> Result<(), CommandFailure> {
    let mut tell = |what: String, pid: u32, how: String| {
        out.line(format!("{what}: its process (pid {pid}) {how}"))
    };
    for (entry, _) in answers.iter().filter(|(_, answer)| answer.is_err()) {
        if let (Some(how), Some(pid)) = (node_life::ended(&target.dir, entry), entry.pid()) {
            tell(entry.node.to_string(), pid, how)?;
        }
    }
    if let Some(voter) = file.setup.third_voter
        && let Some(how) = node_life::ended_other(voter.pid, voter.start_ticks)
    {
        tell("third voter".to_owned(), voter.pid, how)?;
    }
    for member in file.setup.etcd_members.iter().filter(|member| member.pid > 0) {
        if let Some(how) = node_life::ended_other(member.pid, member.start_ticks) {
            tell(member.name.clone(), member.pid, how)?;
        }
    }
    for mount in mounts::records(&target.dir) {
        if let Some(how) = node_life::ended_other(mount.pid, mount.start_ticks) {
            tell(format!("mount on {}", mount.path.display()), mount.pid, how)?;
        }
    }
    Ok(())
}

/// A line for each worker process.
fn workers(
    out: &mut CommandOutput,
    answers: &[(&NodeEntry, SamiteResult<NodeStatus>)],
) -> Result<(), CommandFailure> {
    for (entry, answer) in answers {
        for worker in answer.iter().flat_map(|status| &status.workers) {
            out.line(format!(
                "node {}: {} worker of uid {} (pid {}), {} requests, {} s",
                entry.node, worker.kind, worker.uid, worker.pid, worker.requests, worker.uptime_s,
            ))?;
        }
    }
    Ok(())
}

fn table(
    out: &mut CommandOutput,
    answers: &[(&NodeEntry, SamiteResult<NodeStatus>)],
    state: impl Fn(&NodeEntry) -> &'static str,
) -> Result<(), CommandFailure> {
    out.line(format!(
        "{:<5} {:>8} {:<8} {:>10} {:>10} {:>6} {:>10} {:>6} {:>12} {:>9}",
        "node",
        "pid",
        "state",
        "capacity",
        "used",
        "use%",
        "records",
        "links",
        "operations",
        "uptime"
    ))?;
    for (entry, answer) in answers {
        let node = entry.node.to_string();
        let pid = answer.as_ref().map_or_else(|_| entry.pid(), |status| Some(status.pid));
        let pid = pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
        let host = entry.host.as_ref().map(|host| format!(" on {host}")).unwrap_or_default();
        match answer {
            Ok(status) => out.line(format!(
                "{node:<5} {pid:>8} {:<8} {:>10} {:>10} {:>5}% {:>10} {:>6} {:>12} {:>7} s{host}",
                match state(entry) {
                    "online" => "serving",
                    other => other,
                },
                human_bytes(status.capacity_bytes),
                human_bytes(status.used_bytes),
                status.used_bytes * 100 / status.capacity_bytes.max(1),
                status.records,
                status.connections,
                status.operations,
                status.uptime_s,
            ))?,
            Err(_) => out.line(format!("{node:<5} {pid:>8} {:<8}{host}", "silent"))?,
        }
    }
    for (entry, answer) in answers {
        for target in answer.iter().flat_map(|status| &status.targets) {
            out.line(format!(
                "node {}: target {} holds {} of {}",
                entry.node,
                target.backend,
                human_bytes(target.used_bytes),
                human_bytes(target.capacity_bytes),
            ))?;
        }
    }
    Ok(())
}
