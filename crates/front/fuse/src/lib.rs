//! The store as a mounted file system: FUSE requests of the kernel become calls on [`samite_fs`].
//!
//! # How it is built
//!
//! The kernel resolves names one by one and speaks of inodes by number. `nodes.rs` keeps a handle
//! for each inode that the kernel knows: its record location, with no descriptor and nothing open.
//! `handles.rs` has the open files. `server.rs` is the kernel's side of the table, the modules of
//! `ops/` do the work, and `kernel.rs` translates between the two vocabularies. `caching.rs`
//! decides which answers the kernel may keep, `recalls.rs` makes it forget them, `directories.rs` caches attributes that the kernel
//! forgets too early, and `locks.rs` passes locks on to the store. `directory_places.rs` knows
//! where the kernel has its directories, and takes from it directories that another client has
//! moved. `mount.rs` mounts and serves, `unmount.rs` ends a mount, also that of a daemon that died.
//!
//! # Guarantees
//!
//! - The kernel checks permissions (`default_permissions`) on attributes that are valid when it
//!   does. A new file belongs to the caller.
//! - Names and attributes are kept by the kernel only while delegations on them last. Reads and
//!   writes go to the store directly. Pages exist for `mmap` only; they are dropped at open and
//!   when the file's time of modification changed, and written back at `msync`, `munmap` and close.
//! - One slow request holds up nobody but its caller, as long as a worker is free.
//! - When the daemon dies, calls fail with `ENOTCONN` at once.

mod caching;
mod directories;
mod directory_places;
mod handles;
mod kernel;
mod kernel_options;
mod locks;
mod mount;
mod names;
mod nodes;
mod ops;
mod recalls;
mod replies;
mod server;
mod sweeping;
mod unmount;
mod worker_pool;

pub use mount::{MountOptions, StoreMount, THREADS_DEFAULT, THREADS_MAX, Unmounter};
pub use unmount::{MountEntry, find_mount, mounts_of, unmount, unmount_dead, users_of};
