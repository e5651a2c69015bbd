//! Errors of the system, with what was being done.

use std::fmt;

use samite_types::{Error, ErrorKind, Result};

/// Adds what was being done to a system error. Its kind is `Io` whatever the system says: a missing
/// file of ours is no missing record.
pub(crate) trait SystemContext<T> {
    /// `what` names the operation and its object ("read /tmp/x").
    ///
    /// # Errors
    /// `Io`.
    fn doing(self, what: impl fmt::Display) -> Result<T>;
}

impl<T> SystemContext<T> for std::io::Result<T> {
    fn doing(self, what: impl fmt::Display) -> Result<T> {
        self.map_err(|error| failed(format!("{what}: {error}")))
    }
}

impl<T> SystemContext<T> for std::result::Result<T, rustix::io::Errno> {
    fn doing(self, what: impl fmt::Display) -> Result<T> {
        self.map_err(|errno| failed(format!("{what}: {errno}")))
    }
}

/// A failure of no particular kind.
pub(crate) fn failed(message: String) -> Error {
    Error::new(ErrorKind::Io, message)
}
