//! The records of a file system, and what is done with them whatever file or name they belong to.
//! Nothing here knows paths, open files or caches.

pub mod attr;
pub mod change_stamps;
pub mod chunks;
pub mod extents;
pub mod free;
pub mod inode;
pub mod key;
pub mod lookup;
pub mod moving;
pub mod numbers;
pub mod placement;
pub mod release_queue;
pub mod store;
