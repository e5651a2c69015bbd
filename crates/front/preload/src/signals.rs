//! Signals that end a call which waits, by the rules of the kernel: a handled signal ends it, unless its handler asks for restarts.
//!
//! While this library waits in place of the kernel, signals are blocked, so that none gets lost between a look and a wait; a `signalfd`
//! tells when one is there, and [`BlockedSignals::deliver`] lets it through.

use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

use libc::{c_int, sigset_t};
use rustix::io::Errno;

use crate::descriptor_range;

/// Highest number of a signal.
const LAST: c_int = 64;

fn full() -> sigset_t {
    // SAFETY: plain memory, for which zero is a value; `sigfillset` sets it.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigfillset(&raw mut set);
        set
    }
}

/// Makes `new` the thread's mask; the one before.
fn exchange(new: &sigset_t) -> sigset_t {
    let mut before = full();
    // SAFETY: both are signal sets. With a valid first argument it does not fail.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, new, &raw mut before) };
    before
}

/// While it lives, this thread handles no signals.
pub struct BlockedSignals {
    /// The signals that the program blocks.
    mask: sigset_t,
    /// Tells of signals; made when it is needed.
    alarm: Option<OwnedFd>,
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        exchange(&self.mask);
    }
}

impl BlockedSignals {
    /// Blocks them.
    pub fn new() -> Self {
        Self { mask: exchange(&full()), alarm: None }
    }

    fn is_open_to(&self, signal: c_int) -> bool {
        // SAFETY: a signal set.
        unsafe { libc::sigismember(&raw const self.mask, signal) == 0 }
    }

    /// A descriptor that can be read from when a signal has come that the program does not block.
    pub fn timer_signal(&mut self) -> Result<BorrowedFd<'_>, Errno> {
        if self.alarm.is_none() {
            // SAFETY: signal sets on the stack.
            let raw = unsafe {
                let mut open = std::mem::zeroed();
                libc::sigemptyset(&raw mut open);
                for signal in (1..=LAST).filter(|signal| self.is_open_to(*signal)) {
                    libc::sigaddset(&raw mut open, signal);
                }
                libc::signalfd(-1, &raw const open, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
            };
            if raw < 0 {
                return Err(Errno::MFILE);
            }
            // SAFETY: the kernel has just made it.
            let fd = unsafe { OwnedFd::from_raw_fd(raw) };
            self.alarm = Some(descriptor_range::out_of_the_way(fd));
        }
        self.alarm.as_ref().map(AsFd::as_fd).ok_or(Errno::MFILE)
    }

    /// Lets signals through that have come. Whether one of them ends a call that waits.
    pub fn deliver(&self) -> bool {
        let mut ends = false;
        // SAFETY: signal sets and actions on the stack; a null new action changes nothing.
        unsafe {
            let mut pending = std::mem::zeroed();
            libc::sigpending(&raw mut pending);
            for signal in (1..=LAST).filter(|signal| self.is_open_to(*signal)) {
                if libc::sigismember(&raw const pending, signal) != 1 {
                    continue;
                }
                let mut action: libc::sigaction = std::mem::zeroed();
                if libc::sigaction(signal, std::ptr::null(), &raw mut action) == 0 {
                    let handled = !matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN);
                    ends |= handled && action.sa_flags & libc::SA_RESTART == 0;
                }
            }
        }
        exchange(&self.mask);
        exchange(&full());
        ends
    }
}
