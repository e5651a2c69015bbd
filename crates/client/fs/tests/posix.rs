//! Results of single calls.
#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

mod common;

use common::{Rig, create, get, kind, list, names, noise, put, read_all, root, user};
use samite_fs::{
    CallerContext, FileKind, OpenFlags, OpenState, RelativePath, RenameFlags, SetTime, Timestamp,
    XattrFlags, XattrSubject,
};
use samite_types::ErrorKind;

const REPLACE: RenameFlags = RenameFlags { no_replace: false, exchange: false, whiteout: false };

#[test]
fn files_of_all_sizes_come_back() {
    let rig = Rig::with_memory(3, 128 << 20);
    for len in [0, 1, 100, 8191, 8192, 8193, 65536, 1 << 20, (1 << 20) + 1, 20_000_003] {
        let data = noise(len, len as u64);
        put(&rig.fs, b"/f", &data);
        assert!(get(&rig.fs, b"/f").unwrap() == data, "{len} bytes");
        assert_eq!(rig.another().stat(&root(), b"/f", true).unwrap().size, len as u64);
        rig.fs.unlink(&root(), b"/f").unwrap();
    }
}

#[test]
fn holes_read_as_zeros_and_cost_nothing() {
    let rig = Rig::new(1);
    let file = create(&rig.fs, b"/sparse");
    let end = 10u64 << 30;
    file.write_at(b"first", 0).unwrap();
    file.write_at(b"last", end - 4).unwrap();
    assert_eq!(file.attr().unwrap().size, end);
    let mut buf = vec![0xaa; 3 << 20];
    assert_eq!(file.read_at(&mut buf, 5 << 30).unwrap(), buf.len());
    assert!(buf.iter().all(|byte| *byte == 0));
    assert_eq!(file.read_at(&mut buf[..10], end - 6).unwrap(), 6);
    assert_eq!(&buf[..6], b"\0\0last");
    assert_eq!(file.read_at(&mut buf[..8], 0).unwrap(), 8);
    assert_eq!(&buf[..8], b"first\0\0\0");
    file.close().unwrap();
    assert_eq!(rig.another().stat(&root(), b"/sparse", true).unwrap().size, end);
    file.truncate(7).unwrap();
    assert_eq!(read_all(&file).unwrap(), b"first\0\0");
    file.truncate(end).unwrap();
    assert_eq!(file.read_at(&mut buf[..4], end - 4).unwrap(), 4);
    assert_eq!(&buf[..4], b"\0\0\0\0");
    assert_eq!(file.read_at(&mut buf[..4], end).unwrap(), 0);
    rig.fs.unlink(&root(), b"/sparse").unwrap();
}

#[test]
fn truncate_both_ways() {
    let rig = Rig::new(1);
    for len in [100usize, 3_000_000] {
        let data = noise(len, 3);
        put(&rig.fs, b"/t", &data);
        rig.fs.truncate(&root(), b"/t", 50).unwrap();
        assert_eq!(get(&rig.fs, b"/t").unwrap(), &data[..50]);
        rig.fs.truncate(&root(), b"/t", 2_500_000).unwrap();
        let longer = get(&rig.fs, b"/t").unwrap();
        assert_eq!(longer.len(), 2_500_000);
        assert!(longer[..50] == data[..50] && longer[50..].iter().all(|byte| *byte == 0));
        rig.fs.truncate(&root(), b"/t", 0).unwrap();
        assert_eq!(rig.fs.stat(&root(), b"/t", true).unwrap().size, 0);
        rig.fs.unlink(&root(), b"/t").unwrap();
    }
    assert_eq!(kind(rig.fs.truncate(&root(), b"/none", 0)), ErrorKind::NotFound);
    assert_eq!(kind(rig.fs.truncate(&root(), b"/", 0)), ErrorKind::IsDirectory);
}

