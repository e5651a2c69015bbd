//! Which files there are.

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use samite_backend::{Backend, CommitTarget, RecordStore, WriteSource};
use samite_backend_posix::open_target;
use samite_types::{DatasetId, ErrorKind, PartitionId, Version};

const CAPACITY: u64 = 32 << 20;

/// Files below a directory.
fn files(dir: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => drop(found.insert(path)),
        }
    }
    found
}

fn commit(target: &dyn CommitTarget, store: &mut dyn RecordStore) -> samite_types::Result<()> {
    let batch = store.commits().expect("it remembers").take_batch(Some(b"state"));
    target.commit(&[batch])?;
    store.commits().expect("it remembers").committed();
    Ok(())
}

fn put(store: &mut dyn RecordStore, key: &[u8], len: usize) {
    store.put(key, WriteSource::Bytes(&vec![5; len]), Version(1)).expect("put");
}

#[test]
fn each_large_part_is_one_file_and_no_file_is_left_over() {
    let dir = tempfile::tempdir().expect("a directory");
    let parts = dir.path().join("parts");
    let target = open_target(dir.path(), CAPACITY).expect("open");
    let mut store = target.backend().open(DatasetId(1), PartitionId(1)).expect("open");
    // The last of its four parts is small.
    put(&mut *store, b"../../../escape", 200_000);
    put(&mut *store, b"/etc/small", 4000);
    commit(&*target, &mut *store).expect("commit");
    let first = files(&parts);
    assert_eq!(first.len(), 3, "{first:?}");
    for round in 0..3 {
        put(&mut *store, b"../../../escape", 100_000);
        store
            .write(b"../../../escape", 70_000, WriteSource::Bytes(b"x"), Version(2))
            .expect("write");
        commit(&*target, &mut *store).expect("commit");
        let now = files(&parts);
        assert_eq!(now.len(), 2, "round {round}: {now:?}");
        assert!(now.is_disjoint(&first), "a name is used twice");
    }
    store.delete(b"../../../escape").expect("delete");
    commit(&*target, &mut *store).expect("commit");
    assert_eq!(files(&parts), BTreeSet::new());
    let top = std::fs::read_dir(dir.path()).expect("a directory");
    let top: BTreeSet<_> = top.map(|entry| entry.expect("an entry").file_name()).collect();
    let expected = ["data.mdb", "lock", "lock.mdb", "parts", "reserve"];
    assert_eq!(top, expected.into_iter().map(Into::into).collect());
}

#[test]
fn what_a_crash_left_is_swept_and_nothing_else() {
    let dir = tempfile::tempdir().expect("a directory");
    let parts = dir.path().join("parts");
    {
        let target = open_target(dir.path(), CAPACITY).expect("open");
        let mut store = target.backend().open(DatasetId(1), PartitionId(1)).expect("open");
        put(&mut *store, b"key", 200_000);
        commit(&*target, &mut *store).expect("commit");
    }
    let right = files(&parts);
    // Files of a commit that was not finished: of this directory, and of later ones.
    std::fs::write(parts.join("0/7ff"), b"left").expect("write");
    std::fs::create_dir(parts.join("3")).expect("mkdir");
    std::fs::write(parts.join("3/000"), b"left").expect("write");
    std::fs::write(parts.join("not ours"), b"stays").expect("write");
    let target = open_target(dir.path(), CAPACITY).expect("open");
    let mut expected = right;
    expected.insert(parts.join("not ours"));
    assert_eq!(files(&parts), expected);
    assert!(!parts.join("3").exists());
    let store = target.backend().open(DatasetId(1), PartitionId(1)).expect("open");
    let mut len = 0;
    store.read(b"key", 0, u32::MAX, &mut |piece| len += piece.len()).expect("read");
    assert_eq!(len, 200_000);
}

#[test]
fn a_file_that_is_missing_cut_or_changed_is_damage_of_its_record() {
    let dir = tempfile::tempdir().expect("a directory");
    let harms: [fn(&Path); 4] = [
        |path| std::fs::remove_file(path).expect("remove"),
        |path| std::fs::write(path, b"").expect("cut"),
        |path| std::fs::write(path, vec![6; 65_540]).expect("change"),
        |path| {
            std::fs::remove_file(path).expect("remove");
            symlink("/etc/hostname", path).expect("link");
        },
    ];
    for harm in harms {
        let target = open_target(dir.path(), CAPACITY).expect("open");
        let mut store = target.backend().open(DatasetId(1), PartitionId(1)).expect("open");
        put(&mut *store, b"key", 100_000);
        put(&mut *store, b"other", 100);
        commit(&*target, &mut *store).expect("commit");
        let path = files(&dir.path().join("parts")).pop_first().expect("a file");
        harm(&path);
        let found = store.read(b"key", 0, u32::MAX, &mut |_| {});
        assert_eq!(found.expect_err("damaged").kind(), ErrorKind::Corrupt);
        assert_eq!(store.take_damaged(), [Box::from(&b"key"[..])]);
        // What is written beside the damage does not heal it.
        store.write(b"key", 0, WriteSource::Bytes(b"x"), Version(2)).expect("write");
        commit(&*target, &mut *store).expect("commit");
        let found = store.read(b"key", 0, u32::MAX, &mut |_| {});
        assert_eq!(found.expect_err("damaged").kind(), ErrorKind::Corrupt);
        store.read(b"other", 0, 100, &mut |_| {}).expect("the others are as they were");
        put(&mut *store, b"key", 100_000);
        commit(&*target, &mut *store).expect("commit");
        store.read(b"key", 0, u32::MAX, &mut |_| {}).expect("it is repaired");
    }
}

#[test]
fn a_directory_that_is_a_link_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let elsewhere = tempfile::tempdir().expect("a directory");
    symlink(elsewhere.path(), dir.path().join("parts")).expect("link");
    assert!(open_target(dir.path(), CAPACITY).is_err());
    assert_eq!(files(elsewhere.path()), BTreeSet::new());
}
