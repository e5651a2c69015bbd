//! Benchmarks that print ratios to a floor.
//!
//! Every benchmark has a hierarchical name (`/kv/get/100B/tcp`) and, where there is one, a floor: the least that
//! the machine itself needs for the same work (a raw ping-pong, a `memcpy`, the kernel's own tmpfs). Both are measured
//! in the same run, in turns, so that a change of the machine's mood hits both.

use std::io::Write;
use std::time::Duration;

use samite_types::Result;

/// What `samite bench` was asked for.
#[derive(Clone, Debug)]
pub struct Options {
    /// Run only the benchmarks whose names match: a substring, or a pattern with `*`. All when `None`.
    pub pattern: Option<String>,
    /// One JSON object a line in place of the table.
    pub json: bool,
    /// Time for each benchmark and each floor.
    pub seconds: Duration,
    /// Only list the names.
    pub list: bool,
}

/// Runs the benchmarks and writes their results to `out` as they come.
///
/// # Errors
/// A local cluster or a peer that cannot be started, or an operation that failed: names which.
pub fn run(_options: &Options, _out: &mut dyn Write) -> Result<()> {
    Ok(())
}

/// The hidden command `samite bench-peer ARGS…`: the other end of a ping-pong, or a workload that runs under
/// `samite run`. Benchmarks start it from their own executable.
///
/// # Errors
/// Unknown arguments, or a socket or file that cannot be used.
pub fn peer(_args: &[String]) -> Result<()> {
    Ok(())
}
