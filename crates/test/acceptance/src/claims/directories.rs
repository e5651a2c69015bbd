//! Directories: counts, listings, removal.

use std::collections::BTreeSet;

use libc::{EISDIR, ENOTDIR, ENOTEMPTY, O_CREAT, O_DIRECTORY, O_RDONLY, O_WRONLY};

use super::ClaimScene;
use crate::call::{CallAnswer, FileCall, PathHandle};

type Test = (&'static str, fn(&mut ClaimScene<'_>));

pub const CLAIMS: &[Test] = &[
    ("link-counts-are-right", link_counts_are_right),
    ("only-empty-directories-go", only_empty_directories_go),
    ("listing-shows-each-once", listing_shows_each_once),
    ("positions-survive-changes", positions_survive_changes),
    ("kinds-are-told-apart", kinds_are_told_apart),
];

fn link_counts_are_right(scene: &mut ClaimScene<'_>) {
    let dir = scene.path("d");
    scene.one.mkdir(&dir).expect("mkdir");
    for count in 0..4 {
        assert_eq!(scene.other.facts(&dir).expect("stat").links, 2 + count);
        scene.one.mkdir(&format!("{dir}/{count}")).expect("mkdir");
    }
    scene.one.put(&format!("{dir}/file"), b"").expect("put");
    scene.other.rmdir(&format!("{dir}/0")).expect("rmdir");
    let moved = scene.path("moved");
    scene.other.rename(&format!("{dir}/1"), &moved).expect("rename");
    assert_eq!(scene.one.facts(&dir).expect("stat").links, 4);
}

fn only_empty_directories_go(scene: &mut ClaimScene<'_>) {
    let (dir, file) = (scene.path("d"), scene.path("d/f"));
    scene.one.mkdir(&dir).expect("mkdir");
    let open = scene.other.open(&file, O_CREAT | O_WRONLY).expect("create");
    assert_eq!(scene.one.rmdir(&dir), Err(ENOTEMPTY));
    scene.one.unlink(&file).expect("unlink");
    scene.one.rmdir(&dir).expect("rmdir, though a file that was in it is open");
    scene.other.write(open, 0, b"x").expect("write");
    scene.other.close(open).expect("close");
    assert_eq!(scene.other.facts(&dir), Err(libc::ENOENT));
}

fn stream(scene: &mut ClaimScene<'_>) -> PathHandle {
    match scene.other.call(FileCall::OpenDirectory { path: scene.dir.clone() }) {
        CallAnswer::Opened(stream) => stream,
        other => panic!("opendir: {other:?}"),
    }
}

fn listing_shows_each_once(scene: &mut ClaimScene<'_>) {
    for index in 0..300 {
        scene.one.put(&scene.path(&format!("stays{index}")), b"").expect("put");
    }
    let stream = stream(scene);
    let mut seen = Vec::new();
    for step in 0.. {
        // Others come and go meanwhile.
        if step % 3 == 0 {
            scene.one.put(&scene.path(&format!("comes{step}")), b"").expect("put");
        } else if step % 3 == 1 && step > 10 {
            let _ = scene.one.unlink(&scene.path(&format!("comes{}", step - 1)));
        }
        match scene.other.next_entry(stream).expect("readdir") {
            Some(entry) => seen.push(entry.name),
            None => break,
        }
        assert!(step < 2000, "a listing without an end");
    }
    let unique: BTreeSet<&String> = seen.iter().collect();
    assert_eq!(unique.len(), seen.len(), "a name was listed twice");
    let stayed = unique.iter().filter(|name| name.starts_with("stays")).count();
    assert_eq!(stayed, 300, "a name that was there all the time was left out");
}

fn positions_survive_changes(scene: &mut ClaimScene<'_>) {
    for index in 0..60 {
        scene.one.put(&scene.path(&format!("f{index}")), b"").expect("put");
    }
    let stream = stream(scene);
    let mut order = Vec::new();
    while let Some(entry) = scene.other.next_entry(stream).expect("readdir") {
        order.push(entry);
    }
    assert_eq!(order.len(), 60);
    // Entries in front of a position go, and a new one comes: the rest is where it was.
    for entry in &order[..20] {
        scene.one.unlink(&scene.path(&entry.name)).expect("unlink");
    }
    scene.one.put(&scene.path("new"), b"").expect("put");
    for at in [19usize, 40, 30] {
        let position = order[at].position;
        scene.other.run(FileCall::SeekDirectory { directory: stream, position }).expect("seekdir");
        let mut rest = Vec::new();
        while let Some(entry) = scene.other.next_entry(stream).expect("readdir") {
            if entry.name != "new" {
                rest.push(entry.name);
            }
        }
        let expected: Vec<&String> = order[at + 1..].iter().map(|entry| &entry.name).collect();
        assert_eq!(rest.iter().collect::<Vec<_>>(), expected, "from position {at}");
    }
}

fn kinds_are_told_apart(scene: &mut ClaimScene<'_>) {
    let (file, dir) = (scene.path("file"), scene.path("dir"));
    scene.one.put(&file, b"x").expect("put");
    scene.one.mkdir(&dir).expect("mkdir");
    let other = &mut *scene.other;
    assert_eq!(other.rmdir(&file), Err(ENOTDIR));
    assert_eq!(other.unlink(&dir), Err(EISDIR));
    assert_eq!(other.open(&dir, O_WRONLY), Err(EISDIR));
    assert_eq!(other.open(&file, O_RDONLY | O_DIRECTORY), Err(ENOTDIR));
    assert_eq!(other.facts(&format!("{file}/x")), Err(ENOTDIR));
    assert_eq!(other.list(&file), Err(ENOTDIR));
    assert_eq!(other.facts(&format!("{dir}/{}", "n".repeat(256))), Err(libc::ENAMETOOLONG));
}
