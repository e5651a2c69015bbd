//! A file of the store that tasks write, and that appears when it is whole.

use samite_fs::{CallerContext, FileSystem, OpenFlags, RenameFlags};
use samite_job::InputFile;
use samite_types::Result;

/// The file, under another name beside that which it is to have; removed unless it is finished.
pub struct ResultDraft<'a> {
    fs: &'a FileSystem,
    context: &'a CallerContext,
    name: Vec<u8>,
    ino: u64,
    is_finished: bool,
}

impl<'a> ResultDraft<'a> {
    /// Makes it, with `len` bytes of zeros, in the directory of `path`. `what` makes its name its own.
    pub fn make(
        (fs, context): (&'a FileSystem, &'a CallerContext),
        path: &[u8],
        what: &str,
        len: u64,
    ) -> Result<Self> {
        let split = path.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
        let mut name = path[..split].to_vec();
        name.extend_from_slice(format!(".job-{what}").as_bytes());
        Self::at((fs, context), name, len)
    }

    /// Makes it under this name.
    pub fn at(
        (fs, context): (&'a FileSystem, &'a CallerContext),
        name: Vec<u8>,
        len: u64,
    ) -> Result<Self> {
        let flags = OpenFlags { write: true, create: true, excl: true, ..OpenFlags::default() };
        let file = fs.open_file(context, &name, flags, 0o666)?;
        let draft = Self { fs, context, name, ino: file.ino(), is_finished: false };
        if len > 0 {
            file.truncate(len)?;
        }
        file.close()?;
        Ok(draft)
    }

    /// Its name.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Its inode number.
    pub fn ino(&self) -> u64 {
        self.ino
    }

    /// As the input of a job, with the length that it has now.
    pub fn as_input(&self) -> Result<InputFile> {
        let attr = self.fs.stat(self.context, &self.name, false)?;
        let (path, ino, size) = (self.name.clone(), self.ino, attr.size);
        let split = path.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
        let parent = self.fs.stat(self.context, &path[..split], true)?;
        let home = self.fs.entry_partition(parent.ino, &path[split..]);
        Ok(InputFile { path, ino, size, home, is_directory: false })
    }

    /// Gives it its name.
    pub fn finish(mut self, path: &[u8]) -> Result<()> {
        self.fs.rename(self.context, &self.name, path, RenameFlags::default())?;
        self.is_finished = true;
        Ok(())
    }
}

impl Drop for ResultDraft<'_> {
    fn drop(&mut self) {
        if !self.is_finished {
            // Nothing is to be seen of what has failed.
            let _ = self.fs.unlink(self.context, &self.name);
        }
    }
}
