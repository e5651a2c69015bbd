//! The file system of the store, seen by unmodified programs.
//!
//! `samite run -- CMD` sets `LD_PRELOAD` to this library. It defines libc's symbols for paths and descriptors
//! (modules under [`hooks`]); each looks at its path or descriptor and either works on the store or calls libc's own,
//! found with `dlsym(RTLD_NEXT)`.
//!
//! * A path is the store's when it starts with the mount prefix (`SAMITE_MOUNT`), or when it is relative to a directory
//!   of the store ([`path_class`]). Any other path costs the comparison of one prefix.
//! * A descriptor of the store is a *placeholder*: a kernel descriptor that nothing can be read
//!   from or written to, which keeps its number taken. [`table`] maps its number to the open file.
//!   The state that POSIX shares between processes (offset, flags) lives in a page of a shared
//!   memory file, the [`session`], which the placeholder names: so `dup`, `fork` and `exec` keep
//!   it.
//! * libc's stdio calls its own `read` and `write`, not the symbols. Streams on the store's files are therefore made
//!   with `fopencookie` ([`hooks::stdio`]).
//! * Our own system calls go through rustix, which makes them itself, so they never meet the hooks.
//! * Nothing is printed but the line of [`hooks::unreached`], and a panic becomes `EIO` ([`hook`]). The store is connected to when first touched.
#![cfg_attr(
    not(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64")),
    allow(unused)
)]

#[cfg(not(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64")))]
compile_error!("the preload library knows the C library and types of 64-bit Linux with glibc only");

mod attr;
mod caller;
mod cwd;
mod description_locks;
mod descriptor_range;
mod foreign;
mod fork_lock;
mod hook;
mod hooks;
mod init;
mod keep_alive;
mod locks;
mod mapped;
mod mount_prefix;
mod outside_path;
mod own_descriptors;
mod path_class;
mod ranks;
mod raw;
mod real;
mod session;
mod signals;
mod start_environment;
mod store;
mod store_location;
mod table;
