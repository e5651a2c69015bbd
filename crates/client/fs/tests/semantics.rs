//! Semantics of directories.
#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

mod common;

use common::{Rig, get, kind, list, names, noise, root, user};
use samite_fs::{CallerContext, FileSemantics, FileSystem, OpenFile, OpenFlags};
use samite_types::{ErrorKind, Result};

/// A store with a temporary directory `/t`, and a process that defers.
fn temporary(nodes: usize) -> Rig {
    let rig = Rig::new(nodes);
    rig.fs.mkdir(&root(), b"/t", 0o777).unwrap();
    rig.fs.set_semantics(&root(), b"/t", FileSemantics::Temporary).unwrap();
    rig.fs.defer_files(true);
    rig.fs.stat(&root(), b"/t/none", true).unwrap_err();
    rig
}

fn open(fs: &FileSystem, ctx: &CallerContext, path: &[u8], flags: OpenFlags) -> Result<OpenFile> {
    fs.open_file(ctx, path, flags, 0o644)
}

fn make(fs: &FileSystem, path: &[u8], data: &[u8]) -> OpenFile {
    let flags = OpenFlags { excl: true, ..OpenFlags::creating() };
    let file = open(fs, &root(), path, flags).unwrap();
    assert_eq!(file.write_at(data, 0).unwrap(), data.len());
    file
}

#[test]
fn semantics_are_kept_inherited_and_told() {
    let rig = Rig::new(3);
    let (fs, other) = (&rig.fs, rig.another());
    fs.mkdir(&root(), b"/d", 0o755).unwrap();
    assert_eq!(fs.semantics(&root(), b"/d").unwrap(), FileSemantics::Posix);
    other.semantics(&root(), b"/d/x").unwrap_err();
    for semantics in FileSemantics::ALL {
        fs.set_semantics(&root(), b"/d", semantics).unwrap();
        assert_eq!(other.semantics(&root(), b"/d").unwrap(), semantics);
        let sub = format!("/d/{semantics}");
        other.mkdir(&root(), sub.as_bytes(), 0o755).unwrap();
        let file = format!("/d/{semantics}/f");
        common::put(fs, file.as_bytes(), b"x");
        for path in [&sub, &file] {
            assert_eq!(fs.semantics(&root(), path.as_bytes()).unwrap(), semantics, "{path}");
        }
        assert_eq!(semantics.name().parse::<FileSemantics>().unwrap(), semantics);
    }
    assert_eq!(fs.semantics(&root(), b"/d/session").unwrap(), FileSemantics::Session);
    let set =
        |ctx: &CallerContext, path: &[u8]| fs.set_semantics(ctx, path, FileSemantics::Session);
    assert_eq!(kind(set(&root(), b"/d/posix/f")), ErrorKind::NotDirectory);
    assert_eq!(kind(set(&user(7, 7), b"/d")), ErrorKind::NotOwner);
    assert_eq!(kind("checkpoint".parse::<FileSemantics>()), ErrorKind::Invalid);
}

#[test]
fn new_files_cost_one_request_for_many() {
    let rig = temporary(1);
    let before = rig.client.stats();
    for i in 0..256 {
        make(&rig.fs, format!("/t/{i}").as_bytes(), b"data").close().unwrap();
    }
    let spent = rig.client.stats() - before;
    assert!(spent.requests <= 8, "{} requests", spent.requests);
    rig.fs.flush().unwrap();
    let other = rig.another();
    assert_eq!(names(&other, b"/t").len(), 256);
    assert_eq!(get(&other, b"/t/77").unwrap(), b"data");
}

#[test]
fn what_is_closed_while_it_is_on_its_way_is_not_kept() {
    let rig = temporary(1);
    let node = rig.client.map().unwrap().nodes()[0].node;
    let records = || rig.client.node_status(node).unwrap().records;
    let first = make(&rig.fs, b"/t/first", b"data");
    let before = rig.client.stats();
    let mut others = 0;
    while (rig.client.stats() - before).requests == 0 {
        make(&rig.fs, format!("/t/{others}").as_bytes(), b"data").close().unwrap();
        others += 1;
    }
    first.close().unwrap();
    rig.fs.flush().unwrap();
    rig.fs.flush_closes().unwrap();
    let before = records();
    rig.another().unlink(&root(), b"/t/first").unwrap();
    assert_eq!(records(), before - 1, "nobody holds it");
}

