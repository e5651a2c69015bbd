//! Two names that swap what they name.
#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

mod common;

use common::{Rig, create, get, kind, names, put, read_all, root, user};
use samite_fs::{FileSystem, RenameFlags};
use samite_types::{ErrorKind, Result};

const EXCHANGE: RenameFlags = RenameFlags { no_replace: false, exchange: true, whiteout: false };

fn exchange(fs: &FileSystem, from: &[u8], to: &[u8]) -> Result<()> {
    fs.rename(&root(), from, to, EXCHANGE)
}

fn ino(fs: &FileSystem, path: &[u8]) -> u64 {
    fs.stat(&root(), path, false).unwrap().ino
}

/// Names enough that some pairs share a partition and most do not.
fn pairs() -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    (0..24).map(|i| (format!("/a{i}").into_bytes(), format!("/d/b{i}").into_bytes()))
}

fn swaps_files(nodes: usize) {
    let rig = Rig::new(nodes);
    let (fs, other) = (&rig.fs, rig.another());
    fs.mkdir(&root(), b"/d", 0o755).unwrap();
    for (from, to) in pairs() {
        put(fs, &from, b"first");
        put(fs, &to, &[7; 100_000]);
        let (small, large) = (create(fs, &from), create(&other, &to));
        let inos = (ino(fs, &from), ino(fs, &to));
        exchange(fs, &from, &to).unwrap();
        assert_eq!((ino(&other, &to), ino(&other, &from)), inos);
        assert_eq!(get(&other, &to).unwrap(), b"first");
        assert_eq!(get(&other, &from).unwrap(), [7; 100_000]);
        // Handles follow their files.
        small.write_at(b"FIRST", 0).unwrap();
        assert_eq!(get(&other, &to).unwrap(), b"FIRST");
        assert_eq!(read_all(&large).unwrap().len(), 100_000);
        exchange(&other, &from, &to).unwrap();
        assert_eq!((ino(fs, &from), ino(fs, &to)), inos);
        fs.unlink(&root(), &from).unwrap();
        fs.unlink(&root(), &to).unwrap();
    }
}

#[test]
fn files_swap_on_one_node() {
    swaps_files(1);
}

#[test]
fn files_swap_on_three_nodes() {
    swaps_files(3);
}

#[test]
fn directories_and_files_swap_with_all_that_is_in_them() {
    let rig = Rig::new(3);
    let (fs, other) = (&rig.fs, rig.another());
    for dir in [&b"/p"[..], b"/q", b"/p/d", b"/p/d/e", b"/q/x"] {
        fs.mkdir(&root(), dir, 0o755).unwrap();
    }
    put(fs, b"/p/d/e/f", b"deep");
    put(fs, b"/q/file", b"flat");
    fs.symlink(&root(), b"/p", b"/q/link").unwrap();
    // The other process has the directories in its cache.
    assert_eq!(get(&other, b"/p/d/e/f").unwrap(), b"deep");
    exchange(fs, b"/p/d", b"/q/file").unwrap();
    assert_eq!(get(&other, b"/q/file/e/f").unwrap(), b"deep");
    assert_eq!(get(&other, b"/p/d").unwrap(), b"flat");
    let links = |path: &[u8]| other.stat(&root(), path, true).unwrap().nlink;
    assert_eq!((links(b"/p"), links(b"/q")), (2, 4));
    exchange(fs, b"/q/file", b"/q/x").unwrap();
    assert_eq!(names(&other, b"/q/x"), [b"e".to_vec()]);
    assert_eq!(names(&other, b"/q/file"), Vec::<Vec<u8>>::new());
    exchange(&other, b"/q/link", b"/p/d").unwrap();
    assert_eq!(fs.readlink(&root(), b"/p/d").unwrap(), b"/p");
    assert_eq!(get(fs, b"/q/link").unwrap(), b"flat");
}

#[test]
fn what_can_not_be_exchanged() {
    let rig = Rig::new(1);
    let fs = &rig.fs;
    fs.mkdir(&root(), b"/d", 0o755).unwrap();
    fs.mkdir(&root(), b"/d/e", 0o755).unwrap();
    put(fs, b"/f", b"x");
    fs.link(&root(), b"/f", b"/g", false).unwrap();
    assert_eq!(kind(exchange(fs, b"/d", b"/d/e")), ErrorKind::Invalid);
    assert_eq!(kind(exchange(fs, b"/d/e", b"/d")), ErrorKind::Invalid);
    assert_eq!(kind(exchange(fs, b"/f", b"/none")), ErrorKind::NotFound);
    assert_eq!(kind(exchange(fs, b"/none", b"/f")), ErrorKind::NotFound);
    assert_eq!(kind(exchange(fs, b"/f/", b"/d")), ErrorKind::NotDirectory);
    assert_eq!(kind(exchange(fs, b"/", b"/d")), ErrorKind::InUse);
    exchange(fs, b"/f", b"/f").unwrap();
    exchange(fs, b"/f", b"/g").unwrap();
    assert_eq!(fs.stat(&root(), b"/g", true).unwrap().nlink, 2);
    exchange(fs, b"/g", b"/d").unwrap();
    assert_eq!(get(fs, b"/d").unwrap(), b"x");
    let both = RenameFlags { no_replace: true, exchange: true, whiteout: false };
    assert_eq!(kind(fs.rename(&root(), b"/f", b"/d", both)), ErrorKind::Invalid);
    assert_eq!(kind(fs.rename(&user(7, 7), b"/f", b"/d", EXCHANGE)), ErrorKind::Denied);
}

#[test]
fn a_directory_that_one_may_not_write_keeps_its_parent() {
    let rig = Rig::new(1);
    let fs = &rig.fs;
    let owner = user(7, 7);
    for dir in [&b"/p"[..], b"/q"] {
        fs.mkdir(&root(), dir, 0o755).unwrap();
        fs.chown(&root(), dir, Some(7), Some(7), true).unwrap();
    }
    fs.mkdir(&owner, b"/p/d", 0o555).unwrap();
    let rename = |to: &[u8]| fs.rename(&owner, b"/p/d", to, RenameFlags::default());
    assert_eq!(kind(rename(b"/q/d")), ErrorKind::Denied);
    rename(b"/p/e").unwrap();
}
