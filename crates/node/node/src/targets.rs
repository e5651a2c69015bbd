//! The targets of a node, each opened when something first needs it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use samite_backend::Backend;
use samite_backend::RestartSource;
use samite_mirror::durable::PlaceId;
use samite_registry::TargetOptions;
use samite_types::{Error, ErrorKind, NodeId, Result};
use samite_wire::control::{BackendSpec, DatasetSpec, DurabilityKind};

use crate::commit_thread::TargetThreads;
use crate::config::NodeConfig;
use crate::mutex::lock;
use crate::partitions::RecordKeeping;
use crate::shared::{NodeNotice, NodeShared};

/// Where targets without a directory of their own have one in the node's directory.
const DIRECTORY: &str = "targets";

/// One part in so many of a disk is not counted as a target's.
const LEFT_PART: u64 = 20;

/// The targets that are open, for all shards.
pub(crate) struct NodeTargets {
    node: NodeId,
    capacity_bytes: u64,
    shards: usize,
    /// The node's directory, if it has one.
    directory: Option<PathBuf>,
    opened: Mutex<BTreeMap<BackendSpec, Box<dyn Backend>>>,
    /// The threads of those that remember.
    threads: Mutex<BTreeMap<BackendSpec, Arc<TargetThreads>>>,
}

impl NodeTargets {
    /// None yet. One in memory may take as much as the node's memory, one on a disk nearly all.
    pub(crate) fn new(config: &NodeConfig) -> Self {
        Self {
            node: config.node,
            capacity_bytes: config.memory_bytes,
            shards: usize::from(config.shards),
            directory: config.flash.as_ref().map(|flash| flash.path.clone()),
            opened: Mutex::default(),
            threads: Mutex::default(),
        }
    }

    /// The threads of the target of `spec`, which remembers.
    ///
    /// # Errors
    /// As [`NodeTargets::handle`]; `Unsupported`: the node has no directory of its own.
    fn threads(&self, spec: &BackendSpec, shared: &Arc<NodeShared>) -> Result<Arc<TargetThreads>> {
        self.check_directory(spec)?;
        let target = self.handle(spec)?.commit_target();
        let target = target.ok_or_else(|| Error::from(ErrorKind::Internal))?;
        let mut threads = lock(&self.threads);
        if let Some(known) = threads.get(spec) {
            return Ok(Arc::clone(known));
        }
        let started = Arc::new(TargetThreads::start(target, &spec.name, shared)?);
        threads.insert(spec.clone(), Arc::clone(&started));
        shared.note_target(spec, self.handle(spec)?);
        Ok(started)
    }

    /// Whether the target of `spec`, which remembers, can be opened.
    ///
    /// # Errors
    /// As [`NodeTargets::handle`]; `Unsupported`: the node has no directory of its own.
    pub(crate) fn check(&self, spec: &BackendSpec) -> Result<()> {
        self.check_directory(spec)?;
        self.handle(spec).map(drop)
    }

    fn check_directory(&self, spec: &BackendSpec) -> Result<()> {
        if self.directory.is_some() {
            return Ok(());
        }
        let words = format!("backend {spec}: nodes keep nothing: start them with --durable");
        Err(Error::new(ErrorKind::Unsupported, words))
    }

    /// A handle to the target of `spec`.
    ///
    /// # Errors
    /// `Unsupported`: this build has no such backend. Errors of the backend.
    pub(crate) fn handle(&self, spec: &BackendSpec) -> Result<Box<dyn Backend>> {
        let mut opened = lock(&self.opened);
        if let Some(target) = opened.get(spec) {
            return Ok(target.handle());
        }
        let target = samite_registry::open(spec, &self.options(spec))?;
        let handle = target.handle();
        opened.insert(spec.clone(), target);
        Ok(handle)
    }

    fn options(&self, spec: &BackendSpec) -> TargetOptions {
        let named = spec.path.as_deref().map(Path::new);
        let directory = match named {
            // Several nodes may have this path.
            Some(path) => Some(path.join(format!("node-{}", self.node.get()))),
            None => self.directory.as_ref().map(|own| own.join(DIRECTORY).join(&spec.name)),
        };
        let on_disk = directory.as_deref().filter(|_| is_remembered(spec)).and_then(disk_len);
        let capacity_bytes = on_disk.unwrap_or(self.capacity_bytes);
        TargetOptions { capacity_bytes, shards: self.shards, directory }
    }
}

/// A shard's own handles to the targets that it has needed.
pub(crate) struct ShardTargets {
    targets: Arc<NodeTargets>,
    shared: Arc<NodeShared>,
    handles: Vec<(BackendSpec, Box<dyn Backend>)>,
    /// The threads of targets that remember and that were just opened.
    stored: Vec<Arc<TargetThreads>>,
    /// Those that were opened before.
    known: Vec<BackendSpec>,
}

