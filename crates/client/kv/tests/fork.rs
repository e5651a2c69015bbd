//! A forked child has a session of its own, and leaves its parent's alone.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::sync::atomic::{AtomicBool, Ordering};

use samite_kv::KvView;
use samite_testkit::datasets::{TRANSPORTS, client, cluster, dataset, pattern};

/// Runs `child` in a forked child; whether it said that all is well.
fn in_child(child: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child runs `child` only, which takes no lock of the parent's (this is tested
    // here), and leaves by _exit.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let is_well = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
        // SAFETY: ends the child without running anything of the parent's.
        unsafe { libc::_exit(i32::from(!is_well.unwrap_or(false))) };
    }
    assert!(pid > 0);
    let mut status = 0;
    // SAFETY: the pid is our child's, the pointer is to a live integer.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}

#[test]
fn a_child_works_beside_its_parent() {
    let cluster = cluster(2, 64);
    for transport in TRANSPORTS {
        let client = client(&cluster, transport);
        let kv = KvView::new(dataset(&client, &format!("fork-{transport}")));
        let large = pattern(200_000, 1);
        kv.put(b"large", &large).unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // Other threads hold locks and wait for replies at the time of the fork.
            for thread in 0..2u8 {
                let (kv, over, large) = (&kv, &over, &large);
                scope.spawn(move || {
                    let mut rounds = 0u64;
                    while !over.load(Ordering::Relaxed) {
                        kv.append(&[b'p', thread], &[thread]).unwrap();
                        assert!(kv.get(b"large").unwrap().unwrap().bytes == *large);
                        rounds += 1;
                    }
                    assert_eq!(kv.stat(&[b'p', thread]).unwrap().unwrap().0, rounds);
                });
            }
            for round in 0..5u8 {
                let key = [b'c', round];
                let is_well = in_child(|| {
                    client.after_fork_child();
                    let written = kv.append(&key, b"from the child");
                    written.is_ok()
                        && kv.get(b"large").is_ok_and(|value| value.unwrap().bytes == large)
                });
                assert!(is_well, "{transport}: round {round}");
                assert_eq!(kv.get(&key).unwrap().unwrap().bytes, b"from the child");
            }
            over.store(true, Ordering::Relaxed);
        });
    }
}

#[test]
fn what_was_submitted_before_a_fork_is_the_parents() {
    let cluster = cluster(1, 64);
    let client = client(&cluster, TRANSPORTS[0]);
    let kv = KvView::new(dataset(&client, "fork"));
    let mut pending = Some(kv.submit_put(b"k", b"v").unwrap());
    let child = pending.take();
    assert!(in_child(|| {
        client.after_fork_child();
        child.unwrap().wait().is_err() && kv.get(b"other").is_ok()
    }));
    assert_eq!(kv.get(b"k").unwrap().unwrap().bytes, b"v");
}
