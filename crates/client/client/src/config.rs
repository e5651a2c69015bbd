//! The settings of a client before it connects.

use std::fmt;
use std::time::Duration;

use samite_transport::{Credential, TransportKind};
use samite_types::{Error, ErrorKind, Redundancy, Result};
use samite_wire::control::ReadsKind;

use crate::runtime::ClusterDir;

/// Forces a transport for all links: `shm`, `unix`, `tcp` or `tls`.
pub const ENV_TRANSPORT: &str = "SAMITE_TRANSPORT";

/// Time that an operation may take when nobody says otherwise.
pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);

/// Where a cluster is, and the proof that one may use it.
#[derive(Clone)]
pub struct ClusterConfig {
    /// Name of the cluster.
    pub cluster: String,
    /// Addresses of some of its nodes as URLs (`shm://PATH`, `unix://PATH`, `tcp://HOST:PORT`, `tls://HOST:PORT`); the first that answers
    /// gives the cluster map.
    pub addresses: Vec<String>,
    /// The cluster key, or a ticket.
    pub credential: Credential,
    /// Where that is read from again when it is refused: it may have been changed; `None`: nowhere.
    pub home: Option<ClusterDir>,
}

impl fmt::Debug for ClusterConfig {
    /// Leaves the key out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterConfig")
            .field("cluster", &self.cluster)
            .field("addresses", &self.addresses)
            .finish_non_exhaustive()
    }
}

/// The transport that the environment forces ([`ENV_TRANSPORT`]), if any.
///
/// # Errors
/// [`ErrorKind::Invalid`]: it names no transport.
pub fn transport_from_env() -> Result<Option<TransportKind>> {
    match std::env::var_os(ENV_TRANSPORT).filter(|value| !value.is_empty()) {
        None => Ok(None),
        Some(name) => parse_transport(name.to_str().unwrap_or_default())
            .map(Some)
            .map_err(|error| error.context(ENV_TRANSPORT)),
    }
}

/// The transport called `shm`, `unix`, `tcp` or `tls`.
///
/// # Errors
/// [`ErrorKind::Invalid`]: none is called so.
pub fn parse_transport(name: &str) -> Result<TransportKind> {
    [TransportKind::Shm, TransportKind::Unix, TransportKind::Tcp, TransportKind::Tls]
        .into_iter()
        .find(|transport| transport.to_string() == name)
        .ok_or_else(|| {
            Error::new(
                ErrorKind::Invalid,
                format!("{name:?} is no transport: it is shm, unix, tcp or tls"),
            )
        })
}

/// How a client behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientOptions {
    /// Time that an operation may take, retries included, when its caller gives no deadline.
    pub timeout: Duration,
    /// The only transport to use; `None` for the best that reaches a node (shm, then unix, then tcp).
    pub transport: Option<TransportKind>,
    /// Redundancy of datasets that are made without anybody's asking, as that of the files.
    pub redundancy: Redundancy,
    /// The members that answer their reads.
    pub reads: ReadsKind,
}

impl Default for ClientOptions {
    /// 30 s; the best transport; no mirroring; primaries answer reads.
    fn default() -> Self {
        Self {
            timeout: TIMEOUT_DEFAULT,
            transport: None,
            redundancy: Redundancy(1),
            reads: ReadsKind::Primary,
        }
    }
}
