//! The place of a run of benchmarks: a temporary directory, and the clusters that are started in it
//! when first needed.

use std::path::{Path, PathBuf};

use samite_types::{Error, ErrorKind, Result};
use tempfile::TempDir;

use crate::peer::RedisServer;
use crate::store::{BenchCluster, MIRRORED, RecordHost};

/// Everything is stopped and removed when this is dropped.
pub struct BenchPlace {
    cluster: Option<BenchCluster>,
    sealed: Option<BenchCluster>,
    pair: Option<BenchCluster>,
    durable: Option<BenchCluster>,
    /// `None`: not tried yet.
    redis: Option<Result<RedisServer>>,
    /// Below the others: dropped after what lives in it.
    directory: TempDir,
}

impl BenchPlace {
    pub fn new() -> Result<Self> {
        let directory =
            tempfile::Builder::new().prefix("samite-bench-").tempdir().map_err(|error| {
                Error::new(ErrorKind::Io, format!("make a temporary directory: {error}"))
            })?;
        let (cluster, sealed, pair, durable) = (None, None, None, None);
        Ok(Self { cluster, sealed, pair, durable, redis: None, directory })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Directory of durable datasets.
    pub fn flash(&self) -> PathBuf {
        self.directory.path().join("flash")
    }

    /// A store of one node, started when first asked for.
    pub fn cluster(&mut self) -> Result<&BenchCluster> {
        if self.cluster.is_none() {
            self.cluster = Some(BenchCluster::start(&self.directory.path().join("run"), 1, &[])?);
        }
        self.cluster.as_ref().ok_or_else(|| ErrorKind::Internal.into())
    }

    /// The store with its records there, started when first asked for.
    pub fn store(&mut self, host: RecordHost) -> Result<&BenchCluster> {
        if host == RecordHost::One {
            return self.cluster();
        }
        let flash = self.flash();
        let flash = flash.to_string_lossy();
        let (place, path, nodes, extra): (_, _, _, &[&str]) = match host {
            RecordHost::OneTls => (&mut self.sealed, "sealed", 1, &["--tls"]),
            RecordHost::Durable => (&mut self.durable, "durable", 1, &["--durable", &flash]),
            _ => (&mut self.pair, "pair", 2, MIRRORED),
        };
        if place.is_none() {
            *place = Some(BenchCluster::start(&self.directory.path().join(path), nodes, extra)?);
        }
        place.as_ref().ok_or_else(|| ErrorKind::Internal.into())
    }

    /// A Redis server, started when first asked for; [`ErrorKind::Unsupported`] when it is not installed.
    pub fn redis(&mut self) -> Result<&RedisServer> {
        let path = self.directory.path();
        let redis = self.redis.get_or_insert_with(|| RedisServer::start(path));
        redis.as_ref().map_err(Clone::clone)
    }
}