#[test]
fn open_flags() {
    let rig = Rig::new(1);
    let fs = &rig.fs;
    let open = |path: &'static [u8], flags| fs.open_file(&root(), path, flags, 0o640);
    assert_eq!(kind(open(b"/f", OpenFlags::reading())), ErrorKind::NotFound);
    let exclusive = OpenFlags { excl: true, ..OpenFlags::creating() };
    let file = open(b"/f", exclusive).unwrap();
    assert_eq!(file.attr().unwrap().mode(), 0o100_640);
    assert_eq!(kind(open(b"/f", exclusive)), ErrorKind::Exists);
    assert_eq!(kind(open(b"/f/x", OpenFlags::creating())), ErrorKind::NotDirectory);
    assert_eq!(kind(open(b"/f/", OpenFlags::reading())), ErrorKind::NotDirectory);
    assert_eq!(kind(open(b"/g/", OpenFlags::creating())), ErrorKind::IsDirectory);
    assert_eq!(kind(open(b"/", OpenFlags::creating())), ErrorKind::IsDirectory);
    let dir = OpenFlags { directory: true, ..OpenFlags::reading() };
    assert_eq!(kind(open(b"/f", dir)), ErrorKind::NotDirectory);
    let reader = open(b"/f", OpenFlags::reading()).unwrap();
    assert_eq!(kind(reader.write_at(b"x", 0)), ErrorKind::BadDescriptor);
    file.write_at(b"hello", 0).unwrap();
    let mut buf = [0; 9];
    assert_eq!(reader.read_at(&mut buf, 1).unwrap(), 4);
    assert_eq!(&buf[..4], b"ello");
    open(b"/f", OpenFlags { truncate: true, write: true, ..OpenFlags::default() }).unwrap();
    assert_eq!(reader.read_at(&mut buf, 0).unwrap(), 0);
    fs.mkdir(&root(), b"/d", 0o755).unwrap();
    let writing = OpenFlags { write: true, ..OpenFlags::default() };
    assert_eq!(kind(open(b"/d", writing)), ErrorKind::IsDirectory);
    let opened = open(b"/d", OpenFlags::reading()).unwrap();
    assert_eq!(kind(opened.read_at(&mut buf, 0)), ErrorKind::IsDirectory);
}

#[test]
fn paths_resolve_as_in_posix() {
    let rig = Rig::new(3);
    let fs = &rig.fs;
    fs.mkdir(&root(), b"/a", 0o755).unwrap();
    fs.mkdir(&root(), b"/a/b/", 0o755).unwrap();
    put(fs, b"/a/b/f", b"1");
    for path in [&b"a/b/f"[..], b"//a/./b//f", b"/a/../a/b/../b/f", b"/../../a/b/f"] {
        assert_eq!(get(fs, path).unwrap(), b"1", "{path:?}");
    }
    assert_eq!(kind(fs.stat(&root(), b"", true)), ErrorKind::NotFound);
    assert_eq!(kind(fs.stat(&root(), b"/a/x/../b", true)), ErrorKind::NotFound);
    assert_eq!(kind(fs.stat(&root(), b"/a/b/f/..", true)), ErrorKind::NotDirectory);
    assert_eq!(kind(fs.stat(&root(), &vec![b'n'; 256], true)), ErrorKind::NameTooLong);
    assert_eq!(kind(fs.stat(&root(), &vec![b'/'; 4096], true)), ErrorKind::NameTooLong);
    fs.stat(&root(), &vec![b'/'; 4095], true).unwrap();
    put(fs, &[b'n'; 255], b"long");
    assert_eq!(get(fs, &[b'n'; 255]).unwrap(), b"long");
    let odd = b"/new\nline \xff\xfe";
    put(fs, odd, b"odd");
    assert_eq!(get(fs, odd).unwrap(), b"odd");
    assert!(names(fs, b"/").contains(&odd[1..].to_vec()));
    // Symbolic links.
    fs.symlink(&root(), b"a/b", b"/rel").unwrap();
    fs.symlink(&root(), b"/a/b", b"/a/abs").unwrap();
    fs.symlink(&root(), b"loop2", b"/loop1").unwrap();
    fs.symlink(&root(), b"loop1", b"/loop2").unwrap();
    fs.symlink(&root(), &vec![b'x'; 1000], b"/long").unwrap();
    assert_eq!(get(fs, b"/rel/f").unwrap(), b"1");
    assert_eq!(get(fs, b"/a/abs/../b/f").unwrap(), b"1");
    assert_eq!(fs.canonicalize(&root(), b"/a/abs/../../rel/f").unwrap(), b"/a/b/f");
    assert_eq!(kind(fs.stat(&root(), b"/loop1", true)), ErrorKind::Loop);
    assert_eq!(fs.stat(&root(), b"/loop1", false).unwrap().kind, FileKind::Symlink);
    assert_eq!(fs.stat(&root(), b"/rel/", false).unwrap().kind, FileKind::Directory);
    assert_eq!(fs.readlink(&root(), b"/long").unwrap(), vec![b'x'; 1000]);
    assert_eq!(fs.stat(&root(), b"/long", false).unwrap().size, 1000);
    assert_eq!(kind(fs.readlink(&root(), b"/a")), ErrorKind::Invalid);
    let nofollow = OpenFlags { nofollow: true, ..OpenFlags::creating() };
    assert_eq!(kind(fs.open_file(&root(), b"/rel", nofollow, 0)), ErrorKind::Loop);
    fs.symlink(&root(), b"a/made", b"/dangling").unwrap();
    create(fs, b"/dangling");
    fs.stat(&root(), b"/a/made", false).unwrap();
}

