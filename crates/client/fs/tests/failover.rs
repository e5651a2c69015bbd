//! Nodes die and come back while programs work on a mirrored file system: they see pauses, and
//! their own changes.
#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

mod common;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{create, get, noise, put, read_all, root};
use samite_client::Client;
use samite_fs::{FileSystem, LockMode, LockPlace, LockRange, LockSpace, WantedLock};
use samite_testkit::{LocalCluster, LocalOptions};
use samite_types::{ErrorKind, NodeId, Redundancy};
use samite_wire::control::{DatasetSpec, MemberConsistency};

/// Longest time for a cluster to be as before.
const HEALING: Duration = Duration::from_secs(60);

fn connect(cluster: &LocalCluster) -> Client {
    let options =
        samite_client::ClientOptions { timeout: Duration::from_secs(60), ..Default::default() };
    cluster.client(options).unwrap()
}

/// The files that one program expects in its directories.
struct Worker {
    fs: FileSystem,
    index: u64,
    state: u64,
    files: BTreeMap<String, Vec<u8>>,
}

impl Worker {
    fn draw(&mut self, below: u64) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state % below
    }

    fn path(&mut self) -> String {
        let (half, file) = (self.draw(2), self.draw(6));
        format!("/w{}/{half}/f{file}", self.index)
    }

    fn step(&mut self) {
        let (path, other) = (self.path(), self.path());
        let known = self.files.get(&path).cloned();
        match self.draw(9) {
            0..3 => {
                let len = [10, 3000, 9000, 200_000][self.draw(4) as usize];
                let data = noise(len, self.state);
                put(&self.fs, path.as_bytes(), &data);
                self.files.insert(path, data);
            }
            3 | 4 => match known {
                Some(data) => assert!(get(&self.fs, path.as_bytes()).unwrap() == data, "{path}"),
                None => {
                    let error = get(&self.fs, path.as_bytes()).unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::NotFound, "{path}: {error}");
                }
            },
            5 | 6 => {
                let renamed = self.fs.rename(
                    &root(),
                    path.as_bytes(),
                    other.as_bytes(),
                    samite_fs::RenameFlags::default(),
                );
                match known {
                    Some(data) => {
                        renamed.unwrap();
                        self.files.remove(&path);
                        self.files.insert(other, data);
                    }
                    None => assert_eq!(renamed.unwrap_err().kind(), ErrorKind::NotFound),
                }
            }
            7 => {
                let removed = self.fs.unlink(&root(), path.as_bytes());
                assert_eq!(removed.is_ok(), known.is_some(), "{path}: {removed:?}");
                self.files.remove(&path);
            }
            _ => self.directory(),
        }
    }

    /// A directory is made, filled, and removed again.
    fn directory(&mut self) {
        let dir = format!("/w{}/made", self.index);
        let file = format!("{dir}/x");
        self.fs.mkdir(&root(), dir.as_bytes(), 0o755).unwrap();
        put(&self.fs, file.as_bytes(), b"x");
        let refused = self.fs.rmdir(&root(), dir.as_bytes()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NotEmpty);
        self.fs.unlink(&root(), file.as_bytes()).unwrap();
        self.fs.rmdir(&root(), dir.as_bytes()).unwrap();
    }

    /// Everything is there, seen by a client that was not.
    fn check(&self, fs: &FileSystem) {
        for half in 0..2 {
            let dir = format!("/w{}/{half}", self.index);
            let mut names: Vec<String> = Vec::new();
            let mut list = fs.read_dir(&root(), dir.as_bytes()).unwrap();
            while let Some(entry) = list.next_entry().unwrap() {
                let name = String::from_utf8(entry.name.to_vec()).unwrap();
                if name != "." && name != ".." {
                    names.push(format!("{dir}/{name}"));
                }
            }
            names.sort();
            let known: Vec<&String> =
                self.files.keys().filter(|path| path.starts_with(&dir)).collect();
            assert_eq!(names.iter().collect::<Vec<_>>(), known);
        }
        for (path, data) in &self.files {
            assert!(get(fs, path.as_bytes()).unwrap() == *data, "{path}");
        }
    }
}