impl ShardTargets {
    pub(crate) const fn new(targets: Arc<NodeTargets>, shared: Arc<NodeShared>) -> Self {
        Self { targets, shared, handles: Vec::new(), stored: Vec::new(), known: Vec::new() }
    }

    /// What keeps the records of a dataset.
    pub(crate) fn keeping(&mut self, spec: &DatasetSpec) -> RecordKeeping {
        if spec.durability != DurabilityKind::Logged {
            return RecordKeeping::Nothing;
        }
        if !is_remembered(&spec.backend) {
            return RecordKeeping::Log;
        }
        match self.targets.threads(&spec.backend, &self.shared) {
            Ok(threads) => {
                if !self.known.contains(&spec.backend) {
                    self.known.push(spec.backend.clone());
                    self.stored.push(Arc::clone(&threads));
                }
                RecordKeeping::Target(threads)
            }
            Err(error) => {
                tracing::error!(dataset = spec.name, %error, "its target cannot be opened");
                RecordKeeping::Unusable
            }
        }
    }

    /// The partitions that targets had when they were opened, once for each target.
    pub(crate) fn take_stored(&mut self) -> Vec<(Arc<TargetThreads>, Vec<PlaceId>)> {
        let stored = std::mem::take(&mut self.stored).into_iter().map(|threads| {
            let found = threads.stored().unwrap_or_else(|error| {
                self.shared.notice(NodeNotice::Fatal(error));
                Vec::new()
            });
            (threads, found)
        });
        stored.collect()
    }

    /// The shard's handle to the target of `spec`.
    ///
    /// # Errors
    /// As [`NodeTargets::handle`].
    pub(crate) fn get(&mut self, spec: &BackendSpec) -> Result<&mut dyn Backend> {
        let known = self.handles.iter().position(|(known, _)| known == spec);
        let index = match known {
            Some(index) => index,
            None => {
                self.handles.push((spec.clone(), self.targets.handle(spec)?));
                self.handles.len() - 1
            }
        };
        Ok(&mut *self.handles[index].1)
    }
}

/// Whether a target brings its records back after a restart.
pub(crate) fn is_remembered(spec: &BackendSpec) -> bool {
    let entry = samite_registry::find(&spec.name);
    entry.is_ok_and(|entry| entry.offers.restart == RestartSource::Target)
}

/// Bytes of the file system in which `directory` is or will be, but for a part that is left to
/// others.
fn disk_len(directory: &Path) -> Option<u64> {
    let there = directory.ancestors().find(|path| path.exists())?;
    let stat = rustix::fs::statvfs(there).ok()?;
    let len = stat.f_frsize.saturating_mul(stat.f_blocks);
    Some(len - len / LEFT_PART)
}

#[cfg(test)]
mod tests {
    use samite_types::{DatasetId, ErrorKind, PartitionId, Version};
    use samite_wire::control::NULL_BACKEND;

    use super::*;

    fn targets(directory: Option<&str>) -> NodeTargets {
        NodeTargets {
            node: NodeId(3),
            capacity_bytes: 1 << 20,
            shards: 2,
            directory: directory.map(PathBuf::from),
            opened: Mutex::default(),
            threads: Mutex::default(),
        }
    }

    #[test]
    fn shards_share_a_target_and_backends_do_not() {
        let targets = targets(None);
        let (memory, null) = (BackendSpec::default(), BackendSpec::named(NULL_BACKEND));
        let (mut one, two) = (targets.handle(&memory).unwrap(), targets.handle(&memory).unwrap());
        let mut store = one.open(DatasetId(1), PartitionId(1)).unwrap();
        let source = samite_backend::WriteSource::Bytes(b"value");
        store.put(b"key", source, Version(1)).unwrap();
        let used = one.usage().used;
        assert!(used > 0);
        assert_eq!(two.usage().used, used);
        assert_eq!(targets.handle(&null).unwrap().usage().used, 0);
        assert_eq!(lock(&targets.opened).len(), 2);
        let error = targets.handle(&BackendSpec::named("tape")).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.message().contains("tape"), "{}", error.message());
    }

    #[test]
    fn a_target_has_a_directory_that_no_other_has() {
        let placed = BackendSpec { path: Some("/data".into()), ..BackendSpec::named("lmdb") };
        let own = BackendSpec::named("lmdb");
        let of = |targets: NodeTargets, spec| targets.options(spec).directory;
        assert_eq!(of(targets(Some("/d/n3")), &own), Some("/d/n3/targets/lmdb".into()));
        assert_eq!(of(targets(Some("/d/n3")), &placed), Some("/data/node-3".into()));
        assert_eq!(of(targets(None), &placed), Some("/data/node-3".into()));
        assert_eq!(of(targets(None), &own), None);
    }
}
