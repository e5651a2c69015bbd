//! Reads under a delegation: they save requests, and are never older than a node's answer.
#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{Rig, create, put, root};
use samite_client::{Client, ClientOptions, TransportKind};
use samite_fs::{FileSystem, OpenFile, OpenFlags};

const TRANSPORTS: [TransportKind; 3] =
    [TransportKind::Tcp, TransportKind::Unix, TransportKind::Shm];

fn over(rig: &Rig, transport: TransportKind) -> (Client, FileSystem) {
    let options = ClientOptions { transport: Some(transport), ..ClientOptions::default() };
    let client = rig.cluster.client(options).unwrap();
    let fs = FileSystem::open(&client, "files").unwrap();
    (client, fs)
}

fn open(fs: &FileSystem, path: &[u8]) -> OpenFile {
    fs.open_file(&root(), path, OpenFlags::reading(), 0).unwrap()
}

fn read(file: &OpenFile) -> Vec<u8> {
    let mut buf = [0; 10_000];
    let len = file.read_at(&mut buf, 0).unwrap();
    buf[..len].to_vec()
}

/// Requests of the cheapest of some tries: on a busy machine a delegation can run out between two
/// calls.
fn cost(client: &Client, mut call: impl FnMut()) -> u64 {
    let spent = (0..50).map(|_| {
        let before = client.stats();
        call();
        (client.stats() - before).requests
    });
    spent.min().unwrap()
}

#[test]
fn opening_reading_and_closing_a_small_file_is_one_request() {
    for nodes in [1, 3] {
        let rig = Rig::new(nodes);
        rig.fs.mkdir(&root(), b"/d", 0o755).unwrap();
        put(&rig.fs, b"/d/small", b"hello");
        put(&rig.fs, b"/d/full", &[7; 8192]);
        put(&rig.fs, b"/d/empty", b"");
        rig.fs.symlink(&root(), b"small", b"/d/link").unwrap();
        for transport in TRANSPORTS {
            let (client, fs) = over(&rig, transport);
            fs.stat(&root(), b"/d/small", true).unwrap();
            for (path, data, requests) in [
                (&b"/d/small"[..], &b"hello"[..], 1),
                (b"/d/full", &[7; 8192], 1),
                (b"/d/empty", b"", 1),
                (b"/d/link", b"hello", 2),
            ] {
                let spent = cost(&client, || {
                    let file = open(&fs, path);
                    assert_eq!(file.attr().unwrap().size, data.len() as u64);
                    assert_eq!(read(&file), data);
                    assert_eq!(file.read_at(&mut [0; 10], data.len() as u64).unwrap(), 0);
                    file.close().unwrap();
                });
                assert_eq!(spent, requests, "{path:?} over {transport} on {nodes} nodes");
            }
            let stat = || assert_eq!(fs.stat(&root(), b"/d/full", true).unwrap().size, 8192);
            // On its node's host a client reads lately used records from the look-up table.
            assert_eq!(cost(&client, stat), u64::from(transport != TransportKind::Shm));
        }
    }
}

#[test]
fn own_changes_are_seen_through_every_handle_at_once() {
    let rig = Rig::new(1);
    let fs = &rig.fs;
    for round in 0..100u32 {
        put(fs, b"/f", b"0000");
        let writer = fs.open_file(&root(), b"/f", OpenFlags::creating(), 0o644).unwrap();
        let text = format!("{round:04}");
        let before = open(fs, b"/f");
        writer.write_at(text.as_bytes(), 0).unwrap();
        let after = open(fs, b"/f");
        assert_eq!(read(&before), text.as_bytes());
        assert_eq!(read(&after), text.as_bytes());
        fs.truncate(&root(), b"/f", 2).unwrap();
        assert_eq!(before.attr().unwrap().size, 2);
        assert_eq!(read(&after), &text.as_bytes()[..2]);
        fs.chmod(&root(), b"/f", round & 0o777, true).unwrap();
        assert_eq!(after.attr().unwrap().perm, round & 0o777);
        // Too large for the inode.
        let grown = open(fs, b"/f");
        writer.write_at(&[1; 9000], 0).unwrap();
        assert_eq!((read(&grown).len(), grown.attr().unwrap().size), (9000, 9000));
        let moved = open(fs, b"/f");
        fs.rename(&root(), b"/f", b"/g", Default::default()).unwrap();
        assert_eq!(read(&moved).len(), 9000);
        put(fs, b"/f", b"0000");
        let gone = open(fs, b"/f");
        fs.unlink(&root(), b"/f").unwrap();
        assert_eq!(read(&gone), b"0000");
        for file in [before, after, grown, moved, gone, writer] {
            file.close().unwrap();
        }
        fs.unlink(&root(), b"/g").unwrap();
    }
}

