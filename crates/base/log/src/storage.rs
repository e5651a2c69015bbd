//! Identity of a directory of durable data: a file in it names it for good.

use samite_types::{Error, ErrorKind, Result};

use crate::disk::LogDisk;
use crate::frame::{checksum, u32_at, u64_at};
use crate::manifest;

const NAME: &str = "storage";
const MAGIC: &[u8; 8] = b"samiteS1";
const LEN: usize = 32;

/// Contents of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StorageNote {
    /// Drawn when the directory was made; not 0.
    pub id: u64,
    /// The node whose data it has.
    pub node: u32,
    /// Shards of that node: each has a log of its own.
    pub shards: u16,
}

impl StorageNote {
    fn encode(self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..16].copy_from_slice(&self.id.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.node.to_le_bytes());
        bytes[20..22].copy_from_slice(&self.shards.to_le_bytes());
        let crc = checksum(0, &bytes[..28]);
        bytes[28..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let whole = bytes.len() == LEN
            && bytes.starts_with(MAGIC)
            && u32_at(bytes, 28)? == checksum(0, &bytes[..28]);
        let shards = u16::from_le_bytes([*bytes.get(20)?, *bytes.get(21)?]);
        whole.then_some(Self { id: u64_at(bytes, 8)?, node: u32_at(bytes, 16)?, shards })
    }

    /// Opens the directory: it is `like` this one. A new directory becomes it, with `like.id` as its id; of one that has an id that
    /// one stays.
    ///
    /// # Errors
    /// `Corrupt`; `Invalid`: it is another node's, or was made with another number of shards.
    /// Errors of the disk.
    pub fn open(disk: &dyn LogDisk, like: Self) -> Result<Self> {
        const NEW: &str = "storage.new";
        let names = disk.list()?;
        if !names.iter().any(|name| name == NAME) {
            if names.iter().any(|name| name == NEW) {
                disk.remove(NEW)?;
            }
            let file = disk.create(NEW)?;
            file.write_at(0, &like.encode())?;
            file.sync()?;
            disk.rename(NEW, NAME)?;
            disk.sync()?;
            return Ok(like);
        }
        let mut bytes = [0; LEN + 1];
        let len = disk.open(NAME)?.read_at(0, &mut bytes)?;
        let found = Self::decode(&bytes[..len]);
        let found = found.ok_or_else(|| Error::new(ErrorKind::Corrupt, "the file storage"))?;
        let differs = |what, has, wants| {
            let message = format!("the directory is of {what} {has}, not {wants}");
            Err(Error::new(ErrorKind::Invalid, message))
        };
        if found.node != like.node {
            return differs("node", found.node, like.node);
        }
        if found.shards != like.shards {
            return differs("a node with --shards", found.shards.into(), like.shards.into());
        }
        Ok(found)
    }
}

/// The file that says that the log in directory `log` was begun. It is empty.
fn begun(log: &str) -> String {
    format!("{log}.begun")
}

/// Looks whether a log that was begun is still there: `files`, in the directory called `log` of `dir`.
///
/// # Errors
/// `Corrupt`: it has no manifest any more. Errors of the disk.
pub fn check_begun(dir: &dyn LogDisk, log: &str, files: &dyn LogDisk) -> Result<()> {
    let begun = begun(log);
    let was_begun = dir.list()?.contains(&begun);
    if was_begun && !files.list()?.iter().any(|name| name == manifest::NAME) {
        let words =
            format!("the file {} is missing, and {begun} says that there was one", manifest::NAME);
        return Err(Error::new(ErrorKind::Corrupt, words));
    }
    Ok(())
}

/// Notes that the log in the directory `log` of `dir` has a manifest. Before that nothing may be said to be in it.
///
/// # Errors
/// The disk's.
pub fn note_begun(dir: &dyn LogDisk, log: &str) -> Result<()> {
    let begun = begun(log);
    if !dir.list()?.contains(&begun) {
        dir.create(&begun)?.sync()?;
    }
    // It may have been found in memory alone.
    dir.sync()
}
