//! Files: the same process does the same work on tmpfs and, under `samite run`, in a store.

use std::path::Path;
use std::time::Duration;

use samite_client::runtime::DEFAULT_MOUNT;
use samite_types::{Error, ErrorKind, Result};

use crate::child::files::{FileTurn, FileWork};
use crate::child::{HelperProcess, own_executable};
use crate::measure::{Workload, WorkloadRound};
use crate::place::BenchPlace;

const TMPFS: &str = "/dev/shm";

struct FileRows {
    work: FileWork,
    /// All work at the same time, in one directory.
    helpers: Vec<HelperProcess>,
    /// The directory on tmpfs, removed at the end.
    _directory: Option<tempfile::TempDir>,
}

impl Workload for FileRows {
    fn round(&mut self, length: Duration) -> Result<WorkloadRound> {
        let line = format!("{} {}", self.work.name(), length.as_millis());
        for helper in &mut self.helpers {
            helper.tell(&line)?;
        }
        let mut round = WorkloadRound::new()?;
        for helper in &mut self.helpers {
            let told: FileTurn = serde_json::from_str(&helper.hear()?)
                .map_err(|error| Error::new(ErrorKind::Corrupt, format!("file work: {error}")))?;
            told.add_to(&mut round);
        }
        Ok(round)
    }
}

/// In a store, by way of `samite run`, in this many processes.
pub fn in_store(
    work: FileWork,
    processes: usize,
    place: &mut BenchPlace,
) -> Result<Box<dyn Workload>> {
    let dir = format!("{DEFAULT_MOUNT}/bench");
    let executable = own_executable()?;
    let cluster = place.cluster()?;
    let start = || {
        let mut command = cluster.command();
        command.args(["run", "--"]).arg(&executable).args(["bench-peer", "files", &dir]);
        HelperProcess::start_command(command)
    };
    let helpers: Result<_> = (0..processes).map(|_| start()).collect();
    Ok(Box::new(FileRows { work, helpers: helpers?, _directory: None }))
}

/// On tmpfs, in this many processes; [`ErrorKind::Unsupported`] where there is none.
pub fn on_tmpfs(work: FileWork, processes: usize) -> Result<Box<dyn Workload>> {
    if !Path::new(TMPFS).is_dir() {
        return Err(Error::new(ErrorKind::Unsupported, format!("no tmpfs at {TMPFS}")));
    }
    let directory = tempfile::Builder::new()
        .prefix("samite-bench-")
        .tempdir_in(TMPFS)
        .map_err(crate::child::failed("make a directory on tmpfs"))?;
    let dir = directory.path().to_string_lossy().into_owned();
    let helpers: Result<_> =
        (0..processes).map(|_| HelperProcess::start(&["files", &dir])).collect();
    Ok(Box::new(FileRows { work, helpers: helpers?, _directory: Some(directory) }))
}
