//! How a command ends: its exit code, and the one line on stderr that says why.

use std::fmt;

use samite_types::{Error, ErrorKind};

/// The exit codes of every command but `run`, which gives the program's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitCode {
    /// Something failed, or a part of it.
    Failed = 1,
    /// The command line makes no sense.
    Usage = 2,
    /// No such store is up, or a node cannot be reached.
    Unreachable = 3,
    /// No such file, record, object or dataset.
    NotFound = 4,
    /// It exists already, or a condition failed.
    Conflict = 5,
    /// Records are damaged and cannot be mended, or are lost.
    Damaged = 6,
    /// `status`: the store serves with less than it should have.
    Degraded = 7,
    /// `run`: the program cannot be executed.
    CannotExecute = 126,
    /// `run`: there is no such program.
    NoSuchProgram = 127,
}

/// Text of the exit codes, for `--help`.
pub const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  failed, wholly or in part
  2  the command line makes no sense
  3  no such store is up, or a node cannot be reached
  4  no such file, record, object or dataset
  5  it exists already, or a condition did not hold
  6  records are damaged and cannot be mended, or are lost
  7  `samite status`: the store serves with less than it should have
`samite run` exits as its program does; 126: it cannot be executed, 127: there is no such program.";

/// Why a command failed.
#[derive(Debug)]
pub struct CommandFailure {
    /// Exit code.
    pub code: ExitCode,
    /// Words for stderr, without the leading `samite: `. Empty when all was said already.
    pub message: String,
}

impl CommandFailure {
    /// A failure with its code.
    pub fn new(code: ExitCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// A general failure.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(ExitCode::Failed, message)
    }

    /// A command line that makes no sense.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(ExitCode::Usage, message)
    }

    /// A failure whose errors are on stderr already.
    pub fn reported() -> Self {
        Self::failed("")
    }
}

impl fmt::Display for CommandFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<Error> for CommandFailure {
    fn from(error: Error) -> Self {
        let code = match error.kind() {
            ErrorKind::Unavailable | ErrorKind::Timeout | ErrorKind::WrongKey => {
                ExitCode::Unreachable
            }
            ErrorKind::NotFound => ExitCode::NotFound,
            ErrorKind::Exists | ErrorKind::Conflict => ExitCode::Conflict,
            ErrorKind::Lost => ExitCode::Damaged,
            _ => ExitCode::Failed,
        };
        Self::new(code, error.message())
    }
}

/// Adds what was being done to a system error.
pub trait IoContext<T> {
    /// `what` names the operation and its object ("read /tmp/x").
    fn doing(self, what: impl fmt::Display) -> Result<T, CommandFailure>;
}

impl<T> IoContext<T> for std::io::Result<T> {
    fn doing(self, what: impl fmt::Display) -> Result<T, CommandFailure> {
        self.map_err(|error| CommandFailure::failed(format!("{what}: {error}")))
    }
}

impl<T> IoContext<T> for Result<T, rustix::io::Errno> {
    fn doing(self, what: impl fmt::Display) -> Result<T, CommandFailure> {
        self.map_err(|errno| CommandFailure::failed(format!("{what}: {errno}")))
    }
}