#[test]
fn others_see_them_when_they_are_sent_and_the_maker_at_once() {
    let rig = temporary(3);
    let (fs, other) = (&rig.fs, rig.another());
    let file = make(fs, b"/t/a", b"hello");
    assert_eq!(kind(other.stat(&root(), b"/t/a", true)), ErrorKind::NotFound);
    // The handle's own questions send nothing.
    assert_eq!(file.attr().unwrap().size, 5);
    assert_eq!(file.read_at(&mut [0; 10], 1).unwrap(), 4);
    file.write_at(b"J", 0).unwrap();
    assert_eq!(kind(other.stat(&root(), b"/t/a", true)), ErrorKind::NotFound);
    let attr = fs.stat(&root(), b"/t/a", true).unwrap();
    assert_eq!((attr.size, attr.ino), (5, file.ino()));
    assert_eq!(get(&other, b"/t/a").unwrap(), b"Jello");
    file.write_at(b"!", 5).unwrap();
    assert_eq!(get(&other, b"/t/a").unwrap(), b"Jello!");
    // Everything else about names sends first.
    drop(make(fs, b"/t/b", b""));
    assert_eq!(names(fs, b"/t"), [b"a".to_vec(), b"b".to_vec()]);
    make(fs, b"/t/c", b"").close().unwrap();
    fs.unlink(&root(), b"/t/c").unwrap();
    make(fs, b"/t/d", b"d").close().unwrap();
    fs.rename(&root(), b"/t/d", b"/t/e", samite_fs::RenameFlags::default()).unwrap();
    assert_eq!(get(&other, b"/t/e").unwrap(), b"d");
    let synced = make(fs, b"/t/f", b"f");
    synced.fsync().unwrap();
    assert_eq!(get(&other, b"/t/f").unwrap(), b"f");
    // A file that does not fit leaves at once, and whole.
    let large = noise(100_000, 1);
    let file = make(fs, b"/t/g", b"small");
    file.write_at(&large, 5).unwrap();
    file.close().unwrap();
    assert_eq!(get(&other, b"/t/g").unwrap().len(), 100_005);
    let sparse = make(fs, b"/t/h", b"");
    sparse.write_at(b"x", 1000).unwrap();
    assert_eq!(get(&other, b"/t/h").unwrap().len(), 1001);
}

#[test]
fn a_name_that_was_taken_is_opened_as_it_would_have_been() {
    let rig = temporary(3);
    let (fs, other) = (&rig.fs, rig.another());
    for name in [&b"/t/kept"[..], b"/t/cut", b"/t/tail", b"/t/open", b"/t/excl"] {
        common::put(&other, name, b"0123456789");
    }
    let flags = OpenFlags { write: true, create: true, ..OpenFlags::default() };
    let file = open(fs, &root(), b"/t/kept", flags).unwrap();
    file.write_at(b"abc", 0).unwrap();
    file.close().unwrap();
    let cut = OpenFlags { truncate: true, ..flags };
    let file = open(fs, &root(), b"/t/cut", cut).unwrap();
    file.write_at(b"abc", 0).unwrap();
    file.close().unwrap();
    let file = open(fs, &root(), b"/t/tail", OpenFlags { append: true, ..flags }).unwrap();
    file.append(b"abc").unwrap();
    file.close().unwrap();
    let file = open(fs, &root(), b"/t/open", OpenFlags { read: true, ..flags }).unwrap();
    file.write_at(b"abc", 0).unwrap();
    // Only the file that was there can say what follows.
    let mut buf = [0; 10];
    assert_eq!(file.read_at(&mut buf, 0).unwrap(), 10);
    assert_eq!(&buf, b"abc3456789");
    assert_eq!(file.ino(), other.stat(&root(), b"/t/open", true).unwrap().ino);
    file.write_at(b"Z", 9).unwrap();
    let excl = open(fs, &root(), b"/t/excl", OpenFlags { excl: true, ..flags }).unwrap();
    assert_eq!(kind(excl.fsync()), ErrorKind::Exists);
    fs.flush().unwrap();
    assert_eq!(get(&other, b"/t/kept").unwrap(), b"abc3456789");
    assert_eq!(get(&other, b"/t/cut").unwrap(), b"abc");
    assert_eq!(get(&other, b"/t/tail").unwrap(), b"0123456789abc");
    assert_eq!(get(&other, b"/t/open").unwrap(), b"abc345678Z");
    assert_eq!(get(&other, b"/t/excl").unwrap(), b"0123456789");
}

