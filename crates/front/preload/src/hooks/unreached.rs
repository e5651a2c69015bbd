//! A line about programs that do not see the store: the one thing that this library ever prints.

use std::ffi::{CStr, c_char};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use samite_client::interposability::{ENV_QUIET, hidden};
use xxhash_rust::xxh3::xxh3_64;

use crate::hooks::exec::strings;
use crate::hooks::reading::write;
use crate::mount_prefix::prefix;
use crate::{cwd, foreign, start_environment};

/// Says so on standard error, when a program is about to be started that does not see the store, though it is asked to work there:
/// with a path of the store among its arguments, or in a directory of the store. Once for each program and terminal session.
pub fn tell(
    path: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
) {
    if !cwd::is_inside() && !strings(arguments).skip(1).any(names_store) {
        return;
    }
    // A bare name is looked up by libc, out of sight.
    let Some(path) = foreign::text(path).ok().filter(|path| path.contains(&b'/')) else { return };
    let Some(why) = hidden(path) else { return };
    let is_quiet = |entry: &CStr| {
        entry
            .to_bytes()
            .strip_prefix(ENV_QUIET.as_bytes())
            .is_some_and(|rest| rest.first() == Some(&b'='))
    };
    if strings(environment).any(is_quiet) || !is_first(path) {
        return;
    }
    let line = format!(
        "samite: {} {why} and does not see {}; `samite mount DIR` shows the store to every program ({ENV_QUIET}=1 silences this)\n",
        String::from_utf8_lossy(path),
        String::from_utf8_lossy(prefix()),
    );
    // Nobody is left to hear of a standard error that is closed.
    let _ = write(2, line.as_ptr().cast(), line.len());
}

fn names_store(argument: &CStr) -> bool {
    let (bytes, prefix) = (argument.to_bytes(), prefix());
    !prefix.is_empty()
        && bytes.windows(prefix.len()).enumerate().any(|(at, part)| {
            part == prefix && matches!(bytes.get(at + prefix.len()), None | Some(b'/'))
        })
}

/// Whether this program was not told of before in this terminal session; noted in the cluster's runtime directory.
fn is_first(path: &[u8]) -> bool {
    let Ok(dir) = start_environment::cluster() else { return true };
    // Not rustix's: where the session began outside this process namespace its number is 0, which that takes for impossible.
    // SAFETY: asks about the calling process only.
    let session = unsafe { libc::getsid(0) };
    let name = dir.path().join(format!("told-{session}-{:016x}", xxh3_64(path)));
    let how = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    // Where nothing can be noted, better twice than not at all.
    let noted = rustix::fs::openat(CWD, &name, how, Mode::RUSR | Mode::WUSR);
    !matches!(noted, Err(Errno::EXIST))
}
