//! The record that a durable store keeps beside its nodes' directories, so that the same `up`
//! starts it again: its name, its key, and where its coordinators keep their state.
//!
//! In etcd that state is found by name and key. The members of an etcd that is started along have
//! their data here, too, and keep their ports, which they know each other by.

use std::fs::OpenOptions;
use std::io::{ErrorKind as IoKind, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, symlink};
use std::path::{Path, PathBuf};

use samite_client::ClusterKeys;
use samite_client::runtime::{ClusterDir, ClusterSetup, EtcdEntry};
use samite_types::{Error, ErrorKind, Result, SystemEntropy};
use serde::{Deserialize, Serialize};

use crate::directories::private_dir;
use crate::etcd_members;
use crate::io_context::{SystemContext as _, failed};

/// Where its coordinators keep their state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CoordinatorLocation {
    /// In a file in the first node's directory.
    Embedded,
    /// In several nodes' directories.
    Replicated,
    /// In an etcd that is started along.
    LocalEtcd,
    /// In another etcd.
    Etcd,
}

impl CoordinatorLocation {
    /// The value of the option of `up`.
    const fn option(self) -> &'static str {
        match self {
            Self::Embedded => "embedded",
            Self::Replicated => "replicated",
            Self::LocalEtcd => "etcd",
            Self::Etcd => "http://HOST:PORT,…",
        }
    }
}

/// The contents of the record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterRecord {
    /// Name of the cluster.
    pub cluster: String,
    /// Its keys, as the key file has them ([`ClusterKeys`]).
    pub key: Vec<u8>,
    /// Where its coordinators keep their state.
    pub keeper: CoordinatorLocation,
    /// Members of the etcd that is started along.
    pub etcd_members: Vec<EtcdEntry>,
    /// Nodes with the first voters, where several keep it.
    #[serde(default)]
    pub voters: u32,
    /// It has served: there is state to be found.
    pub is_founded: bool,
}

fn path_in(durable: &Path) -> PathBuf {
    durable.join("cluster.json")
}

impl ClusterRecord {
    /// For a cluster that begins.
    pub fn fresh(cluster: &str, keeper: CoordinatorLocation) -> Self {
        let key = ClusterKeys::generate(&SystemEntropy).to_bytes();
        let (cluster, etcd_members) = (cluster.to_owned(), Vec::new());
        Self { cluster, key, keeper, etcd_members, voters: 0, is_founded: false }
    }

