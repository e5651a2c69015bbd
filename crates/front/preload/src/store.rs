//! The connection to the store.

use std::ffi::c_int;
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::io::Errno;
use samite_client::Client;
use samite_fs::{CallerContext, FileSystem};
use samite_types::{Error, Result};

use crate::{caller, mount_prefix, raw, start_environment};

/// Dataset of files that programs see.
const DATASET: &str = "files";

struct PreloadStore {
    client: Client,
    fs: FileSystem,
}

static STORE: OnceLock<PreloadStore> = OnceLock::new();
static CONNECTING: Mutex<()> = Mutex::new(());

fn store() -> Result<&'static PreloadStore, Errno> {
    if let Some(store) = STORE.get() {
        return Ok(store);
    }
    connect()
}

/// First touch. A failure is not remembered: the store may be there the next time.
#[cold]
fn connect() -> Result<&'static PreloadStore, Errno> {
    let _one_at_a_time = CONNECTING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(store) = STORE.get() {
        return Ok(store);
    }
    let open = || {
        let client = start_environment::client()?;
        let fs = FileSystem::open_mounted(&client, DATASET, Some(mount_prefix::prefix()))?;
        // They leave with `flush`, before this process forks or ends.
        fs.defer_files(true);
        Ok(PreloadStore { client, fs })
    };
    let store = open().map_err(|error: Error| errno(&error))?;
    Ok(STORE.get_or_init(|| store))
}

/// The code by which a program hears of an error.
pub fn errno(error: &Error) -> Errno {
    error.kind().errno()
}

/// Runs a call of the file system.
pub fn call<T>(work: impl FnOnce(&FileSystem) -> Result<T>) -> Result<T, Errno> {
    work(&store()?.fs).map_err(|error| errno(&error))
}

/// Runs a call of the file system in the name of the calling process.
pub fn call_as<T>(work: impl FnOnce(&FileSystem, &CallerContext) -> Result<T>) -> Result<T, Errno> {
    let fs = &store()?.fs;
    work(fs, &caller::context()).map_err(|error| errno(&error))
}

/// Sends the files that this process has deferred.
pub fn flush() -> Result<(), Errno> {
    STORE.get().map_or(Ok(()), |store| store.fs.flush().map_err(|error| errno(&error)))
}

/// Sends the files that this process has deferred; a failure is told later.
pub fn send_early() {
    if let Some(store) = STORE.get() {
        store.fs.send_early();
    }
}

/// Sends the files that this process has deferred, and prints failures on its standard error that
/// can be told nowhere else any more.
pub fn flush_at_end() {
    const STANDARD_ERROR: c_int = 2;
    let Some(store) = STORE.get() else { return };
    let first = store.fs.flush().err();
    for failure in first.into_iter().chain(store.fs.late_failures()) {
        let line = format!("samite: {failure}\n");
        // A program may have closed it.
        let _ = raw::write(STANDARD_ERROR, line.as_bytes(), None);
    }
}

/// Whether a descriptor belongs to a connection of the store, other than those for locks alone.
pub fn is_connection(fd: c_int) -> bool {
    STORE.get().is_some_and(|store| store.client.descriptors().contains(&fd))
}

/// Descriptors of the connections, without those for locks alone.
pub fn connections() -> Vec<c_int> {
    STORE.get().map(|store| store.client.descriptors()).unwrap_or_default()
}

/// In the child of a fork.
pub fn after_fork_child() {
    if let Some(store) = STORE.get() {
        store.client.after_fork_child();
        store.fs.after_fork_child();
    }
}