/// Waits until every member of every mirror group has everything, and no group is short of one.
fn heal(client: &Client) {
    let start = Instant::now();
    loop {
        let map = client.refresh_map().unwrap();
        let table = map.table(Redundancy(2)).unwrap();
        let is_whole = table.groups.iter().all(|group| {
            group.members.len() == 2
                && group.members.iter().all(|member| member.consistency == MemberConsistency::Good)
        });
        if is_whole {
            return;
        }
        assert!(start.elapsed() < HEALING, "{:?}", table.groups);
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn programs_see_a_pause_and_what_they_did() {
    let options = LocalOptions { memory_bytes: 256 << 20, ..LocalOptions::default() };
    let mut cluster = LocalCluster::start(3, options).unwrap();
    let client = connect(&cluster);
    let spec = DatasetSpec { redundancy: Redundancy(2), ..DatasetSpec::new("files") };
    client.create_dataset(&spec).unwrap();
    let fs = FileSystem::open(&client, "files").unwrap();
    let mut workers: Vec<Worker> = (0..3)
        .map(|index| {
            let fs = FileSystem::open(&connect(&cluster), "files").unwrap();
            fs.mkdir(&root(), format!("/w{index}").as_bytes(), 0o755).unwrap();
            for half in 0..2 {
                fs.mkdir(&root(), format!("/w{index}/{half}").as_bytes(), 0o755).unwrap();
            }
            Worker { fs, index, state: 0x9e37_79b9 + index, files: BTreeMap::new() }
        })
        .collect();
    // A file without a name, which lives as long as it is open.
    let whole = fs.statfs().unwrap();
    assert_eq!(whole.blocks * whole.block_len * 2, 3 * (256 << 20));
    let held = create(&fs, b"/held");
    held.write_at(&noise(150_000, 5), 0).unwrap();
    fs.unlink(&root(), b"/held").unwrap();
    let (over, steps) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for worker in &mut workers {
            let (over, steps) = (&over, &steps);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    worker.step();
                    steps.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        // The coordinator lives in node 0.
        for node in [1, 2] {
            std::thread::sleep(Duration::from_millis(300));
            cluster.stop_node(NodeId(node)).unwrap();
            let before = steps.load(Ordering::Relaxed);
            let start = Instant::now();
            while steps.load(Ordering::Relaxed) < before + 30 {
                assert!(start.elapsed() < HEALING, "nothing goes on without node {node}");
                std::thread::sleep(Duration::from_millis(10));
            }
            assert!(read_all(&held).unwrap() == noise(150_000, 5));
            // The rest of the space.
            let left = fs.statfs().unwrap();
            assert_eq!(left.blocks, whole.blocks * 2 / 3);
            assert!(left.blocks_free < left.blocks);
            cluster.restart_node(NodeId(node)).unwrap();
            heal(&client);
        }
        over.store(true, Ordering::Relaxed);
    });
    let fresh = FileSystem::open(&connect(&cluster), "files").unwrap();
    workers.iter().for_each(|worker| worker.check(&fresh));
    assert!(read_all(&held).unwrap() == noise(150_000, 5));
}

#[test]
fn locks_stay_with_their_holders() {
    const FILES: u64 = 24;
    let options = LocalOptions { memory_bytes: 64 << 20, ..LocalOptions::default() };
    let mut cluster = LocalCluster::start(3, options).unwrap();
    let client = connect(&cluster);
    let spec = DatasetSpec { redundancy: Redundancy(2), ..DatasetSpec::new("files") };
    client.create_dataset(&spec).unwrap();
    let fs = FileSystem::open(&client, "files").unwrap();
    let other = FileSystem::open(&connect(&cluster), "files").unwrap();
    let (holder, waiter) = (fs.locks(), other.locks());
    let place = |ino| LockPlace { ino, space: LockSpace::Ranges, token: 1 };
    let (range, mode) = (LockRange::WHOLE, LockMode::Exclusive);
    let wanted = WantedLock { range, mode, pid: 7, detects_deadlock: false };
    for ino in 100..100 + FILES {
        assert_eq!(holder.try_lock(place(ino), wanted).unwrap(), None);
    }
    std::thread::scope(|scope| {
        // They wait at whichever node it is, and then at the next.
        let waits: Vec<_> = (100..100 + FILES)
            .map(|ino| {
                let waiter = &waiter;
                scope.spawn(move || waiter.lock(place(ino), wanted, &|| false).unwrap())
            })
            .collect();
        std::thread::sleep(Duration::from_millis(200));
        cluster.stop_node(NodeId(1)).unwrap();
        let third = FileSystem::open(&connect(&cluster), "files").unwrap().locks();
        for ino in 100..100 + FILES {
            let found = third.try_lock(place(ino), wanted).unwrap();
            assert_eq!(found.map(|found| found.holder.pid), Some(7), "{ino}");
        }
        assert!(waits.iter().all(|wait| !wait.is_finished()));
        for ino in 100..100 + FILES {
            holder.unlock(place(ino), range).unwrap();
        }
        waits.into_iter().for_each(|wait| wait.join().unwrap());
    });
    for ino in 100..100 + FILES {
        assert!(holder.try_lock(place(ino), wanted).unwrap().is_some(), "{ino}");
    }
    // With the last of its connections a holder's locks end, also where they were only noted.
    drop(waiter);
    let start = Instant::now();
    for ino in 100..100 + FILES {
        while holder.try_lock(place(ino), wanted).unwrap().is_some() {
            assert!(start.elapsed() < HEALING, "{ino} stays locked");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