#[test]
fn paths_from_open_directories() {
    let rig = Rig::new(1);
    let fs = &rig.fs;
    fs.mkdir(&root(), b"/a", 0o755).unwrap();
    fs.mkdir(&root(), b"/a/b", 0o755).unwrap();
    let dir = fs.open_file(&root(), b"/a/b", OpenFlags::reading(), 0).unwrap();
    assert_eq!(dir.dir_path(), Some(&b"/a/b"[..]));
    let at = |path| RelativePath::dir(&dir, path);
    put(fs, b"/a/b/f", b"1");
    assert_eq!(fs.stat(&root(), at(b"f"), true).unwrap().size, 1);
    assert_eq!(
        fs.stat(&root(), at(b".."), true).unwrap().ino,
        fs.stat(&root(), b"/a", true).unwrap().ino
    );
    assert_eq!(fs.stat(&root(), at(b"../../a/b/f"), true).unwrap().size, 1);
    assert_eq!(fs.stat(&root(), at(b"/a"), true).unwrap().kind, FileKind::Directory);
    assert_eq!(fs.stat(&root(), at(b"."), true).unwrap().ino, dir.ino());
    // It follows a rename by another process.
    rig.another().rename(&root(), b"/a/b", b"/c", REPLACE).unwrap();
    assert_eq!(fs.stat(&root(), at(b"f"), true).unwrap().size, 1);
    assert_eq!(dir.attr().unwrap().ino, dir.ino());
    fs.unlink(&root(), at(b"f")).unwrap();
    rig.another().rmdir(&root(), b"/c").unwrap();
    assert_eq!(
        kind(fs.open_file(&root(), at(b"f"), OpenFlags::creating(), 0)),
        ErrorKind::NotFound
    );
}

#[test]
fn directories() {
    let rig = Rig::new(3);
    let fs = &rig.fs;
    assert_eq!(fs.stat(&root(), b"/", true).unwrap().nlink, 2);
    fs.mkdir(&root(), b"/d", 0o777).unwrap();
    assert_eq!(fs.stat(&root(), b"/d", true).unwrap().mode(), 0o040_755);
    assert_eq!(kind(fs.mkdir(&root(), b"/d", 0o777)), ErrorKind::Exists);
    assert_eq!(kind(fs.mkdir(&root(), b"/", 0o777)), ErrorKind::Exists);
    assert_eq!(kind(fs.mkdir(&root(), b"/x/y", 0o777)), ErrorKind::NotFound);
    let before = fs.stat(&root(), b"/d", true).unwrap();
    fs.mkdir(&root(), b"/d/e", 0o755).unwrap();
    let after = rig.another().stat(&root(), b"/d", true).unwrap();
    assert!(after.mtime > before.mtime);
    assert_eq!((before.nlink, after.nlink), (2, 3));
    assert_eq!(kind(fs.rmdir(&root(), b"/d")), ErrorKind::NotEmpty);
    create(fs, b"/d/still-usable");
    fs.unlink(&root(), b"/d/still-usable").unwrap();
    assert_eq!(kind(fs.unlink(&root(), b"/d/e")), ErrorKind::IsDirectory);
    fs.rmdir(&root(), b"/d/e").unwrap();
    assert_eq!(fs.stat(&root(), b"/d", true).unwrap().nlink, 2);
    put(fs, b"/d/f", b"");
    assert_eq!(kind(fs.rmdir(&root(), b"/d/f")), ErrorKind::NotDirectory);
    fs.unlink(&root(), b"/d/f").unwrap();
    assert_eq!(kind(fs.unlink(&root(), b"/d/f")), ErrorKind::NotFound);
    fs.rmdir(&root(), b"/d").unwrap();
    assert_eq!(kind(fs.rmdir(&root(), b"/d")), ErrorKind::NotFound);
    assert_eq!(kind(fs.stat(&root(), b"/d", true)), ErrorKind::NotFound);
    assert_eq!(kind(fs.rmdir(&root(), b"/")), ErrorKind::InUse);
    fs.mkdir(&root(), b"/d", 0o755).unwrap();
    assert!(names(fs, b"/d").is_empty());
    assert_eq!(kind(fs.rmdir(&root(), b"/d/.")), ErrorKind::Invalid);
    // A directory removed by another process is gone here too, though it was cached.
    rig.another().rmdir(&root(), b"/d").unwrap();
    let made = fs.open_file(&root(), b"/d/f", OpenFlags::creating(), 0o644);
    assert_eq!(kind(made), ErrorKind::NotFound);
}

