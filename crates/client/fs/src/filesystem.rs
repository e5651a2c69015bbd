//! The file system as a whole: opening it, inode numbers, the name-space generation.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use samite_client::{Client, Dataset};
use samite_types::{Deadline, Entropy, Epoch, Error, ErrorKind, Result, SystemEntropy};
use samite_wire::op::{Action, Guard, Operation};
use samite_wire::status::NodeStatus;

use crate::files::deferred::pending::DeferredFiles;
use crate::names::cache::DirCache;
use crate::names::known_directories::KnownDirectories;
use crate::records::inode::Inode;
use crate::records::key::{GENERATION_COUNTER, INO_COUNTER, ROOT_INO};
use crate::records::numbers::ProcessNumbers;
use crate::records::store::{ANY_NAME_SPACE, RecordStoreView, fail};
use crate::{NAME_LEN_MAX, STAT_BLOCK_LEN, StatFs, Timestamp};

/// How often an operation may find its cached directories out of date before it gives up.
const GENERATION_TRIES_MAX: u32 = 1000;

/// For how long a node is asked what it has whose records others have too.
const STATUS_PATIENCE: Duration = Duration::from_secs(1);

/// Estimate of what one more file takes, for the file counts of `statfs`.
const FILE_SPACE_ESTIMATE: u64 = 1 << 10;

/// A file system in one dataset. Cheap to clone; shared by threads.
#[derive(Clone)]
pub struct FileSystem {
    pub(crate) inner: Arc<FileSystemInner>,
    /// Sends deferred files before anything else; off where just that happens.
    pub(crate) sends_deferred: bool,
}

pub(crate) struct FileSystemInner {
    pub store: RecordStoreView,
    pub cache: DirCache,
    pub deferred: DeferredFiles,
    pub directories: KnownDirectories,
    /// Absolute symbolic links start with this to stay in the store; `None`: all do.
    pub mount_point: Option<Box<[u8]>>,
    pub numbers: ProcessNumbers,
}

impl FileSystem {
    /// The file system in dataset `dataset`, which is made with its root directory if it is missing.
    ///
    /// # Errors
    /// As of the client: the cluster cannot be reached, has another dataset of this name, or is full.
    pub fn open(client: &Client, dataset: &str) -> Result<Self> {
        Self::open_mounted(client, dataset, None)
    }

    /// The same, for callers that see the root of the store at the absolute path `mount_point`: absolute symbolic links
    /// under it lead back into the store, and others out of it ([`FileSystem::way_out`]).
    ///
    /// # Errors
    /// See [`FileSystem::open`].
    pub fn open_mounted(
        client: &Client,
        dataset: &str,
        mount_point: Option<&[u8]>,
    ) -> Result<Self> {
        let context = |error: Error| error.context(format_args!("open file system {dataset:?}"));
        let records = find_or_create(client, dataset).map_err(context)?;
        let inner = FileSystemInner {
            store: RecordStoreView {
                client: client.clone(),
                dataset: records,
                releases: Arc::default(),
            },
            cache: DirCache::default(),
            deferred: DeferredFiles::default(),
            directories: KnownDirectories::default(),
            mount_point: mount_point.map(Box::from),
            numbers: ProcessNumbers::new(SystemEntropy.next_u64()),
        };
        let fs = Self { inner: Arc::new(inner), sends_deferred: true };
        fs.ensure_root().map_err(context)?;
        Ok(fs)
    }

    /// Whether nodes answer as soon as they have served: see [`samite_client::Dataset::answers_soon`].
    #[must_use]
    pub fn answers_soon(&self) -> bool {
        self.inner.store.dataset.answers_soon()
    }

