//! Removals that complete early, in a submission queue: nobody can tell, whichever way they look.
#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

mod common;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use common::{Rig, create, kind, names, put, root};
use proptest::prelude::*;
use samite_client::{Client, ClientOptions, TransportKind};
use samite_fs::{FileSystem, OpenFlags, RenameFlags, XattrFlags, XattrSubject};
use samite_testkit::LocalCluster;
use samite_types::ErrorKind;

const REPLACE: RenameFlags = RenameFlags { no_replace: false, exchange: false, whiteout: false };

fn early_completions(client: &Client) -> u64 {
    client.stats().early_completions
}

/// Makes files that are published to clients of the host, without open references.
fn make(fs: &FileSystem, count: usize) -> Vec<Vec<u8>> {
    let all: Vec<Vec<u8>> = (0..count).map(|index| format!("/d/{index}").into_bytes()).collect();
    for path in &all {
        create(fs, path).close().unwrap();
    }
    all
}

/// A rig with a directory `/d`.
fn rig(nodes: usize) -> Rig {
    let rig = Rig::over(TransportKind::Shm, nodes, 64 << 20);
    rig.fs.mkdir(&root(), b"/d", 0o755).unwrap();
    rig
}

#[test]
fn removals_are_left_with_the_node_and_seen_by_all_at_once() {
    for nodes in [1, 3] {
        let rig = rig(nodes);
        let (near, far) =
            (rig.another_over(TransportKind::Shm), rig.another_over(TransportKind::Unix));
        let all = make(&rig.fs, 300);
        for path in &all {
            near.1.stat(&root(), path, true).unwrap();
        }
        let before = rig.client.stats();
        for (index, path) in all.iter().enumerate() {
            rig.fs.unlink(&root(), path).unwrap();
            let (_, other) = if index % 2 == 0 { &near } else { &far };
            match index % 5 {
                0 => assert_eq!(kind(other.stat(&root(), path, true)), ErrorKind::NotFound),
                1 => assert_eq!(kind(other.unlink(&root(), path)), ErrorKind::NotFound),
                2 => assert_eq!(kind(rig.fs.stat(&root(), path, true)), ErrorKind::NotFound),
                3 => assert_eq!(names(other, b"/d").len(), all.len() - index - 1),
                _ => {}
            }
        }
        let spent = rig.client.stats() - before;
        assert!(spent.early_completions > 200, "{spent:?} on {nodes} nodes");
        assert!(spent.requests < 150, "{spent:?} on {nodes} nodes");
        near.1.rmdir(&root(), b"/d").unwrap();
    }
}

#[test]
fn the_directory_has_changed_when_the_call_returns() {
    let rig = rig(1);
    let (_, other) = rig.another_over(TransportKind::Shm);
    for path in make(&other, 20) {
        let before = other.stat(&root(), b"/d", true).unwrap().mtime;
        let completed = early_completions(&rig.client);
        rig.fs.unlink(&root(), &path).unwrap();
        assert_eq!(early_completions(&rig.client), completed + 1);
        assert!(other.stat(&root(), b"/d", true).unwrap().mtime > before);
    }
}