#[test]
fn rename_files_and_directories() {
    let rig = Rig::new(3);
    let fs = &rig.fs;
    let other = rig.another();
    let rename = |from: &[u8], to: &[u8]| fs.rename(&root(), from, to, REPLACE);
    for index in 0..20u8 {
        let (from, to) = (format!("/from{index}"), format!("/to{index}"));
        let data = noise(if index % 2 == 0 { 100 } else { 20_000 }, u64::from(index));
        put(fs, from.as_bytes(), &data);
        if index % 3 == 0 {
            put(fs, to.as_bytes(), b"replaced");
        }
        rename(from.as_bytes(), to.as_bytes()).unwrap();
        assert_eq!(get(&other, to.as_bytes()).unwrap(), data);
        assert_eq!(kind(get(&other, from.as_bytes())), ErrorKind::NotFound);
    }
    assert_eq!(kind(rename(b"/none", b"/x")), ErrorKind::NotFound);
    rename(b"/to1", b"/to1").unwrap();
    let no_replace = RenameFlags { no_replace: true, exchange: false, whiteout: false };
    assert_eq!(kind(fs.rename(&root(), b"/to1", b"/to2", no_replace)), ErrorKind::Exists);
    for dir in [&b"/d"[..], b"/d/e", b"/d/e/f", b"/empty", b"/full", b"/full/x"] {
        fs.mkdir(&root(), dir, 0o755).unwrap();
    }
    put(fs, b"/d/e/file", b"deep");
    get(&other, b"/d/e/file").unwrap();
    assert_eq!(kind(rename(b"/d", b"/d/e/f/g")), ErrorKind::Invalid);
    assert_eq!(kind(rename(b"/d/e", b"/d")), ErrorKind::NotEmpty);
    assert_eq!(kind(rename(b"/d", b"/full")), ErrorKind::NotEmpty);
    assert_eq!(kind(rename(b"/d", b"/to1")), ErrorKind::NotDirectory);
    assert_eq!(kind(rename(b"/to1", b"/d")), ErrorKind::IsDirectory);
    assert_eq!(kind(rename(b"/", b"/y")), ErrorKind::InUse);
    create(fs, b"/full/still-usable");
    rename(b"/d/e", b"/empty").unwrap();
    assert_eq!(get(&other, b"/empty/file").unwrap(), b"deep");
    assert_eq!(kind(get(&other, b"/d/e/file")), ErrorKind::NotFound);
    assert_eq!(fs.stat(&root(), b"/d", true).unwrap().nlink, 2);
    assert_eq!(fs.stat(&root(), b"/empty", true).unwrap().nlink, 3);
    rename(b"/empty", b"/d/moved").unwrap();
    assert_eq!(get(&other, b"/d/moved/file").unwrap(), b"deep");
    assert_eq!(
        other.stat(&root(), b"/d/moved/..", true).unwrap().ino,
        fs.stat(&root(), b"/d", true).unwrap().ino
    );
    assert_eq!(names(fs, b"/").iter().filter(|name| name.starts_with(b"e")).count(), 0);
}

