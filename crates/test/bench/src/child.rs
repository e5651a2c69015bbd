//! The hidden command `samite bench-peer`: the other process of a benchmark.
//!
//! ```text
//! echo tcp|unix DIR LEN     answers each message of LEN bytes with itself
//! source tcp|unix DIR LEN   sends pieces of LEN bytes without end
//! sink tcp|unix DIR LEN     takes pieces of LEN bytes without end
//! page futex|spin PATH      the other side of a page that two processes share
//! files DIR                 file work through libc, as told on standard input
//! ```
//!
//! Each prints one line when it is ready, and ends when its parent does.

pub mod files;
mod helper;
pub mod page;
pub mod socket;
mod sys;

use std::path::Path;

use samite_types::{Error, ErrorKind, Result};

pub use helper::{HelperProcess, own_executable};

/// `samite bench-peer ARGS…`: the other end of a ping-pong, or a workload that runs under `samite run`.
/// Benchmarks start it from their own executable.
///
/// # Errors
/// Unknown arguments, or a socket or file that cannot be used.
pub fn run(args: &[String]) -> Result<()> {
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let len = |text: &str| {
        text.parse::<usize>()
            .ok()
            .filter(|len| (1..=1 << 26).contains(len))
            .ok_or_else(|| Error::new(ErrorKind::Invalid, format!("{text:?} is no length")))
    };
    match words.as_slice() {
        ["echo", family, dir, size] => socket::echo(family.parse()?, Path::new(dir), len(size)?),
        ["source", family, dir, size] => {
            socket::source(family.parse()?, Path::new(dir), len(size)?)
        }
        ["sink", family, dir, size] => socket::sink(family.parse()?, Path::new(dir), len(size)?),
        ["page", how, path] => page::serve(how.parse()?, Path::new(path)),
        ["files", dir] => files::serve(Path::new(dir)),
        _ => Err(Error::new(ErrorKind::Invalid, "bench-peer: this command is for samite bench")),
    }
}

/// An error of the operating system met while doing `what`.
pub fn failed(what: impl std::fmt::Display) -> impl FnOnce(std::io::Error) -> Error {
    move |error| Error::new(ErrorKind::Io, format!("{what}: {error}"))
}
