//! The frame of every hook: checks before its work and errors after it.

use std::cell::Cell;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use rustix::io::Errno;

use crate::fork_lock;
use crate::real::{errno, set_errno};

thread_local! {
    /// Set while this thread works on the store. Plain memory: no allocation, no destructor.
    static BUSY: Cell<bool> = const { Cell::new(false) };
}

/// How a C function says that it failed.
pub trait HookAnswer: PartialEq + Sized {
    const FAILED: Self;
}

/// Whether a C function said that it failed.
#[inline]
pub fn has_failed<T: HookAnswer>(outcome: &T) -> bool {
    *outcome == T::FAILED
}

impl HookAnswer for c_int {
    const FAILED: Self = -1;
}

impl HookAnswer for i64 {
    const FAILED: Self = -1;
}

impl HookAnswer for isize {
    const FAILED: Self = -1;
}

impl<T> HookAnswer for *mut T {
    const FAILED: Self = std::ptr::null_mut();
}

/// Runs one call on the store. An error becomes `errno`; after success `errno` is what it was before, as with libc;
/// a panic becomes `EIO` and never unwinds into the program.
///
/// A signal handler that arrives here while its own thread is at work on the store may have interrupted it under a lock, so
/// its call fails with `EDEADLK` instead of waiting for ever. `EINTR` and `EAGAIN` would make it try again for ever.
pub fn guard<T: HookAnswer>(work: impl FnOnce() -> Result<T, Errno>) -> T {
    answer(attempt(work))
}

/// The value that a C function returns for an outcome.
pub fn answer<T: HookAnswer>(outcome: Result<T, Errno>) -> T {
    match outcome {
        Ok(value) => value,
        Err(errno) => {
            set_errno(errno.raw_os_error());
            T::FAILED
        }
    }
}

/// As [`guard`], for the functions that return the error itself (`posix_fallocate`).
pub fn guard_code(work: impl FnOnce() -> Result<(), Errno>) -> c_int {
    match attempt(work) {
        Ok(()) => 0,
        Err(errno) => errno.raw_os_error(),
    }
}

/// As [`guard`], for work of our own whose outcome the program does not see. `EIO`: the process was forked off while another
/// thread was at work on the store.
pub fn attempt<T>(work: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    if BUSY.replace(true) {
        return Err(Errno::DEADLK);
    }
    let before = errno();
    let Some(call) = fork_lock::begin_call() else {
        BUSY.set(false);
        return Err(Errno::IO);
    };
    let outcome = catch_unwind(AssertUnwindSafe(work));
    fork_lock::end_call(call);
    BUSY.set(false);
    set_errno(before);
    outcome.unwrap_or(Err(Errno::IO))
}

/// Runs work of our own in the child of a fork, where no call is in progress: the program does not
/// close those descriptors.
pub fn in_child(work: impl FnOnce()) {
    let before = BUSY.replace(true);
    work();
    BUSY.set(before);
}

/// Whether this thread is at work on the store: a call that arrives now comes from a signal handler.
pub fn is_busy() -> bool {
    BUSY.get()
}