#[test]
fn open_files_follow_their_name() {
    let rig = Rig::new(3);
    let fs = &rig.fs;
    for len in [100, 50_000] {
        let data = noise(len, 5);
        put(fs, b"/f", &data);
        let file = fs.open_file(&root(), b"/f", OpenFlags::creating(), 0).unwrap();
        rig.another().rename(&root(), b"/f", b"/g", REPLACE).unwrap();
        assert_eq!(read_all(&file).unwrap(), data);
        file.write_at(b"new", len as u64).unwrap();
        assert_eq!(file.attr().unwrap().size, len as u64 + 3);
        put(fs, b"/f", b"another");
        rig.another().rename(&root(), b"/g", b"/h", REPLACE).unwrap();
        file.write_at(b"NEW", 0).unwrap();
        file.close().unwrap();
        let now = get(&rig.another(), b"/h").unwrap();
        assert_eq!((&now[..3], &now[len..]), (&b"NEW"[..], &b"new"[..]));
        assert_eq!(get(fs, b"/f").unwrap(), b"another");
    }
}

#[test]
fn unlinked_files_live_until_they_are_closed() {
    let rig = Rig::new(3);
    let fs = &rig.fs;
    let empty = rig.client.node_status(samite_types::NodeId(0)).unwrap().records;
    for len in [10, 5_000_000] {
        let data = noise(len, 9);
        put(fs, b"/f", &data);
        let file = fs.open_file(&root(), b"/f", OpenFlags::creating(), 0).unwrap();
        let state = file.state().unwrap();
        fs.unlink(&root(), b"/f").unwrap();
        assert_eq!(kind(get(fs, b"/f")), ErrorKind::NotFound);
        assert!(read_all(&file).unwrap() == data);
        assert_eq!(file.attr().unwrap().nlink, 0);
        file.write_at(b"x", 0).unwrap();
        // A child that inherits the descriptor over exec has it too.
        let child = rig.another().reopen(&OpenState::decode(&state.encode()).unwrap());
        assert_eq!(child.attr().unwrap().size, len as u64);
        put(fs, b"/g", b"g");
        put(fs, b"/h", b"h");
        let replaced = fs.open_file(&root(), b"/h", OpenFlags::reading(), 0).unwrap();
        fs.rename(&root(), b"/g", b"/h", REPLACE).unwrap();
        assert_eq!(read_all(&replaced).unwrap(), b"h");
        replaced.close().unwrap();
        fs.unlink(&root(), b"/h").unwrap();
        file.close().unwrap();
        assert_eq!(kind(child.attr()), ErrorKind::StaleHandle);
    }
    let left = rig.client.node_status(samite_types::NodeId(0)).unwrap().records;
    assert!(left < empty + 64, "{left} records left of {empty}: only marks may stay");
}

#[test]
fn hard_links() {
    let rig = Rig::new(3);
    let fs = &rig.fs;
    let other = rig.another();
    for len in [10, 50_000] {
        let data = noise(len, 2);
        put(fs, b"/a", &data);
        let open = fs.open_file(&root(), b"/a", OpenFlags::creating(), 0).unwrap();
        fs.link(&root(), b"/a", b"/b", false).unwrap();
        other.link(&root(), b"/b", b"/c", false).unwrap();
        assert_eq!(kind(fs.link(&root(), b"/a", b"/b", false)), ErrorKind::Exists);
        let (a, c) =
            (fs.stat(&root(), b"/a", true).unwrap(), other.stat(&root(), b"/c", true).unwrap());
        assert_eq!((a.ino, a.nlink), (c.ino, 3));
        open.write_at(b"changed", 0).unwrap();
        open.fsync().unwrap();
        assert_eq!(&get(&other, b"/c").unwrap()[..7], b"changed");
        fs.chmod(&root(), b"/b", 0o600, true).unwrap();
        assert_eq!(other.stat(&root(), b"/c", true).unwrap().perm, 0o600);
        fs.rename(&root(), b"/a", b"/b", REPLACE).unwrap();
        fs.rename(&root(), b"/a", b"/d", REPLACE).unwrap();
        fs.unlink(&root(), b"/b").unwrap();
        other.unlink(&root(), b"/c").unwrap();
        assert_eq!(fs.stat(&root(), b"/d", true).unwrap().nlink, 1);
        assert_eq!(get(fs, b"/d").unwrap().len(), len);
        fs.unlink(&root(), b"/d").unwrap();
        assert_eq!(open.attr().unwrap().nlink, 0);
        open.close().unwrap();
        assert!(names(fs, b"/").is_empty());
    }
    fs.mkdir(&root(), b"/dir", 0o755).unwrap();
    assert_eq!(kind(fs.link(&root(), b"/dir", b"/dir2", false)), ErrorKind::NotOwner);
}

