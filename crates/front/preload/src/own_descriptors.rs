//! All descriptors of this library: those of its range, and the connections of the store. The
//! program must not touch them: the hooks of `close` and `dup2` refuse these numbers.

use std::ffi::c_int;

use crate::{descriptor_range, hook, locks, store};

/// Connections of the store lie no lower (`samite_transport` moves them up).
const CONNECTION_MIN: c_int = 900;

/// Whether the program must not touch this number.
#[inline]
pub fn is_ours(fd: c_int) -> bool {
    descriptor_range::is_kept(fd) || (fd >= CONNECTION_MIN && is_connection(fd))
}

/// During a call on the store, the client itself closes connections: the standard library's
/// descriptors close through libc's symbol, and so through the hook.
#[cold]
fn is_connection(fd: c_int) -> bool {
    !hook::is_busy() && (store::is_connection(fd) || locks::descriptors().contains(&fd))
}

/// Our own descriptors, in order.
pub fn each() -> Vec<c_int> {
    let mut all = descriptor_range::kept();
    all.extend(store::connections());
    all.extend(locks::descriptors());
    all.sort_unstable();
    all.dedup();
    all
}
