//! Reading back: the copy must have its source's bytes.

use samite_types::{Error, ErrorKind, Result};
use xxhash_rust::xxh3::Xxh3;

use crate::copy::{CopyBuffer, FileJob, TreeCopy};
use crate::tree::FileTree;

/// Compares length and checksum (XXH3, 128 bits) of a file and its copy, both read anew.
///
/// # Errors
/// [`ErrorKind::Corrupt`] when they differ; else what reading them gave.
pub fn compare<S: FileTree, D: FileTree>(
    copy: &TreeCopy<'_, S, D>,
    job: &FileJob,
    buffer: &mut CopyBuffer,
) -> Result<()> {
    let original = checksum(copy.source, &job.from, buffer.bytes())?;
    let copied = checksum(copy.destination, &job.to, buffer.bytes())?;
    if original == copied {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Corrupt,
        format!(
            "{}: differs from {}: {} bytes with checksum {:032x}, not {} with {:032x}",
            copy.destination.show(&job.to),
            copy.source.show(&job.from),
            copied.0,
            copied.1,
            original.0,
            original.1,
        ),
    ))
}

fn checksum<T: FileTree>(tree: &T, path: &[u8], buffer: &mut [u8]) -> Result<(u64, u128)> {
    let file = tree.open(path)?;
    let mut hash = Xxh3::new();
    let mut at = 0;
    let read = loop {
        match tree.read_at(&file, path, buffer, at) {
            Ok(0) => break Ok(()),
            Ok(len) => {
                hash.update(&buffer[..len]);
                at += len as u64;
            }
            Err(error) => break Err(error),
        }
    };
    tree.close(&file);
    read.map(|()| (at, hash.digest128()))
}