#[test]
fn permissions() {
    let rig = Rig::new(1);
    let fs = &rig.fs;
    fs.chmod(&root(), b"/", 0o777, true).unwrap();
    let (ann, bob) = (user(1000, 100), user(1001, 101));
    fs.mkdir(&ann, b"/ann", 0o700).unwrap();
    fs.open_file(&ann, b"/ann/f", OpenFlags::creating(), 0o666).unwrap();
    assert_eq!(kind(fs.stat(&bob, b"/ann/f", true)), ErrorKind::Denied);
    fs.chmod(&ann, b"/ann", 0o755, true).unwrap();
    assert_eq!(fs.stat(&bob, b"/ann/f", true).unwrap().perm, 0o644);
    assert_eq!(kind(fs.open_file(&bob, b"/ann/f", OpenFlags::creating(), 0)), ErrorKind::Denied);
    fs.open_file(&bob, b"/ann/f", OpenFlags::reading(), 0).unwrap();
    assert_eq!(kind(fs.unlink(&bob, b"/ann/f")), ErrorKind::Denied);
    assert_eq!(kind(fs.open_file(&bob, b"/ann/g", OpenFlags::creating(), 0)), ErrorKind::Denied);
    assert_eq!(kind(fs.chmod(&bob, b"/ann/f", 0o777, true)), ErrorKind::NotOwner);
    assert_eq!(kind(fs.chown(&ann, b"/ann/f", Some(1001), None, true)), ErrorKind::NotOwner);
    assert_eq!(
        kind(fs.utimens(&bob, b"/ann/f", SetTime::Now, SetTime::Now, true)),
        ErrorKind::Denied
    );
    fs.access(&bob, b"/ann/f", 4, true).unwrap();
    assert_eq!(kind(fs.access(&bob, b"/ann/f", 2, true)), ErrorKind::Denied);
    assert_eq!(kind(fs.access(&root(), b"/ann/f", 1, true)), ErrorKind::Denied);
    // Taking away a permission is seen at once by clients that cached the directory.
    let other = rig.another();
    other.stat(&bob, b"/ann/f", true).unwrap();
    fs.chmod(&ann, b"/ann", 0o700, true).unwrap();
    assert_eq!(kind(other.stat(&bob, b"/ann/f", true)), ErrorKind::Denied);
    // Sticky directories.
    fs.mkdir(&root(), b"/tmp", 0o777).unwrap();
    fs.chmod(&root(), b"/tmp", 0o1777, true).unwrap();
    fs.open_file(&ann, b"/tmp/f", OpenFlags::creating(), 0o666).unwrap();
    assert_eq!(kind(fs.unlink(&bob, b"/tmp/f")), ErrorKind::NotOwner);
    assert_eq!(kind(fs.rename(&bob, b"/tmp/f", b"/tmp/g", REPLACE)), ErrorKind::NotOwner);
    fs.unlink(&ann, b"/tmp/f").unwrap();
    // Setgid directories.
    fs.mkdir(&root(), b"/group", 0o777).unwrap();
    fs.chown(&root(), b"/group", None, Some(500), true).unwrap();
    fs.chmod(&root(), b"/group", 0o2777, true).unwrap();
    fs.mkdir(&ann, b"/group/sub", 0o755).unwrap();
    let sub = fs.stat(&root(), b"/group/sub", true).unwrap();
    assert_eq!((sub.gid, sub.perm), (500, 0o2755));
    let umask = CallerContext { umask: 0o077, ..ann };
    fs.mkdir(&umask, b"/group/private", 0o777).unwrap();
    assert_eq!(fs.stat(&root(), b"/group/private", true).unwrap().perm, 0o2700);
}

