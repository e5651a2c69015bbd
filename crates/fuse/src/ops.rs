//! What the kernel asks for, as calls on the file system.

mod attributes;
mod data;
mod listing;
mod names;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use fuser::Errno;
use samite_fs::{FileKind, FileSystem, Found, OpenFile};
use samite_types::Error;

use crate::caching::Caching;
use crate::handles::{Handle, Handles};
use crate::kernel;
use crate::locks::Locks;
use crate::nodes::Nodes;
use crate::places::Places;

pub use attributes::Changes;
pub use data::read_into;
pub use names::{Name, New, Seen};

/// How an operation ends.
pub type Answer<T> = Result<T, Errno>;

/// The file system, the inodes that the kernel knows, and the files that it has open.
pub struct Ops {
    pub fs: FileSystem,
    pub nodes: Nodes,
    pub places: Places,
    pub handles: Handles,
    pub locks: Locks,
    pub caching: Caching,
}

impl Ops {
    /// For a file system whose root this is.
    pub fn new(fs: FileSystem, root: OpenFile, caching: Caching) -> Self {
        let locks = Locks::new(&fs);
        let (nodes, places, handles) = (Nodes::new(root), Places::default(), Handles::default());
        Self { fs, nodes, places, handles, locks, caching }
    }

    /// Runs one operation. One that panics fails, and the mount goes on.
    pub fn run<T>(&self, operation: impl FnOnce(&Self) -> Answer<T>) -> Answer<T> {
        catch_unwind(AssertUnwindSafe(|| operation(self))).unwrap_or(Err(Errno::EIO))
    }

    fn file(&self, handle: u64) -> Answer<Arc<Handle>> {
        self.handles.get(handle)
    }

    /// Tells the kernel of a file that it asked for by this name.
    fn remember(&self, found: Found, at: Name<'_>) -> fuser::FileAttr {
        let attr = kernel::file_attr(&found.attr);
        self.introduce(found.file, at);
        // The kernel may be in a rename that fails otherwise.
        self.places.settle();
        attr
    }

    /// Tells the kernel of a file at a place.
    fn introduce(&self, file: OpenFile, at: Name<'_>) {
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
