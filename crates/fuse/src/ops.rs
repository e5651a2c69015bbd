//! What the kernel asks for, as calls on the file system.

mod attributes;
mod data;
mod listing;
mod names;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use fuser::Errno;
use samite_fs::{FileSystem, Found, OpenFile};
use samite_types::Error;

use crate::caching::Caching;
use crate::handles::{Handle, Handles};
use crate::kernel;
use crate::locks::Locks;
use crate::nodes::Nodes;

pub use attributes::Changes;
pub use data::read_into;
pub use names::{Name, New, Seen};

/// How an operation ends.
pub type Answer<T> = Result<T, Errno>;

/// The file system, the inodes that the kernel knows, and the files that it has open.
pub struct Ops {
    pub fs: FileSystem,
    pub nodes: Nodes,
    pub handles: Handles,
    pub locks: Locks,
    pub caching: Caching,
}

impl Ops {
    /// For a file system whose root this is.
    pub fn new(fs: FileSystem, root: OpenFile, caching: Caching) -> Self {
        let locks = Locks::new(&fs);
        Self { fs, nodes: Nodes::new(root), handles: Handles::default(), locks, caching }
    }

    /// Runs one operation. One that panics fails, and the mount goes on.
    pub fn run<T>(&self, operation: impl FnOnce(&Self) -> Answer<T>) -> Answer<T> {
        catch_unwind(AssertUnwindSafe(|| operation(self))).unwrap_or(Err(Errno::EIO))
    }

    fn file(&self, handle: u64) -> Answer<Arc<Handle>> {
        self.handles.get(handle)
    }

    /// Tells the kernel of a file.
    fn remember(&self, found: Found) -> fuser::FileAttr {
        let attr = kernel::file_attr(&found.attr);
        self.nodes.remember(found.file);
        attr
    }
}

fn failed(error: Error) -> Errno {
    kernel::errno(&error)
}
