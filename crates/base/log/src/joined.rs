//! Which start of its node a directory of durable data has seen last, so that an older copy of the directory is told from it.
//!
//! When a node starts it draws a *mark*, notes it here as the one that it *tries*, and joins with
//! it and with the mark by which it *joined* last. The coordinator has the mark of the last join.
//! It takes a node that names this one as either of the two, and records the new one. Once the node
//! knows that it has joined, and before it serves, it notes that. So of a copy that was made before
//! the last join, both marks differ from the coordinator's.
//!
//! A node may die anywhere on the way: before its join is taken the coordinator's mark is the one
//! by which it joined last; after that it is the one that it tries. A mark that is noted as tried
//! stays, over any number of starts, until the node knows that it has joined by it: were another
//! one drawn, the coordinator's could be neither. When the last note cannot be written, the next
//! start tries the same mark again, which is right, and tells less.
//!
//! Directories of before there were marks have none, and neither has the coordinator for them: the
//! directory's id stands for the first.

use samite_types::{ErrorKind, Result};

use crate::disk::LogDisk;
use crate::twice::{TwiceFile, TwiceKind};

/// Name of the file.
pub const NAME: &str = "joined";
const KIND: TwiceKind<2> =
    TwiceKind { name: NAME, new: "joined.new", magic: b"samiteJ1", is_sound: |_| true };

/// The marks of an open directory.
#[derive(Debug)]
pub struct DirectoryMarks {
    /// `None`: there is no space for it.
    file: Option<TwiceFile<2>>,
    before: u64,
    tries: u64,
}

impl DirectoryMarks {
    /// Opens the file in `disk`, the directory called `id`, or makes it. `drawn`: a mark that was never used, not 0. Returns when the mark to be
    /// tried is noted.
    ///
    /// # Errors
    /// `Corrupt`; those of the disk.
    pub fn open(disk: &dyn LogDisk, id: u64, drawn: u64) -> Result<Self> {
        let names = disk.list()?;
        if let Some(mut file) = TwiceFile::open(disk, &KIND, id, &names)? {
            let [before, tried] = file.numbers();
            let tries = if tried == 0 { drawn } else { tried };
            file.set([before, tries])?;
            // Its name may have been found in memory alone.
            disk.sync()?;
            return Ok(Self { file: Some(file), before, tries });
        }
        // A directory that has logs was made before there were marks.
        let has_logs = names.iter().any(|name| name.starts_with("shard-"));
        let before = if has_logs { id } else { 0 };
        match TwiceFile::create(disk, &KIND, id, [before, drawn]) {
            Ok(file) => Ok(Self { file: Some(file), before, tries: drawn }),
            // A node starts on a full disk. Then it is called what it was.
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                Ok(Self { file: None, before, tries: id })
            }
            Err(error) => Err(error),
        }
    }

    /// The mark by which the node joined last, as the directory knows. 0: it never did.
    #[must_use]
    pub const fn before(&self) -> u64 {
        self.before
    }

    /// The mark by which the node is to join.
    #[must_use]
    pub const fn tries(&self) -> u64 {
        self.tries
    }

    /// The node has joined by the mark that it was to try.
    ///
    /// # Errors
    /// The disk's: the file is right, but the next start draws no new mark.
    pub fn settle(&mut self) -> Result<()> {
        self.file.as_mut().map_or(Ok(()), |file| file.set([self.tries, 0]))
    }
}
