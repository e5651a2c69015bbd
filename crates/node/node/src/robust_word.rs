//! A word in the arena that tells clients of the host whether this node lives, however it ends.
//!
//! The kernel keeps a list of *robust* futexes for each thread, and when the thread ends, also by a signal that cannot be caught, clears
//! its id from each word on the list. So a client that reads the node's memory sees the node's death without asking anybody.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use samite_arena::Arena;

#[repr(C)]
struct RobustEntry {
    next: *const RobustEntry,
}

/// The kernel's `struct robust_list_head`.
#[repr(C)]
struct RobustListHead {
    list: RobustEntry,
    /// From an entry to its word.
    futex_offset: libc::c_long,
    pending: *const RobustEntry,
}

struct RobustList {
    head: RobustListHead,
    entry: RobustEntry,
}

/// While it exists, and the thread that made it, the arena's word is not zero. It stays on that thread.
pub(crate) struct AliveWord {
    arena: Arc<Arena>,
    /// The list that the kernel walks; it stays where it is, for `Box` does not move its contents.
    list: Box<RobustList>,
    previous: *const RobustListHead,
    _of_this_thread: PhantomData<*const ()>,
}

impl AliveWord {
    /// `None` when the kernel has no such lists: then nothing is published to clients, and they
    /// ask.
    pub(crate) fn new(arena: &Arc<Arena>) -> Option<Self> {
        let mut previous: *const RobustListHead = std::ptr::null();
        let mut len: libc::size_t = 0;
        // SAFETY: asks for the calling thread's list; both places are valid for writing.
        let asked =
            unsafe { libc::syscall(libc::SYS_get_robust_list, 0, &raw mut previous, &raw mut len) };
        if asked != 0 {
            return None;
        }
        let nothing = std::ptr::null();
        let mut list = Box::new(RobustList {
            head: RobustListHead {
                list: RobustEntry { next: nothing },
                futex_offset: 0,
                pending: nothing,
            },
            entry: RobustEntry { next: nothing },
        });
        let word = std::ptr::from_ref(arena.alive()) as libc::c_long;
        list.head.futex_offset = word - std::ptr::from_ref(&list.entry) as libc::c_long;
        list.entry.next = &raw const list.head.list;
        list.head.list.next = &raw const list.entry;
        // SAFETY: the list is well formed and lives until `drop` takes it from the kernel; the word lives as long, for the
        // arena is held. The standard library's locks are not on the list that this one replaces for a while.
        let set = unsafe {
            libc::syscall(
                libc::SYS_set_robust_list,
                &raw const list.head,
                size_of::<RobustListHead>(),
            )
        };
        if set != 0 {
            return None;
        }
        let thread = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        arena.alive().store(thread, Ordering::SeqCst);
        let arena = Arc::clone(arena);
        Some(Self { arena, list, previous, _of_this_thread: PhantomData })
    }
}

impl Drop for AliveWord {
    fn drop(&mut self) {
        self.arena.alive().store(0, Ordering::SeqCst);
        debug_assert!(!self.list.head.list.next.is_null());
        // SAFETY: gives the thread back the list that it had; the own one is not walked any more.
        unsafe {
            libc::syscall(libc::SYS_set_robust_list, self.previous, size_of::<RobustListHead>());
        }
    }
}

#[cfg(test)]
mod tests {
    use samite_backend::Backend;
    use samite_backend::memory::MemoryBackend;

    use super::*;

    #[test]
    fn the_word_says_whether_the_thread_lives() {
        let arena = MemoryBackend::new(1 << 20, 1).unwrap().arena().unwrap();
        let alive = || arena.alive().load(Ordering::SeqCst) & samite_arena::lookup::ALIVE_MASK;
        assert_eq!(alive(), 0);
        let guard = AliveWord::new(&arena).unwrap();
        assert_ne!(alive(), 0);
        drop(guard);
        assert_eq!(alive(), 0);
        // A thread that ends without a word.
        let other = Arc::clone(&arena);
        std::thread::spawn(move || std::mem::forget(AliveWord::new(&other))).join().unwrap();
        let seen = || alive() == 0;
        // The kernel clears the word just before the thread has ended for a thread that joins it.
        assert!(seen());
    }
}
