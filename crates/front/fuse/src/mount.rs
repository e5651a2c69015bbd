//! Mounting the store and serving the mount.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

pub use fuser::SessionUnmounter as Unmounter;
use fuser::{Config, MountOption, Session, SessionACL};
use rustix::fs::Access;
use samite_fs::FileSystem;
use samite_types::{Error, ErrorKind, Result};

use crate::caching::KernelCache;
use crate::directory_places::PlaceClearing;
use crate::ops::FuseOperations;
use crate::recalls::RecallThread;
use crate::server::FuseServer;
use crate::sweeping::SweepThread;
use crate::worker_pool::ReaderPool;

/// Workers of a mount, unless told otherwise.
pub const THREADS_DEFAULT: usize = 8;
/// Most workers of a mount.
pub const THREADS_MAX: usize = 64;

/// The type of the file system that `df` and `mount` show, after `fuse.`.
pub const SUBTYPE: &str = "samite";

/// How to mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Name of the cluster: `df` and `mount` show as the source `samite:NAME`.
    pub cluster: String,
    /// Refuse to change anything.
    pub is_read_only: bool,
    /// Let users in who did not mount it.
    pub allow_other: bool,
    /// Workers: requests that are served at a time, 1 to [`THREADS_MAX`].
    pub threads: usize,
    /// Let the kernel keep names and attributes for as long as nobody changes them.
    pub caches: bool,
}

/// A mounted store. The kernel's requests wait until [`StoreMount::serve`].
pub struct StoreMount {
    session: Session<FuseServer>,
    ops: Arc<FuseOperations>,
    pool: Arc<ReaderPool>,
}

impl StoreMount {
    /// Mounts `fs` on the directory `path`. Its client is to be this mount's alone: other changes
    /// through it are not taken for changes by others, of which the kernel is told.
    ///
    /// # Errors
    /// The root of the store cannot be read; the system does not let this user mount there (without root,
    /// `fusermount3` is needed).
    pub fn new(fs: &FileSystem, path: &Path, options: &MountOptions) -> Result<Self> {
        let root = fs.root()?;
        let caching = KernelCache::new(fs.clone(), options.caches);
        let ops = Arc::new(FuseOperations::new(fs.clone(), root.file, caching));
        let threads = options.threads.clamp(1, THREADS_MAX);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let pool = Arc::new(ReaderPool::new(threads, cores));
        let server = FuseServer::new(Arc::clone(&ops), Arc::clone(&pool));
        let mut config = Config::default();
        config.n_threads = Some(threads);
        config.clone_fd = true;
        config.acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
        config.mount_options = vec![
            MountOption::FSName(format!("{SUBTYPE}:{}", options.cluster)),
            MountOption::Subtype(SUBTYPE.to_owned()),
            MountOption::DefaultPermissions,
            if options.is_read_only { MountOption::RO } else { MountOption::RW },
        ];
        if rustix::process::geteuid().is_root() {
            // As on any file system that root mounts. For others the kernel refuses both.
            config.mount_options.extend([MountOption::Dev, MountOption::Suid]);
        }
        let session = Session::new(server, path, &config).map_err(|error| {
            let hint = hint();
            Error::new(ErrorKind::Io, format!("mount {}: {error}{hint}", path.display()))
        })?;
        Ok(Self { session, ops, pool })
    }

    /// A handle that ends the mount from another thread: then [`StoreMount::serve`] returns.
    pub fn unmounter(&mut self) -> Unmounter {
        self.session.unmount_callable()
    }

    /// Serves until it is unmounted.
    ///
    /// # Errors
    /// The kernel's device failed.
    pub fn serve(self) -> Result<()> {
        let failed = |error| Error::new(ErrorKind::Io, format!("serve the mount: {error}"));
        let notifier = self.session.notifier();
        self.pool.look_at(self.session.as_fd().try_clone_to_owned().map_err(failed)?);
        let _listening =
            RecallThread::begin(&self.ops, &notifier, &self.session).map_err(failed)?;
        let _clearing = PlaceClearing::begin(&self.ops.places, notifier).map_err(failed)?;
        let _sweeping = SweepThread::begin(&self.ops.fs).map_err(failed)?;
        self.session.run().map_err(failed)
    }
}

/// Likely causes of a mount that failed, as far as they can be seen.
fn hint() -> &'static str {
    let device = Path::new("/dev/fuse");
    let can_use = Access::READ_OK | Access::WRITE_OK;
    let path = std::env::var_os("PATH").unwrap_or_default();
    if !device.exists() {
        " (there is no /dev/fuse)"
    } else if rustix::fs::access(device, can_use).is_err() {
        " (this user may not use /dev/fuse)"
    } else if !rustix::process::geteuid().is_root()
        && !std::env::split_paths(&path).any(|dir| dir.join("fusermount3").exists())
    {
        " (only root mounts without fusermount3, which the package fuse3 brings)"
    } else {
        ""
    }
}

impl std::fmt::Debug for StoreMount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreMount").finish_non_exhaustive()
    }
}
