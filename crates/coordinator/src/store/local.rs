//! An etcd cluster on this machine: what its members are told.

use std::ffi::OsString;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;

use samite_types::{Error, ErrorKind, Result};

/// Name of etcd's program.
pub const ETCD_PROGRAM: &str = "etcd";

/// One member of a local etcd cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalMember {
    /// Name, unique in the cluster.
    pub name: String,
    /// Where it keeps its data.
    pub dir: PathBuf,
    /// Port for clients on 127.0.0.1.
    pub client_port: u16,
    /// Port for the other members on 127.0.0.1.
    pub peer_port: u16,
}

impl LocalMember {
    /// `count` members with ports that are free now, and directories in `dir`.
    ///
    /// # Errors
    /// No ports can be had.
    pub fn plan(dir: &std::path::Path, count: usize) -> Result<Vec<Self>> {
        let free = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
        // All are held until all are found, so that none comes twice.
        let listeners: std::io::Result<Vec<_>> = (0..2 * count).map(|_| free()).collect();
        let ports: std::io::Result<Vec<u16>> = listeners.and_then(|listeners| {
            listeners.iter().map(|listener| Ok(listener.local_addr()?.port())).collect()
        });
        let ports =
            ports.map_err(|error| Error::new(ErrorKind::Io, format!("ports for etcd: {error}")))?;
        let member = |(number, pair): (usize, &[u16])| {
            let name = format!("etcd{number}");
            Self { dir: dir.join(&name), name, client_port: pair[0], peer_port: pair[1] }
        };
        Ok(ports.chunks_exact(2).enumerate().map(member).collect())
    }

    /// Where clients reach it.
    #[must_use]
    pub fn client_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.client_port)
    }

    fn peer_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.peer_port)
    }

    /// Arguments of its process, in a cluster of `all`; the data directory comes first, as `--data-dir DIR`. The same for its first start
    /// and for every later one.
    #[must_use]
    pub fn args(&self, all: &[Self]) -> Vec<OsString> {
        let cluster: Vec<String> =
            all.iter().map(|member| format!("{}={}", member.name, member.peer_url())).collect();
        let mut args: Vec<OsString> = vec!["--data-dir".into(), self.dir.clone().into()];
        let pairs = [
            ("--name", self.name.clone()),
            ("--listen-client-urls", self.client_url()),
            ("--advertise-client-urls", self.client_url()),
            ("--listen-peer-urls", self.peer_url()),
            ("--initial-advertise-peer-urls", self.peer_url()),
            ("--initial-cluster", cluster.join(",")),
            // The leader key is written several times a second; nobody looks back.
            ("--auto-compaction-mode", "revision".to_owned()),
            ("--auto-compaction-retention", "1000".to_owned()),
            ("--snapshot-count", "5000".to_owned()),
            ("--log-level", "warn".to_owned()),
        ];
        for (option, value) in pairs {
            args.extend([option.into(), value.into()]);
        }
        args
    }
}
