//! How long a thread has a core at a time, beside others that want it.

use std::io;

/// Shortest time slice that Linux gives a thread.
const SHORTEST_NS: u64 = 100_000;

/// Asks for short time slices on a core for this thread, and those that it starts later.
///
/// A thread that serves works for microseconds and then offers its core; with long time slices it
/// would give away a long one each time, and when it is woken beside a program that computes, wait
/// until that program's slice is over. It gets no more of the core than before. Linux has this
/// since 6.12; older ones take no notice. Where the system refuses, time slices stay as they are.
pub fn ask_for_short() {
    if let Err(error) = of_this_thread().and_then(shorten) {
        tracing::debug!(%error, "ask for short turns on a core");
    }
}

fn shorten(mut attributes: libc::sched_attr) -> io::Result<()> {
    // With a real-time policy time slices are the administrator's.
    if ![libc::SCHED_OTHER, libc::SCHED_BATCH].contains(&attributes.sched_policy.cast_signed()) {
        return Ok(());
    }
    attributes.sched_runtime = SHORTEST_NS;
    // SAFETY: the pointer is to a live local whose first field is its size; 0 is this thread, and there are no flags.
    let done = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The settings of this thread in the system's scheduler.
fn of_this_thread() -> io::Result<libc::sched_attr> {
    let size = size_of::<libc::sched_attr>() as u32;
    // SAFETY: it is plain numbers, for which zeros are valid.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live local of `size` bytes, which the kernel fills; 0 is this thread, and there are no flags.
    let done = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    attributes.size = size;
    if done == 0 { Ok(attributes) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_become_short_also_for_threads_that_are_started_later_and_nothing_else_changes() {
        std::thread::spawn(|| {
            let before = of_this_thread().unwrap();
            shorten(before).unwrap();
            let now = of_this_thread().unwrap();
            // Before 6.12 Linux tells nothing of time slices.
            assert!([SHORTEST_NS, before.sched_runtime].contains(&now.sched_runtime));
            let rest = |of: &libc::sched_attr| (of.sched_policy, of.sched_nice, of.sched_flags);
            assert_eq!(rest(&before), rest(&now));
            let child = std::thread::spawn(|| of_this_thread().unwrap()).join().unwrap();
            assert_eq!((rest(&child), child.sched_runtime), (rest(&now), now.sched_runtime));
        })
        .join()
        .unwrap();
    }
}