#[test]
fn what_is_not_certain_is_asked_for() {
    let rig = rig(1);
    let (fs, user) = (&rig.fs, common::user(1000, 1000));
    let asked = |what: &str, call: &dyn Fn()| {
        let before = rig.client.stats();
        call();
        assert_eq!((rig.client.stats() - before).early_completions, 0, "{what}");
    };
    let gone = |path: &[u8]| assert_eq!(kind(fs.stat(&root(), path, true)), ErrorKind::NotFound);
    asked("of nothing", &|| assert_eq!(kind(fs.unlink(&root(), b"/d/no")), ErrorKind::NotFound));
    fs.mkdir(&root(), b"/d/dir", 0o755).unwrap();
    asked("of a directory", &|| {
        assert_eq!(kind(fs.unlink(&root(), b"/d/dir")), ErrorKind::IsDirectory);
    });
    create(fs, b"/d/one").close().unwrap();
    fs.link(&root(), b"/d/one", b"/d/two", false).unwrap();
    fs.stat(&root(), b"/d/one", true).unwrap();
    asked("of one of two names", &|| fs.unlink(&root(), b"/d/one").unwrap());
    assert_eq!(fs.stat(&root(), b"/d/two", true).unwrap().nlink, 1);
    put(fs, b"/d/large", &vec![7; 300_000]);
    fs.stat(&root(), b"/d/large", true).unwrap();
    let used = || fs.statfs().unwrap();
    let full = used();
    asked("of a file with chunks", &|| fs.unlink(&root(), b"/d/large").unwrap());
    assert_ne!(used(), full, "its chunks are gone");
    create(fs, b"/d/attributed").close().unwrap();
    let (subject, flags) =
        (XattrSubject::Path((&b"/d/attributed"[..]).into(), true), XattrFlags::default());
    fs.set_xattr(&root(), &subject, b"user.a", b"b", flags).unwrap();
    fs.stat(&root(), b"/d/attributed", true).unwrap();
    asked("of one with attributes", &|| fs.unlink(&root(), b"/d/attributed").unwrap());
    gone(b"/d/attributed");
    create(fs, b"/d/mine").close().unwrap();
    asked("without the right", &|| {
        assert_eq!(kind(fs.unlink(&user, b"/d/mine")), ErrorKind::Denied)
    });
    fs.stat(&root(), b"/d/mine", true).unwrap();
}

#[test]
fn a_file_that_is_open_lives_on() {
    let rig = rig(1);
    let (client, fs) = rig.another_over(TransportKind::Shm);
    put(&rig.fs, b"/d/f", b"still here");
    let flags = OpenFlags { write: true, ..OpenFlags::reading() };
    let file = rig.fs.open_file(&root(), b"/d/f", flags, 0).unwrap();
    // Delegations that the opening was granted run out.
    std::thread::sleep(std::time::Duration::from_millis(50));
    fs.stat(&root(), b"/d", true).unwrap();
    fs.stat(&root(), b"/d/f", true).unwrap();
    fs.unlink(&root(), b"/d/f").unwrap();
    assert_eq!(early_completions(&client), 1);
    assert_eq!(file.write_at(b"S", 0).unwrap(), 1);
    assert_eq!(common::read_all(&file).unwrap(), b"Still here");
    assert_eq!(file.attr().unwrap().nlink, 0);
    create(&fs, b"/d/f").close().unwrap();
    assert_eq!(common::read_all(&file).unwrap(), b"Still here");
    file.close().unwrap();
}

#[test]
fn each_file_is_removed_once() {
    const ROUNDS: usize = 2000;
    let rig = rig(1);
    let all = make(&rig.fs, ROUNDS);
    let wins: Vec<AtomicUsize> = all.iter().map(|_| AtomicUsize::new(0)).collect();
    rig.in_step(3, ROUNDS, |_, round, fs| match fs.unlink(&root(), &all[round]) {
        Ok(()) => drop(wins[round].fetch_add(1, Ordering::SeqCst)),
        Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound),
    });
    assert!(wins.iter().all(|wins| wins.load(Ordering::SeqCst) == 1));
    assert!(names(&rig.fs, b"/d").is_empty());
}

#[test]
fn a_file_is_removed_or_renamed_and_never_both() {
    const ROUNDS: usize = 2000;
    let rig = rig(1);
    let all = make(&rig.fs, ROUNDS);
    let outcomes: Vec<AtomicUsize> = all.iter().map(|_| AtomicUsize::new(0)).collect();
    let target = |round: usize| format!("/d/to-{round}").into_bytes();
    rig.in_step(2, ROUNDS, |index, round, fs| {
        let done = match index {
            0 => fs.unlink(&root(), &all[round]),
            _ => fs.rename(&root(), &all[round], &target(round), REPLACE),
        };
        match done {
            Ok(()) => drop(outcomes[round].fetch_add(1 + index, Ordering::SeqCst)),
            Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound),
        }
    });
    let left = names(&rig.fs, b"/d");
    let renamed = outcomes.iter().filter(|one| one.load(Ordering::SeqCst) == 2).count();
    assert!(outcomes.iter().all(|one| matches!(one.load(Ordering::SeqCst), 1 | 2)));
    assert_eq!(left.len(), renamed);
}

