//! Files that are made beside those that they replace.
#![expect(clippy::unwrap_used, reason = "a test fails by it")]

use std::fs;
use std::os::unix::ffi::OsStrExt;

use samite_stage::{Beside, LocalTree, Tree};

fn names(dir: &std::path::Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn the_last_whole_copy_wins_and_fragments_go() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    let to = path.as_os_str().as_bytes();
    fs::write(&path, "old").unwrap();
    // Left by copies that were killed.
    fs::write(dir.path().join(".f.samite-copy-0"), "frag").unwrap();
    fs::write(dir.path().join(".f.samite-copy-1"), "frag").unwrap();
    let first = Beside::create(&LocalTree, to, 0o600).unwrap();
    assert_eq!(names(dir.path()), [".f.samite-copy-0", "f"]);
    let second = Beside::create(&LocalTree, to, 0o600).unwrap();
    assert_ne!(first.hidden, second.hidden);
    LocalTree.write_at(&first.file, to, b"first", 0).unwrap();
    LocalTree.write_at(&second.file, to, b"second", 0).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"old");
    second.place(&LocalTree).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"second");
    first.place(&LocalTree).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"first");
    Beside::create(&LocalTree, to, 0o600).unwrap().give_up(&LocalTree);
    assert_eq!(names(dir.path()), ["f"]);
    assert_eq!(fs::read(&path).unwrap(), b"first");
}

#[test]
fn the_longest_name_can_be_copied_to() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x".repeat(255));
    let to = path.as_os_str().as_bytes();
    Beside::create(&LocalTree, to, 0o600).unwrap().place(&LocalTree).unwrap();
    assert_eq!(names(dir.path()), ["x".repeat(255)]);
}
