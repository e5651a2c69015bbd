//! Ranks of Open MPI that wait.
//!
//! A rank that waits for others polls without giving its core away, unless its launcher found more
//! ranks than cores. The launcher does not know of the node, which has work to do on these cores
//! too: the ranks that are not done yet wait for that work. So ranks that leave the node no core
//! are told that there are too many of them. A user who knows better says so with
//! `OMPI_MCA_mpi_yield_when_idle`, which counts for more.

use std::ffi::{CStr, c_char};
use std::ptr::NonNull;

/// How many ranks the launcher has started on this host.
const RANKS: &[u8] = b"OMPI_COMM_WORLD_LOCAL_SIZE=";
/// Its setting for yielding: 0, or 1 if there are more than cores.
const CROWDED: &CStr = c"OMPI_MCA_mpi_oversubscribe=0";

/// The numbers that the launcher gives.
#[derive(Default)]
pub struct LauncherRanks {
    count: usize,
    /// The `0` that says that there are not too many.
    verdict: Option<NonNull<c_char>>,
}

impl LauncherRanks {
    /// Looks at a variable of the environment.
    ///
    /// # Safety
    /// It is a NUL-terminated string, which may be written to and stays where it is.
    pub unsafe fn visit(&mut self, entry: NonNull<c_char>) {
        // SAFETY: as the caller promises.
        let text = unsafe { CStr::from_ptr(entry.as_ptr()) };
        if let Some(count) = text.to_bytes().strip_prefix(RANKS) {
            self.count =
                std::str::from_utf8(count).ok().and_then(|count| count.parse().ok()).unwrap_or(0);
        } else if text == CROWDED {
            // SAFETY: the last byte of the string.
            self.verdict = Some(unsafe { entry.add(CROWDED.count_bytes() - 1) });
        }
    }

    /// Says that there are too many of them, if they leave the node no core.
    pub fn make_room(self) {
        let Some(verdict) = self.verdict else { return };
        // SAFETY: it asks for a number.
        let cores = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
        if usize::try_from(cores).is_ok_and(|cores| self.count >= cores) {
            // SAFETY: within a string that may be written to, as `visit` was promised; no other thread runs yet.
            unsafe { verdict.write(b'1' as c_char) };
        }
    }
}