#[test]
fn what_is_removed_stays_removed_for_who_is_told() {
    const ROUNDS: usize = 2000;
    let rig = rig(1);
    let all = make(&rig.fs, ROUNDS);
    let removed = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for transport in [TransportKind::Shm, TransportKind::Unix] {
            let (_, fs) = rig.another_over(transport);
            let (all, removed) = (&all, &removed);
            scope.spawn(move || {
                loop {
                    let count = removed.load(Ordering::SeqCst);
                    if count == ROUNDS {
                        break;
                    }
                    if let Some(last) = count.checked_sub(1) {
                        assert_eq!(kind(fs.stat(&root(), &all[last], true)), ErrorKind::NotFound);
                    }
                    // Puts the next ones into the look-up table again.
                    let _ = fs.stat(&root(), &all[(count + 1).min(ROUNDS - 1)], true);
                }
            });
        }
        for path in &all {
            rig.fs.unlink(&root(), path).unwrap();
            removed.fetch_add(1, Ordering::SeqCst);
        }
    });
    assert!(early_completions(&rig.client) > 100, "{}", early_completions(&rig.client));
}

#[derive(Clone, Debug)]
enum Op {
    Make(usize),
    Remove(usize),
    Rename(usize, usize),
    Look(usize),
    Open(usize),
    Chmod(usize, u32),
    List,
}

const NAMES: usize = 4;

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0..NAMES).prop_map(Op::Make),
        6 => (0..NAMES).prop_map(Op::Remove),
        2 => (0..NAMES, 0..NAMES).prop_map(|(from, to)| Op::Rename(from, to)),
        3 => (0..NAMES).prop_map(Op::Look),
        1 => (0..NAMES).prop_map(Op::Open),
        1 => (0..NAMES, 0u32..0o777).prop_map(|(name, mode)| Op::Chmod(name, mode)),
        1 => Just(Op::List),
    ]
}

fn carry_out(fs: &FileSystem, model: &mut BTreeMap<usize, u32>, op: &Op) {
    let path = |name: usize| format!("/d/{name}").into_bytes();
    let absent = Err(ErrorKind::NotFound);
    match *op {
        Op::Make(name) => {
            let flags = OpenFlags { excl: true, ..OpenFlags::creating() };
            let made = fs.open_file(&root(), &path(name), flags, 0o644).map(drop);
            let expected = if model.contains_key(&name) { Err(ErrorKind::Exists) } else { Ok(()) };
            assert_eq!(made.map_err(|error| error.kind()), expected);
            model.entry(name).or_insert(0o644);
        }
        Op::Remove(name) => {
            let expected = model.remove(&name).map(drop).ok_or(ErrorKind::NotFound);
            let removed = fs.unlink(&root(), &path(name));
            assert_eq!(removed.map_err(|error| error.kind()), expected);
        }
        Op::Rename(from, to) => {
            let renamed = fs.rename(&root(), &path(from), &path(to), REPLACE);
            let expected = if model.contains_key(&from) { Ok(()) } else { absent };
            assert_eq!(renamed.map_err(|error| error.kind()), expected);
            if let Some(mode) = model.remove(&from) {
                model.insert(to, mode);
            }
        }
        Op::Look(name) => {
            let found = fs.stat(&root(), &path(name), true).map(|attr| attr.perm);
            let expected = model.get(&name).copied().ok_or(ErrorKind::NotFound);
            assert_eq!(found.map_err(|error| error.kind()), expected);
        }
        Op::Open(name) => {
            let opened = fs.open_file(&root(), &path(name), OpenFlags::reading(), 0).map(drop);
            let expected = if model.contains_key(&name) { Ok(()) } else { absent };
            assert_eq!(opened.map_err(|error| error.kind()), expected);
        }
        Op::Chmod(name, mode) => {
            let changed = fs.chmod(&root(), &path(name), mode, true);
            let expected = if model.contains_key(&name) { Ok(()) } else { absent };
            assert_eq!(changed.map(drop).map_err(|error| error.kind()), expected);
            model.entry(name).and_modify(|old| *old = mode);
        }
        Op::List => {
            let expected: Vec<Vec<u8>> =
                model.keys().map(|name| name.to_string().into_bytes()).collect();
            assert_eq!(names(fs, b"/d"), expected);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Several clients by turns, on two shards: each sees what the others did.
    #[test]
    fn clients_by_turns_see_one_directory(
        ops in proptest::collection::vec((0..3usize, op()), 1..150),
        shards in 1u16..3,
    ) {
        let options = samite_testkit::LocalOptions { shards, ..samite_testkit::LocalOptions::default() };
        let cluster = LocalCluster::start(1, options).unwrap();
        let clients = [TransportKind::Shm, TransportKind::Shm, TransportKind::Unix].map(|transport| {
            let options = ClientOptions { transport: Some(transport), ..ClientOptions::default() };
            FileSystem::open(&cluster.client(options).unwrap(), "files").unwrap()
        });
        clients[0].mkdir(&root(), b"/d", 0o755).unwrap();
        let mut model = BTreeMap::new();
        for (who, op) in &ops {
            carry_out(&clients[*who], &mut model, op);
        }
    }
}

/// Says so when it ends, however it does: threads that look wait for no thread that has failed.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Runs `work` while the delegations of `client` are given back as soon as they are recalled.
fn while_listening(client: &Client, work: impl FnOnce()) {
    let node = client.map().unwrap().nodes()[0].node;
    let mut revocations = client.revocations(node).unwrap();
    revocations.next(Duration::from_millis(1)).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                revocations.next(Duration::from_millis(20)).unwrap();
            }
        });
        let _ends = Ends(&is_over);
        work();
    });
}

