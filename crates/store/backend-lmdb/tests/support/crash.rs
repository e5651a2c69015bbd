//! Processes that are killed, and disks that are full.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use samite_backend::ordered::OrderedTarget;
use samite_backend::{Backend, CommitTarget, RecordStore, WriteSource};
use samite_types::{ErrorKind, Version};

use super::{OpenMap, PLACE};

/// Says to a test that it is the process that is killed, and in which directory.
const ENV_DIR: &str = "SAMITE_TEST_CRASH_DIR";
/// Rounds of killing.
const ROUNDS: u64 = 30;

/// The directory, if this process is the one that does the work.
pub fn child_dir() -> Option<PathBuf> {
    std::env::var_os(ENV_DIR).map(PathBuf::from)
}

/// Numbers that look random, the same for the same seed.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self, below: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

type Values = BTreeMap<Vec<u8>, Vec<u8>>;

/// The changes of one commit, made to a store and to its model.
fn change(number: u64, store: Option<&mut dyn RecordStore>, values: &mut Values) {
    let (mut numbers, mut store) = (Numbers(number), store);
    for _ in 0..4 + numbers.next(12) {
        let key = super::key_of(numbers.next(60) as u16);
        let fill = numbers.next(255) as u8 | 1;
        let (at, len) = (numbers.next(90_000), [60, 900, 5000, 70_000][numbers.next(4) as usize]);
        let bytes = vec![fill; len];
        match numbers.next(5) {
            0 => {
                if let Some(store) = store.as_mut() {
                    store.delete(&key).expect("delete");
                }
                values.remove(&key);
            }
            1 | 2 => {
                if let Some(store) = store.as_mut() {
                    store.put(&key, WriteSource::Bytes(&bytes), Version(1)).expect("put");
                }
                values.insert(key, bytes);
            }
            _ => {
                if let Some(store) = store.as_mut() {
                    let source = WriteSource::Bytes(&bytes);
                    store.write(&key, at as u32, source, Version(1)).expect("write");
                }
                let value = values.entry(key).or_default();
                value.resize(value.len().max(at as usize + len), 0);
                value[at as usize..at as usize + len].fill(fill);
            }
        }
    }
}

fn open(map: OpenMap, dir: &Path) -> (Arc<OrderedTarget>, Box<dyn RecordStore>) {
    let target = OrderedTarget::open(map(dir), 256 << 20).expect("open");
    let store = target.backend().open(PLACE.0, PLACE.1).expect("open");
    (target, store)
}

/// The number of the commit as which the store was opened.
fn number_of(store: &mut dyn RecordStore) -> u64 {
    let state = store.commits().expect("it remembers").state().expect("state");
    state.map_or(0, |state| u64::from_le_bytes(state.try_into().expect("a number")))
}

fn commit(
    target: &OrderedTarget,
    store: &mut dyn RecordStore,
    number: u64,
) -> samite_types::Result<()> {
    let records = store.commits().expect("it remembers");
    let batch = records.take_batch(Some(&number.to_le_bytes()));
    target.commit(&[batch])?;
    store.commits().expect("it remembers").committed();
    Ok(())
}

/// Commits for ever, and tells of each commit when it is done.
pub fn commit_until_killed(map: OpenMap, dir: &Path) {
    let (target, mut store) = open(map, dir);
    let mut number = number_of(&mut *store);
    let mut out = std::io::stdout();
    writeln!(out, "begins").expect("tell");
    loop {
        number += 1;
        change(number, Some(&mut *store), &mut Values::new());
        commit(&target, &mut *store, number).expect("commit");
        writeln!(out, "committed {number}").expect("tell");
    }
}

fn values(store: &dyn RecordStore) -> Values {
    let mut values = Values::new();
    let visit = &mut |record: &samite_backend::ScannedRecord<'_>| {
        values.insert(record.key.to_vec(), record.value.to_vec());
        ControlFlow::Continue(())
    };
    store.scan(b"", b"", false, 1 << 20, visit).expect("scan");
    values
}

