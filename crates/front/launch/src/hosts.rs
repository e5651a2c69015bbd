//! Nodes on several hosts, started from one of them: a session with each host, in which a launcher
//! (`ssh`, `srun`, …) runs `samite host-start`.
//!
//! ```text
//!  samite up --hosts                 samite host-start, on each host
//!      │─ HostPlan: cluster, key ───────▶│ makes the directory, finds a port
//!      │◀─ HostAnswer::Place ────────────│
//!      │─ NodePlan: number, others ─────▶│ starts the node
//!      │◀─ HostAnswer::Listens ──────────│
//!      │─ KEEP, once the store serves ──▶│ waits until the store is described there
//!      │◀─ HostAnswer::Kept ─────────────│ leaves the node running
//! ```
//!
//! A session that ends before `Kept` ends the node and removes what was made for it. Only a kill of
//! `up` while some hosts have said it, and others have not, leaves nodes, which `samite down` ends. Lines of JSON go both ways; the key is on no command line.

pub mod joining;
pub mod list;
pub mod serving;
pub mod session;
pub mod start;

use std::io::{BufRead, Read as _};
use std::path::PathBuf;

use samite_client::runtime::ClusterSetup;
use samite_types::{Error, ErrorKind, NodeId, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The line by which a node is left running.
pub const KEEP: &str = "\"keep\"";
/// Longest line either way, in bytes.
const LINE_LEN_MAX: u64 = 64 << 10;

/// What a host is told first.
#[derive(Debug, Serialize, Deserialize)]
pub struct HostPlan {
    /// Name of the cluster.
    pub cluster: String,
    /// The cluster's keys, as a key file has them.
    pub keys: Vec<u8>,
    /// The host's name, by which others reach it.
    pub host: String,
    /// Names of some others.
    pub others: Vec<String>,
    /// The port to listen on; `None`: a free one.
    pub port: Option<u16>,
    /// How the node joins a cluster that is up; `None`: the cluster begins.
    #[serde(default)]
    pub joins: Option<JoinKind>,
}

/// How a node joins a cluster that is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JoinKind {
    /// Under a number that is new.
    Added,
    /// Under its own, after its process has ended. It stays once it listens, whether others live
    /// by whom it can be described or not.
    Restarted,
}

/// What it is told when it is known where all listen.
#[derive(Debug, Serialize, Deserialize)]
pub struct NodePlan {
    /// Number of the node.
    pub node: NodeId,
    /// Where the coordinators are, as URLs.
    pub coordinators: Vec<String>,
    /// How the cluster is to be.
    pub setup: ClusterSetup,
}

/// What a host says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HostAnswer {
    /// A node can be started.
    Place {
        /// The host's identity (`samite_transport::host`).
        identity: String,
        /// `HOST:PORT` at which it will listen.
        listen: String,
        /// The cluster's directory there.
        dir: PathBuf,
    },
    /// The node listens.
    Listens,
    /// The cluster is described there, and the node stays when the session ends.
    Kept,
    /// It cannot be, or has ended, in words.
    Failed(String),
}

/// Reads a line; `None`: there is none any more.
///
/// # Errors
/// `Corrupt`: it is too long, or says something else; `Io`.
pub fn read_line<T: DeserializeOwned>(input: &mut impl BufRead) -> Result<Option<T>> {
    let corrupt = |words: String| Error::new(ErrorKind::Corrupt, words);
    let mut line = Vec::new();
    let len = input
        .take(LINE_LEN_MAX + 1)
        .read_until(b'\n', &mut line)
        .map_err(|error| Error::new(ErrorKind::Io, format!("read: {error}")))?;
    if len == 0 {
        return Ok(None);
    }
    if len as u64 > LINE_LEN_MAX {
        return Err(corrupt(format!("a line of more than {LINE_LEN_MAX} bytes")));
    }
    let parsed = serde_json::from_slice(&line);
    parsed.map(Some).map_err(|error| {
        let text = String::from_utf8_lossy(&line);
        let text: String = text.trim_end().chars().take(200).collect();
        corrupt(format!("{text:?}: {error}"))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lines_round_trip_and_end() {
        let answer = HostAnswer::Place {
            identity: "b:h".into(),
            listen: "h:1".into(),
            dir: "/run/c".into(),
        };
        let mut text = serde_json::to_vec(&answer).unwrap();
        text.push(b'\n');
        text.extend_from_slice(KEEP.as_bytes());
        let mut input = &text[..];
        assert_eq!(read_line::<HostAnswer>(&mut input).unwrap(), Some(answer));
        assert_eq!(read_line::<String>(&mut input).unwrap().as_deref(), Some("keep"));
        assert_eq!(read_line::<String>(&mut input).unwrap(), None);
        let long = vec![b' '; LINE_LEN_MAX as usize + 2];
        assert!(read_line::<String>(&mut &long[..]).unwrap_err().message().contains("more than"));
    }

    proptest! {
        #[test]
        fn garbage_is_an_error_and_no_more(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            let mut input = &bytes[..];
            while let Ok(Some(_)) = read_line::<HostPlan>(&mut input) {}
            let mut input = &bytes[..];
            while let Ok(Some(_)) = read_line::<HostAnswer>(&mut input) {}
        }
    }
}