    /// The client behind it.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.inner.store.client
    }

    /// To be called in the child after `fork`, after the client's own: inode numbers and writing
    /// marks belong to one process. Takes no lock.
    pub fn after_fork_child(&self) {
        self.inner.numbers.after_fork_child(SystemEntropy.next_u64());
        self.inner.deferred.after_fork_child();
        self.inner.store.forget_releases();
    }

    /// The status of all nodes. Where other nodes have the records of a node, too, one that cannot
    /// be reached now is left out.
    pub(crate) fn statuses(&self) -> Result<Vec<NodeStatus>> {
        let (client, is_mirrored) = (self.client(), self.inner.store.dataset.is_mirrored());
        let map = client.map()?;
        let (mut statuses, mut failed) = (Vec::new(), None);
        for node in map.nodes() {
            let deadline =
                if is_mirrored { Deadline::after(STATUS_PATIENCE) } else { client.deadline() };
            match client.node_status_by(node.node, deadline) {
                Ok(status) => statuses.push(status),
                Err(error)
                    if is_mirrored
                        && matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout) =>
                {
                    failed = Some(error);
                }
                Err(error) => return Err(error),
            }
        }
        match failed {
            Some(error) if statuses.is_empty() => Err(error),
            _ => Ok(statuses),
        }
    }

    /// Space of the store, over all nodes, as files can use it: a record on two targets takes twice
    /// its length.
    ///
    /// # Errors
    /// A node cannot be reached, and no other has what it has.
    pub fn statfs(&self) -> Result<StatFs> {
        // Space that nobody uses any more is free.
        match self.sweep_orphans() {
            // Where something is lost, what is left of it goes when that is acknowledged.
            Err(error) if error.kind() == ErrorKind::Lost => {}
            swept => drop(swept?),
        }
        let (mut capacity, mut used, mut records) = (0u64, 0u64, 0u64);
        let backend = &self.inner.store.dataset.spec().backend;
        for status in self.statuses()? {
            let (node_capacity, node_used) = status.usage(backend);
            capacity = capacity.saturating_add(node_capacity);
            used = used.saturating_add(node_used);
            records = records.saturating_add(status.records);
        }
        let copies = u64::from(self.inner.store.dataset.spec().redundancy.get().max(1));
        let (capacity, used, records) = (capacity / copies, used / copies, records / copies);
        let free = capacity.saturating_sub(used);
        let files_free = free / FILE_SPACE_ESTIMATE;
        Ok(StatFs {
            block_len: STAT_BLOCK_LEN * 8,
            blocks: capacity / (STAT_BLOCK_LEN * 8),
            blocks_free: free / (STAT_BLOCK_LEN * 8),
            files: files_free.saturating_add(records),
            files_free,
            name_len_max: NAME_LEN_MAX as u64,
        })
    }

    /// The records, with everything in them that this process has made.
    pub(crate) fn store(&self) -> &RecordStoreView {
        if self.sends_deferred && !self.inner.deferred.is_empty() {
            self.send_deferred();
        }
        &self.inner.store
    }

    /// A number that no other process, and no other call, gets; never 0 or all ones.
    pub(crate) fn token(&self) -> u64 {
        self.inner.numbers.token()
    }

    /// A new inode number.
    pub(crate) fn new_ino(&self) -> Result<u64> {
        loop {
            if let Some(ino) = self.inner.numbers.next_ino() {
                return Ok(ino);
            }
            self.inner.numbers.start_range(self.store().draw(INO_COUNTER)?);
        }
    }

    /// Makes every client drop its cached directories before its next operation. `key` is the entry of the one
    /// directory that changed;
    /// `also` adds actions in each partition.
    ///
    /// The generation is drawn after the change took effect: a client that knows generation e sees
    /// every change that drew e or less.
    pub(crate) fn raise_generation<'k>(
        &self,
        key: &[u8],
        also: impl Fn() -> Vec<Action<'k>>,
    ) -> Result<()> {
        let epoch = Epoch(self.store().draw(GENERATION_COUNTER)?);
        self.store().run_everywhere(|partition| {
            let mut actions = also();
            actions.push(Action::RaiseLease { epoch });
            Operation::new(partition, actions)
        })?;
        self.inner.cache.step(epoch, key);
        Ok(())
    }

    /// Runs `attempt` with the newest name-space generation until its cached directories are up to
    /// date.
    pub(crate) fn under_lease<T>(&self, attempt: impl Fn(Epoch) -> Result<T>) -> Result<T> {
        for _ in 0..GENERATION_TRIES_MAX {
            let epoch = self.inner.store.dataset.name_space_generation();
            self.inner.cache.start_epoch(epoch);
            match attempt(epoch) {
                Err(error) if error.kind() == ErrorKind::StaleLease => {}
                result => return result,
            }
        }
        Err(fail(ErrorKind::Busy))
    }

    fn ensure_root(&self) -> Result<()> {
        let location = self.store().own(ROOT_INO);
        if self.store().read(&location, ANY_NAME_SPACE)?.is_some() {
            return Ok(());
        }
        let semantics = self.store().dataset.spec().semantics.into();
        let value = Inode::root(semantics, Timestamp::now()).encode();
        let op = Operation::put(location.partition, &location.key, &value)
            .guard(Guard::Absent(&location.key));
        // A guard that fails: another process was faster.
        self.store().run(op).map(drop)
    }
}

impl fmt::Debug for FileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileSystem")
            .field("dataset", &self.store().dataset.spec().name)
            .finish_non_exhaustive()
    }
}

fn find_or_create(client: &Client, name: &str) -> Result<Dataset> {
    match client.dataset(name) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            client.create_dataset(&client.spec(name))
        }
        result => result,
    }
}