#[test]
fn times_and_owners() {
    let rig = Rig::new(1);
    let fs = &rig.fs;
    put(fs, b"/f", b"x");
    let (atime, mtime) = (Timestamp::new(1_000_000_000, 5), Timestamp::new(-5, 999_999_999));
    fs.utimens(&root(), b"/f", SetTime::To(atime), SetTime::To(mtime), true).unwrap();
    let attr = rig.another().stat(&root(), b"/f", true).unwrap();
    assert_eq!((attr.atime, attr.mtime), (atime, mtime));
    assert_eq!((attr.mtime.seconds(), attr.mtime.nanoseconds()), (-5, 999_999_999));
    assert!(attr.ctime > attr.btime);
    fs.utimens(&root(), b"/f", SetTime::Keep, SetTime::Now, true).unwrap();
    assert_eq!(fs.stat(&root(), b"/f", true).unwrap().atime, atime);
    fs.mkdir(&root(), b"/d", 0o755).unwrap();
    put(fs, b"/d/f", b"x");
    fs.utimens(&root(), b"/d", SetTime::To(atime), SetTime::To(mtime), true).unwrap();
    assert_eq!(fs.stat(&root(), b"/d", true).unwrap().mtime, mtime);
    put(fs, b"/d/g", b"x");
    assert!(fs.stat(&root(), b"/d", true).unwrap().mtime > atime);
    fs.chmod(&root(), b"/f", 0o6755, true).unwrap();
    fs.chown(&root(), b"/f", Some(7), Some(8), true).unwrap();
    let attr = fs.stat(&root(), b"/f", true).unwrap();
    assert_eq!((attr.uid, attr.gid, attr.perm), (7, 8, 0o755));
    fs.symlink(&root(), b"f", b"/l").unwrap();
    fs.chown(&root(), b"/l", Some(9), None, false).unwrap();
    assert_eq!(fs.stat(&root(), b"/f", true).unwrap().uid, 7);
    assert_eq!(fs.stat(&root(), b"/l", false).unwrap().uid, 9);
    fs.mknod(&root(), b"/fifo", 0o010_644, 0).unwrap();
    assert_eq!(fs.stat(&root(), b"/fifo", true).unwrap().kind, FileKind::Fifo);
    fs.mknod(&root(), b"/dev", 0o020_644, 0x103).unwrap();
    assert_eq!(fs.stat(&root(), b"/dev", true).unwrap().rdev, 0x103);
    let space = fs.statfs().unwrap();
    assert!(space.blocks > 0 && space.blocks_free > 0 && space.blocks_free <= space.blocks);
}

#[test]
fn extended_attributes() {
    let rig = Rig::new(1);
    let fs = &rig.fs;
    put(fs, b"/f", b"x");
    let file = fs.open_file(&root(), b"/f", OpenFlags::reading(), 0).unwrap();
    let path = XattrSubject::Path(b"/f".into(), true);
    assert!(fs.list_xattrs(&root(), &path).unwrap().is_empty());
    assert_eq!(kind(fs.get_xattr(&root(), &path, b"user.a")), ErrorKind::NoAttribute);
    let any = XattrFlags::default();
    fs.set_xattr(&root(), &path, b"user.a", b"1", any).unwrap();
    fs.set_xattr(&root(), &XattrSubject::Open(&file), b"user.b", b"", any).unwrap();
    let create = XattrFlags { create: true, replace: false };
    let replace = XattrFlags { create: false, replace: true };
    assert_eq!(kind(fs.set_xattr(&root(), &path, b"user.a", b"", create)), ErrorKind::Exists);
    assert_eq!(kind(fs.set_xattr(&root(), &path, b"user.c", b"", replace)), ErrorKind::NoAttribute);
    assert_eq!(kind(fs.set_xattr(&root(), &path, b"system.x", b"", any)), ErrorKind::Unsupported);
    fs.rename(&root(), b"/f", b"/g", REPLACE).unwrap();
    let path = XattrSubject::Path(b"/g".into(), true);
    assert_eq!(fs.get_xattr(&root(), &path, b"user.a").unwrap(), b"1");
    assert_eq!(fs.list_xattrs(&root(), &path).unwrap().len(), 2);
    fs.remove_xattr(&root(), &path, b"user.a").unwrap();
    assert_eq!(kind(fs.remove_xattr(&root(), &path, b"user.a")), ErrorKind::NoAttribute);
    fs.unlink(&root(), b"/g").unwrap();
}

