//! Where a dump goes.

use std::collections::HashSet;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use samite_types::{Error, ErrorKind, Result};

use crate::io_error;
use crate::manifest::{DumpManifest, MANIFEST_LEN_MAX};
use crate::segment::{DumpFrameKind, SegmentBuilder, SegmentHeader};

/// Name of the manifest in the directory of a dump.
pub(crate) const MANIFEST: &str = "dump.json";
/// Held while a dump is being made.
const LOCK: &str = "dump.lock";

/// Where a dump is to go.
pub enum DumpDestination {
    /// Files in this directory, which is made if it is not there.
    Directory(PathBuf),
    /// One stream.
    Stream(Box<dyn Write + Send>),
}

impl fmt::Debug for DumpDestination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) => f.debug_tuple("Directory").field(path).finish(),
            Self::Stream(_) => f.write_str("Stream"),
        }
    }
}

/// Name of the file of a segment.
pub(crate) fn segment_name(dataset: &str, pass: u32, number: u64) -> String {
    format!("{dataset}.{pass}.{number:08}.segment")
}

/// A destination that is being written.
pub(crate) enum DumpSink {
    Directory { path: PathBuf, _lock: File },
    Stream(Box<dyn Write + Send>),
}

impl DumpSink {
    /// Begins to write; the manifest of the dump that is there and not finished.
    pub(crate) fn open(destination: DumpDestination) -> Result<(Self, Option<DumpManifest>)> {
        let path = match destination {
            DumpDestination::Stream(out) => return Ok((Self::Stream(out), None)),
            DumpDestination::Directory(path) => path,
        };
        let failed = |error: &std::io::Error| io_error(path.display(), error);
        fs::create_dir_all(&path).map_err(|error| failed(&error))?;
        let manifest = read_manifest(&path)?;
        if manifest.is_none() && holds_other_files(&path).map_err(|error| failed(&error))? {
            let words = format!("{}: it is not empty, and no dump", path.display());
            return Err(Error::new(ErrorKind::NotEmpty, words));
        }
        if manifest.as_ref().is_some_and(|manifest| manifest.finished) {
            let words = format!("{}: there is a whole dump already", path.display());
            return Err(Error::new(ErrorKind::Exists, words));
        }
        let lock = OpenOptions::new().create(true).append(true).open(path.join(LOCK));
        let lock = lock.map_err(|error| failed(&error))?;
        if lock.try_lock().is_err() {
            let words = format!("{}: another process dumps there", path.display());
            return Err(Error::new(ErrorKind::Busy, words));
        }
        Ok((Self::Directory { path, _lock: lock }, manifest))
    }

    pub(crate) const fn is_stream(&self) -> bool {
        matches!(self, Self::Stream(_))
    }

    /// Writes a segment, which is whole and on flash then, or not there; its checksum.
    pub(crate) fn segment(
        &mut self,
        name: &str,
        header: &SegmentHeader,
        builder: &SegmentBuilder,
    ) -> Result<u64> {
        let frame = header.frame(builder.body());
        match self {
            Self::Directory { path, .. } => {
                let name = segment_name(name, header.pass, header.number);
                write_whole(&path.join(name), &[&frame, builder.body()])?;
            }
            Self::Stream(out) => write_all(out, &[&frame, builder.body()])?,
        }
        Ok(xxhash_rust::xxh3::xxh3_64(builder.body()))
    }

    /// Writes the manifest: in a stream, as its begin or its end.
    pub(crate) fn save(&mut self, manifest: &DumpManifest, kind: DumpFrameKind) -> Result<()> {
        let body = manifest.encode();
        match self {
            Self::Directory { path, .. } => write_whole(&path.join(MANIFEST), &[&body]),
            Self::Stream(out) => {
                let header = SegmentHeader {
                    dump: manifest.id,
                    kind,
                    dataset: 0,
                    pass: 0,
                    records: 0,
                    number: 0,
                    checksum: 0,
                };
                write_all(out, &[&header.frame(&body), &body])?;
                out.flush().map_err(|error| io_error("stream", &error))
            }
        }
    }

