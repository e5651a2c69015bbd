//! The lock that keeps forks apart from calls: the library itself takes no unit tests, as its symbols are those of libc.

#[path = "../src/fork_lock.rs"]
mod fork_lock;
