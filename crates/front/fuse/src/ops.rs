//! The requests of the kernel, as calls on the file system.

mod attributes;
mod data;
mod listing;
mod names;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use fuser::Errno;
use samite_fs::{FileKind, FileSystem, FoundFile, OpenFile};
use samite_types::Error;

use crate::caching::KernelCache;
use crate::directory_places::DirectoryPlaces;
use crate::handles::{HandleTable, OpenHandle};
use crate::kernel::{self, Answer, KernelName};
use crate::locks::MountLocks;
use crate::nodes::NodeTable;

pub use attributes::AttributeChanges;
pub use data::read_into;
pub use names::{NewKind, SeenName};

/// The file system, the inodes that the kernel knows, and the files that it has open.
pub struct FuseOperations {
    pub fs: FileSystem,
    pub nodes: NodeTable,
    pub places: Arc<DirectoryPlaces>,
    pub handles: HandleTable,
    pub locks: MountLocks,
    pub caching: KernelCache,
}

impl FuseOperations {
    /// For a file system whose root this is.
    pub fn new(fs: FileSystem, root: OpenFile, caching: KernelCache) -> Self {
        let locks = MountLocks::new(&fs);
        let (nodes, places, handles) =
            (NodeTable::new(root), Arc::default(), HandleTable::default());
        Self { fs, nodes, places, handles, locks, caching }
    }

    /// Runs one operation. An operation that panics fails, and the mount goes on.
    pub fn run<T>(&self, operation: impl FnOnce(&Self) -> Answer<T>) -> Answer<T> {
        catch_unwind(AssertUnwindSafe(|| operation(self))).unwrap_or(Err(Errno::EIO))
    }

    fn file(&self, handle: u64) -> Answer<Arc<OpenHandle>> {
        self.handles.get(handle)
    }

    /// Tells the kernel of a file that it asked for by this name.
    fn remember(&self, found: FoundFile, at: KernelName<'_>) -> fuser::FileAttr {
        let attr = kernel::file_attr(&found.attr);
        self.introduce(found.file, at);
        // The kernel may be in a rename that fails otherwise.
        self.places.settle();
        attr
    }

    /// Tells the kernel of a file at a place.
    fn introduce(&self, file: OpenFile, at: KernelName<'_>) {
        let (ino, kind) = (file.ino(), file.kind());
        self.nodes.remember(file);
        if kind == FileKind::Directory {
            self.places.found(ino, at);
        }
    }

    /// The kernel forgets `lookups` of the times that it was told of an inode.
    pub fn forget(&self, ino: u64, lookups: u64) {
        if self.nodes.forget(ino, lookups) {
            self.places.forgotten(ino, || self.nodes.knows(ino));
        }
    }
}

fn failed(error: Error) -> Errno {
    kernel::errno(&error)
}
