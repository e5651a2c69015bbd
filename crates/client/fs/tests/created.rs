//! Files whose creation completes early, in a submission queue: nobody can tell, whichever way they
//! look.
#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::{Rig, create, get, kind, names, put, root};
use samite_client::TransportKind;
use samite_fs::{FileSystem, OpenFlags};
use samite_testkit::LocalOptions;
use samite_types::{ErrorKind, Result};

/// A rig with a directory `/d`.
fn rig(nodes: usize, memory_bytes: u64) -> Rig {
    let rig = Rig::over(TransportKind::Shm, nodes, memory_bytes);
    rig.fs.mkdir(&root(), b"/d", 0o755).unwrap();
    rig
}

fn path(index: usize) -> Vec<u8> {
    format!("/d/{index}").into_bytes()
}

/// Makes a file that is not there yet, and closes it.
fn make(fs: &FileSystem, path: &[u8]) -> Result<()> {
    let flags = OpenFlags { excl: true, ..OpenFlags::creating() };
    fs.open_file(&root(), path, flags, 0o640)?.close()
}

#[test]
fn files_are_left_with_the_node_and_seen_by_all_at_once() {
    for nodes in [1, 3] {
        let rig = rig(nodes, 64 << 20);
        let (near, far) =
            (rig.another_over(TransportKind::Shm), rig.another_over(TransportKind::Unix));
        let before = rig.client.stats();
        // Nobody opens anything for reading: that takes delegations, and then everything is asked
        // for.
        for index in 0..300 {
            let path = path(index);
            make(&rig.fs, &path).unwrap();
            let (_, other) = if index % 2 == 0 { &near } else { &far };
            match index % 7 {
                0 => assert_eq!(other.stat(&root(), &path, true).unwrap().perm, 0o640),
                1 => assert_eq!(kind(make(other, &path)), ErrorKind::Exists),
                2 => assert_eq!(kind(make(&rig.fs, &path)), ErrorKind::Exists),
                3 => assert_eq!(names(other, b"/d").len(), index + 1),
                4 => put(other, &path, b"more"),
                _ => {}
            }
        }
        let spent = rig.client.stats() - before;
        assert!(spent.early_completions > 200, "{spent:?} on {nodes} nodes");
        for index in 0..300 {
            let expected: &[u8] = if index % 7 == 4 { b"more" } else { b"" };
            assert_eq!(get(&far.1, &path(index)).unwrap(), expected);
            near.1.unlink(&root(), &path(index)).unwrap();
        }
        far.1.rmdir(&root(), b"/d").unwrap();
    }
}

#[test]
fn a_file_that_was_just_made_is_written_and_lives_on_while_it_is_open() {
    let rig = rig(1, 64 << 20);
    let (_, other) = rig.another_over(TransportKind::Shm);
    for index in 0..40 {
        let path = path(index);
        let file = create(&rig.fs, &path);
        if index % 2 == 0 {
            other.unlink(&root(), &path).unwrap();
        }
        assert_eq!(file.write_at(b"here", 0).unwrap(), 4);
        assert_eq!(file.attr().unwrap().nlink, u32::from(index % 2 == 1));
        if index % 2 == 0 {
            make(&other, &path).unwrap();
            assert_eq!(get(&other, &path).unwrap(), b"");
        } else {
            assert_eq!(get(&other, &path).unwrap(), b"here");
        }
        file.close().unwrap();
    }
}

#[test]
fn each_name_is_made_once() {
    const ROUNDS: usize = 2000;
    let rig = rig(1, 64 << 20);
    let wins: Vec<AtomicUsize> = (0..ROUNDS).map(|_| AtomicUsize::new(0)).collect();
    rig.in_step(3, ROUNDS, |_, round, fs| match make(fs, &path(round)) {
        Ok(()) => drop(wins[round].fetch_add(1, Ordering::SeqCst)),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Exists),
    });
    assert!(wins.iter().all(|wins| wins.load(Ordering::SeqCst) == 1));
    assert_eq!(names(&rig.fs, b"/d").len(), ROUNDS);
}

#[test]
fn a_directory_is_removed_or_a_file_is_made_in_it_and_never_both() {
    const ROUNDS: usize = 400;
    let rig = rig(1, 64 << 20);
    let directory = |round: usize| format!("/d/dir-{round}").into_bytes();
    for round in 0..ROUNDS {
        rig.fs.mkdir(&root(), &directory(round), 0o755).unwrap();
    }
    let outcomes: Vec<AtomicUsize> = (0..ROUNDS).map(|_| AtomicUsize::new(0)).collect();
    rig.in_step(3, ROUNDS, |index, round, fs| {
        let dir = directory(round);
        // Known before: nothing but the file is asked for.
        let _ = fs.stat(&root(), &dir, true);
        let done = match index {
            0 => make(fs, &[&dir[..], b"/f"].concat()),
            1 => make(fs, &[&dir[..], b"/g"].concat()),
            _ => fs.rmdir(&root(), &dir),
        };
        match done {
            Ok(()) => drop(outcomes[round].fetch_add(1 << index, Ordering::SeqCst)),
            Err(error) => assert!(
                matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotEmpty),
                "{error}"
            ),
        }
    });
    let left = names(&rig.fs, b"/d");
    for (round, outcome) in outcomes.iter().enumerate() {
        let outcome = outcome.load(Ordering::SeqCst);
        let dir = directory(round);
        if left.iter().any(|name| dir.ends_with(&[b"/", &name[..]].concat())) {
            let files = names(&rig.fs, &dir).len();
            assert_eq!(files as u32, (outcome & 3).count_ones(), "round {round}: {outcome}");
            assert!(outcome & 4 == 0 && files > 0, "round {round}: {outcome}");
        } else {
            assert_eq!(outcome, 4, "round {round}");
        }
    }
}

