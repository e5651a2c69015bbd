//! The stable error surface that all crates share.
//!
//! A library crate may have a richer error of its own; what crosses a public boundary is
//! [`Error`]: a small stable [`ErrorKind`], and a message that names the operation, the object
//! and the cause. Each kind has exactly one errno, so that the file-system front ends never guess.

use std::borrow::Cow;
use std::fmt;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// Kind of an error, in terms a caller can act on. The discriminants travel on the wire: append
/// only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u8)]
#[non_exhaustive]
pub enum ErrorKind {
    /// No such record, file, dataset or node.
    NotFound = 1,
    /// It exists already.
    Exists = 2,
    /// The target is full.
    NoSpace = 3,
    /// A key, value, name, count or frame is over its documented limit.
    TooLarge = 4,
    /// The request makes no sense.
    Invalid = 5,
    /// A guard of an operation did not hold (compare-and-swap, conditional create).
    Conflict = 6,
    /// The node cannot be reached, or died on the way.
    Unavailable = 7,
    /// The deadline passed before an answer came. The effect is unknown unless said otherwise.
    Timeout = 8,
    /// Not allowed for this user.
    Denied = 9,
    /// Caller's cluster map is older than the node's; refresh it and try again.
    StaleMap = 10,
    /// Caller's name-space generation is older than the node's; drop cached directories and try
    /// again.
    StaleLease = 11,
    /// Peer speaks no common protocol version.
    WrongVersion = 12,
    /// Peer does not hold the cluster key.
    WrongKey = 13,
    /// Bytes failed a checksum or do not parse.
    Corrupt = 14,
    /// A bounded queue or window is full; try again later.
    Busy = 15,
    /// The path names a directory where a file is needed.
    IsDirectory = 16,
    /// A component of the path is not a directory.
    NotDirectory = 17,
    /// The directory has entries.
    NotEmpty = 18,
    /// Too many symbolic links on the way.
    Loop = 19,
    /// A name or path is over its limit.
    NameTooLong = 20,
    /// Operation crosses stores (rename or link to another file system).
    CrossDevice = 21,
    /// The descriptor is not open for this.
    BadDescriptor = 22,
    /// Not supported here.
    Unsupported = 23,
    /// An offset or size is beyond what a file can hold.
    FileTooLarge = 24,
    /// The node answers this session no more: it was evicted, and the outcome of the retried operation is unknown.
    SessionLost = 25,
    /// Operating system refused; the message has the errno's text.
    Io = 26,
    /// A bug in Samite; please report it.
    Internal = 27,
    /// Only the owner or root may do this.
    NotOwner = 28,
    /// The file has no such extended attribute.
    NoAttribute = 29,
    /// The object is in use in a way that forbids this (removing the root directory).
    InUse = 30,
    /// The handle names a file that exists no more.
    StaleHandle = 31,
    /// The waiter for this lock would wait for itself.
    Deadlock = 32,
    /// No more locks can be kept.
    NoLocks = 33,
    /// A signal came while it was waited for.
    Interrupted = 34,
    /// More files are open than the store keeps track of.
    TooManyOpen = 35,
    /// The records that were there died with their nodes, and whether this was among them nobody
    /// knows; until an operator acknowledges the loss.
    Lost = 36,
}

impl ErrorKind {
    const ALL: [Self; 36] = [
        Self::NotFound,
        Self::Exists,
        Self::NoSpace,
        Self::TooLarge,
        Self::Invalid,
        Self::Conflict,
        Self::Unavailable,
        Self::Timeout,
        Self::Denied,
        Self::StaleMap,
        Self::StaleLease,
        Self::WrongVersion,
        Self::WrongKey,
        Self::Corrupt,
        Self::Busy,
        Self::IsDirectory,
        Self::NotDirectory,
        Self::NotEmpty,
        Self::Loop,
        Self::NameTooLong,
        Self::CrossDevice,
        Self::BadDescriptor,
        Self::Unsupported,
        Self::FileTooLarge,
        Self::SessionLost,
        Self::Io,
        Self::Internal,
        Self::NotOwner,
        Self::NoAttribute,
        Self::InUse,
        Self::StaleHandle,
        Self::Deadlock,
        Self::NoLocks,
        Self::Interrupted,
        Self::TooManyOpen,
        Self::Lost,
    ];

