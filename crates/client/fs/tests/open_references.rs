//! Files that are open live on without a name, whichever process took it, until the last close.
#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

mod common;

use std::time::{Duration, Instant};

use common::{Rig, create, noise, root};
use samite_client::Client;
use samite_fs::{FileSystem, OpenFile, OpenFlags, OpenState, RelativePath, RenameFlags};
use samite_types::ErrorKind;

/// The file system as another process sees it.
fn other(rig: &Rig) -> (Client, FileSystem) {
    let fs = rig.another();
    (fs.client().clone(), fs)
}

fn open(fs: &FileSystem, path: &[u8]) -> OpenFile {
    let flags = OpenFlags { write: true, ..OpenFlags::reading() };
    fs.open_file(&root(), path, flags, 0).unwrap()
}

fn read(file: &OpenFile, len: usize) -> Vec<u8> {
    let mut buf = vec![0; len];
    let mut done = 0;
    while done < len {
        let more = file.read_at(&mut buf[done..], done as u64).unwrap();
        if more == 0 {
            break;
        }
        done += more;
    }
    buf.truncate(done);
    buf
}

fn records(client: &Client) -> u64 {
    let map = client.map().unwrap();
    map.nodes().iter().map(|node| client.node_status(node.node).unwrap().records).sum()
}

/// A file that lost its name is as good as any, also over an exec.
fn check_orphan(fs: &FileSystem, file: &OpenFile, data: &[u8]) {
    assert_eq!(file.attr().unwrap().nlink, 0);
    assert_eq!(file.attr().unwrap().size, data.len() as u64);
    assert!(read(file, data.len() + 1) == data);
    let mut grown = data.to_vec();
    grown.extend_from_slice(&noise(20_000, 7));
    let mut done = data.len();
    while done < grown.len() {
        done += file.write_at(&grown[done..], done as u64).unwrap();
    }
    file.fsync().unwrap();
    assert!(read(file, grown.len() + 1) == grown);
    file.truncate(10).unwrap();
    let state = OpenState::decode(&file.state().unwrap().encode()).unwrap();
    let again = fs.reopen(&state);
    assert!(read(&again, 100) == grown[..10]);
    again.leave();
    assert_eq!(file.append(b"end").unwrap(), (10, 3));
    file.chmod(&root(), 0o600).unwrap();
    assert_eq!((file.attr().unwrap().perm, file.attr().unwrap().size), (0o600, 13));
}

#[derive(Clone, Copy, Debug)]
enum Removal {
    Unlink,
    RenameOver,
    UnlinkAfterRename,
    UnlinkBothLinks,
    UnlinkAfterLinkAndUnlink,
}

const REMOVALS: [Removal; 5] = [
    Removal::Unlink,
    Removal::RenameOver,
    Removal::UnlinkAfterRename,
    Removal::UnlinkBothLinks,
    Removal::UnlinkAfterLinkAndUnlink,
];

fn remove(fs: &FileSystem, how: Removal, name: &[u8]) {
    let to = [name, b".moved by another"].concat();
    let keep = RenameFlags::default();
    match how {
        Removal::Unlink => fs.unlink(&root(), name).unwrap(),
        Removal::RenameOver => {
            create(fs, &to).close().unwrap();
            fs.rename(&root(), &to[..], name, keep).unwrap();
            fs.unlink(&root(), name).unwrap();
        }
        Removal::UnlinkAfterRename => {
            // To many places: some are in the same partition, most in others.
            let mut from = name.to_vec();
            for step in 0..5 {
                let to = [name, format!(".{step}").as_bytes()].concat();
                fs.rename(&root(), &from[..], &to[..], keep).unwrap();
                from = to;
            }
            fs.unlink(&root(), &from[..]).unwrap();
        }
        Removal::UnlinkBothLinks | Removal::UnlinkAfterLinkAndUnlink => {
            fs.link(&root(), name, &to[..], false).unwrap();
            let order = [name, &to];
            let first = usize::from(matches!(how, Removal::UnlinkAfterLinkAndUnlink));
            fs.unlink(&root(), order[first]).unwrap();
            fs.unlink(&root(), order[1 - first]).unwrap();
        }
    }
    assert_eq!(fs.stat(&root(), name, false).unwrap_err().kind(), ErrorKind::NotFound);
}

