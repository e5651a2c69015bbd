//! State that a node's death leaves as it was where records are mirrored. Each claim prepares, a
//! node is killed, and each looks.

use std::time::{Duration, Instant};

use libc::{EAGAIN, O_RDWR};

use super::{After, ClaimScene};
use crate::call::{CallLockMode, LockKind};

type Test = (&'static str, fn(&mut ClaimScene<'_>) -> After);

pub const CLAIMS: &[Test] = &[
    ("a-nodes-death-is-a-pause", a_nodes_death_is_a_pause),
    ("what-was-said-outlives-nodes", what_was_said_outlives_nodes),
    ("nameless-files-outlive-nodes", nameless_files_outlive_nodes),
    ("locks-outlive-nodes", locks_outlive_nodes),
];

/// Longest pause, on a machine that does other things as well: far below the deadline of a call.
const PAUSE_MAX: Duration = Duration::from_secs(15);
/// So many files that each node has some of them.
const FILES: usize = 24;

fn names(scene: &ClaimScene<'_>, what: &str) -> Vec<String> {
    (0..FILES).map(|index| scene.path(&format!("{what}{index}"))).collect()
}

/// Short, long, and in several chunks.
fn content(index: usize) -> Vec<u8> {
    vec![index as u8; [10, 5000, 100_000, 1_200_000][index % 4]]
}

fn a_nodes_death_is_a_pause(scene: &mut ClaimScene<'_>) -> After {
    let dir = scene.path("p");
    scene.one.mkdir(&dir).expect("mkdir");
    let mut files = Vec::new();
    for index in 0..FILES {
        let file = scene.other.create(&format!("{dir}/{index}")).expect("create");
        scene.other.write(file, 0, b"before").expect("write");
        files.push(file);
    }
    Box::new(move |scene| {
        let start = Instant::now();
        for (index, file) in files.into_iter().enumerate() {
            scene.other.write(file, 6, b" and after").expect("write");
            scene.one.put(&format!("{dir}/new {index}"), b"new").expect("create");
            scene
                .one
                .rename(&format!("{dir}/{index}"), &format!("{dir}/{index}!"))
                .expect("rename");
            assert_eq!(scene.one.get(&format!("{dir}/{index}!")), Ok(b"before and after".into()));
            scene.other.close(file).expect("close");
        }
        assert_eq!(scene.other.list(&dir).expect("list").len(), 2 * FILES);
        assert!(start.elapsed() < PAUSE_MAX, "a pause of {:?}", start.elapsed());
    })
}

fn what_was_said_outlives_nodes(scene: &mut ClaimScene<'_>) -> After {
    let (kept, gone) = (names(scene, "kept"), names(scene, "gone"));
    for (index, (kept, gone)) in kept.iter().zip(&gone).enumerate() {
        scene.one.put(kept, &content(index)).expect("put");
        scene.one.put(gone, b"x").expect("put");
        scene.other.unlink(gone).expect("unlink");
    }
    Box::new(move |scene| {
        for (index, (kept, gone)) in kept.iter().zip(&gone).enumerate() {
            assert!(scene.other.get(kept).as_ref() == Ok(&content(index)), "{kept}");
            assert_eq!(scene.one.facts(gone), Err(libc::ENOENT));
        }
    })
}

fn nameless_files_outlive_nodes(scene: &mut ClaimScene<'_>) -> After {
    let mut files = Vec::new();
    for (index, path) in names(scene, "nameless").iter().enumerate() {
        scene.one.put(path, &content(index)).expect("put");
        files.push(scene.other.open(path, O_RDWR).expect("open"));
        scene.one.unlink(path).expect("unlink");
    }
    Box::new(move |scene| {
        for (index, file) in files.into_iter().enumerate() {
            let data = scene.other.read(file, 0, 2_000_000).expect("read");
            assert!(data == content(index), "file {index}");
            scene.other.close(file).expect("close");
        }
    })
}

fn locks_outlive_nodes(scene: &mut ClaimScene<'_>) -> After {
    let mut files = Vec::new();
    for (index, path) in names(scene, "lock").iter().enumerate() {
        scene.one.put(path, b"").expect("put");
        let mine = scene.one.open(path, O_RDWR).expect("open");
        let theirs = scene.other.open(path, O_RDWR).expect("open");
        let kind = [LockKind::Flock, LockKind::Process, LockKind::OpenFile][index % 3];
        scene.one.lock(mine, kind, CallLockMode::Exclusive).expect("lock");
        files.push((mine, theirs, kind));
    }
    Box::new(move |scene| {
        for (mine, theirs, kind) in files {
            let taken = scene.other.lock(theirs, kind, CallLockMode::Exclusive);
            assert_eq!(taken, Err(EAGAIN), "{kind:?} was taken twice");
            scene.one.lock(mine, kind, CallLockMode::Unlock).expect("unlock");
            scene.other.lock(theirs, kind, CallLockMode::Exclusive).expect("lock what is free");
            scene.other.lock(theirs, kind, CallLockMode::Unlock).expect("unlock");
        }
    })
}
