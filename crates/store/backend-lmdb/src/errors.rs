//! Errors of LMDB and of the disk below it, as errors of a target.

use std::fmt;

use heed::MdbError;
use rustix::io::Errno;
use samite_types::{Error, ErrorKind};

/// Whether the disk, or what one user may have of it, is full.
pub(crate) fn is_full(error: &heed::Error) -> bool {
    match error {
        heed::Error::Mdb(MdbError::MapFull) => true,
        heed::Error::Io(error) => Errno::from_io_error(error)
            .is_some_and(|errno| matches!(errno, Errno::NOSPC | Errno::DQUOT | Errno::FBIG)),
        _ => false,
    }
}

/// Whether it may stand for a full disk: LMDB says so of a write that was cut short.
pub(crate) fn may_be_full(error: &heed::Error) -> bool {
    matches!(error, heed::Error::Io(error) if Errno::from_io_error(error) == Some(Errno::IO))
}

/// The error of a call, with what was to be done.
pub(crate) fn told(what: impl fmt::Display) -> impl FnOnce(heed::Error) -> Error {
    move |error| {
        let kind = match &error {
            heed::Error::Mdb(
                MdbError::PageNotFound
                | MdbError::Corrupted
                | MdbError::Invalid
                | MdbError::VersionMismatch,
            ) => ErrorKind::Corrupt,
            heed::Error::Mdb(MdbError::ReadersFull) => ErrorKind::Busy,
            heed::Error::EnvAlreadyOpened => ErrorKind::InUse,
            error if is_full(error) => ErrorKind::NoSpace,
            _ => ErrorKind::Io,
        };
        Error::new(kind, format!("{what}: {error}"))
    }
}