/// Defines the hooks of libc functions.
///
/// Each becomes an exported C function, and one more for each alias after `=`; inside its body `real(...)` is the function
/// that the program meant to call. Variadic functions (`open`, `fcntl`) are declared with their optional
/// argument fixed: in the calling conventions of x86-64 and AArch64 Linux the first variadic arguments travel in the same
/// registers, and one that was not passed is never looked at.
macro_rules! hooks {
    ($($(#[$meta:meta])* fn $name:ident $(= $alias:ident)* ($($arguments:tt)*) -> $result:ty $body:block)*) => {
        $($crate::hook::names! { $(#[$meta])* [$name $($alias)*] ($($arguments)*) $result, $body })*
    };
}

macro_rules! names {
    ($(#[$meta:meta])* [$name:ident $($alias:ident)*] $arguments:tt $result:ty, $body:block) => {
        $crate::hook::hook! { $(#[$meta])* fn $name $arguments -> $result $body }
        $($crate::hook::alias! { $alias $name $arguments $result })*
    };
}

macro_rules! hook {
    ($(#[$meta:meta])* fn $name:ident ($($arg:ident: $type:ty),* $(,)?) -> $result:ty $body:block) => {
        $(#[$meta])*
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($arg: $type),*) -> $result {
            /// The function that the program meant to call.
            #[inline]
            #[allow(dead_code, reason = "a few hooks never need it")]
            fn real($($arg: $type),*) -> $result {
                const NAME: &std::ffi::CStr = match std::ffi::CStr::from_bytes_with_nul(
                    concat!(stringify!($name), "\0").as_bytes(),
                ) {
                    Ok(name) => name,
                    Err(_) => c"",
                };
                static NEXT: $crate::real::NextSymbol = $crate::real::NextSymbol::new(NAME);
                let next = NEXT.address();
                // SAFETY: the symbol of this name has this signature in libc.
                let next = unsafe {
                    std::mem::transmute::<*mut std::ffi::c_void, extern "C" fn($($type),*) -> $result>(next)
                };
                next($($arg),*)
            }
            $body
        }
    };
}

macro_rules! alias {
    ($alias:ident $name:ident ($($arg:ident: $type:ty),* $(,)?) $result:ty) => {
        #[unsafe(no_mangle)]
        pub extern "C" fn $alias($($arg: $type),*) -> $result {
            $name($($arg),*)
        }
    };
}

/// A hook's body for a function of one path: `by_path!(dirfd, path, real(...), |place| work)`.
/// A path that leaves the store, through `..` or a symbolic link, is given to the real function under its plain name.
macro_rules! by_path {
    ($dir:expr, $path:ident, $real:expr, |$place:ident| $work:expr) => {{
        let mut room = $crate::store_location::PathRoom::new();
        let mut link_room = $crate::store_location::PathRoom::new();
        'done: {
            let place = match $crate::path_class::classify($dir, $path, &mut room) {
                $crate::store_location::PathRoute::Real => {
                    let outcome = $real;
                    if !$crate::hook::has_failed(&outcome) {
                        break 'done outcome;
                    }
                    match $crate::outside_path::through_link($dir, $path, &mut link_room) {
                        Some(place) => place,
                        None => break 'done outcome,
                    }
                }
                $crate::store_location::PathRoute::Elsewhere($path) => break 'done $real,
                $crate::store_location::PathRoute::Store(place) => place,
            };
            let outcome = $crate::hook::attempt(|| {
                let $place = &place;
                $work
            });
            match $crate::store_location::way_out(&place, &outcome) {
                Some(outside) => {
                    let $path = outside.as_ptr();
                    $real
                }
                None => $crate::hook::answer(outcome),
            }
        }
    }};
}

/// As [`by_path`], for a function of the file itself, which with `follow` may also be named by a descriptor of the store
/// (`/proc/self/fd/3`): `by_file!(dirfd, path, follow, real(...), |open| work, |place| work)`.
macro_rules! by_file {
    ($dir:expr, $path:ident, $follow:expr, $real:expr, |$open:ident| $by_open:expr, |$place:ident| $by_place:expr) => {{
        let named = if $follow { $crate::path_class::named_descriptor($path) } else { None };
        match named.and_then($crate::table::get) {
            Some($open) => $crate::hook::guard(|| $by_open),
            None => $crate::hook::by_path!($dir, $path, $real, |$place| $by_place),
        }
    }};
}

/// A hook's body for a function of one descriptor: `by_fd!(fd, real(...), |open| work)`.
macro_rules! by_fd {
    ($fd:expr, $real:expr, |$open:ident| $work:expr) => {{
        match $crate::table::get($fd) {
            None => $real,
            Some($open) => $crate::hook::guard(move || $work),
        }
    }};
}

/// As [`by_fd`], for calls that fail on a descriptor that only names a file (`O_PATH`).
macro_rules! by_open_fd {
    ($fd:expr, $real:expr, |$open:ident| $work:expr) => {
        $crate::hook::by_fd!($fd, $real, |$open| {
            $open.check_open()?;
            $work
        })
    };
}

pub(crate) use {alias, by_fd, by_file, by_open_fd, by_path, hook, hooks, names};
