//! A mounted store within the test.
#![expect(clippy::unwrap_used, reason = "a test fails by it")]
#![allow(dead_code, reason = "each test file uses a part")]

use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use samite_fs::FileSystem;
use samite_fuse::{MountOptions, StoreMount, Unmounter};
use samite_testkit::{LocalCluster, LocalOptions, has_fuse, skip};

/// No test takes nearly as long.
const DEADLINE: Duration = Duration::from_secs(120);

/// A mount, gone when it is dropped.
pub struct Mounted {
    fs: FileSystem,
    mount_point: tempfile::TempDir,
    unmounter: Unmounter,
    server: Option<JoinHandle<samite_types::Result<()>>>,
}

impl Mounted {
    fn new(cluster: &LocalCluster, threads: usize, caches: bool) -> Self {
        let fs = open(cluster);
        let mount_point = tempfile::tempdir().unwrap();
        let options = MountOptions {
            cluster: cluster.name().to_owned(),
            is_read_only: false,
            allow_other: true,
            threads,
            caches,
        };
        let mut mount = StoreMount::new(&fs, mount_point.path(), &options).unwrap();
        let unmounter = mount.unmounter();
        let server = Some(std::thread::spawn(move || mount.serve()));
        Self { fs, mount_point, unmounter, server }
    }

    /// The path of a file in the mount.
    pub fn path(&self, name: &str) -> PathBuf {
        self.mount_point.path().join(name)
    }

    /// Requests that it has sent to nodes.
    pub fn requests(&self) -> u64 {
        self.fs.client().stats().requests
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.unmounter.unmount().unwrap();
        if let Some(server) = self.server.take() {
            server.join().unwrap().unwrap();
        }
    }
}

fn open(cluster: &LocalCluster) -> FileSystem {
    let client = cluster.client(samite_client::ClientOptions::default()).unwrap();
    FileSystem::open(&client, "files").unwrap()
}

/// A cluster and a mount of it; both are gone when it is dropped.
pub struct Store {
    /// Another way to the same files, with a client of its own.
    pub fs: FileSystem,
    mount: Mounted,
    threads: usize,
    cluster: LocalCluster,
}

impl Store {
    /// `None` where nothing can be mounted: the test is skipped.
    pub fn mounted(nodes: usize, threads: usize) -> Option<Self> {
        if !can_mount() {
            return None;
        }
        let cluster = LocalCluster::start(nodes, LocalOptions::default()).unwrap();
        let (fs, mount) = (open(&cluster), Mounted::new(&cluster, threads, true));
        Some(Self { fs, mount, threads, cluster })
    }

    /// The path of a file in the mount.
    pub fn path(&self, name: &str) -> PathBuf {
        self.mount.path(name)
    }

    /// One more mount, as of another host.
    pub fn another_mount(&self, caches: bool) -> Mounted {
        Mounted::new(&self.cluster, self.threads, caches)
    }
}

/// Whether this process can mount. Where it cannot, the test of this thread is skipped.
fn can_mount() -> bool {
    if !has_fuse() {
        return false;
    }
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        skip("root");
    }
    is_root
}

/// Runs a test on mounts of one and of three nodes. A test that hangs ends the program, and says
/// so.
pub fn on_each_store(test: fn(&Store)) {
    if !can_mount() {
        return;
    }
    for nodes in [1, 3] {
        let (done, ended) = channel();
        let work = move || {
            if let Some(store) = Store::mounted(nodes, 4) {
                test(&store);
            }
            // Nobody listens when it came too late.
            let _ = done.send(());
        };
        // The test can be skipped there, too, and is known by the name of its thread.
        let mut worker = std::thread::Builder::new();
        if let Some(name) = std::thread::current().name() {
            worker = worker.name(name.to_owned());
        }
        let worker = worker.spawn(work).unwrap();
        if ended.recv_timeout(DEADLINE) == Err(RecvTimeoutError::Timeout) {
            eprintln!("it hangs on {nodes} nodes");
            std::process::exit(1);
        }
        if let Err(panic) = worker.join() {
            std::panic::resume_unwind(panic);
        }
    }
}