#[test]
fn failures_are_told_late_but_told() {
    let rig = temporary(1);
    let (fs, other) = (&rig.fs, rig.another());
    // Closed before the failure shows: the next flush tells of it.
    make(fs, b"/t/a", b"x").close().unwrap();
    common::put(&other, b"/t/a", b"other's");
    let open = make(fs, b"/t/b", b"x");
    common::put(&other, b"/t/b", b"other's");
    assert_eq!(kind(fs.flush()), ErrorKind::Exists);
    assert!(fs.late_failures().is_empty());
    // Still open: its close does.
    assert_eq!(kind(open.close()), ErrorKind::Exists);
    // A directory that is gone takes nothing with it.
    fs.mkdir(&root(), b"/t/d", 0o755).unwrap();
    make(fs, b"/t/d/f", b"x").close().unwrap();
    other.rmdir(&root(), b"/t/d").unwrap();
    assert_eq!(kind(fs.flush()), ErrorKind::NotFound);
    // A directory that moved takes all with it.
    fs.mkdir(&root(), b"/t/d", 0o755).unwrap();
    make(fs, b"/t/d/f", b"x").close().unwrap();
    other.rename(&root(), b"/t/d", b"/moved", samite_fs::RenameFlags::default()).unwrap();
    fs.flush().unwrap();
    assert_eq!(get(&other, b"/moved/f").unwrap(), b"x");
    assert_eq!(list(&other, b"/t").len(), 4);
}

#[test]
fn threads_make_files_together() {
    let rig = temporary(3);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let fs = rig.fs.clone();
            scope.spawn(move || {
                for i in 0..300 {
                    let path = format!("/t/{thread}-{i}");
                    let file = make(&fs, path.as_bytes(), path.as_bytes());
                    if i % 50 == 7 {
                        assert_eq!(get(&fs, path.as_bytes()).unwrap(), path.as_bytes());
                    }
                    file.close().unwrap();
                }
            });
        }
    });
    rig.fs.flush().unwrap();
    let other = rig.another();
    assert_eq!(names(&other, b"/t").len(), 1200);
    assert_eq!(get(&other, b"/t/3-299").unwrap(), b"/t/3-299");
}

#[test]
fn in_a_session_an_open_file_stays_as_it_was() {
    let rig = Rig::new(3);
    let (fs, other) = (&rig.fs, rig.another());
    fs.mkdir(&root(), b"/s", 0o755).unwrap();
    fs.set_semantics(&root(), b"/s", FileSemantics::Session).unwrap();
    common::put(&other, b"/s/f", b"before");
    fs.stat(&root(), b"/s/f", true).unwrap();
    let before = rig.client.stats();
    let file = open(fs, &root(), b"/s/f", OpenFlags::reading()).unwrap();
    common::put(&other, b"/s/f", b"after this");
    std::thread::sleep(std::time::Duration::from_millis(10));
    let mut buf = [0; 100];
    assert_eq!(file.attr().unwrap().size, 6);
    assert_eq!(file.read_at(&mut buf, 0).unwrap(), 6);
    assert_eq!(&buf[..6], b"before");
    assert_eq!(file.read_at(&mut buf, 6).unwrap(), 0);
    file.close().unwrap();
    assert_eq!((rig.client.stats() - before).requests, 1);
    assert_eq!(get(fs, b"/s/f").unwrap(), b"after this");
    // This process sees its own changes.
    let file = open(fs, &root(), b"/s/f", OpenFlags::reading()).unwrap();
    common::put(fs, b"/s/f", b"mine");
    assert_eq!(file.read_at(&mut buf, 0).unwrap(), 4);
}

#[test]
fn a_file_system_begins_with_the_semantics_of_its_dataset() {
    use samite_wire::control::{DatasetSpec, SemanticsKind};
    let rig = Rig::new(1);
    let client = rig.cluster.client(samite_client::ClientOptions::default()).unwrap();
    let kinds = [
        (SemanticsKind::Posix, FileSemantics::Posix),
        (SemanticsKind::Session, FileSemantics::Session),
        (SemanticsKind::Temporary, FileSemantics::Temporary),
    ];
    for (of_dataset, semantics) in kinds {
        let name = format!("of-{semantics}");
        let spec = DatasetSpec { semantics: of_dataset, ..DatasetSpec::new(&name) };
        client.create_dataset(&spec).unwrap();
        let fs = FileSystem::open(&client, &name).unwrap();
        assert_eq!(fs.semantics(&root(), b"/").unwrap(), semantics);
        fs.mkdir(&root(), b"/sub", 0o755).unwrap();
        assert_eq!(fs.semantics(&root(), b"/sub").unwrap(), semantics);
        // From then on the directory says.
        fs.set_semantics(&root(), b"/", FileSemantics::Posix).unwrap();
        let again = FileSystem::open(&client, &name).unwrap();
        assert_eq!(again.semantics(&root(), b"/").unwrap(), FileSemantics::Posix);
    }
    let spec = DatasetSpec { semantics: SemanticsKind::Checkpoint, ..DatasetSpec::new("c") };
    assert_eq!(kind(client.create_dataset(&spec).map(drop)), ErrorKind::Invalid);
}
