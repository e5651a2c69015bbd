//! Starting a thread of the node.

use std::thread::{self, JoinHandle};

use samite_types::{Error, Result};

/// Starts the thread `name`.
///
/// # Errors
/// The system has none left.
pub(crate) fn spawn<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>> {
    thread::Builder::new().name(name.into()).spawn(body).map_err(|error| {
        let errno = rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::AGAIN);
        Error::io(format_args!("start thread {name}"), errno)
    })
}
