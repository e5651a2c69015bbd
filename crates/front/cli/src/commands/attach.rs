//! `samite attach` and `samite detach`: the store of other hosts, for the programs of this one.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use samite_client::runtime::{self, ClusterDir, ClusterFile, ClusterSetup, NodeEntry};
use samite_client::{Client, ClientOptions, ClusterConfig, ClusterKeys, Credential};
use samite_launch::{local, mounts};
use samite_placement::ClusterMap;
use samite_transport::host::label_of;
use samite_transport::{Address, TlsAuthorities};
use samite_types::{ErrorKind, NodeId};

use crate::cluster::ClusterTarget;
use crate::commands::node::parse_network_address;
use crate::failure::{CommandFailure, ExitCode};
use crate::output::{CommandOutput, complain};

/// How long another command that works on the cluster is waited for.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the store may take to answer, unless the command line says otherwise.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Use a store whose nodes run on other hosts
///
/// Asks the nodes at these addresses for all others, and writes the key and a description of the cluster into the runtime directory. Then `samite run`,
/// `samite mount` and all commands work here as on the hosts of the nodes, until `samite detach`.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  samite attach tcp://a:7001,tcp://b:7001 --key-file key
  samite attach tls://a:7001 --key-file key --name big")]
pub struct AttachArgs {
    /// Addresses of some nodes, `tcp://HOST:PORT` or `tls://HOST:PORT`; one that answers is enough
    #[arg(value_name = "URLS", required = true, value_delimiter = ',', value_parser = parse_network_address)]
    urls: Vec<Address>,
    /// The cluster's key (32 bytes, mode 0600)
    #[arg(long, value_name = "FILE")]
    key_file: PathBuf,
    /// The authority that has signed the nodes' certificates (PEM), where they have their own
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<PathBuf>,
}

/// Stop using a store whose nodes run on other hosts
///
/// Ends the mounts of the store on this host, and removes what `samite attach` has written. The store goes on.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  samite detach
  samite detach --name big")]
pub struct DetachArgs {}

/// Writes down where the cluster is.
pub fn attach(args: &AttachArgs, target: &ClusterTarget) -> Result<(), CommandFailure> {
    let keys = runtime::read_key_file(&args.key_file)
        .map_err(|error| CommandFailure::usage(format!("--key-file: {error}")))?;
    let pem = args.tls_ca.as_ref().map(|path| {
        std::fs::read(path).map_err(|error| {
            CommandFailure::usage(format!("--tls-ca: read {}: {error}", path.display()))
        })
    });
    let pem = pem.transpose()?;
    let authorities = pem.clone().map(TlsAuthorities::from_pem).transpose()?;
    let credential = Credential::from(keys.current());
    let credential = match authorities {
        Some(authorities) => credential.with_authorities(authorities),
        None => credential,
    };
    let addresses: Vec<String> = args.urls.iter().map(ToString::to_string).collect();
    let config = ClusterConfig {
        // For errors: its name is not known yet.
        cluster: format!("at {}", addresses.join(",")),
        addresses,
        credential,
        home: None,
    };
    let timeout = target.timeout().unwrap_or(TIMEOUT);
    let client = Client::connect(&config, ClientOptions { timeout, ..ClientOptions::default() })?;
    let map = client.map()?;
    let dir = directory(target, &map)?;
    let file = write(&client, &map, &dir, &keys, pem.as_deref())?;
    let mut out = CommandOutput::new();
    let (name, nodes) = (dir.name(), file.nodes.len());
    let plural = if nodes == 1 { "" } else { "s" };
    let option = ClusterTarget::option_for(name);
    out.line(format!("cluster {name}: {nodes} node{plural} on {}", hosts(&file).join(", ")))?;
    out.line(format!("next: samite run{option} -- ls /samite     end: samite detach{option}"))?;
    out.finish()
}

/// Writes the key, and the description of the cluster that `client` uses, into `dir`.
pub fn write(
    client: &Client,
    map: &ClusterMap,
    dir: &ClusterDir,
    keys: &ClusterKeys,
    authorities: Option<&[u8]>,
) -> Result<ClusterFile, CommandFailure> {
    let file = describe(client, map, dir)?;
    local::make_directory(dir)?;
    let _lock = local::lock(dir, LOCK_TIMEOUT)?;
    check_free(dir)?;
    dir.write_keys(keys)?;
    if let Some(pem) = authorities {
        dir.write_authorities(pem)?;
    }
    dir.write_cluster_file(&file)?;
    Ok(file)
}

/// The directory under the name that was given, or else the cluster's own.
fn directory(target: &ClusterTarget, map: &ClusterMap) -> Result<ClusterDir, CommandFailure> {
    if target.is_named() {
        return Ok(target.dir.clone());
    }
    Ok(target.runtime.cluster(&map.data().cluster)?)
}

/// Refuses a directory that another cluster uses.
fn check_free(dir: &ClusterDir) -> Result<(), CommandFailure> {
    let name = dir.name();
    match dir.read_cluster_file() {
        Err(error)
            if error.kind() == ErrorKind::NotFound && local::living_nodes(dir).is_empty() =>
        {
            Ok(())
        }
        Ok(file) if file.is_attached => Ok(()),
        _ => Err(CommandFailure::new(
            ExitCode::Conflict,
            format!("cluster {name}: one of this name is here already; use another --name"),
        )),
    }
}

fn describe(
    client: &Client,
    map: &ClusterMap,
    dir: &ClusterDir,
) -> Result<ClusterFile, CommandFailure> {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let of = |info| NodeEntry::from_map(info, None, label_of(&info.host));
    Ok(ClusterFile {
        cluster: dir.name().to_owned(),
        nodes: map.nodes().iter().map(of).collect(),
        created_s: since.as_secs(),
        setup: setup(client, map)?,
        is_attached: true,
    })
}

/// How the cluster was set up, by the first node that tells.
fn setup(client: &Client, map: &ClusterMap) -> Result<ClusterSetup, CommandFailure> {
    let mut failed = CommandFailure::failed("no node tells how the cluster was set up");
    let nodes: Vec<NodeId> = map.nodes().iter().map(|info| info.node).collect();
    for node in nodes {
        match client.setup_at(node) {
            Ok(text) if text.is_empty() => return Ok(ClusterSetup::default()),
            Ok(text) => {
                return serde_json::from_slice(&text).map_err(|error| {
                    CommandFailure::failed(format!("{node}: how the cluster was set up: {error}"))
                });
            }
            Err(error) => failed = error.into(),
        }
    }
    Err(failed)
}

/// The hosts of the nodes, each once.
fn hosts(file: &ClusterFile) -> Vec<&str> {
    let mut hosts: Vec<&str> =
        file.nodes.iter().map(|entry| entry.host.as_deref().unwrap_or("this host")).collect();
    hosts.dedup();
    hosts
}

/// Forgets where the cluster is.
pub fn detach(_: &DetachArgs, target: &ClusterTarget) -> Result<(), CommandFailure> {
    let dir = &target.dir;
    let file = target.cluster_file()?;
    if !file.is_attached {
        let words = format!("cluster {}: nodes of it run here; `samite down` ends it", dir.name());
        return Err(CommandFailure::new(ExitCode::Conflict, words));
    }
    let _lock = local::lock(dir, LOCK_TIMEOUT)?;
    for error in mounts::end_all(dir) {
        complain(error.message());
    }
    local::clear(dir)?;
    let mut out = CommandOutput::new();
    out.line(format!("cluster {}: not used here any more; it goes on", dir.name()))?;
    out.finish()
}