#[test]
fn what_was_made_is_there_though_the_target_is_full() {
    let rig = rig(1, 4 << 20);
    let (_, other) = rig.another_over(TransportKind::Shm);
    let mut made = 0;
    let error = loop {
        match make(if made % 3 == 0 { &other } else { &rig.fs }, &path(made)) {
            Ok(()) => made += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert!(made > 1000, "{made}");
    assert_eq!(names(&rig.fs, b"/d").len(), made);
    for index in (0..made).rev() {
        rig.fs.unlink(&root(), &path(index)).unwrap();
    }
    make(&other, b"/d/again").unwrap();
    assert_eq!(names(&other, b"/d"), [b"again"]);
}

/// Records of all nodes, and the orphans without open references.
fn records(rig: &Rig) -> (u64, u64) {
    let map = rig.client.map().unwrap();
    let status = map.nodes().iter().map(|node| rig.client.node_status(node.node).unwrap());
    status.fold((0, 0), |sum, status| (sum.0 + status.records, sum.1 + status.abandoned))
}

#[test]
fn what_is_closed_is_let_go_of_soon_whoever_takes_its_name() {
    const FILES: usize = 400;
    for nodes in [1, 3] {
        let rig = rig(nodes, 64 << 20);
        let (_, other) = rig.another_over(TransportKind::Shm);
        // Change stamps of the directory stay.
        let stamps = u64::from(rig.client.map().unwrap().partitions());
        let before = records(&rig).0;
        let start = rig.client.stats();
        for index in 0..FILES {
            let path = path(index);
            let file = create(&rig.fs, &path);
            if index % 3 == 0 {
                other.unlink(&root(), &path).unwrap();
            }
            file.close().unwrap();
            if index % 3 == 1 {
                rig.fs.unlink(&root(), &path).unwrap();
            }
        }
        let spent = rig.client.stats() - start;
        assert!(spent.early_completions > FILES as u64 / 2, "{spent:?} on {nodes} nodes");
        for index in (2..FILES).step_by(3) {
            other.unlink(&root(), &path(index)).unwrap();
        }
        rig.fs.flush_closes().unwrap();
        other.flush_closes().unwrap();
        let (left, abandoned) = records(&rig);
        assert_eq!(abandoned, 0, "on {nodes} nodes");
        assert!(left <= before + stamps, "{left} records where {before} were, on {nodes} nodes");
    }
}

#[test]
fn only_open_files_keep_open_references() {
    const FILES: usize = 600;
    let rig = rig(1, 64 << 20);
    let before = records(&rig).0;
    let kept: Vec<_> = (0..FILES)
        .map(|index| {
            let file = create(&rig.fs, &path(index));
            match index % 3 {
                0 => {
                    file.close().unwrap();
                    None
                }
                1 => Some(file),
                // Another process goes on with it: it does not know the submission-queue entry of
                // the open reference.
                _ => {
                    let state = file.state().unwrap();
                    file.leave();
                    Some(rig.fs.reopen(&state))
                }
            }
        })
        .collect();
    let (_, other) = rig.another_over(TransportKind::Shm);
    for index in 0..FILES {
        other.unlink(&root(), &path(index)).unwrap();
    }
    for (index, file) in kept.iter().enumerate() {
        let Some(file) = file else { continue };
        assert_eq!(file.write_at(b"alive", 0).unwrap(), 5, "file {index}");
        assert_eq!(file.attr().unwrap().nlink, 0, "file {index}");
        file.close().unwrap();
    }
    rig.fs.flush_closes().unwrap();
    let stamps = u64::from(rig.client.map().unwrap().partitions());
    let (left, abandoned) = records(&rig);
    assert_eq!(abandoned, 0);
    assert!(left <= before + stamps, "{left} records where {before} were");
}

#[test]
fn what_is_left_with_a_shard_that_has_no_connection_is_made_soon() {
    // Fewer than fill a submission queue: nobody has to wait for any of them.
    const FILES: usize = 60;
    let rig =
        Rig::with(TransportKind::Shm, 1, LocalOptions { shards: 3, ..LocalOptions::default() });
    rig.fs.mkdir(&root(), b"/d", 0o755).unwrap();
    let (before, start) = (records(&rig).0, rig.client.stats());
    // Kept open: the end of a reference is a request, before which the node would make the files.
    let files: Vec<_> = (0..FILES).map(|index| create(&rig.fs, &path(index))).collect();
    let spent = rig.client.stats() - start;
    assert!(spent.early_completions as usize > FILES / 2, "{spent:?}");
    let began = Instant::now();
    while records(&rig).0 < before + FILES as u64 {
        // A shard that nobody calls looks by itself after ten seconds.
        assert!(began.elapsed() < Duration::from_secs(8), "{:?}", records(&rig));
        std::thread::sleep(Duration::from_millis(1));
    }
    files.into_iter().for_each(|file| file.close().unwrap());
}
