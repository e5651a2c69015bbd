//! An etcd cluster on this machine: the settings of its members.

use std::ffi::OsString;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::path::PathBuf;

use samite_types::{Entropy, Error, ErrorKind, Result, SystemEntropy};

/// Name of etcd's program.
pub const ETCD_PROGRAM: &str = "etcd";

/// Ports that the kernel gives to no program that leaves the choice to it, unless the host was set
/// otherwise. Of those that it gives, one may be taken by a node or a connection before etcd
/// listens there, or while a member of etcd is down.
const PORTS: Range<u16> = 16_384..32_768;
/// Ports tried before the choice is left to the kernel.
const TRIES: usize = 64;

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

/// Listens at a port that was free.
fn free() -> std::io::Result<TcpListener> {
    let listen = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port));
    let count = u64::from(PORTS.end - PORTS.start);
    let some = || PORTS.start + (SystemEntropy.next_u64() % count) as u16;
    (0..TRIES).find_map(|_| listen(some()).ok()).map_or_else(|| listen(0), Ok)
}

impl LocalMember {
    /// `count` members with ports that are free now, and directories in `dir`.
    ///
    /// # Errors
    /// No ports can be had.
    pub fn plan(dir: &std::path::Path, count: usize) -> Result<Vec<Self>> {
        // All ports are held until all are found, so that none comes twice.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_none_that_the_kernel_gives_away() {
        let members = LocalMember::plan(std::path::Path::new("/none"), 100).unwrap();
        let ports = members.iter().flat_map(|member| [member.client_port, member.peer_port]);
        let mut ports: Vec<u16> = ports.collect();
        assert!(ports.iter().all(|port| PORTS.contains(port)), "{ports:?}");
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 200);
    }
}
