//! Locks that the threads of a node share.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The lock's content; a panic elsewhere leaves nothing half-done in what these locks guard.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