    /// The kind behind a wire code; `None` for a code this build does not know.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code).checked_sub(1)?).copied()
    }

    /// The wire code; never 0.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Its meaning, for messages that have no better words.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::NotFound => "there is no such thing",
            Self::Exists => "it exists already",
            Self::NoSpace => "no space left in the store",
            Self::TooLarge => "over its limit",
            Self::Invalid => "the request makes no sense",
            Self::Conflict => "a condition did not hold",
            Self::Unavailable => "the node cannot be reached",
            Self::Timeout => "no answer came in time; whether it took effect is unknown",
            Self::Denied => "not allowed for this user",
            Self::StaleMap => "the cluster map has changed",
            Self::StaleLease => "cached directories are out of date",
            Self::WrongVersion => "no common version of the protocol",
            Self::WrongKey => "another cluster key",
            Self::Corrupt => "bytes are damaged, or are not what they should be",
            Self::Busy => "too much is under way; try again",
            Self::IsDirectory => "it is a directory",
            Self::NotDirectory => "it is not a directory",
            Self::NotEmpty => "the directory is not empty",
            Self::Loop => "too many symbolic links on the way",
            Self::NameTooLong => "a name is too long",
            Self::CrossDevice => "not within one store",
            Self::BadDescriptor => "the descriptor is not open for this",
            Self::Unsupported => "not supported here",
            Self::FileTooLarge => "beyond what a file can hold",
            Self::SessionLost => {
                "the node has forgotten this session; whether it took effect is unknown"
            }
            Self::Io => "the operating system refused it",
            Self::Internal => "a bug in Samite; please report it",
            Self::NotOwner => "only the owner may do this",
            Self::NoAttribute => "there is no such attribute",
            Self::InUse => "it is in use",
            Self::StaleHandle => "the file exists no more",
            Self::Deadlock => "it would wait for itself",
            Self::NoLocks => "no more locks can be kept",
            Self::Interrupted => "a signal came",
            Self::TooManyOpen => "too many files are open",
            Self::Lost => {
                "it may have been lost with a node that died: `samite status` tells, `samite acknowledge-loss` takes note of it"
            }
        }
    }

    /// The one errno that stands for this kind at a POSIX boundary.
    #[must_use]
    pub const fn errno(self) -> Errno {
        match self {
            Self::NotFound => Errno::NOENT,
            Self::Exists => Errno::EXIST,
            Self::NoSpace => Errno::NOSPC,
            Self::TooLarge | Self::Invalid => Errno::INVAL,
            Self::Denied | Self::WrongKey => Errno::ACCESS,
            Self::IsDirectory => Errno::ISDIR,
            Self::NotDirectory => Errno::NOTDIR,
            Self::NotEmpty => Errno::NOTEMPTY,
            Self::Loop => Errno::LOOP,
            Self::NameTooLong => Errno::NAMETOOLONG,
            Self::CrossDevice => Errno::XDEV,
            Self::BadDescriptor => Errno::BADF,
            Self::Unsupported => Errno::OPNOTSUPP,
            Self::FileTooLarge => Errno::FBIG,
            Self::Busy => Errno::AGAIN,
            Self::NotOwner => Errno::PERM,
            Self::NoAttribute => Errno::NODATA,
            Self::InUse => Errno::BUSY,
            Self::StaleHandle => Errno::STALE,
            Self::Deadlock => Errno::DEADLK,
            Self::NoLocks => Errno::NOLCK,
            Self::Interrupted => Errno::INTR,
            Self::TooManyOpen => Errno::NFILE,
            Self::Conflict
            | Self::Unavailable
            | Self::Timeout
            | Self::StaleMap
            | Self::StaleLease
            | Self::WrongVersion
            | Self::Corrupt
            | Self::SessionLost
            | Self::Io
            | Self::Lost
            | Self::Internal => Errno::IO,
        }
    }
}

/// An error with its kind, and words that name the operation, the object and the cause.
#[derive(Clone, Debug)]
pub struct Error {
    kind: ErrorKind,
    message: Cow<'static, str>,
}

/// Result with Samite's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of `kind`, explained by `message` ("write n2: connection closed").
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, message: message.into() }
    }

    /// An operating-system error met while doing `what` ("bind unix:///run/…").
    pub fn io(what: impl fmt::Display, errno: Errno) -> Self {
        let kind = match errno {
            Errno::NOENT => ErrorKind::NotFound,
            Errno::EXIST => ErrorKind::Exists,
            Errno::NOSPC | Errno::NOMEM => ErrorKind::NoSpace,
            Errno::ACCESS | Errno::PERM => ErrorKind::Denied,
            Errno::CONNREFUSED | Errno::CONNRESET | Errno::PIPE | Errno::NOTCONN => {
                ErrorKind::Unavailable
            }
            Errno::TIMEDOUT => ErrorKind::Timeout,
            _ => ErrorKind::Io,
        };
        Self::new(kind, format!("{what}: {errno}"))
    }

    /// Kind of the error, on which a caller can act.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The words behind it.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The same error with `context` in front of its message.
    #[must_use]
    pub fn context(self, context: impl fmt::Display) -> Self {
        Self { kind: self.kind, message: format!("{context}: {}", self.message).into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Self {
        Self::new(kind, kind.words())
    }
}

impl From<Error> for ErrorKind {
    /// For code that answers with a kind alone, and must not pay for words.
    fn from(error: Error) -> Self {
        error.kind
    }
}

#[cfg(test)]
mod tests {
    use super::ErrorKind;

    #[test]
    fn an_error_without_words_of_its_own_has_some() {
        for kind in ErrorKind::ALL {
            let words = super::Error::from(kind).to_string();
            assert!(words.contains(' '), "{kind:?}: {words}");
        }
    }

    #[test]
    fn wire_codes_round_trip_and_unknown_codes_are_refused() {
        for kind in ErrorKind::ALL {
            assert_eq!(ErrorKind::from_code(kind.code()), Some(kind));
        }
        assert_eq!(ErrorKind::from_code(0), None);
        assert_eq!(ErrorKind::from_code(37), None);
    }
}