#[test]
fn a_change_by_another_process_waits_for_the_reader_and_no_longer_than_the_term() {
    let rig = Rig::new(1);
    put(&rig.fs, b"/f", b"old");
    let other = rig.another();
    let writer = create(&other, b"/f");
    let mut longest = Duration::ZERO;
    for _ in 0..50 {
        thread::sleep(Duration::from_millis(11));
        // The reader dies with its delegation: nobody gives it back.
        let dead = open(&rig.fs, b"/f");
        let start = Instant::now();
        writer.write_at(b"new", 0).unwrap();
        longest = longest.max(start.elapsed());
        assert_eq!(read(&dead), b"new");
    }
    assert!(longest > Duration::from_millis(1), "no delegation was ever in the way: {longest:?}");
    assert!(longest < Duration::from_secs(5), "{longest:?}");
}

/// A writer counts up in a small file; readers must never see less than the value that was
/// acknowledged before they read.
#[test]
fn a_reader_never_sees_less_than_what_was_acknowledged() {
    for (nodes, transport) in [(1, TransportKind::Shm), (2, TransportKind::Tcp)] {
        let rig = Rig::new(nodes);
        put(&rig.fs, b"/n", &0u64.to_le_bytes());
        let (acknowledged, done) = (AtomicU64::new(0), AtomicBool::new(false));
        let (mut kept, mut reads) = (0, 0);
        thread::scope(|scope| {
            scope.spawn(|| {
                let (_, fs) = over(&rig, transport);
                let file = create(&fs, b"/n");
                let end = Instant::now() + Duration::from_millis(1500);
                let mut number = 0u64;
                while Instant::now() < end {
                    number += 1;
                    file.write_at(&number.to_le_bytes(), 0).unwrap();
                    acknowledged.store(number, Ordering::SeqCst);
                    if number.is_multiple_of(64) {
                        // Quiet for long enough to let delegations be granted again.
                        thread::sleep(Duration::from_millis(number % 23));
                    }
                }
                done.store(true, Ordering::SeqCst);
            });
            let (client, fs) = over(&rig, transport);
            let mut seen = 0u64;
            while !done.load(Ordering::SeqCst) {
                let mut least = acknowledged.load(Ordering::SeqCst).max(seen);
                let file = open(&fs, b"/n");
                for _ in 0..10 {
                    let before = client.stats().requests;
                    seen = u64::from_le_bytes(read(&file).try_into().unwrap());
                    kept += u64::from(client.stats().requests == before);
                    reads += 1;
                    assert!(seen >= least, "{seen} after {least}");
                    least = acknowledged.load(Ordering::SeqCst).max(seen);
                }
                file.close().unwrap();
            }
        });
        assert!(kept > 10, "delegations were of no use: {kept} of {reads} reads");
        let written = acknowledged.load(Ordering::SeqCst);
        println!(
            "{nodes} nodes, {transport}: {written} writes, {reads} reads, {kept} without a request"
        );
        assert!(written > 500 && reads > 500, "{written} writes and {reads} reads");
    }
}

/// Two clients that both write and read the same small file are not slowed down to a delegation for
/// each write.
#[test]
fn two_who_share_a_small_file_do_not_wait_for_each_other_all_the_time() {
    let rig = Rig::new(1);
    put(&rig.fs, b"/f", b"0");
    let rounds = || {
        let fs = rig.another();
        let writer = create(&fs, b"/f");
        let end = Instant::now() + Duration::from_millis(700);
        let mut rounds = 0u64;
        while Instant::now() < end {
            writer.write_at(b"x", 0).unwrap();
            let file = open(&fs, b"/f");
            assert_eq!(read(&file), b"x");
            file.close().unwrap();
            rounds += 1;
        }
        rounds
    };
    let [first, second] = thread::scope(|scope| {
        [scope.spawn(rounds), scope.spawn(rounds)].map(|thread| thread.join().unwrap())
    });
    println!("rounds of write, open, read, close in 0.7 s: {first} and {second}");
    // If each write waited for a delegation of 2 ms, there would be 350 at most.
    assert!(first + second > 1000, "{first} and {second}");
}
