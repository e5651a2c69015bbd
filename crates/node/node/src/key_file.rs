//! The file with the cluster keys.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use samite_types::{Error, ErrorKind, Result};

/// Replaces the file, so that it is the old one or the new one whenever the machine dies. Nodes of
/// one host may have it in common: they write one after another, or the same.
///
/// # Errors
/// `Io`: the error of the system.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    replace(path, bytes)
        .map_err(|error| Error::new(ErrorKind::Io, format!("write {}: {error}", path.display())))
}

fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let dir = path.parent().unwrap_or_else(|| Path::new("."));
    let lock = File::open(dir)?;
    // Nobody else writes the file beside it meanwhile.
    lock.lock()?;
    if std::fs::read(path).is_ok_and(|found| found == bytes) {
        return Ok(());
    }
    let fresh = path.with_extension("new");
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&fresh, path)?;
    lock.sync_all()
}
