//! The semantics of a directory: which changes the users of its files see, and when.

use std::fmt;
use std::str::FromStr;

use samite_types::{Error, ErrorKind};
use samite_wire::control::SemanticsKind;

/// A directory's semantics. The discriminants are stored in inodes: append only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FileSemantics {
    /// The effects of a finished call are seen by every later call of any process.
    #[default]
    Posix = 0,
    /// An open after a close sees the writes before it. Until then an open file may show its
    /// content as of when it was opened.
    Session = 1,
    /// A process may keep new files and small writes to them to itself for a while, and loses them when it is killed.
    Temporary = 2,
}

impl FileSemantics {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Posix, Self::Session, Self::Temporary];

    /// The one behind a stored code.
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Posix => "posix",
            Self::Session => "session",
            Self::Temporary => "temporary",
        }
    }
}

impl From<SemanticsKind> for FileSemantics {
    /// What the root of a file system promises in such a dataset.
    fn from(of_dataset: SemanticsKind) -> Self {
        match of_dataset {
            SemanticsKind::Session => Self::Session,
            SemanticsKind::Temporary => Self::Temporary,
            // No dataset can have the second.
            SemanticsKind::Posix | SemanticsKind::Checkpoint => Self::Posix,
        }
    }
}

impl fmt::Display for FileSemantics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for FileSemantics {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        let found = Self::ALL.into_iter().find(|semantics| semantics.name() == name);
        found.ok_or_else(|| {
            let cause = format!("semantics {name:?}: it is posix, session or temporary");
            Error::new(ErrorKind::Invalid, cause)
        })
    }
}
