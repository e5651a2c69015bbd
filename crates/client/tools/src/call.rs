//! What the words after a tool's name ask for.

use std::ops::Range;

use samite_modules::grep::FileGlobs;
use samite_types::{Error, ErrorKind, Result};
use samite_worker::Module;
use samite_worker::messages::PieceOutput;
use serde::Serialize;

/// A tool with what its words ask for.
pub struct ToolCall {
    /// The tool.
    pub module: &'static dyn Module,
    /// For its tasks.
    pub arguments: Vec<u8>,
    /// Files and directories, from the root of the store.
    pub paths: Vec<Vec<u8>>,
    /// Directories are walked; else they are an error.
    pub is_recursive: bool,
    /// A directory that is an error counts as an empty file, too.
    pub keeps_directories: bool,
    /// A file is read by one task.
    pub needs_whole_files: bool,
    /// Which files are read.
    pub globs: FileGlobs,
    /// Files that cannot be read are passed over in silence.
    pub is_silent: bool,
    /// Exit code when a file cannot be read, or the work fails.
    pub trouble_code: u8,
    /// Exit code 0 stands, whatever files cannot be read.
    pub success_stands: bool,
    /// Which pieces need no output once some has come.
    pub unneeded: Option<UnneededRule>,
}

/// From a tool's arguments, the pieces of each file and output of a piece: the pieces whose output
/// is not needed any more.
pub type UnneededRule = fn(&[u8], &[Range<u64>], &PieceOutput) -> Option<Range<u64>>;

impl ToolCall {
    /// A call without anything special.
    pub(crate) fn new(module: &'static dyn Module, paths: Vec<Vec<u8>>) -> Self {
        Self {
            module,
            arguments: Vec::new(),
            paths,
            is_recursive: false,
            keeps_directories: false,
            needs_whole_files: false,
            globs: FileGlobs::default(),
            is_silent: false,
            trouble_code: 1,
            success_stands: false,
            unneeded: None,
        }
    }
}

/// Why a file is not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputComplaint(pub String);

impl InputComplaint {
    /// The words that GNU's tools have for it; an error that is not the file's own comes back.
    ///
    /// # Errors
    /// That error: the store cannot be reached, or does not answer.
    pub fn of(error: Error) -> Result<Self> {
        match error.kind() {
            ErrorKind::NotFound
            | ErrorKind::Denied
            | ErrorKind::NotOwner
            | ErrorKind::IsDirectory
            | ErrorKind::NotDirectory
            | ErrorKind::Loop
            | ErrorKind::NameTooLong
            | ErrorKind::Unsupported
            | ErrorKind::StaleHandle => Ok(Self(system_words(error.kind()))),
            _ => Err(error),
        }
    }
}

/// The words of the system for this kind of error.
fn system_words(kind: ErrorKind) -> String {
    let words = std::io::Error::from_raw_os_error(kind.errno().raw_os_error()).to_string();
    words.split(" (os error").next().unwrap_or_default().to_owned()
}

/// Checks the paths on a command line.
///
/// # Errors
/// `Invalid`: there is none, or one does not start at the root.
pub(crate) fn checked_paths(paths: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>> {
    if paths.is_empty() {
        let words = "name a file of the store, such as /data/file: standard input is not read";
        return Err(Error::new(ErrorKind::Invalid, words));
    }
    if let Some(path) = paths.iter().find(|path| path.first() != Some(&b'/')) {
        let path = path.escape_ascii();
        let words = format!("{path}: a path in the store starts at its root: /{path}");
        return Err(Error::new(ErrorKind::Invalid, words));
    }
    Ok(paths)
}

/// A tool's arguments for its tasks.
pub(crate) fn encode<T: Serialize>(arguments: &T) -> Vec<u8> {
    postcard::to_stdvec(arguments).expect("serializing to memory cannot fail for these types")
}

/// The same, read.
///
/// # Errors
/// `Corrupt`: they are none.
pub(crate) fn decode<'a, T: serde::Deserialize<'a>>(bytes: &'a [u8]) -> Result<T> {
    postcard::from_bytes(bytes).map_err(|_| crate::frames::corrupt())
}
