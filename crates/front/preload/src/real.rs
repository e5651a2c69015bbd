//! The functions behind the hooks.

use std::ffi::{CStr, c_int, c_long, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The next definition of a symbol after this library's own: libc's, or another preloaded library's.
pub struct NextSymbol {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl NextSymbol {
    pub const fn new(name: &'static CStr) -> Self {
        Self { name, address: AtomicPtr::new(null_mut()) }
    }

    /// Its address, looked up at the first call only: a start-up that resolves everything costs each process more than
    /// its few calls do.
    #[inline]
    pub fn address(&self) -> *mut c_void {
        let address = self.address.load(Ordering::Relaxed);
        if address.is_null() { self.look_up() } else { address }
    }

    #[cold]
    fn look_up(&self) -> *mut c_void {
        // SAFETY: dlsym takes any handle constant and a NUL-terminated name.
        let mut address = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        if address.is_null() {
            address = missing as extern "C" fn() -> c_long as *mut c_void;
        }
        self.address.store(address, Ordering::Relaxed);
        address
    }
}

/// Stands for a function that this libc does not have; called with whatever arguments, which it leaves alone.
extern "C" fn missing() -> c_long {
    set_errno(libc::ENOSYS);
    -1
}

/// The calling thread's `errno`.
pub fn errno() -> c_int {
    // SAFETY: libc gives a valid pointer to the thread's own errno.
    unsafe { *libc::__errno_location() }
}

/// Sets the calling thread's `errno`.
pub fn set_errno(value: c_int) {
    // SAFETY: libc gives a valid pointer to the thread's own errno.
    unsafe { *libc::__errno_location() = value }
}