#[test]
fn large_directories_are_listed_once_and_in_a_steady_order() {
    let rig = Rig::with_memory(3, 128 << 20);
    let fs = &rig.fs;
    fs.mkdir(&root(), b"/big", 0o755).unwrap();
    const COUNT: usize = 20_000;
    for index in 0..COUNT {
        create(fs, format!("/big/{index}").as_bytes());
    }
    let entries = list(fs, b"/big");
    assert_eq!(entries.len(), COUNT + 2);
    let mut seen = names(fs, b"/big");
    seen.dedup();
    assert_eq!(seen.len(), COUNT);
    let mut handle = fs.read_dir(&root(), b"/big").unwrap();
    for at in [5, 15_000, 2, COUNT + 1, 0, 9_999] {
        handle.seek(if at == 0 { 0 } else { entries[at - 1].cookie }).unwrap();
        assert_eq!(handle.next_entry().unwrap().unwrap(), entries[at], "entry {at}");
    }
    assert_eq!(entries[0].name.as_ref(), b".");
    assert_eq!(entries[1].ino, fs.stat(&root(), b"/", true).unwrap().ino);
    assert_eq!(kind(fs.rmdir(&root(), b"/big")), ErrorKind::NotEmpty);
}

#[test]
fn a_directory_has_the_time_that_was_set_last() {
    let rig = Rig::new(2);
    let fs = &rig.fs;
    fs.mkdir(&root(), b"/d", 0o755).unwrap();
    let time = SetTime::To(Timestamp(1_000_000_007));
    // As rsync does: before and after it is filled.
    for name in [b"/d/1", b"/d/2"] {
        fs.utimens(&root(), b"/d", time, time, true).unwrap();
        assert_eq!(fs.stat(&root(), b"/d", true).unwrap().mtime, Timestamp(1_000_000_007));
        create(fs, name);
        assert!(fs.stat(&root(), b"/d", true).unwrap().mtime > Timestamp(1_000_000_007));
    }
}

#[test]
fn positions_stay_while_entries_come_and_go() {
    let rig = Rig::new(2);
    let fs = &rig.fs;
    for index in 0..100 {
        create(fs, format!("/{index}").as_bytes());
    }
    let mut handle = fs.read_dir(&root(), b"/").unwrap();
    let mut entries = Vec::new();
    while let Some(entry) = handle.next_entry().unwrap() {
        entries.push(entry);
    }
    for entry in &entries[2..50] {
        fs.unlink(&root(), &[b"/", &*entry.name].concat()).unwrap();
    }
    create(fs, b"/new");
    for at in [60, 30, 101, 80, 5] {
        handle.seek(entries[at].cookie).unwrap();
        let mut left = Vec::new();
        while let Some(entry) = handle.next_entry().unwrap() {
            left.push(entry.name);
        }
        left.retain(|name| &**name != b"new");
        let expected: Vec<_> =
            entries[50.max(at + 1)..].iter().map(|entry| entry.name.clone()).collect();
        assert_eq!(left, expected, "after entry {at}");
    }
}

#[test]
fn links_out_of_a_mounted_store() {
    let rig = Rig::new(1);
    let fs = samite_fs::FileSystem::open_mounted(&rig.client, "files", Some(b"/samite")).unwrap();
    fs.symlink(&root(), b"/samite/f", b"/in").unwrap();
    fs.symlink(&root(), b"/etc", b"/out").unwrap();
    put(&fs, b"/f", b"here");
    assert_eq!(get(&fs, b"/in").unwrap(), b"here");
    assert_eq!(kind(fs.stat(&root(), b"/out/passwd", true)), ErrorKind::CrossDevice);
    let out = fs.way_out(&root(), b"/out/passwd", true).unwrap();
    assert_eq!(out.as_deref(), Some(&b"/etc/passwd"[..]));
    assert_eq!(fs.way_out(&root(), b"/in", true).unwrap(), None);
}

#[test]
fn a_full_store_says_so_and_goes_on() {
    let rig = Rig::with_memory(1, 16 << 20);
    let file = create(&rig.fs, b"/f");
    let block = noise(1 << 20, 1);
    let mut written = 0u64;
    let error = loop {
        match file.write_at(&block, written) {
            Ok(len) => written += len as u64,
            Err(error) => break error,
        }
        assert!(written < 64 << 20, "it never gets full");
    };
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert!(error.to_string().ends_with(": no space left in the store"), "{error}");
    assert!(written > 4 << 20);
    assert_eq!(file.attr().unwrap().size, written);
    let mut buf = vec![0; 1 << 20];
    assert_eq!(file.read_at(&mut buf, 0).unwrap(), buf.len());
    assert!(buf == block);
    file.close().unwrap();
    rig.fs.unlink(&root(), b"/f").unwrap();
    drop(file);
    put(&rig.fs, b"/g", &block);
    assert!(get(&rig.fs, b"/g").unwrap() == block);
}
