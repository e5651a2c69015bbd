//! A walk through trees of the store, for the commands that look at each name.

use samite_fs::{DirEntry, FileAttributes, FileKind};
use samite_stage::join;
use samite_tools::InputComplaint;
use samite_types::{Error, ErrorKind};

use crate::cluster::ClusterFiles;
use crate::failure::CommandFailure;
use crate::output::{complain, escaped};

/// What a walk comes to.
pub enum WalkStep<'a> {
    /// A name; what is below comes next.
    Enter {
        /// Its path.
        path: &'a [u8],
        /// Its last component.
        name: &'a [u8],
        /// What it is; links are not followed.
        attr: &'a FileAttributes,
        /// Directories between it and where the walk began.
        depth: usize,
    },
    /// All below a directory was seen.
    Leave {
        /// Its path.
        path: &'a [u8],
        /// As above.
        depth: usize,
    },
}

/// A walk.
pub struct StoreWalk<'a> {
    command: &'static str,
    files: &'a ClusterFiles,
    depth_max: usize,
    has_failed: bool,
}

/// A name that the walk has yet to come to, or to leave.
struct WaitingName {
    path: Vec<u8>,
    attr: FileAttributes,
    depth: usize,
    is_seen: bool,
}

impl<'a> StoreWalk<'a> {
    /// A walk that goes no deeper than so.
    pub fn new(command: &'static str, files: &'a ClusterFiles, depth_max: usize) -> Self {
        Self { command, files, depth_max, has_failed: false }
    }

    /// Whether something could not be read: that was said.
    pub fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Whether a directory has no entries.
    pub fn is_empty(&self, dir: &[u8]) -> Result<bool, CommandFailure> {
        let mut handle = self.files.fs.read_dir(&self.files.context, dir)?;
        while let Some(entry) = handle.next_entry()? {
            if !matches!(&*entry.name, b"." | b"..") {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Visits `root` and all below, the entries of each directory in the order of their bytes.
    pub fn tree(
        &mut self,
        root: &[u8],
        visit: &mut dyn FnMut(&Self, WalkStep<'_>) -> Result<(), CommandFailure>,
    ) -> Result<(), CommandFailure> {
        let Some(attr) = self.stat(root)? else { return Ok(()) };
        let mut waiting = vec![WaitingName { path: root.to_vec(), attr, depth: 0, is_seen: false }];
        while let Some(next) = waiting.pop() {
            let WaitingName { path, attr, depth, is_seen } = next;
            if is_seen {
                visit(self, WalkStep::Leave { path: &path, depth })?;
                continue;
            }
            let name = path.rsplit(|byte| *byte == b'/').find(|part| !part.is_empty());
            let name = name.unwrap_or(b"/");
            visit(self, WalkStep::Enter { path: &path, name, attr: &attr, depth })?;
            if attr.kind != FileKind::Directory {
                continue;
            }
            let entries = if depth < self.depth_max { self.entries(&path)? } else { Vec::new() };
            let below: Vec<Vec<u8>> =
                entries.iter().map(|entry| join(&path, &entry.name)).collect();
            waiting.push(WaitingName { path, attr, depth, is_seen: true });
            for path in below.into_iter().rev() {
                if let Some(attr) = self.stat(&path)? {
                    waiting.push(WaitingName { path, attr, depth: depth + 1, is_seen: false });
                }
            }
        }
        Ok(())
    }

    fn stat(&mut self, path: &[u8]) -> Result<Option<FileAttributes>, CommandFailure> {
        match self.files.fs.stat(&self.files.context, path, false) {
            Ok(attr) => Ok(Some(attr)),
            Err(error) => self.failed(path, error).map(|()| None),
        }
    }

    fn entries(&mut self, dir: &[u8]) -> Result<Vec<DirEntry>, CommandFailure> {
        let mut entries = Vec::new();
        let mut read = || {
            let mut handle = self.files.fs.read_dir(&self.files.context, dir)?;
            while let Some(entry) = handle.next_entry()? {
                if !matches!(&*entry.name, b"." | b"..") {
                    entries.push(entry);
                }
            }
            Ok::<_, Error>(())
        };
        if let Err(error) = read() {
            self.failed(dir, error)?;
        }
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    fn failed(&mut self, path: &[u8], error: Error) -> Result<(), CommandFailure> {
        // What is lost is named, and the rest is shown.
        let is_lost = error.kind() == ErrorKind::Lost;
        let words = if is_lost { error.message().to_owned() } else { InputComplaint::of(error)?.0 };
        self.has_failed = true;
        complain(format!("{}: {}: {words}", self.command, escaped(path)));
        Ok(())
    }
}