fn check(nodes: usize) {
    let rig = Rig::with_memory(nodes, 128 << 20);
    let (client, by) = other(&rig);
    create(&rig.fs, b"/warm").close().unwrap();
    by.unlink(&root(), b"/warm").unwrap();
    rig.fs.flush_closes().unwrap();
    let before = records(&client);
    for how in REMOVALS {
        for (kind, len) in [("inline", 100), ("chunked", 3 << 20)] {
            for round in 0..3 {
                let name = format!("/{how:?} {kind} {round}");
                let data = noise(len, 3);
                let writer = create(&rig.fs, name.as_bytes());
                let mut done = 0;
                while done < len {
                    done += writer.write_at(&data[done..], done as u64).unwrap();
                }
                writer.close().unwrap();
                let (one, two) = (open(&rig.fs, name.as_bytes()), open(&rig.fs, name.as_bytes()));
                remove(&by, how, name.as_bytes());
                assert!(read(&two, len) == data, "{name}");
                check_orphan(&rig.fs, &one, &data);
                one.close().unwrap();
                assert_eq!(two.attr().unwrap().size, 13, "{name}");
                two.close().unwrap();
            }
        }
    }
    rig.fs.flush_closes().unwrap();
    by.flush_closes().unwrap();
    let stamps = 2 * u64::from(client.map().unwrap().partitions());
    assert!(
        records(&client) <= before + stamps,
        "{} records stay behind",
        records(&client) - before
    );
    // Memory that connections may fill is counted too.
    let used: u64 = {
        let map = client.map().unwrap();
        map.nodes().iter().map(|node| client.node_status(node.node).unwrap().used_bytes).sum()
    };
    assert!(used < 16 << 20, "{used} bytes stay behind");
    assert_eq!(by.sweep_orphans().unwrap(), 0);
}

#[test]
fn they_do_on_one_node() {
    check(1);
}

#[test]
fn they_do_on_three_nodes() {
    check(3);
}

#[test]
fn what_a_dead_process_had_open_is_swept() {
    let rig = Rig::with_memory(3, 64 << 20);
    let (client, by) = other(&rig);
    let before = records(&client);
    for name in [&b"/one"[..], b"/two", b"/three"] {
        let file = open_created(&by, name);
        file.write_at(&noise(1 << 20, 1), 0).unwrap();
        rig.fs.unlink(&root(), name).unwrap();
        // As if it were killed.
        file.leave();
    }
    assert_eq!(rig.fs.sweep_orphans().unwrap(), 0, "they are open");
    drop(by);
    drop(client);
    let end = Instant::now() + Duration::from_secs(10);
    let mut swept = 0;
    while swept < 3 {
        assert!(Instant::now() < end, "only {swept} of 3 were swept");
        std::thread::sleep(Duration::from_millis(100));
        swept += rig.fs.sweep_orphans().unwrap();
    }
    let left = records(&rig.client) - before;
    assert!(left <= 2 * u64::from(rig.client.map().unwrap().partitions()), "{left} records");
}

fn open_created(fs: &FileSystem, path: &[u8]) -> OpenFile {
    fs.open_file(&root(), path, OpenFlags::creating(), 0o644).unwrap()
}

#[test]
fn a_directory_that_was_removed_while_open_is_empty_and_takes_nothing() {
    let rig = Rig::with_memory(3, 64 << 20);
    let (_client, by) = other(&rig);
    rig.fs.mkdir(&root(), b"/d", 0o755).unwrap();
    let flags = OpenFlags { directory: true, ..OpenFlags::reading() };
    let dir = rig.fs.open_file(&root(), &b"/d"[..], flags, 0).unwrap();
    create(&rig.fs, b"/d/f").close().unwrap();
    by.unlink(&root(), b"/d/f").unwrap();
    by.rmdir(&root(), b"/d").unwrap();
    assert_eq!(dir.attr().unwrap().nlink, 0);
    let mut listing = dir.read_dir().unwrap();
    assert!(listing.next_entry().unwrap().is_none());
    let made =
        rig.fs.open_file(&root(), RelativePath::dir(&dir, b"g"), OpenFlags::creating(), 0o644);
    assert_eq!(made.unwrap_err().kind(), ErrorKind::NotFound);
    let found = rig.fs.stat(&root(), RelativePath::dir(&dir, b"f"), true);
    assert_eq!(found.unwrap_err().kind(), ErrorKind::NotFound);
    dir.close().unwrap();
}

#[test]
fn open_references_move_with_both_files_of_an_exchange() {
    let rig = Rig::with_memory(3, 64 << 20);
    let (_client, by) = other(&rig);
    for round in 0..8 {
        let names = [format!("/a{round}"), format!("/b{round}")];
        let files = names.each_ref().map(|name| {
            let file = open_created(&rig.fs, name.as_bytes());
            file.write_at(name.as_bytes(), 0).unwrap();
            file
        });
        let flags = RenameFlags { exchange: true, ..RenameFlags::default() };
        by.rename(&root(), names[0].as_bytes(), names[1].as_bytes(), flags).unwrap();
        for name in &names {
            by.unlink(&root(), name.as_bytes()).unwrap();
        }
        for (file, name) in files.iter().zip(&names) {
            assert_eq!(read(file, 100), name.as_bytes());
            file.close().unwrap();
        }
    }
    rig.fs.flush_closes().unwrap();
    assert_eq!(by.sweep_orphans().unwrap(), 0);
}

