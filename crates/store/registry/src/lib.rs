//! The backends of this build, by name.
//!
//! A backend is a crate of its own (the two that need nothing are in `samite-backend`) and an entry
//! in [`ENTRIES`]. Nodes open targets by it, the one that leads [checks](check) with it what a new
//! dataset asks for, and `samite dataset create --help` lists it.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;
use samite_backend::memory::MemoryBackend;
use samite_backend::null::NullBackend;
use samite_backend::ordered::{self, OrderedTarget};
use samite_backend::{Backend, BackendOffers, RestartSource, memory, null};
use samite_types::{Error, ErrorKind, Result};
use samite_wire::control::{
    BackendSpec, DatasetSpec, DurabilityKind, MEMORY_BACKEND, NULL_BACKEND,
};

/// Directories of targets are their owner's alone.
const DIRECTORY_MODE: u32 = 0o700;

/// The backends of this build.
pub const ENTRIES: &[BackendEntry] = &[
    BackendEntry {
        name: MEMORY_BACKEND,
        summary: "in memory, which programs on the node's host map",
        offers: memory::OFFERS,
        path: PathOption::None,
        open: |options| Ok(Box::new(MemoryBackend::new(options.capacity_bytes, options.shards)?)),
    },
    BackendEntry {
        name: NULL_BACKEND,
        summary: "keys and lengths only: values read back as zeros",
        offers: null::OFFERS,
        path: PathOption::None,
        open: |options| Ok(Box::new(NullBackend::new(options.capacity_bytes))),
    },
    BackendEntry {
        name: "lmdb",
        summary: "in an LMDB environment on each node",
        offers: ordered::OFFERS,
        path: PathOption::Optional,
        open: |options| on_disk(options, samite_backend_lmdb::open_target),
    },
    BackendEntry {
        name: "posix",
        summary: "large parts of values as files on each node, all else in LMDB",
        offers: ordered::OFFERS,
        path: PathOption::Optional,
        open: |options| on_disk(options, samite_backend_posix::open_target),
    },
];

/// One backend.
pub struct BackendEntry {
    /// Name, as datasets have it.
    pub name: &'static str,
    /// Where and how it keeps records, in half a line.
    pub summary: &'static str,
    /// What it offers.
    pub offers: BackendOffers,
    /// Whether a dataset may say where.
    pub path: PathOption,
    /// Opens a target; each shard takes a [handle](Backend::handle) to it.
    pub open: fn(&TargetOptions) -> Result<Box<dyn Backend>>,
}

impl BackendEntry {
    /// Whether a dataset on it can be there again after a restart of all nodes.
    #[must_use]
    pub fn outlives_nodes(&self) -> bool {
        self.offers.restart != RestartSource::Nothing
    }
}

/// Whether a dataset may name a directory for its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathOption {
    /// It has none.
    None,
    /// If it is not to be in the node's own directory.
    Optional,
    /// It must.
    Needed,
}

/// A target that is to be opened.
#[derive(Clone, Debug)]
pub struct TargetOptions {
    /// Bytes that it may take.
    pub capacity_bytes: u64,
    /// Shards of the node.
    pub shards: usize,
    /// The directory of the target, in which nobody else has anything; `None`: the dataset names
    /// none, and the node has none.
    pub directory: Option<PathBuf>,
}

/// Opens a target that has a directory.
fn on_disk(
    options: &TargetOptions,
    open: fn(&Path, u64) -> Result<Arc<OrderedTarget>>,
) -> Result<Box<dyn Backend>> {
    let words = "the node has no directory for it: start nodes with --durable";
    let none = || Error::new(ErrorKind::Unsupported, words);
    let directory = options.directory.as_deref().ok_or_else(none)?;
    if let Some(above) = directory.parent() {
        let made = DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(above);
        made.map_err(|error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            Error::io(format_args!("make the directory {}", above.display()), errno)
        })?;
    }
    Ok(Box::new(open(directory, options.capacity_bytes)?.backend()))
}

/// Names of all backends, for messages: `memory, null`.
#[must_use]
pub fn names() -> String {
    ENTRIES.iter().map(|entry| entry.name).collect::<Vec<_>>().join(", ")
}

/// The backend of this name.
///
/// # Errors
/// [`ErrorKind::Unsupported`]: this build has no such backend.
pub fn find(name: &str) -> Result<&'static BackendEntry> {
    ENTRIES.iter().find(|entry| entry.name == name).ok_or_else(|| {
        let words = format!("backend {name}: not in this build, which has {}", names());
        Error::new(ErrorKind::Unsupported, words)
    })
}

/// The durability of a dataset of the backend of this name, unless it is to have another.
#[must_use]
pub fn durability(name: &str) -> DurabilityKind {
    match find(name).map(|entry| entry.offers.restart) {
        Ok(RestartSource::Target) => DurabilityKind::Logged,
        _ => DurabilityKind::Memory,
    }
}