    /// The record in `durable`, whichever cluster it is of; `None`: there is none.
    ///
    /// # Errors
    /// `Conflict`: it is not this user's alone, or no record; `Io`.
    pub fn find(durable: &Path) -> Result<Option<Self>> {
        let path = path_in(durable);
        let bytes = match std::fs::read(&path) {
            Err(error) if error.kind() == IoKind::NotFound => return Ok(None),
            bytes => bytes.doing(format_args!("read {}", path.display()))?,
        };
        let found =
            std::fs::symlink_metadata(&path).doing(format_args!("look at {}", path.display()))?;
        let own = rustix::process::geteuid().as_raw();
        if found.uid() != own || found.mode() & 0o077 != 0 || !found.is_file() {
            let shown = path.display();
            let words =
                format!("{shown}: holds a key, and is not this user's alone: `chmod 600 {shown}`");
            return Err(failed(words));
        }
        serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|error| failed(format!("{}: {error}", path.display())))
    }

    /// The record in `durable` for the cluster of that name; `None`: there is none. Without another
    /// choice, coordinators go on keeping their state where it is.
    ///
    /// # Errors
    /// `Conflict`: it is another cluster's, or keeps its map elsewhere; `Io`.
    pub fn read(
        durable: &Path,
        cluster: &str,
        keeper: Option<CoordinatorLocation>,
    ) -> Result<Option<Self>> {
        let Some(kept) = Self::find(durable)? else { return Ok(None) };
        let other = |words: String| {
            let words = format!("--durable {}: {words}; nothing was started", durable.display());
            Err(Error::new(ErrorKind::Conflict, words))
        };
        if kept.cluster != cluster {
            return other(format!("holds cluster {0}: add --name {0}", kept.cluster));
        }
        let is_meant = match keeper {
            Some(keeper) => kept.keeper == keeper,
            None => matches!(
                kept.keeper,
                CoordinatorLocation::Embedded | CoordinatorLocation::Replicated
            ),
        };
        if !is_meant && kept.is_founded {
            let option = kept.keeper.option();
            return other(format!("its cluster map is kept elsewhere: use --coordinator {option}"));
        }
        Ok(is_meant.then_some(kept))
    }

    /// Writes it to `durable`, safe whenever the machine dies.
    ///
    /// # Errors
    /// `Io`.
    pub fn write(&self, durable: &Path) -> Result<()> {
        let path = path_in(durable);
        let fresh = path.with_extension("json.new");
        let write = || -> std::io::Result<()> {
            let bytes = serde_json::to_vec_pretty(self)?;
            if std::fs::read(&path).is_ok_and(|found| found == bytes) {
                // There may be no space to write it again.
                return std::fs::File::open(durable)?.sync_all();
            }
            let mut options = OpenOptions::new();
            let mut file =
                options.write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
            file.write_all(&bytes)?;
            file.sync_all()?;
            std::fs::rename(&fresh, &path)?;
            std::fs::File::open(durable)?.sync_all()
        };
        write().doing(format_args!("write {}", path.display()))
    }

    /// The members of an etcd that is started along, with their data in `durable`: in the cluster's
    /// directory are ways there.
    ///
    /// # Errors
    /// `NotFound`: the data of a member are gone; `Conflict`: a port is in use; `Io`.
    pub fn etcd(&mut self, durable: &Path, dir: &ClusterDir, count: usize) -> Result<()> {
        if self.etcd_members.is_empty() {
            self.etcd_members = etcd_members::plan(dir, count)?;
        } else {
            check_ports(&self.etcd_members)?;
        }
        for member in &self.etcd_members {
            let data = durable.join(&member.name);
            if self.is_founded && !data.is_dir() {
                let words = format!(
                    "{}: the data of this member of etcd are gone, and with them perhaps the cluster map; restore them, nothing was started",
                    data.display()
                );
                return Err(Error::new(ErrorKind::NotFound, words));
            }
            private_dir(&data)?;
            let way = dir.path().join(&member.name);
            symlink(&data, &way).doing(format_args!("make {}", way.display()))?;
        }
        Ok(())
    }
}

/// Whether the ports that the members know each other by are free.
fn check_ports(members: &[EtcdEntry]) -> Result<()> {
    for port in members.iter().flat_map(|member| [member.client_port, member.peer_port]) {
        if let Err(error) = std::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, port)) {
            let words = format!("etcd needs port {port} again: {error}; nothing was started");
            return Err(Error::new(ErrorKind::Conflict, words));
        }
    }
    Ok(())
}

/// The place of the cluster map, and the failures that it survives; `None`: it goes without saying.
pub fn keeping(setup: &ClusterSetup) -> Option<String> {
    if !setup.etcd.is_empty() || setup.founders == 1 {
        return None;
    }
    if setup.coordinators == 1 {
        let words =
            "  n0 alone keeps the cluster map: its death stops all until it is started again";
        return Some(words.to_owned());
    }
    let mut who: Vec<String> = (0..setup.coordinators).map(|node| format!("n{node}")).collect();
    who.extend(setup.third_voter.map(|voter| format!("a third voter (pid {})", voter.pid)));
    let deaths = match (who.len() - 1) / 2 {
        1 => "any one of them".to_owned(),
        some => format!("any {some} of them"),
    };
    Some(format!("  the cluster map is kept by {}; {deaths} may die", who.join(", ")))
}