#[test]
fn closing_costs_nothing_and_what_is_closed_is_not_kept() {
    let rig = Rig::with_memory(3, 64 << 20);
    create(&rig.fs, b"/warm").close().unwrap();
    let requests = || rig.client.stats().requests + rig.client.stats().early_completions;
    let start = requests();
    for index in 0..20 {
        create(&rig.fs, format!("/f{index}").as_bytes()).close().unwrap();
    }
    assert_eq!(requests() - start, 20, "create and close");
    let start = requests();
    for index in 0..20 {
        rig.fs.unlink(&root(), format!("/f{index}").as_bytes()).unwrap();
    }
    assert!(requests() - start <= 20, "unlink of what was closed");
    for index in 0..100 {
        create(&rig.fs, format!("/g{index}").as_bytes()).close().unwrap();
    }
    let start = requests();
    for index in 0..200 {
        open(&rig.fs, format!("/g{}", index % 100).as_bytes()).close().unwrap();
    }
    assert!(requests() - start <= 200 + 9, "open and close: {}", requests() - start);
    for index in 0..100 {
        rig.fs.unlink(&root(), format!("/g{index}").as_bytes()).unwrap();
    }
    rig.fs.flush_closes().unwrap();
    let map = rig.client.map().unwrap();
    let orphans =
        map.nodes().iter().map(|node| rig.client.node_status(node.node).unwrap().abandoned);
    assert_eq!(orphans.sum::<u64>(), 0);
}

#[test]
fn a_file_without_a_name_goes_with_its_last_close_or_gets_a_name() {
    let rig = Rig::with_memory(3, 64 << 20);
    let (client, by) = other(&rig);
    rig.fs.mkdir(&root(), b"/d", 0o755).unwrap();
    create(&rig.fs, b"/d/warm").close().unwrap();
    let flags = OpenFlags { write: true, ..OpenFlags::reading() };
    let make = |flags| rig.fs.open_unnamed(&root(), &b"/d"[..], flags, 0o644).unwrap();
    let before = records(&client);
    let start = rig.client.stats().requests;
    let file = make(flags);
    assert!(
        rig.client.stats().requests - start <= 2,
        "a look at the directory, and one to make it"
    );
    check_orphan(&rig.fs, &file, b"");
    file.close().unwrap();
    assert_eq!(records(&client), before);
    for len in [100, 2 << 20] {
        let file = make(flags);
        let data = noise(len, 5);
        let mut done = 0;
        while done < len {
            done += file.write_at(&data[done..], done as u64).unwrap();
        }
        let name = format!("/d/{len}");
        let taken = file.link(&root(), &b"/d/warm"[..]).unwrap_err();
        assert_eq!(taken.kind(), ErrorKind::Exists);
        assert_eq!(file.link(&root(), name.as_bytes()).unwrap().nlink, 1);
        assert_eq!(file.link(&root(), format!("{name} too").as_bytes()).unwrap().nlink, 2);
        file.close().unwrap();
        let found = by.open_file(&root(), name.as_bytes(), flags, 0).unwrap();
        assert!(read(&found, len + 1) == data);
        found.close().unwrap();
        for name in [name.clone(), format!("{name} too")] {
            by.unlink(&root(), name.as_bytes()).unwrap();
        }
    }
    let excl = make(OpenFlags { excl: true, ..flags });
    assert_eq!(excl.link(&root(), &b"/d/x"[..]).unwrap_err().kind(), ErrorKind::NotFound);
    let gone = create(&rig.fs, b"/d/gone");
    by.unlink(&root(), b"/d/gone").unwrap();
    assert_eq!(gone.link(&root(), &b"/d/x"[..]).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(by.sweep_orphans().unwrap(), 0);
}

#[test]
fn who_inherits_a_file_holds_it_after_its_opener_is_gone() {
    let rig = Rig::with_memory(3, 64 << 20);
    let opener = rig.another();
    let file = open_created(&opener, b"/f");
    file.write_at(b"kept", 0).unwrap();
    let state = OpenState::decode(&file.state().unwrap().encode()).unwrap();
    let successor = rig.fs.reopen(&state);
    successor.reference_again().unwrap();
    file.leave();
    drop((file, opener));
    // Longer than a node waits for a client to come back.
    std::thread::sleep(Duration::from_secs(3));
    let (_client, by) = other(&rig);
    by.unlink(&root(), b"/f").unwrap();
    assert_eq!(by.sweep_orphans().unwrap(), 0);
    assert_eq!(read(&successor, 10), b"kept");
    successor.close().unwrap();
    let flags = OpenFlags::reading();
    assert!(by.open_file(&root(), &b"/f"[..], flags, 0).is_err());
}
