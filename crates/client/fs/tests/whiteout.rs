//! A rename that leaves a whiteout under the old name.
#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

mod common;

use common::{Rig, create, get, kind, names, put, read_all, root, user};
use samite_fs::{FileKind, FileSystem, RenameFlags};
use samite_types::{ErrorKind, Result};

const WHITEOUT: RenameFlags = RenameFlags { no_replace: false, exchange: false, whiteout: true };

fn rename(fs: &FileSystem, from: &[u8], to: &[u8]) -> Result<()> {
    fs.rename(&root(), from, to, WHITEOUT)
}

fn assert_whiteout(fs: &FileSystem, path: &[u8]) -> u64 {
    let found = fs.stat(&root(), path, false).unwrap();
    assert_eq!((found.kind, found.perm, found.rdev), (FileKind::CharDevice, 0, 0));
    assert_eq!((found.nlink, found.size), (1, 0));
    found.ino
}

/// Names enough that some pairs share a partition and most do not.
#[test]
fn files_leave_one_within_and_across_partitions() {
    let rig = Rig::new(3);
    let (fs, other) = (&rig.fs, rig.another());
    fs.mkdir(&root(), b"/d", 0o755).unwrap();
    for i in 0..24 {
        let (from, to) = (format!("/a{i}").into_bytes(), format!("/d/b{i}").into_bytes());
        put(fs, &from, b"moved");
        if i % 2 == 0 {
            put(fs, &to, b"replaced");
        }
        let (file, replaced) = (create(&other, &from), create(&other, &to));
        let ino = file.ino();
        rename(fs, &from, &to).unwrap();
        assert_ne!(assert_whiteout(&other, &from), ino);
        assert_eq!(other.stat(&root(), &to, false).unwrap().ino, ino);
        // Handles follow their files; a replaced file lives on for processes that have it open.
        file.write_at(b"MOVED", 0).unwrap();
        assert_eq!(get(fs, &to).unwrap(), b"MOVED");
        assert_eq!(read_all(&replaced).unwrap(), if i % 2 == 0 { &b"replaced"[..] } else { b"" });
        // A whiteout is a file like others.
        rename(fs, &from, &to).unwrap();
        assert_whiteout(fs, &to);
        fs.unlink(&root(), &from).unwrap();
        fs.unlink(&root(), &to).unwrap();
    }
    assert!(names(&other, b"/d").is_empty());
}

#[test]
fn directories_leave_one_that_is_none() {
    let rig = Rig::new(3);
    let (fs, other) = (&rig.fs, rig.another());
    for dir in [&b"/p"[..], b"/q"] {
        fs.mkdir(&root(), dir, 0o755).unwrap();
    }
    for i in 0..8 {
        let (from, to) = (format!("/p/d{i}").into_bytes(), format!("/q/e{i}").into_bytes());
        fs.mkdir(&root(), &*from, 0o755).unwrap();
        put(fs, &[&from[..], b"/f"].concat(), b"deep");
        // The other process has the directory in its cache.
        assert_eq!(get(&other, &[&from[..], b"/f"].concat()).unwrap(), b"deep");
        rename(fs, &from, &to).unwrap();
        assert_whiteout(&other, &from);
        assert_eq!(kind(get(&other, &[&from[..], b"/f"].concat())), ErrorKind::NotDirectory);
        assert_eq!(get(&other, &[&to[..], b"/f"].concat()).unwrap(), b"deep");
    }
    let links = |path: &[u8]| other.stat(&root(), path, true).unwrap().nlink;
    assert_eq!((links(b"/p"), links(b"/q")), (2, 10));
}

#[test]
fn anybody_may_and_refusals_leave_none() {
    let rig = Rig::new(1);
    let fs = &rig.fs;
    fs.mkdir(&root(), b"/open", 0o777).unwrap();
    fs.chmod(&root(), b"/open", 0o777, true).unwrap();
    let anna = user(7, 7);
    fs.mkdir(&anna, b"/open/dir", 0o755).unwrap();
    fs.symlink(&anna, b"x", b"/open/link").unwrap();
    put(fs, b"/file", b"x");
    fs.link(&root(), b"/file", b"/name", false).unwrap();
    let renamed = |from: &[u8], to: &[u8]| fs.rename(&anna, from, to, WHITEOUT);
    assert_eq!(kind(renamed(b"/open/link", b"/open/dir")), ErrorKind::IsDirectory);
    assert_eq!(kind(renamed(b"/file", b"/open/file")), ErrorKind::Denied);
    renamed(b"/open/link", b"/open/other").unwrap();
    let left = fs.stat(&root(), b"/open/link", false).unwrap();
    assert_eq!((left.kind, left.uid), (FileKind::CharDevice, 7));
    // Two names of one file: nothing happens.
    rename(fs, b"/file", b"/name").unwrap();
    assert_eq!(fs.stat(&root(), b"/file", false).unwrap().nlink, 2);
    let keep = RenameFlags { no_replace: true, ..WHITEOUT };
    assert_eq!(kind(fs.rename(&root(), b"/file", b"/open", keep)), ErrorKind::Exists);
    let both = RenameFlags { exchange: true, ..WHITEOUT };
    assert_eq!(kind(fs.rename(&root(), b"/file", b"/open", both)), ErrorKind::Invalid);
    assert_eq!(get(fs, b"/file").unwrap(), b"x");
}
