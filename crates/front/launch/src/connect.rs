//! The way to nodes that were started.

use std::time::Duration;

use samite_client::runtime::{ClusterDir, ClusterSetup, NodeEntry};
use samite_client::{Client, ClientOptions, ClusterConfig, ENV_TRANSPORT, transport_from_env};
use samite_types::{Error, ErrorKind, Result};

/// The way to these nodes of the cluster at `dir`: every address, or those of the transport that
/// the environment names.
///
/// # Errors
/// `Unavailable`: no node has an address of that transport; the cluster's key cannot be read.
pub fn cluster_config(dir: &ClusterDir, nodes: &[NodeEntry]) -> Result<ClusterConfig> {
    let transport = transport_from_env()?;
    let mut addresses: Vec<String> = nodes.iter().flat_map(NodeEntry::addresses).collect();
    if let Some(transport) = transport {
        addresses.retain(|address| address.starts_with(&format!("{transport}://")));
        if addresses.is_empty() {
            let words = format!("{ENV_TRANSPORT}={transport}: no node has an address of this kind");
            return Err(Error::new(ErrorKind::Unavailable, words));
        }
    }
    Ok(ClusterConfig {
        cluster: dir.name().to_owned(),
        addresses,
        credential: dir.read_credential()?,
        home: Some(dir.clone()),
    })
}

/// A client of the cluster at `dir` that knows these nodes, and makes datasets by itself as `setup`
/// says. `timeout` is for each request; `None`: the usual one.
///
/// # Errors
/// As [`Client::connect`] and [`cluster_config`].
pub fn connect(
    dir: &ClusterDir,
    nodes: &[NodeEntry],
    setup: &ClusterSetup,
    timeout: Option<Duration>,
) -> Result<Client> {
    let transport = transport_from_env()?;
    let config = cluster_config(dir, nodes)?;
    let (redundancy, reads) = (setup.redundancy, setup.reads);
    let mut options = ClientOptions { transport, redundancy, reads, ..ClientOptions::default() };
    if let Some(timeout) = timeout {
        options.timeout = timeout;
    }
    Client::connect(&config, options)
        .map_err(|error| error.context(format_args!("cluster {}", dir.name())))
}
