//! `samite dataset`: make, list and drop datasets.

use samite_client::{Client, Dataset};
use samite_types::{ErrorKind, Redundancy, TargetId, human_bytes};
use samite_wire::access::DatasetAccess;
use samite_wire::control::{
    BackendSpec, DatasetSpec, DistributionKind, DurabilityKind, MEMORY_BACKEND, ReadsKind,
    SemanticsKind,
};

use super::scan::{self, ScanArgs};
use crate::cluster::ClusterTarget;
use crate::failure::CommandFailure;
use crate::output::CommandOutput;
use crate::size::parse_size;

/// Datasets: create, list, drop
///
/// `samite kv`, `samite object` and the files make theirs (`kv`, `objects`, `files`) when they first need them.
#[derive(clap::Args)]
pub struct DatasetArgs {
    #[command(subcommand)]
    command: DatasetCommand,
}

#[derive(clap::Subcommand)]
enum DatasetCommand {
    /// Make a dataset; no error if it exists with the same policy
    #[command(after_help = "\
Examples:
  samite dataset create results
  samite dataset create safe --mirror 2
  samite dataset create models --mirror 3 --reads any
  samite dataset create ledger --durability logged
  samite dataset create archive --backend lmdb
  samite dataset create archive --backend posix --path /flash/archive
  samite dataset create bulk --distribution weighted=0:1,1:3 --chunk 256K")]
    Create {
        /// Name: letters, digits, `-`, `_`, `.`
        dataset: String,
        #[arg(long, value_name = "NAME", default_value = MEMORY_BACKEND, help = backend_help())]
        backend: String,
        /// Directory on the nodes' hosts for what the backend keeps, if it is to be elsewhere than the nodes' own data [default: below `up --durable`]
        #[arg(long, value_name = "DIR")]
        path: Option<String>,
        /// How the chunks of an object spread: `round-robin`, `single`, or `weighted=TARGET:WEIGHT,…`
        #[arg(long, value_name = "HOW", default_value = "round-robin", value_parser = parse_distribution)]
        distribution: DistributionKind,
        /// What directories promise, unless told otherwise: posix, session or temporary; losses of a temporary dataset are not told
        #[arg(long, value_name = "PROMISE", default_value = "posix", value_parser = parse_semantics)]
        semantics: SemanticsKind,
        /// Bytes of a chunk of files and objects: a power of two from 64K to 1M
        #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = parse_chunk)]
        chunk: u32,
        /// Who may read and change it besides root: as a file's mode, the owner's bits and others'
        #[arg(long, value_name = "MODE", default_value = "700", value_parser = parse_mode)]
        mode: u16,
        /// Nodes that hold each record [default: as `samite up --mirror` said]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=3))]
        mirror: Option<u8>,
        /// What a restart of all nodes leaves: `memory`, nothing; `logged`, every acknowledged operation (nodes need --durable) [default: memory; logged on a backend that remembers]
        #[arg(long, value_name = "WHAT", value_parser = parse_durability)]
        durability: Option<DurabilityKind>,
        /// Who answers reads: `primary`, or `any` node that holds the record, which is the one on the reader's host if there is one [default: as `up` was told]
        #[arg(long, value_name = "WHO", value_parser = parse_reads)]
        reads: Option<ReadsKind>,
    },
    /// Say who may read and change a dataset: its owner may, and root
    #[command(after_help = "\
Examples:
  samite dataset chmod 704 results      others may read it
  samite dataset chmod 700 results")]
    Chmod {
        /// Mode, as a file's
        #[arg(value_parser = parse_mode)]
        mode: u16,
        /// Name
        dataset: String,
    },
    /// Give a dataset to another user: root may
    #[command(after_help = "Example:\n  samite dataset chown 1000 results")]
    Chown {
        /// User id
        uid: u32,
        /// Name
        dataset: String,
    },
    /// List the datasets
    #[command(visible_alias = "ls", after_help = "Example:\n  samite dataset list --json")]
    List {
        /// One JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// Print version, length and key of each record
    ///
    /// Keys are those of records: a view puts a byte or more in front of the names that its users give.
    #[command(after_help = "\
Examples:
  samite dataset scan results
  samite dataset scan results --local --count     what this host has of it
  samite dataset scan results --prefix a --json")]
    Scan(ScanArgs),
    /// Remove a dataset and all of its records
    #[command(after_help = "Example:\n  samite dataset drop results")]
    Drop {
        /// Name
        dataset: String,
    },
}

/// The backends of this build; which ones there are, the nodes decide.
fn backend_help() -> String {
    let lines = samite_registry::ENTRIES.iter();
    let lines = lines.map(|entry| format!("`{}` ({})", entry.name, entry.summary));
    format!("What holds the records: {}", lines.collect::<Vec<_>>().join(", "))
}

/// What a restart of all nodes is to leave.
pub fn parse_durability(text: &str) -> Result<DurabilityKind, String> {
    match text {
        "memory" => Ok(DurabilityKind::Memory),
        "logged" => Ok(DurabilityKind::Logged),
        _ => Err("expected memory or logged".to_owned()),
    }
}

/// The members that answer reads.
pub fn parse_reads(text: &str) -> Result<ReadsKind, String> {
    match text {
        "primary" => Ok(ReadsKind::Primary),
        "any" => Ok(ReadsKind::Any),
        _ => Err("expected primary or any".to_owned()),
    }
}

fn parse_semantics(text: &str) -> Result<SemanticsKind, String> {
    match text {
        "posix" => Ok(SemanticsKind::Posix),
        "session" => Ok(SemanticsKind::Session),
        "temporary" => Ok(SemanticsKind::Temporary),
        _ => Err("expected posix, session or temporary".to_owned()),
    }
}

/// How chunks are to spread.
pub fn parse_distribution(text: &str) -> Result<DistributionKind, String> {
    match text {
        "round-robin" => return Ok(DistributionKind::RoundRobin),
        "single" => return Ok(DistributionKind::Single),
        _ => {}
    }
    let wrong = || "expected round-robin, single or weighted=TARGET:WEIGHT,… (as weighted=0:1,1:3)";
    let weights = text.strip_prefix("weighted=").ok_or_else(wrong)?;
    weights
        .split(',')
        .map(|pair| {
            let (target, weight) = pair.split_once(':')?;
            let target = target.strip_prefix('t').unwrap_or(target);
            Some((TargetId(target.parse().ok()?), weight.parse().ok()?))
        })
        .collect::<Option<Vec<_>>>()
        .map(DistributionKind::Weighted)
        .ok_or_else(|| wrong().to_owned())
}

fn parse_mode(text: &str) -> Result<u16, String> {
    u16::from_str_radix(text, 8)
        .ok()
        .filter(|mode| *mode <= DatasetAccess::MODE_MASK)
        .ok_or_else(|| "expected an octal mode from 0 to 777".to_owned())
}

fn parse_chunk(text: &str) -> Result<u32, String> {
    let len = parse_size(text)?;
    u32::try_from(len)
        .ok()
        .filter(|len| len.is_power_of_two() && (64 << 10..=1 << 20).contains(len))
        .ok_or_else(|| "expected a power of two from 64K to 1M".to_owned())
}

/// Does it.
pub fn run(args: &DatasetArgs, target: &ClusterTarget) -> Result<(), CommandFailure> {
    let client = target.connect()?;
    match &args.command {
        DatasetCommand::Create {
            dataset,
            backend,
            path,
            distribution,
            semantics,
            chunk,
            mirror,
            durability,
            reads,
            mode,
        } => {
            let own = client.spec(dataset);
            let spec = DatasetSpec {
                backend: BackendSpec { name: backend.clone(), path: path.clone() },
                distribution: distribution.clone(),
                semantics: *semantics,
                chunk_len: *chunk,
                access: DatasetAccess { mode: *mode, ..DatasetAccess::default() },
                redundancy: mirror.map_or(own.redundancy, Redundancy),
                durability: durability.unwrap_or_else(|| samite_registry::durability(backend)),
                reads: reads.unwrap_or(own.reads),
                ..own
            };
            client.create_dataset(&spec)?;
            Ok(())
        }
        DatasetCommand::Chmod { mode, dataset } => {
            Ok(client.set_access(dataset, None, Some(*mode))?)
        }
        DatasetCommand::Chown { uid, dataset } => {
            Ok(client.set_access(dataset, Some(*uid), None)?)
        }
        DatasetCommand::List { json } => list(&client, *json),
        DatasetCommand::Scan(args) => scan::run(args, &client),
        DatasetCommand::Drop { dataset } => Ok(client.drop_dataset(dataset)?),
    }
}

fn list(client: &Client, json: bool) -> Result<(), CommandFailure> {
    let map = client.refresh_map()?;
    let mut out = CommandOutput::new();
    if !json {
        out.line(format!(
            "{:<24} {:<6} {:<8} {:<12} {:<10} {:>9} {:>6} {:<10} {:<7} {:>10} {:>4}",
            "name",
            "id",
            "backend",
            "distribution",
            "semantics",
            "chunk",
            "mirror",
            "durability",
            "reads",
            "owner",
            "mode"
        ))?;
    }
    for dataset in map.datasets() {
        let spec = &dataset.spec;
        let backend = spec.backend.to_string();
        let semantics = format!("{:?}", spec.semantics).to_lowercase();
        let durability = format!("{:?}", spec.durability).to_lowercase();
        let reads = format!("{:?}", spec.reads).to_lowercase();
        let distribution = match &spec.distribution {
            DistributionKind::RoundRobin => "round-robin",
            DistributionKind::Single => "single",
            DistributionKind::Weighted(_) => "weighted",
        };
        if json {
            out.json(&serde_json::json!({
                "name": spec.name, "id": dataset.id, "backend": spec.backend.name,
                "path": spec.backend.path, "distribution": distribution,
                "semantics": semantics, "chunk_len": spec.chunk_len, "mirror": spec.redundancy,
                "durability": durability, "reads": reads, "owner": spec.access.owner,
                "mode": format!("{:03o}", spec.access.mode),
            }))?;
        } else {
            out.line(format!(
                "{:<24} {:<6} {backend:<8} {distribution:<12} {semantics:<10} {:>9} {:>6} {durability:<10} {reads:<7} {:>10} {:>4}",
                spec.name,
                dataset.id.to_string(),
                human_bytes(spec.chunk_len.into()),
                spec.redundancy.get(),
                spec.access.owner,
                format!("{:03o}", spec.access.mode)
            ))?;
        }
    }
    out.finish()
}

/// The dataset `name`; a view's `own` one is made when it is missing, as redundant as the cluster was started.
pub fn view_dataset(client: &Client, name: &str, own: &str) -> Result<Dataset, CommandFailure> {
    match client.dataset(name) {
        Err(error) if error.kind() == ErrorKind::NotFound && name == own => {
            Ok(client.create_dataset(&client.spec(own))?)
        }
        dataset => Ok(dataset?),
    }
}
