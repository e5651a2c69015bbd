//! The end of the process.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::hook::{attempt, hooks};
use crate::hooks::space::settle_all;
use crate::{locks, mapped, store, table};

static EXITING: AtomicBool = AtomicBool::new(false);

/// Whether the program is past its last chance to close: libc still flushes its streams, and each write is settled at once.
#[inline]
pub fn is_exiting() -> bool {
    EXITING.load(Ordering::Relaxed)
}

#[used]
#[unsafe(link_section = ".fini_array")]
static FINISH: extern "C" fn() = finish;

/// Called after the program's exit handlers, before libc flushes the streams that are still open.
extern "C" fn finish() {
    if table::is_unused() {
        return;
    }
    // SAFETY: null flushes every stream.
    unsafe { libc::fflush(std::ptr::null_mut()) };
    EXITING.store(true, Ordering::Relaxed);
    end();
}

/// Settles all files and ends all open references.
fn end() {
    // Nobody is left to hear of a failure; the size of a file that is not settled here is found by
    // its writing mark.
    let _ = attempt(|| {
        store::flush_at_end();
        let _ = settle_all();
        mapped::leave_all();
        locks::process_ends();
        table::each_description(|open| open.let_go_at_exit());
        Ok(())
    });
}

hooks! {
    fn _exit = _Exit (status: c_int) -> () {
        if !table::is_unused() {
            end();
        }
        real(status);
    }

    fn quick_exit(status: c_int) -> () {
        if !table::is_unused() {
            end();
        }
        real(status);
    }
}
