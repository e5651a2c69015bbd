//! Modules: code that runs over records and files where they lie.

use std::ffi::OsString;
use std::io::Write;

use samite_types::{Error, ErrorKind, Result};

use crate::input::TaskInput;

/// What a module has made of the words after its name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModuleCall {
    /// For its tasks: an encoding of its own.
    pub arguments: Vec<u8>,
    /// Files and directories that it names.
    pub paths: Vec<Vec<u8>>,
    /// Whether directories are walked; else they are an error.
    pub is_recursive: bool,
}

/// Code that runs in workers as tasks, each over some pieces of the input, and in the command that
/// has begun the job, which makes one result of what the tasks give.
pub trait Module: Send + Sync {
    /// Its name.
    fn name(&self) -> &'static str;

    /// What it does, in a line.
    fn about(&self) -> &'static str;

    /// Reads the words after its name.
    ///
    /// # Errors
    /// `Invalid`: they make no sense, in words.
    fn parse(&self, words: &[OsString]) -> Result<ModuleCall>;

    /// Carries out a task: reads `input` piece by piece and gives output for each.
    ///
    /// # Errors
    /// As of the input and the output, and its own. They end the job.
    fn run(&self, arguments: &[u8], input: &mut TaskInput, out: &mut dyn TaskOutput) -> Result<()>;

    /// Makes the result of the job of the outputs for all pieces, in the order of the pieces.
    /// Returns the exit code of the command.
    ///
    /// # Errors
    /// As of `outputs` and `out`.
    fn merge(
        &self,
        arguments: &[u8],
        input: &JobInput,
        outputs: &mut dyn PieceOutputs,
        out: &mut dyn Write,
    ) -> Result<u8>;
}

/// Takes the output of a task.
pub trait TaskOutput {
    /// Gives output for the piece at hand. Waits while much of what was given before is not taken.
    ///
    /// # Errors
    /// `Interrupted`: the job was cancelled.
    fn emit(&mut self, bytes: &[u8]) -> Result<()>;
}

/// The input of a job, as its module sees it at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobInput {
    /// Files, in their order: as they were named, and directories' contents by name.
    Files(Vec<JobFile>),
    /// Records of a dataset.
    Records(String),
}

/// A file of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobFile {
    /// Path from the root of the store.
    pub path: Vec<u8>,
    /// Bytes, when the job began.
    pub size: u64,
    /// It is a directory, which counts as an empty file.
    pub is_directory: bool,
}

/// The outputs of a job.
pub trait PieceOutputs {
    /// The output for the next piece; `None`: there are no more. Pieces of a file come in the order
    /// of their offsets, those of a dataset in the order of partitions.
    ///
    /// # Errors
    /// `Io`: it cannot be read back.
    fn next(&mut self) -> Result<Option<MergedPiece<'_>>>;
}

/// The output for one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MergedPiece<'a> {
    /// Index of its file; 0 for records.
    pub file: u32,
    /// All bytes that were given for it.
    pub bytes: &'a [u8],
}

/// The modules that there are.
#[derive(Clone, Copy)]
pub struct ModuleRegistry(pub &'static [&'static dyn Module]);

impl ModuleRegistry {
    /// The module of this name.
    ///
    /// # Errors
    /// `NotFound`, with the names that there are.
    pub fn find(&self, name: &str) -> Result<&'static dyn Module> {
        let found = self.0.iter().find(|module| module.name() == name);
        found.copied().ok_or_else(|| {
            let names: Vec<&str> = self.0.iter().map(|module| module.name()).collect();
            let words = format!("module {name:?}: none such; there are {}", names.join(", "));
            Error::new(ErrorKind::NotFound, words)
        })
    }
}
