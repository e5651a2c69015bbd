//! A file of the store that appears whole or not at all.

use std::io::{self, Write};

use samite_fs::{CallerContext, FileSystem, OpenFile, OpenFlags, RenameFlags};
use samite_types::{Error, Result};

/// Bytes written at a time.
const BUFFER_LEN: usize = 1 << 20;

/// A file that is being written under another name.
pub struct StoreOutput {
    fs: FileSystem,
    context: CallerContext,
    file: OpenFile,
    path: Vec<u8>,
    draft: Vec<u8>,
    at: u64,
    buffer: Vec<u8>,
}

impl StoreOutput {
    /// Begins the file `path`; `id` makes the other name its own.
    pub fn begin(fs: FileSystem, context: CallerContext, path: &[u8], id: &str) -> Result<Self> {
        let split = path.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
        let mut draft = path[..split].to_vec();
        draft.extend_from_slice(format!(".job-{id}").as_bytes());
        let flags = OpenFlags { write: true, create: true, excl: true, ..OpenFlags::default() };
        let file = fs.open_file(&context, &draft, flags, 0o666)?;
        let (path, buffer) = (path.to_vec(), Vec::new());
        Ok(Self { fs, context, file, path, draft, at: 0, buffer })
    }

    /// Gives it its name.
    pub fn finish(mut self) -> Result<()> {
        self.send()?;
        self.file.close()?;
        let (draft, path) = (self.draft.clone(), self.path.clone());
        self.fs.rename(&self.context, &draft, &path, RenameFlags::default())?;
        self.draft.clear();
        Ok(())
    }

    fn send(&mut self) -> Result<()> {
        let mut rest = self.buffer.as_slice();
        while !rest.is_empty() {
            let len = self.file.write_at(rest, self.at)?;
            self.at += len as u64;
            rest = &rest[len..];
        }
        self.buffer.clear();
        Ok(())
    }
}

impl Write for StoreOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= BUFFER_LEN {
            self.send().map_err(|error: Error| io::Error::other(error.to_string()))?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send().map_err(|error: Error| io::Error::other(error.to_string()))
    }
}

impl Drop for StoreOutput {
    fn drop(&mut self) {
        if !self.draft.is_empty() {
            // Nothing is to be seen of a job that has failed.
            let _ = self.fs.unlink(&self.context, &self.draft);
        }
    }
}