#[test]
fn the_sole_holder_completes_early_and_gets_more_delegations_for_certain() {
    let rig = rig(1);
    let (fs, (_, far)) = (&rig.fs, rig.another_over(TransportKind::Unix));
    let before = rig.client.stats();
    while_listening(&rig.client, || {
        for index in 0..300 {
            let path = format!("/d/{index}").into_bytes();
            let made = fs.open_found(&root(), &path, OpenFlags::creating(), 0o640).unwrap();
            made.found.file.close().unwrap();
            let delegation = made.name.expect("nobody else has changed anything of late");
            match index % 6 {
                0 => far.unlink(&root(), &path).unwrap(),
                1 => far.chmod(&root(), &path, 0o600, true).unwrap(),
                // Not longer than a delegation, on the busiest machine.
                2 => assert!(delegation.left(fs).is_none_or(|left| left < Duration::from_secs(4))),
                _ => fs.unlink(&root(), &path).unwrap(),
            }
            if index % 6 < 2 {
                assert!(delegation.left(fs).is_none(), "it was called back");
                let perm = fs.stat(&root(), &path, true).ok().map(|attr| attr.perm);
                assert_eq!(perm, (index % 6 == 1).then_some(0o600));
            }
        }
    });
    let spent = rig.client.stats() - before;
    assert!(spent.early_completions > 200, "{spent:?}");
}

#[test]
fn what_a_client_counts_on_holds_whoever_changes_it_meanwhile() {
    let rig = rig(1);
    let (fs, (_, near)) = (&rig.fs, rig.another_over(TransportKind::Shm));
    let (_, far) = rig.another_over(TransportKind::Unix);
    let is_over = AtomicBool::new(false);
    let (mut held, before) = (0, rig.client.stats());
    while_listening(&rig.client, || {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::SeqCst) {
                    let _ = near.unlink(&root(), b"/d/k");
                    std::thread::sleep(Duration::from_micros(300));
                }
            });
            let _ends = Ends(&is_over);
            for round in 0..3000 {
                // Others keep the table open for this client.
                let path = format!("/d/{}", round % 7).into_bytes();
                fs.open_found(&root(), &path, OpenFlags::creating(), 0o640).unwrap();
                let made = fs.open_found(&root(), b"/d/k", OpenFlags::creating(), 0o640).unwrap();
                let left = || made.name.and_then(|delegation| delegation.left(fs));
                if left().is_some() {
                    let is_there = far.stat(&root(), b"/d/k", true).is_ok();
                    assert!(
                        is_there || left().is_none(),
                        "removed under a delegation, round {round}"
                    );
                    held += u32::from(left().is_some());
                }
                made.found.file.close().unwrap();
                if round % 3 == 0 {
                    let _ = fs.unlink(&root(), b"/d/k");
                    fs.unlink(&root(), &path).unwrap();
                }
            }
        });
    });
    let spent = rig.client.stats() - before;
    assert!(held > 0 && spent.early_completions > 100, "{held} held, {spent:?}");
}
