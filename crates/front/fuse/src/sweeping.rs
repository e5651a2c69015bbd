//! Leaked orphans, files without a name whose holders were killed: a mount, which lives long,
//! removes them.

use std::io;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use samite_fs::FileSystem;

/// How often nodes are asked whether there are any.
const INTERVAL: Duration = Duration::from_secs(5);

/// Sweeps now and then for as long as it lives.
pub struct SweepThread {
    /// Dropped to end it.
    _until: Sender<()>,
}

impl SweepThread {
    /// Begins, on a thread of its own.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub fn begin(fs: &FileSystem) -> io::Result<Self> {
        let (until, is_over) = channel::<()>();
        let fs = fs.clone();
        std::thread::Builder::new().name("sweep".to_owned()).spawn(move || {
            while is_over.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                // Files that were closed here must not stay for an open reference that this mount
                // has yet to end.
                if let Err(error) = fs.flush_closes() {
                    tracing::debug!(%error, "tell of closes");
                }
                match fs.sweep_orphans() {
                    Ok(0) => {}
                    Ok(count) => {
                        tracing::info!(count, "removed files that nobody had open any more")
                    }
                    Err(error) => tracing::debug!(%error, "sweep"),
                }
            }
        })?;
        Ok(Self { _until: until })
    }
}
