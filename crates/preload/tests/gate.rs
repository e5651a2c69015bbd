//! The gate of forks: the library itself takes no unit tests, as its symbols are those of libc.

#[path = "../src/gate.rs"]
mod gate;
