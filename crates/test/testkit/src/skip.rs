//! Tests that cannot run on a machine, by name. A test that only returned would count as passed: one that calls [`skip`] is told
//! from those by `scripts/test.sh`, which takes it off the passed ones, says its name, and fails when `tests/skips.txt` does not
//! list it.

use std::io::Write;
use std::path::Path;
use std::process::Command;

/// Names the file that takes a line for each test that is skipped: `test` or `part`, the name, and what is missing, with tabs.
pub const ENV_SKIPS: &str = "SAMITE_SKIPS";

/// The test of this thread is not run, as the machine lacks `what` (one word). The test returns after that.
///
/// # Panics
/// The file of [`ENV_SKIPS`] cannot be written: the test would count as passed.
pub fn skip(what: &str) {
    say("test", what);
}

/// A part of this thread's test is left out, as the machine lacks `what` (one word). The test still counts as passed or failed.
///
/// # Panics
/// As of [`skip`].
pub fn skip_part(what: &str) {
    say("part", what);
}

/// Whether a program is on this machine. Where it is not, the test of this thread is skipped, and returns after that.
///
/// # Panics
/// As of [`skip`].
#[must_use]
pub fn has(program: &str) -> bool {
    let found = Command::new("sh").args(["-c", "command -v \"$0\"", program]).output();
    let has = found.is_ok_and(|output| output.status.success());
    if !has {
        skip(program);
    }
    has
}

/// Whether this machine can mount file systems of programs. Where it cannot, the test of this thread is skipped, as by [`has`].
///
/// # Panics
/// As of [`skip`].
#[must_use]
pub fn has_fuse() -> bool {
    let has = is_fuse_there();
    if !has {
        skip(FUSE);
    }
    has
}

/// Device that [`has_fuse`], and tests that go on without a mount, look for.
pub const FUSE: &str = "/dev/fuse";

/// Whether this machine can mount file systems of programs; says nothing.
#[must_use]
pub fn is_fuse_there() -> bool {
    Path::new(FUSE).exists()
}

/// Package, test file and test, as `tests/skips.txt` has them. The thread of a test has its name.
fn name() -> String {
    let package = std::env::var("CARGO_PKG_NAME").unwrap_or_else(|_| "?".into());
    let program = std::env::current_exe().ok();
    let stem = program.as_deref().and_then(Path::file_stem).and_then(|stem| stem.to_str());
    // Cargo adds a sum to the name.
    let file = stem.and_then(|stem| stem.rsplit_once('-')).map_or("?", |(file, _)| file);
    format!("{package}::{file}::{}", std::thread::current().name().unwrap_or("?"))
}

fn say(kind: &str, what: &str) {
    let name = name();
    eprintln!("skipped{} {name}: no {what}", if kind == "part" { " a part of" } else { "" });
    let Some(path) = std::env::var_os(ENV_SKIPS).filter(|path| !path.is_empty()) else { return };
    let line = format!("{kind}\t{name}\t{what}\n");
    let file = std::fs::OpenOptions::new().append(true).create(true).open(&path);
    // One write: many tests do it at a time.
    let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
    written.unwrap_or_else(|error| panic!("write {}: {error}", path.display()));
}
