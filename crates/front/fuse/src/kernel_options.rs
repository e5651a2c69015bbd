//! The options that are asked of the kernel when the mount begins.

use fuser::{InitFlags, KernelConfig};

/// Largest request to read or write, in bytes.
pub const IO_LEN_MAX: u32 = 1 << 20;
/// Requests that the kernel may have under way that nobody waits for.
const BACKGROUND_MAX: u16 = 64;

/// The attributes in a listing are of use only where the kernel can keep them for a short time.
const CACHE_CAPABILITIES: InitFlags =
    InitFlags::FUSE_DO_READDIRPLUS.union(InitFlags::FUSE_READDIRPLUS_AUTO);

/// The options that are asked of a kernel that has them.
const CAPABILITIES: [InitFlags; 11] = [
    InitFlags::FUSE_ASYNC_READ,
    InitFlags::FUSE_ASYNC_DIO,
    InitFlags::FUSE_BIG_WRITES,
    InitFlags::FUSE_ATOMIC_O_TRUNC,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_AUTO_INVAL_DATA,
    InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
    // A symbolic link never changes, and its number is never used again.
    InitFlags::FUSE_CACHE_SYMLINKS,
    InitFlags::FUSE_NO_EXPORT_SUPPORT,
    InitFlags::FUSE_POSIX_LOCKS,
    InitFlags::FUSE_FLOCK_LOCKS,
];

/// Asks for all of it. `caches`: the kernel is let keep names and attributes.
pub fn ask(config: &mut KernelConfig, caches: bool) {
    for capability in CAPABILITIES {
        // The mount does without the options that this kernel does not have.
        let _ = config.add_capabilities(capability);
    }
    if caches {
        let _ = config.add_capabilities(CACHE_CAPABILITIES);
    }
    // Both answer with the nearest value that can be had, and that is taken.
    if let Err(nearest) = config.set_max_write(IO_LEN_MAX) {
        let _ = config.set_max_write(nearest);
    }
    if let Err(nearest) = config.set_max_readahead(IO_LEN_MAX) {
        let _ = config.set_max_readahead(nearest);
    }
    let _ = config.set_max_background(BACKGROUND_MAX);
}
