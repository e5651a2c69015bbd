//! A cluster with a file system, for the tests of this crate.
#![allow(clippy::unwrap_used, reason = "a failure fails the test")]
#![allow(dead_code, reason = "each test file uses a part")]

use std::sync::Barrier;

use samite_client::{Client, TransportKind};
use samite_fs::{CallerContext, DirEntry, FileSystem, OpenFile, OpenFlags};
use samite_testkit::{LocalCluster, LocalOptions};
use samite_types::{ErrorKind, Result};

/// A cluster of threads, and a file system in it.
pub struct Rig {
    pub fs: FileSystem,
    pub client: Client,
    pub cluster: LocalCluster,
}

impl Rig {
    pub fn new(nodes: usize) -> Self {
        Self::with_memory(nodes, 64 << 20)
    }

    pub fn with_memory(nodes: usize, memory_bytes: u64) -> Self {
        let options = LocalOptions { memory_bytes, ..LocalOptions::default() };
        let cluster = LocalCluster::start(nodes, options).unwrap();
        let client = connect(&cluster);
        let fs = FileSystem::open(&client, "files").unwrap();
        Self { fs, client, cluster }
    }

    /// The same, over one transport.
    pub fn over(transport: TransportKind, nodes: usize, memory_bytes: u64) -> Self {
        Self::with(transport, nodes, LocalOptions { memory_bytes, ..LocalOptions::default() })
    }

    /// A cluster with these options, and a client over this transport.
    pub fn with(transport: TransportKind, nodes: usize, options: LocalOptions) -> Self {
        let cluster = LocalCluster::start(nodes, options).unwrap();
        let options =
            samite_client::ClientOptions { transport: Some(transport), ..Default::default() };
        let client = cluster.client(options).unwrap();
        let fs = FileSystem::open(&client, "files").unwrap();
        Self { fs, client, cluster }
    }

    /// The file system through a client of its own over one transport.
    pub fn another_over(&self, transport: TransportKind) -> (Client, FileSystem) {
        let options =
            samite_client::ClientOptions { transport: Some(transport), ..Default::default() };
        let client = self.cluster.client(options).unwrap();
        let fs = FileSystem::open(&client, "files").unwrap();
        (client, fs)
    }

    /// Runs `work` in `count` threads in step, each with a client of its own: the third over a socket, the others over shared memory.
    pub fn in_step(
        &self,
        count: usize,
        rounds: usize,
        work: impl Fn(usize, usize, &FileSystem) + Sync,
    ) {
        let barrier = Barrier::new(count);
        std::thread::scope(|scope| {
            for index in 0..count {
                let transport = if index == 2 { TransportKind::Unix } else { TransportKind::Shm };
                let (_, fs) = self.another_over(transport);
                let (barrier, work) = (&barrier, &work);
                scope.spawn(move || {
                    for round in 0..rounds {
                        barrier.wait();
                        work(index, round, &fs);
                    }
                });
            }
        });
    }

    /// The file system through a client of its own, as another process has it.
    pub fn another(&self) -> FileSystem {
        FileSystem::open(&connect(&self.cluster), "files").unwrap()
    }
}

fn connect(cluster: &LocalCluster) -> Client {
    cluster.client(samite_client::ClientOptions::default()).unwrap()
}

pub fn root() -> CallerContext {
    CallerContext { umask: 0o022, ..CallerContext::root() }
}

pub fn user(uid: u32, gid: u32) -> CallerContext {
    CallerContext { uid, gid, umask: 0o022, ..CallerContext::default() }
}

pub fn kind<T: std::fmt::Debug>(result: Result<T>) -> ErrorKind {
    result.expect_err("it should fail").kind()
}

pub fn create(fs: &FileSystem, path: &[u8]) -> OpenFile {
    fs.open_file(&root(), path, OpenFlags::creating(), 0o644).unwrap()
}

pub fn put(fs: &FileSystem, path: &[u8], data: &[u8]) {
    let flags = OpenFlags { truncate: true, ..OpenFlags::creating() };
    let file = fs.open_file(&root(), path, flags, 0o644).unwrap();
    assert_eq!(file.write_at(data, 0).unwrap(), data.len());
    file.close().unwrap();
}

pub fn get(fs: &FileSystem, path: &[u8]) -> Result<Vec<u8>> {
    let file = fs.open_file(&root(), path, OpenFlags::reading(), 0)?;
    read_all(&file)
}

pub fn read_all(file: &OpenFile) -> Result<Vec<u8>> {
    let mut data = Vec::new();
    let mut buf = vec![0xaa; 100_000];
    loop {
        match file.read_at(&mut buf, data.len() as u64)? {
            0 => return Ok(data),
            len => data.extend_from_slice(&buf[..len]),
        }
    }
}

pub fn list(fs: &FileSystem, path: &[u8]) -> Vec<DirEntry> {
    let mut handle = fs.read_dir(&root(), path).unwrap();
    std::iter::from_fn(|| handle.next_entry().unwrap()).collect()
}

pub fn names(fs: &FileSystem, path: &[u8]) -> Vec<Vec<u8>> {
    let mut names: Vec<Vec<u8>> = list(fs, path)
        .into_iter()
        .map(|entry| entry.name.into_vec())
        .filter(|name| name != b"." && name != b"..")
        .collect();
    names.sort();
    names
}

/// Bytes that differ everywhere.
pub fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (state >> 56) as u8
        })
        .collect()
}

/// Runs `work` in `count` threads, each with a client of its own, all starting together.
pub fn together(rig: &Rig, count: usize, work: impl Fn(usize, &FileSystem) + Sync) {
    let barrier = Barrier::new(count);
    std::thread::scope(|scope| {
        for index in 0..count {
            let fs = rig.another();
            let (barrier, work) = (&barrier, &work);
            scope.spawn(move || {
                barrier.wait();
                work(index, &fs);
            });
        }
    });
}
