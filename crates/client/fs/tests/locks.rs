//! File locks between clients, on one node and on three.

mod common;

use common::Rig;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use samite_fs::{FileLocks, LockMode, LockPlace, LockRange, LockSpace, WantedLock};
use samite_types::ErrorKind;

const NEVER: &dyn Fn() -> bool = &|| false;

fn place(ino: u64) -> LockPlace {
    LockPlace { ino, space: LockSpace::Ranges, token: 7 }
}

fn wanted(start: u64, last: u64) -> WantedLock {
    let (range, mode) = (LockRange { start, last }, LockMode::Exclusive);
    WantedLock { range, mode, pid: std::process::id(), detects_deadlock: true }
}

fn holders(rig: &Rig, count: usize) -> Vec<FileLocks> {
    (0..count).map(|_| rig.another().locks()).collect()
}

#[test]
fn locks_exclude_each_other_and_end_with_their_holder() {
    for nodes in [1, 3] {
        let rig = Rig::new(nodes);
        let mut all = holders(&rig, 2);
        let (second, first) = (all.remove(1), all.remove(0));
        for ino in 100..110 {
            assert_eq!(first.try_lock(place(ino), wanted(0, 9)).expect("lock"), None);
            let found = second.try_lock(place(ino), wanted(5, 20)).expect("lock");
            let found = found.expect("the other holds it");
            assert_eq!((found.range.start, found.range.last), (0, 9));
            assert_eq!(second.process_of(&found), Some(std::process::id()));
            assert_eq!(second.try_lock(place(ino), wanted(10, 20)).expect("lock"), None);
            assert_eq!(
                first.test(place(ino), wanted(20, 30)).expect("test").map(|f| f.range.start),
                Some(10)
            );
        }
        drop(first);
        let begun = Instant::now();
        for ino in 100..110 {
            second.lock(place(ino), wanted(0, 20), NEVER).expect("free when the holder is gone");
        }
        assert!(begun.elapsed() < Duration::from_secs(20));
    }
}

#[test]
fn a_wait_ends_with_the_lock_or_when_it_is_stopped() {
    let rig = Rig::new(1);
    let all = holders(&rig, 2);
    assert_eq!(all[0].try_lock(place(5), wanted(0, 0)).expect("lock"), None);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let waiter =
            scope.spawn(|| all[1].lock(place(5), wanted(0, 0), &|| stop.load(Ordering::Relaxed)));
        std::thread::sleep(Duration::from_millis(50));
        stop.store(true, Ordering::Relaxed);
        let stopped = waiter.join().expect("waiter").expect_err("it was stopped");
        assert_eq!(stopped.kind(), ErrorKind::Interrupted);
        let waiter = scope.spawn(|| all[1].lock(place(5), wanted(0, 0), NEVER));
        std::thread::sleep(Duration::from_millis(50));
        all[0].unlock(place(5), LockRange::WHOLE).expect("unlock");
        waiter.join().expect("waiter").expect("granted");
    });
    assert!(all[0].try_lock(place(5), wanted(0, 0)).expect("lock").is_some());
}

#[test]
fn a_circle_of_waits_over_several_nodes_is_refused() {
    let rig = Rig::new(3);
    let all = holders(&rig, 3);
    // Ten files lie on different nodes, so that some neighbours do.
    for first in (200..230).step_by(3) {
        for (index, one) in all.iter().enumerate() {
            let ino = first + index as u64;
            assert_eq!(one.try_lock(place(ino), wanted(0, 0)).expect("lock"), None);
        }
        let outcomes: Vec<Result<(), ErrorKind>> = std::thread::scope(|scope| {
            let threads: Vec<_> = all
                .iter()
                .enumerate()
                .map(|(index, one)| {
                    scope.spawn(move || {
                        let next = first + (index as u64 + 1) % 3;
                        let outcome = one.lock(place(next), wanted(0, 0), NEVER);
                        for ino in first..first + 3 {
                            one.unlock(place(ino), LockRange::WHOLE).expect("unlock");
                        }
                        outcome.map_err(|error| error.kind())
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("thread")).collect()
        });
        assert!(outcomes.contains(&Err(ErrorKind::Deadlock)), "{outcomes:?}");
        assert!(outcomes.iter().all(|one| matches!(one, Ok(()) | Err(ErrorKind::Deadlock))));
    }
}
