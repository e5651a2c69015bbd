//! Files that are made beside those that they replace.
#![expect(clippy::unwrap_used, reason = "a test fails by it")]

use std::fs;
use std::os::unix::ffi::OsStrExt;

use samite_stage::{CopyOptions, CopyProgress, DraftFile, FileTree, LocalTree, copy_tree};

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
    let first = DraftFile::create(&LocalTree, to, 0o600).unwrap();
    assert_eq!(names(dir.path()), [".f.samite-copy-0", "f"]);
    let second = DraftFile::create(&LocalTree, to, 0o600).unwrap();
    assert_ne!(first.hidden, second.hidden);
    LocalTree.write_at(&first.file, to, b"first", 0).unwrap();
    LocalTree.write_at(&second.file, to, b"second", 0).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"old");
    second.place(&LocalTree).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"second");
    first.place(&LocalTree).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"first");
    DraftFile::create(&LocalTree, to, 0o600).unwrap().give_up(&LocalTree);
    assert_eq!(names(dir.path()), ["f"]);
    assert_eq!(fs::read(&path).unwrap(), b"first");
}

#[test]
fn the_longest_name_can_be_copied_to() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x".repeat(255));
    let to = path.as_os_str().as_bytes();
    DraftFile::create(&LocalTree, to, 0o600).unwrap().place(&LocalTree).unwrap();
    assert_eq!(names(dir.path()), ["x".repeat(255)]);
}

#[test]
fn a_tree_that_is_copied_again_loses_its_fragments_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    fs::create_dir(&from).unwrap();
    fs::write(from.join("f"), "f").unwrap();
    let [from, to_bytes] = [&from, &to].map(|path| path.as_os_str().as_bytes());
    let options = CopyOptions::default();
    let copy = || {
        let (source, destination) = ((&LocalTree, from), (&LocalTree, to_bytes));
        copy_tree(source, destination, &options, &CopyProgress::default(), &|_| {}).unwrap()
    };
    copy();
    // The hidden name of a file that is whole by now, and one whose file is in the tree no more.
    fs::write(to.join(".f.samite-copy-0"), "frag").unwrap();
    fs::write(to.join(".g.samite-copy-3"), "frag").unwrap();
    let others = [".f.samite-copy-", ".f.samite-copy-64", ".f.samite-copy-x", ".samite-copy-1"];
    for name in others {
        fs::write(to.join(name), "no fragment").unwrap();
    }
    let under_way =
        DraftFile::create(&LocalTree, to.join("h").as_os_str().as_bytes(), 0o600).unwrap();
    assert_eq!(copy().skipped, 1);
    let mut left = others.to_vec();
    left.extend([".h.samite-copy-0", "f"]);
    left.sort_unstable();
    assert_eq!(names(&to), left);
    under_way.give_up(&LocalTree);
}