/// Kills processes that run the test `name`, which calls [`commit_until_killed`], at many moments:
/// each time one commit is there, whole, and no older one than the last that was told of.
pub fn kill_many(map: OpenMap, name: &str) {
    let dir = tempfile::tempdir().expect("a directory");
    let (mut model, mut at) = (Values::new(), 0);
    for round in 0..ROUNDS {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args([name, "--exact", "--nocapture"])
            .env(ENV_DIR, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let (mut told, mut last) = (0, at);
        let mut has_begun = false;
        for line in lines {
            let line = line.expect("a line");
            has_begun |= line.ends_with("begins");
            if let Some(number) = line.strip_prefix("committed ") {
                last = number.parse().expect("a number");
                told += 1;
            }
            // What it still says after that counts, too.
            if has_begun && told >= round * 5 % 13 {
                child.kill().expect("kill");
            }
        }
        child.wait().expect("its end");
        let (target, mut store) = open(map, dir.path());
        let number = number_of(&mut *store);
        assert!(number >= last, "commit {last} was told of, and {number} is there");
        (at + 1..=number).for_each(|number| change(number, None, &mut model));
        at = number;
        assert!(values(&*store) == model, "round {round}: not as commit {number} left it");
        assert_eq!(store.record_count(), model.len() as u64);
        drop((store, target));
    }
    assert!(at > ROUNDS, "nothing was committed");
}

/// Runs the test `name` on a small disk of its own, in a process that calls [`fill_disk`].
pub fn run_on_small_disk(name: &str) {
    if !samite_testkit::has("unshare") {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let namespaces = ["--user", "--map-root-user", "--mount"];
    let unshare = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(namespaces).args(["sh", "-c", script]);
        command.arg(std::env::current_exe().expect("this program"));
        command.args([name, "--exact", "--nocapture"]).env(ENV_DIR, dir.path());
        command
    };
    let mount = "mount -t tmpfs -o size=24m tmpfs \"$SAMITE_TEST_CRASH_DIR\"";
    if !unshare(mount).output().is_ok_and(|output| output.status.success()) {
        samite_testkit::skip("unshare");
        return;
    }
    let status = unshare(&format!("{mount} && exec \"$0\" \"$@\"")).status().expect("a process");
    assert!(status.success(), "on a small disk: {status}");
}

/// Takes all space of the disk that is left.
fn take_space(path: &Path) {
    let mut file = std::fs::File::create(path).expect("a file");
    for len in [1 << 16, 1 << 12] {
        while file.write_all(&vec![1; len]).is_ok() {}
    }
}

/// Fills a disk of 24 MiB in several ways.
pub fn fill_disk(map: OpenMap, disk: &Path) {
    let dir = disk.join("target");
    let (target, mut store) = open(map, &dir);
    let number = refuse_and_retry(&target, &mut *store, &disk.join("filler"));
    fill_and_empty(&target, &mut *store, number);
    let (all, number) = (values(&*store), number_of(&mut *store));
    drop((store, target));
    let (target, mut store) = open(map, &dir);
    assert_eq!(number_of(&mut *store), number);
    assert!(values(&*store) == all, "not what was committed");
    drop((store, target));
}

const VALUE_LEN: usize = 50_000;

/// Somebody else takes all of the disk, and more is to be committed than was set aside.
fn refuse_and_retry(target: &OrderedTarget, store: &mut dyn RecordStore, filler: &Path) -> u64 {
    let value = vec![7; VALUE_LEN];
    store.put(b"first", WriteSource::Bytes(&value), Version(1)).expect("put");
    commit(target, store, 1).expect("commit");
    take_space(filler);
    for index in 0..100_u8 {
        store.put(&[b'n', index], WriteSource::Bytes(&value), Version(2)).expect("put");
    }
    let records = store.commits().expect("it remembers");
    let batch = records.take_batch(Some(&2_u64.to_le_bytes()));
    for _ in 0..2 {
        let refused = target.commit(std::slice::from_ref(&batch)).expect_err("the disk is full");
        assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
        assert_eq!(number_of(store), 1, "a refused commit has changed something");
        assert_eq!(values(store).len(), 101, "what is not committed yet is read");
    }
    let refused = store.put(b"x", WriteSource::Bytes(b"more"), Version(3)).expect_err("growth");
    assert_eq!(refused.kind(), ErrorKind::NoSpace);
    store.write(b"first", 5, WriteSource::Bytes(b"in place"), Version(3)).expect("no growth");
    std::fs::remove_file(filler).expect("remove");
    target.commit(&[batch]).expect("there is room again");
    store.commits().expect("it remembers").committed();
    store.put(b"x", WriteSource::Bytes(b"more"), Version(3)).expect("there is room for growth");
    for index in 0..100_u8 {
        store.delete(&[b'n', index]).expect("delete");
    }
    commit(target, store, 3).expect("commit");
    3
}

/// Fills the disk until growth is refused, and empties it by half, some times.
fn fill_and_empty(target: &OrderedTarget, store: &mut dyn RecordStore, mut number: u64) {
    let value = vec![7; VALUE_LEN];
    let key = |index: u32| index.to_be_bytes();
    let (before, mut count) = (store.record_count(), 0);
    for round in 0..3 {
        // Until growth is refused, all is committed.
        loop {
            match store.put(&key(count), WriteSource::Bytes(&value), Version(1)) {
                Ok(_) => count += 1,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NoSpace);
                    break;
                }
            }
            number += 1;
            commit(target, store, number).expect("there is room, as growth was taken");
        }
        assert!(count > 100, "round {round}: {count} records fit");
        // What needs no space is taken, and what frees some.
        store.truncate(&key(count - 1), 10, Version(2)).expect("cut");
        for index in count / 2..count {
            store.delete(&key(index)).expect("delete");
        }
        number += 1;
        commit(target, store, number).expect("a full disk can be emptied");
        count /= 2;
        // Once more, for what is free again to be known.
        number += 1;
        commit(target, store, number).expect("commit");
        assert_eq!(store.record_count(), before + u64::from(count));
    }
}
