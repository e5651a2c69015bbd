//! Locks.

use std::time::{Duration, Instant};

use libc::{EAGAIN, O_RDWR};

use super::ClaimScene;
use crate::access_path::AccessPath;
use crate::call::{CallLockMode, FileCall, LockKind, PathHandle};

type Test = (&'static str, fn(&mut ClaimScene<'_>));

pub const CLAIMS: &[Test] = &[
    ("locks-lock", locks_lock),
    ("locks-have-ranges", locks_have_ranges),
    ("locks-end-with-their-process", locks_end_with_their_process),
    ("locks-end-with-close", locks_end_with_close),
];

/// Longest time that the lock of a dead process may last.
const DEATH_MAX: Duration = Duration::from_secs(10);
/// Longest time that a lock may last after a close.
const CLOSE_MAX: Duration = Duration::from_secs(2);
const KINDS: [LockKind; 3] = [LockKind::Flock, LockKind::Process, LockKind::OpenFile];

/// The file, open in both processes.
fn open(scene: &mut ClaimScene<'_>) -> (PathHandle, PathHandle) {
    let path = scene.path("lock");
    scene.one.put(&path, b"").expect("put");
    (scene.one.open(&path, O_RDWR).expect("open"), scene.other.open(&path, O_RDWR).expect("open"))
}

fn locks_lock(scene: &mut ClaimScene<'_>) {
    let (mine, theirs) = open(scene);
    for kind in KINDS {
        scene.one.lock(mine, kind, CallLockMode::Exclusive).expect("exclusive");
        for mode in [CallLockMode::Shared, CallLockMode::Exclusive] {
            assert_eq!(scene.other.lock(theirs, kind, mode), Err(EAGAIN), "{kind:?} {mode:?}");
        }
        scene.one.lock(mine, kind, CallLockMode::Unlock).expect("unlock");
        scene.one.lock(mine, kind, CallLockMode::Shared).expect("shared");
        scene.other.lock(theirs, kind, CallLockMode::Shared).expect("shared beside shared");
        assert_eq!(scene.one.lock(mine, kind, CallLockMode::Exclusive), Err(EAGAIN), "{kind:?}");
        scene.one.lock(mine, kind, CallLockMode::Unlock).expect("unlock");
        scene.other.lock(theirs, kind, CallLockMode::Unlock).expect("unlock");
    }
}

fn locks_have_ranges(scene: &mut ClaimScene<'_>) {
    let (mine, theirs) = open(scene);
    let lock = |file, mode, offset, len| FileCall::Lock {
        file,
        kind: LockKind::Process,
        mode,
        offset,
        len,
        wait: false,
    };
    scene.one.run(lock(mine, CallLockMode::Exclusive, 0, 100)).expect("lock");
    scene.other.run(lock(theirs, CallLockMode::Exclusive, 100, 100)).expect("lock beside");
    assert_eq!(scene.other.run(lock(theirs, CallLockMode::Shared, 99, 1)), Err(EAGAIN));
    scene.one.run(lock(mine, CallLockMode::Unlock, 50, 50)).expect("unlock a part");
    scene.other.run(lock(theirs, CallLockMode::Exclusive, 50, 50)).expect("lock the part");
    assert_eq!(scene.other.run(lock(theirs, CallLockMode::Exclusive, 49, 1)), Err(EAGAIN));
}

fn locks_end_with_their_process(scene: &mut ClaimScene<'_>) {
    let (_, theirs) = open(scene);
    for kind in KINDS {
        let mut victim = scene.victim();
        let file = victim.open(&scene.path("lock"), O_RDWR).expect("open");
        victim.lock(file, kind, CallLockMode::Exclusive).expect("lock");
        assert_eq!(scene.other.lock(theirs, kind, CallLockMode::Exclusive), Err(EAGAIN));
        victim.kill();
        let start = Instant::now();
        while scene.other.lock(theirs, kind, CallLockMode::Exclusive) == Err(EAGAIN) {
            assert!(start.elapsed() < DEATH_MAX, "{kind:?}: a dead process keeps its lock");
            std::thread::sleep(Duration::from_millis(20));
        }
        scene.other.lock(theirs, kind, CallLockMode::Unlock).expect("unlock");
    }
}

fn locks_end_with_close(scene: &mut ClaimScene<'_>) {
    for kind in KINDS {
        let (mine, theirs) = open(scene);
        scene.one.lock(mine, kind, CallLockMode::Exclusive).expect("lock");
        assert_eq!(scene.other.lock(theirs, kind, CallLockMode::Exclusive), Err(EAGAIN));
        scene.one.close(mine).expect("close");
        // The kernel tells a mount of the last close after it has returned.
        let start = Instant::now();
        while scene.other.lock(theirs, kind, CallLockMode::Exclusive) == Err(EAGAIN) {
            assert!(start.elapsed() < CLOSE_MAX, "{kind:?}: a closed file keeps its lock");
            std::thread::sleep(Duration::from_millis(5));
        }
        scene.other.lock(theirs, kind, CallLockMode::Unlock).expect("unlock");
        scene.other.close(theirs).expect("close");
    }
}
