//! Finds the files of a job.

use samite_fs::{CallerContext, FileAttributes, FileKind, FileSystem, INLINE_LEN_MAX};
use samite_types::{Error, ErrorKind, PartitionId, Result};

/// A file of the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputFile {
    /// Path from the root of the store, as it was named or found below what was named.
    pub path: Vec<u8>,
    /// Inode number.
    pub ino: u64,
    /// Bytes.
    pub size: u64,
    /// The partition of its name, which has the data of small files.
    pub home: PartitionId,
    /// It is a directory, which counts as an empty file.
    pub is_directory: bool,
}

/// Finds files by names and below directories.
pub struct FileWalk<'a> {
    /// Where.
    pub fs: &'a FileSystem,
    /// Whose rights count.
    pub who: &'a CallerContext,
    /// Directories are walked; else they are an error.
    pub is_recursive: bool,
    /// A directory that is no more than an error is in the input, too, as an empty file.
    pub keeps_directories: bool,
    /// Which files are wanted, by their paths.
    pub admits: &'a dyn Fn(&[u8]) -> bool,
    /// Hears of what cannot be read, and ends the walk by an error.
    pub failed: &'a mut dyn FnMut(&[u8], Error) -> Result<()>,
    /// What was found: in the order of names, and below each in that of the bytes of paths.
    pub found: Vec<InputFile>,
}

impl FileWalk<'_> {
    /// Takes a file, or all below a directory.
    ///
    /// # Errors
    /// Those of `failed`.
    pub fn named(&mut self, path: &[u8]) -> Result<()> {
        let attr = match self.fs.stat(self.who, path, true) {
            Ok(attr) => attr,
            Err(error) => return (self.failed)(path, error),
        };
        if attr.kind == FileKind::Directory {
            if self.is_recursive {
                let start = self.found.len();
                self.tree(path.to_vec())?;
                self.found[start..].sort_by(|a, b| a.path.cmp(&b.path));
                return Ok(());
            }
            if !(self.admits)(path) {
                return Ok(());
            }
            let words = format!("{}: it is a directory", String::from_utf8_lossy(path));
            (self.failed)(path, Error::new(ErrorKind::IsDirectory, words))?;
            if self.keeps_directories {
                let home = self.fs.entry_partition(attr.ino, b".");
                let (path, ino) = (path.to_vec(), attr.ino);
                self.found.push(InputFile { path, ino, size: 0, home, is_directory: true });
            }
            return Ok(());
        }
        let (parent, name) = split(path);
        let home = match self.fs.stat(self.who, parent, true) {
            Ok(parent) => self.fs.entry_partition(parent.ino, name),
            Err(error) => return (self.failed)(path, error),
        };
        self.file(path.to_vec(), &attr, home)
    }

    fn file(&mut self, path: Vec<u8>, attr: &FileAttributes, home: PartitionId) -> Result<()> {
        if !(self.admits)(&path) {
            return Ok(());
        }
        if attr.kind != FileKind::File {
            let words = format!("{}: it is no file", String::from_utf8_lossy(&path));
            return (self.failed)(&path, Error::new(ErrorKind::Unsupported, words));
        }
        // Before any task begins: the worker checks it again.
        if let Err(error) = self.fs.access(self.who, &path, 4, true) {
            return (self.failed)(&path, error);
        }
        let (ino, size) = (attr.ino, attr.size);
        self.found.push(InputFile { path, ino, size, home, is_directory: false });
        Ok(())
    }

    /// All files below a directory; symbolic links in it are not followed.
    fn tree(&mut self, root: Vec<u8>) -> Result<()> {
        let mut waiting = vec![root];
        while let Some(dir) = waiting.pop() {
            match self.directory(&dir) {
                Ok(below) => waiting.extend(below),
                Err(error) => (self.failed)(&dir, error)?,
            }
        }
        Ok(())
    }

    /// Takes the files of a directory. Returns the directories in it.
    fn directory(&mut self, dir: &[u8]) -> Result<Vec<Vec<u8>>> {
        let ino = self.fs.stat(self.who, dir, true)?.ino;
        let mut handle = self.fs.read_dir(self.who, dir)?;
        let mut below = Vec::new();
        while let Some(entry) = handle.next_entry()? {
            if matches!(&*entry.name, b"." | b"..") {
                continue;
            }
            let mut path = dir.to_vec();
            if path.last() != Some(&b'/') {
                path.push(b'/');
            }
            path.extend_from_slice(&entry.name);
            match entry.kind {
                FileKind::Directory => below.push(path),
                FileKind::File if (self.admits)(&path) => {
                    let home = self.fs.entry_partition(ino, &entry.name);
                    // The listing's size of a file that is being written may lag behind.
                    let attr = match entry.attr {
                        Some(attr) if attr.size <= INLINE_LEN_MAX && attr.size > 0 => Ok(attr),
                        _ => self.fs.stat(self.who, &path, false),
                    };
                    match attr {
                        Ok(attr) => self.file(path, &attr, home)?,
                        Err(error) => (self.failed)(&path, error)?,
                    }
                }
                _ => {}
            }
        }
        Ok(below)
    }
}

/// The directory of a path, and the name in it.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |at| at + 1);
    let path = &path[..end];
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(0) | None => (b"/", path.strip_prefix(b"/").unwrap_or(path)),
        Some(at) => (&path[..at], &path[at + 1..]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_a_directory_and_a_name() {
        let cases: [(&[u8], &[u8], &[u8]); 4] = [
            (b"/a", b"/", b"a"),
            (b"/a/b", b"/a", b"b"),
            (b"/a/b//", b"/a", b"b"),
            (b"a", b"/", b"a"),
        ];
        for (path, dir, name) in cases {
            assert_eq!(split(path), (dir, name));
        }
    }
}