/// Opens a target of `spec`.
///
/// # Errors
/// [`ErrorKind::Unsupported`]: as [`find`]. Errors of the backend.
pub fn open(spec: &BackendSpec, options: &TargetOptions) -> Result<Box<dyn Backend>> {
    (find(&spec.name)?.open)(options).map_err(|error| error.context(format_args!("backend {spec}")))
}

/// Refuses a dataset that asks of its backend what this does not do.
///
/// # Errors
/// [`ErrorKind::Invalid`], naming what is refused. Of a backend that this build does not have, too:
/// `Unsupported` has clients ask other nodes.
pub fn check(spec: &DatasetSpec) -> Result<()> {
    let refused =
        |words: &str| Error::new(ErrorKind::Invalid, format!("dataset {}: {words}", spec.name));
    let entry = find(&spec.backend.name).map_err(|error| refused(error.message()))?;
    entry_fault(entry, spec).map_err(|cause| refused(&format!("backend {}: {cause}", entry.name)))
}

fn entry_fault(entry: &BackendEntry, spec: &DatasetSpec) -> std::result::Result<(), &'static str> {
    match (entry.path, &spec.backend.path) {
        (PathOption::None, Some(_)) => return Err("takes no path"),
        (PathOption::Needed, None) => return Err("needs a path"),
        _ => {}
    }
    match (entry.offers.restart, spec.durability) {
        (RestartSource::Nothing, DurabilityKind::Logged) => {
            Err("cannot be logged: a restart would not bring its records back")
        }
        (RestartSource::Target, DurabilityKind::Memory) => {
            Err("outlives its nodes, so durability is `logged` and cannot be `memory`")
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An entry that keeps what it has in a directory.
    fn stored(path: PathOption) -> BackendEntry {
        let offers = BackendOffers { restart: RestartSource::Target, ..memory::OFFERS };
        BackendEntry { name: "stored", offers, path, ..ENTRIES[0] }
    }

    fn spec(path: Option<&str>, durability: DurabilityKind) -> DatasetSpec {
        let path = path.map(str::to_owned);
        let backend = BackendSpec { path, ..BackendSpec::default() };
        DatasetSpec { backend, durability, ..DatasetSpec::new("d") }
    }

    #[test]
    fn names_are_lawful_and_apart() {
        for (index, entry) in ENTRIES.iter().enumerate() {
            assert!(entry.name.len() <= 32 && !entry.name.starts_with('.'));
            let lawful = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            assert!(entry.name.bytes().all(lawful), "{}", entry.name);
            assert!(ENTRIES[..index].iter().all(|other| other.name != entry.name));
        }
    }

    #[test]
    fn what_a_backend_does_not_do_is_refused_by_name() {
        let told = |backend: BackendSpec, durability| {
            let spec = DatasetSpec { backend, durability, ..DatasetSpec::new("d") };
            check(&spec).map_err(|error| (error.kind(), error.message().to_owned()))
        };
        assert_eq!(told(BackendSpec::default(), DurabilityKind::Memory), Ok(()));
        assert_eq!(told(BackendSpec::default(), DurabilityKind::Logged), Ok(()));
        assert_eq!(told(BackendSpec::named(NULL_BACKEND), DurabilityKind::Memory), Ok(()));
        let (kind, words) =
            told(BackendSpec::named(NULL_BACKEND), DurabilityKind::Logged).unwrap_err();
        assert_eq!(kind, ErrorKind::Invalid);
        assert!(words.contains("dataset d: backend null: cannot be logged"), "{words}");
        let (kind, words) = told(BackendSpec::named("tape"), DurabilityKind::Memory).unwrap_err();
        assert_eq!(kind, ErrorKind::Invalid);
        assert!(words.contains("dataset d: backend tape") && words.contains("memory, null"));
        let placed = BackendSpec { path: Some("/x".into()), ..BackendSpec::default() };
        let (kind, words) = told(placed, DurabilityKind::Memory).unwrap_err();
        assert_eq!(kind, ErrorKind::Invalid);
        assert!(words.contains("backend memory: takes no path"), "{words}");
    }

    #[test]
    fn a_backend_that_remembers_is_made_logged_and_where_it_may_be() {
        let fault = |path, named, durability| entry_fault(&stored(path), &spec(named, durability));
        let logged = DurabilityKind::Logged;
        assert_eq!(fault(PathOption::Optional, None, logged), Ok(()));
        assert_eq!(fault(PathOption::Optional, Some("/x"), logged), Ok(()));
        assert_eq!(fault(PathOption::Needed, Some("/x"), logged), Ok(()));
        assert_eq!(fault(PathOption::Needed, None, logged), Err("needs a path"));
        assert_eq!(fault(PathOption::None, Some("/x"), logged), Err("takes no path"));
        assert!(fault(PathOption::Optional, None, DurabilityKind::Memory).is_err());
    }
}
