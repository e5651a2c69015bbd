//! Orderly ends: SIGTERM and SIGINT as an ordinary event.

use std::mem::MaybeUninit;

use crate::failure::{CommandFailure, IoContext};

/// Calls `stop` in a thread of its own when SIGTERM, SIGINT or SIGHUP arrives for the first time.
///
/// Must be called before other threads are started, for they inherit the mask that keeps these signals for this one.
pub fn on_stop(stop: impl FnOnce() + Send + 'static) -> Result<(), CommandFailure> {
    on_signals(stop, None)
}

/// The same for a process that serves: SIGHUP is a wish to `reload`, and does not end it.
pub fn on_stop_or_reload(
    stop: impl FnOnce() + Send + 'static,
    reload: impl FnMut() + Send + 'static,
) -> Result<(), CommandFailure> {
    on_signals(stop, Some(Box::new(reload)))
}

/// What SIGHUP asks for.
type OnReload = Box<dyn FnMut() + Send>;

fn on_signals(
    stop: impl FnOnce() + Send + 'static,
    mut reload: Option<OnReload>,
) -> Result<(), CommandFailure> {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `set` is initialized by sigemptyset before any other use, and the signal numbers are valid.
    let set = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        let mut set = set.assume_init();
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            libc::sigaddset(&raw mut set, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
        set
    };
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            loop {
                let mut signal = 0;
                // SAFETY: both pointers are to live locals; the set was initialized above.
                while unsafe { libc::sigwait(&raw const set, &raw mut signal) } != 0 {}
                match &mut reload {
                    Some(reload) if signal == libc::SIGHUP => reload(),
                    _ => return stop(),
                }
            }
        })
        .map(drop)
        .doing("start the signal thread")
}
