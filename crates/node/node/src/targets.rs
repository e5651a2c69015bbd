//! The targets of a node, each opened when something first needs it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use samite_backend::Backend;
use samite_registry::TargetOptions;
use samite_types::{NodeId, Result};
use samite_wire::control::BackendSpec;

use crate::config::NodeConfig;
use crate::mutex::lock;

/// Where targets without a directory of their own have one in the node's directory.
const DIRECTORY: &str = "targets";

/// The targets that are open, for all shards.
pub(crate) struct NodeTargets {
    node: NodeId,
    capacity_bytes: u64,
    shards: usize,
    /// The node's directory, if it has one.
    directory: Option<PathBuf>,
    opened: Mutex<BTreeMap<BackendSpec, Box<dyn Backend>>>,
}

impl NodeTargets {
    /// None yet. Each may take as much as the node's memory.
    pub(crate) fn new(config: &NodeConfig) -> Self {
        Self {
            node: config.node,
            capacity_bytes: config.memory_bytes,
            shards: usize::from(config.shards),
            directory: config.flash.as_ref().map(|flash| flash.path.clone()),
            opened: Mutex::default(),
        }
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
        TargetOptions { capacity_bytes: self.capacity_bytes, shards: self.shards, directory }
    }
}

/// A shard's own handles to the targets that it has needed.
pub(crate) struct ShardTargets {
    targets: Arc<NodeTargets>,
    handles: Vec<(BackendSpec, Box<dyn Backend>)>,
}

impl ShardTargets {
    pub(crate) const fn new(targets: Arc<NodeTargets>) -> Self {
        Self { targets, handles: Vec::new() }
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
        }
    }

    #[test]
    fn shards_share_a_target_and_backends_do_not() {
        let targets = Arc::new(targets(None));
        let mut one = ShardTargets::new(Arc::clone(&targets));
        let mut two = ShardTargets::new(Arc::clone(&targets));
        let (memory, null) = (BackendSpec::default(), BackendSpec::named(NULL_BACKEND));
        let mut store = one.get(&memory).unwrap().open(DatasetId(1), PartitionId(1)).unwrap();
        let source = samite_backend::WriteSource::Bytes(b"value");
        store.put(b"key", source, Version(1)).unwrap();
        let used = one.get(&memory).unwrap().usage().used;
        assert!(used > 0);
        assert_eq!(two.get(&memory).unwrap().usage().used, used);
        assert_eq!(two.get(&null).unwrap().usage().used, 0);
        assert_eq!(lock(&targets.opened).len(), 2);
        let error = two.get(&BackendSpec::named("tape")).err().unwrap();
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