    /// Notes how far a dump is, where it can go on.
    pub(crate) fn checkpoint(&mut self, manifest: &DumpManifest) -> Result<()> {
        if self.is_stream() { Ok(()) } else { self.save(manifest, DumpFrameKind::Begin) }
    }

    /// The file of the key list of a pass.
    pub(crate) fn key_list(&self, name: &str, pass: u32) -> Result<File> {
        let Self::Directory { path, .. } = self else {
            return tempfile::tempfile().map_err(|error| io_error("key list", &error));
        };
        let path = path.join(key_list_name(name, pass));
        let mut options = OpenOptions::new();
        let file = options.create(true).truncate(false).read(true).write(true).open(&path);
        file.map_err(|error| io_error(path.display(), &error))
    }

    /// Removes the key list of a pass.
    pub(crate) fn drop_key_list(&self, name: &str, pass: u32) {
        if let Self::Directory { path, .. } = self {
            // What is left is in nobody's way.
            let _ = fs::remove_file(path.join(key_list_name(name, pass)));
        }
    }

    /// The dump is whole: removes what was needed to go on, and segments of passes that were given
    /// up.
    pub(crate) fn clear(&self, manifest: &DumpManifest) {
        let Self::Directory { path, .. } = self else { return };
        let names: HashSet<String> = manifest
            .datasets
            .iter()
            .flat_map(|dataset| (0..).zip(&dataset.passes).map(move |pass| (dataset, pass)))
            .flat_map(|(dataset, (pass, done))| {
                (0..done.segments).map(move |number| segment_name(&dataset.spec.name, pass, number))
            })
            .collect();
        for entry in fs::read_dir(path).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let is_ours = name.ends_with(".segment") || name.ends_with(".part") || name == LOCK;
            if is_ours && !names.contains(&*name) {
                // What is left is in nobody's way.
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

fn key_list_name(dataset: &str, pass: u32) -> String {
    format!("{dataset}.{pass}.keys")
}

/// Whether there is anything but what a dump leaves that was killed before its first manifest.
fn holds_other_files(path: &Path) -> std::io::Result<bool> {
    for entry in fs::read_dir(path)? {
        let name = entry?.file_name();
        if name != LOCK && name != format!("{MANIFEST}.part").as_str() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The manifest in the directory of a dump; `None`: there is none.
pub(crate) fn read_manifest(path: &Path) -> Result<Option<DumpManifest>> {
    let path = path.join(MANIFEST);
    let failed = |error: &std::io::Error| io_error(path.display(), error);
    match fs::metadata(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(&error)),
        Ok(found) if found.len() > MANIFEST_LEN_MAX => {
            return Err(crate::corrupt(format!("{}: it is too long", path.display())));
        }
        Ok(_) => {}
    }
    let bytes = fs::read(&path).map_err(|error| failed(&error))?;
    DumpManifest::decode(&bytes).map(Some).map_err(|error| error.context(path.display()))
}

/// Writes a file that is whole under its name, also when the host loses power.
fn write_whole(path: &Path, parts: &[&[u8]]) -> Result<()> {
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    let written = File::create(&part)
        .and_then(|mut file| {
            parts.iter().try_for_each(|bytes| file.write_all(bytes))?;
            file.sync_data()
        })
        .and_then(|()| fs::rename(&part, path))
        .and_then(|()| match path.parent() {
            Some(parent) => File::open(parent)?.sync_all(),
            None => Ok(()),
        });
    written.map_err(|error| io_error(path.display(), &error))
}

fn write_all(out: &mut Box<dyn Write + Send>, parts: &[&[u8]]) -> Result<()> {
    let written = parts.iter().try_for_each(|bytes| out.write_all(bytes));
    written.map_err(|error| io_error("stream", &error))
}
