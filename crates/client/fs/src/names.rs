//! Names: paths and directories, and the calls that look up, list, make, remove and rename.

pub mod ancestry;
pub mod at;
pub mod batch;
pub mod by_inode;
pub mod cache;
pub mod entry_operations;
pub mod exchange;
pub mod known_directories;
pub mod link;
pub mod listed;
pub mod listing;
pub mod make;
pub mod removal;
pub mod rename;
pub mod tombstone;
pub mod walk;
