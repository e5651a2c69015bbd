//! How long a thread has a core at a time, beside others that want it.

use std::io;

/// Shortest turn that Linux gives a thread.
const SHORTEST_NS: u64 = 100_000;

/// While this lives, the thread that began it has short turns on a core, and so have, for good, the threads that it starts meanwhile.
///
/// Who serves works for microseconds and then offers its core; with long turns it would give away a long one each time, and when it is woken
/// beside a program that computes, wait until that one's turn is over. It gets no more of the core than before. Linux has this since
/// 6.12; older ones take no notice.
///
/// Not for threads of programs that are not ours.
#[must_use]
pub struct ShortTurns {
    before: Option<libc::sched_attr>,
    /// It ends in the thread in which it began.
    _here: std::marker::PhantomData<*const ()>,
}

impl ShortTurns {
    /// Begins; where the system refuses, turns stay as they are.
    pub fn begin() -> Self {
        // With a real-time policy turns are the administrator's.
        let is_fair = |of: &libc::sched_attr| {
            [libc::SCHED_OTHER, libc::SCHED_BATCH].contains(&of.sched_policy.cast_signed())
        };
        let before = of_this_thread().ok().filter(is_fair);
        let before = before
            .filter(|before| set(&libc::sched_attr { sched_runtime: SHORTEST_NS, ..*before }));
        Self { before, _here: std::marker::PhantomData }
    }
}

impl Drop for ShortTurns {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            set(before);
        }
    }
}

impl std::fmt::Debug for ShortTurns {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShortTurns").field("are", &self.before.is_some()).finish()
    }
}

/// Whether the system has taken these for this thread.
fn set(attributes: &libc::sched_attr) -> bool {
    // SAFETY: the pointer is to a live value whose first field is its size; 0 is this thread, and there are no flags.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, std::ptr::from_ref(attributes), 0) == 0 }
}

/// What the system's scheduler knows of this thread.
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
    fn turns_are_short_for_a_while_and_nothing_else_changes() {
        std::thread::spawn(|| {
            let before = of_this_thread().unwrap();
            let rest = |of: &libc::sched_attr| (of.sched_policy, of.sched_nice, of.sched_flags);
            let turns = ShortTurns::begin();
            let now = of_this_thread().unwrap();
            // Before 6.12 Linux tells nothing of turns.
            assert!([SHORTEST_NS, before.sched_runtime].contains(&now.sched_runtime));
            let child = std::thread::spawn(|| of_this_thread().unwrap()).join().unwrap();
            assert_eq!(child.sched_runtime, now.sched_runtime);
            drop(turns);
            let after = of_this_thread().unwrap();
            assert_eq!(after.sched_runtime, before.sched_runtime);
            assert_eq!([rest(&now), rest(&after)], [rest(&before); 2]);
        })
        .join()
        .unwrap();
    }
}
