//! What is refused when a target is opened.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use samite_backend_lmdb::{LmdbMap, LmdbOptions, TargetRoot, open_target};
use samite_types::{Error, ErrorKind};

const CAPACITY: u64 = 8 << 20;
/// Says to a test that it is the second process, and which directory it opens.
const ENV_DIR: &str = "SAMITE_TEST_OPEN_DIR";

fn refused(dir: &Path) -> Error {
    open_target(dir, CAPACITY).map(drop).expect_err("refused")
}

#[test]
fn a_second_process_is_refused() {
    if let Some(dir) = std::env::var_os(ENV_DIR) {
        let error = refused(dir.as_ref());
        assert_eq!(error.kind(), ErrorKind::InUse);
        assert!(error.to_string().contains("in use by another node"), "{error}");
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let target = open_target(dir.path(), CAPACITY).expect("open");
    let again = || {
        Command::new(std::env::current_exe().expect("this program"))
            .args(["a_second_process_is_refused", "--exact"])
            .env(ENV_DIR, dir.path())
            .output()
            .expect("a process")
            .status
    };
    assert!(again().success(), "another process opens it, too");
    assert_eq!(refused(dir.path()).kind(), ErrorKind::InUse, "and this one once more");
    drop(target);
    assert!(!again().success(), "what is not in use is not refused");
    drop(open_target(dir.path(), CAPACITY).expect("open again"));
}

#[test]
fn another_format_is_refused_with_words() {
    let dir = tempfile::tempdir().expect("a directory");
    let open = |format| {
        let options = LmdbOptions { format, ..LmdbOptions::new(CAPACITY) };
        LmdbMap::open(TargetRoot::open(dir.path()).expect("the directory"), &options).map(drop)
    };
    open("lmdb 2").expect("a new one");
    let error = open("lmdb 1").expect_err("another version");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let words = error.to_string();
    assert!(words.contains("lmdb 2") && words.contains("lmdb 1"), "{words}");
    open("lmdb 2").expect("the same");
}

#[test]
fn what_is_no_environment_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("data.mdb"), vec![b'x'; 16_384]).expect("write");
    assert_eq!(refused(dir.path()).kind(), ErrorKind::Corrupt);
}

#[test]
fn directories_that_others_may_change_are_refused() {
    let parent = tempfile::tempdir().expect("a directory");
    let dir = parent.path().join("target");
    drop(open_target(&dir, CAPACITY).expect("a new one"));
    let link = parent.path().join("link");
    symlink(&dir, &link).expect("link");
    assert_eq!(refused(&link).kind(), ErrorKind::NotDirectory);
    assert_eq!(refused(&dir.join("data.mdb")).kind(), ErrorKind::NotDirectory);
    let mut mode = std::fs::metadata(&dir).expect("mode").permissions();
    mode.set_mode(0o777);
    std::fs::set_permissions(&dir, mode).expect("mode");
    assert_eq!(refused(&dir).kind(), ErrorKind::Denied);
}

#[test]
fn a_full_map_refuses_a_commit_and_changes_nothing() {
    use samite_backend::ordered::{OrderedMap, row_of};
    use samite_backend::{RowChange, WriteBatch};
    let dir = tempfile::tempdir().expect("a directory");
    let options = LmdbOptions { map_len: 1 << 20, ..LmdbOptions::new(CAPACITY) };
    let root = TargetRoot::open(dir.path()).expect("the directory");
    let map = LmdbMap::open(root, &options).expect("open");
    let place = (1.into(), 1.into());
    let batch = |key: u8, len: usize| {
        let rows = vec![(vec![key], RowChange::Put(vec![key; len]))].into();
        WriteBatch { place, clears: false, rows }
    };
    map.commit(&[batch(1, 100_000)]).expect("it fits");
    let refused = map.commit(&[batch(2, 10), batch(3, 2 << 20)]).expect_err("it does not fit");
    assert_eq!(refused.kind(), ErrorKind::NoSpace);
    assert_eq!(row_of(&map, place, &[2]).expect("get"), None, "half of a commit is there");
    assert!(!map.has_room());
    let rows = vec![(vec![1], RowChange::Delete)].into();
    map.commit(&[WriteBatch { place, clears: false, rows }]).expect("deleting works");
    map.commit(&[batch(2, 10)]).expect("what fits does so");
    assert_eq!(row_of(&map, place, &[2]).expect("get"), Some(vec![2; 10]));
}
