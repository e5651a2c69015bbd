//! The state in a file: whole, and checked, at whatever time the machine dies.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind as IoKind, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use samite_types::{Error, ErrorKind, Result};
use xxhash_rust::xxh3::xxh3_64;

use super::StateStore;
use super::election::InstanceRole;

/// Begins the file.
const MAGIC: [u8; 8] = *b"samite\x00\x01";
/// Magic and checksum.
const HEAD_LEN: usize = 16;
/// Longest state.
const STATE_LEN_MAX: u64 = 16 << 20;

/// Keeps the state in one file. A new state is written beside it, made durable, and renamed over it; then a file for the next one is laid out there, so
/// that a state can be saved when the disk has become full.
#[derive(Debug)]
pub struct FileStore {
    path: PathBuf,
}

impl FileStore {
    /// At `path`; the file need not exist, its directory must.
    #[must_use]
    pub const fn new(path: PathBuf) -> Self {
        Self { path }
    }

    fn beside(&self) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(".new");
        name.into()
    }

    /// Makes the file for the next state, of twice the `len` bytes of this one.
    fn lay_out(&self, len: usize) -> std::io::Result<()> {
        let path = self.beside();
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(0o600).open(&path)?;
        file.write_all(&vec![0; 2 * len])
    }
}

fn failed(what: &str, path: &Path, error: &std::io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("{what} {}: {error}", path.display()))
}

impl StateStore for FileStore {
    fn campaign(&mut self) -> InstanceRole {
        InstanceRole::Leads { until: Duration::MAX }
    }

    fn load(&mut self) -> Result<Option<Vec<u8>>> {
        let file = match File::open(&self.path) {
            Err(error) if error.kind() == IoKind::NotFound => return Ok(None),
            opened => opened.map_err(|error| failed("open", &self.path, &error))?,
        };
        let mut bytes = Vec::new();
        file.take(STATE_LEN_MAX + HEAD_LEN as u64)
            .read_to_end(&mut bytes)
            .map_err(|error| failed("read", &self.path, &error))?;
        let state = bytes.get(HEAD_LEN..).filter(|state| bytes[..HEAD_LEN] == head(state));
        let damaged = || {
            let words = format!("{}: not a coordinator's state, or damaged", self.path.display());
            Error::new(ErrorKind::Corrupt, words)
        };
        state.map(|state| Some(state.to_vec())).ok_or_else(damaged)
    }

    fn save(&mut self, state: &[u8]) -> Result<()> {
        let path = self.beside();
        let write = || -> std::io::Result<()> {
            let mut options = OpenOptions::new();
            // Its old contents only set space aside, and go at the end.
            let mut file =
                options.write(true).create(true).truncate(false).mode(0o600).open(&path)?;
            file.write_all(&head(state))?;
            file.write_all(state)?;
            file.set_len((HEAD_LEN + state.len()) as u64)?;
            file.sync_all()?;
            std::fs::rename(&path, &self.path)?;
            let directory = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
            File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
        };
        write().map_err(|error| failed("write", &path, &error))?;
        // Without it the next one needs space of its own.
        let _ = self.lay_out(HEAD_LEN + state.len());
        Ok(())
    }
}

fn head(state: &[u8]) -> [u8; HEAD_LEN] {
    let mut head = [0; HEAD_LEN];
    head[..8].copy_from_slice(&MAGIC);
    head[8..].copy_from_slice(&xxh3_64(state).to_le_bytes());
    head
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_state_is_found_again_and_damage_is_told() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("map");
        let mut store = FileStore::new(path.clone());
        assert_eq!(store.load().unwrap(), None);
        store.save(b"one").unwrap();
        store.save(b"").unwrap();
        assert_eq!(store.load().unwrap().unwrap(), b"");
        store.save(b"three").unwrap();
        assert_eq!(FileStore::new(path.clone()).load().unwrap().unwrap(), b"three");
        // The next one has its space already, and nothing of it is left over.
        assert!(std::fs::metadata(store.beside()).unwrap().len() > 5 + HEAD_LEN as u64);
        // A crash between writing and renaming leaves the old one.
        std::fs::write(store.beside(), "half").unwrap();
        assert_eq!(store.load().unwrap().unwrap(), b"three");
        let whole = std::fs::read(&path).unwrap();
        for cut in 0..whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            assert_eq!(store.load().unwrap_err().kind(), ErrorKind::Corrupt, "{cut}");
        }
        let mut flipped = whole;
        *flipped.last_mut().unwrap() ^= 1;
        std::fs::write(&path, flipped).unwrap();
        assert_eq!(store.load().unwrap_err().kind(), ErrorKind::Corrupt);
    }
}
