//! Where a run of benchmarks takes place: a temporary directory, and what is started in it when first needed.

use std::path::Path;

use samite_types::{Error, ErrorKind, Result};
use tempfile::TempDir;

use crate::peer::Redis;
use crate::store::{Cluster, Home};

/// Everything is stopped and removed when this is dropped.
pub struct Place {
    cluster: Option<Cluster>,
    sealed: Option<Cluster>,
    pair: Option<Cluster>,
    /// `None`: not tried yet.
    redis: Option<Result<Redis>>,
    /// Below the others: dropped after what lives in it.
    directory: TempDir,
}

impl Place {
    pub fn new() -> Result<Self> {
        let directory =
            tempfile::Builder::new().prefix("samite-bench-").tempdir().map_err(|error| {
                Error::new(ErrorKind::Io, format!("make a temporary directory: {error}"))
            })?;
        Ok(Self { cluster: None, sealed: None, pair: None, redis: None, directory })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// A store of one node, started when first asked for.
    pub fn cluster(&mut self) -> Result<&Cluster> {
        if self.cluster.is_none() {
            self.cluster = Some(Cluster::start(&self.directory.path().join("run"), 1, &[])?);
        }
        self.cluster.as_ref().ok_or_else(|| ErrorKind::Internal.into())
    }

    /// The store that has this home, started when first asked for.
    pub fn store(&mut self, home: Home) -> Result<&Cluster> {
        if home == Home::One {
            return self.cluster();
        }
        let (place, path) = match home {
            Home::OneTls => (&mut self.sealed, "sealed"),
            _ => (&mut self.pair, "pair"),
        };
        if place.is_none() {
            let (nodes, extra): (_, &[&str]) =
                if home == Home::OneTls { (1, &["--tls"]) } else { (2, &[]) };
            *place = Some(Cluster::start(&self.directory.path().join(path), nodes, extra)?);
        }
        place.as_ref().ok_or_else(|| ErrorKind::Internal.into())
    }

    /// A Redis server, started when first asked for; [`ErrorKind::Unsupported`] when it is not installed.
    pub fn redis(&mut self) -> Result<&Redis> {
        let path = self.directory.path();
        let redis = self.redis.get_or_insert_with(|| Redis::start(path));
        redis.as_ref().map_err(Clone::clone)
    }
}
