//! Work on files through libc. The same process does it on tmpfs and, under `samite run`, in a store.
//!
//! Told `WORK MILLIS` on a line of standard input, it does that work for about so long and answers with one line of JSON
//! ([`FileTurn`]). All files lie in one directory; setting up and tidying away is not timed.

use std::ffi::{CStr, CString};
use std::io::{BufRead, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

use samite_types::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use super::{failed, sys};
use crate::measure::WorkloadRound;

/// Empty files that are made, looked at or removed between two looks at the clock of the turn.
const FILES: usize = 1000;
/// Length of the file that is read or written.
const FILE_LEN: usize = 64 << 20;
/// Length of one read or write.
const PIECE_LEN: usize = 1 << 20;

/// Kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileWork {
    /// open(O_CREAT | O_EXCL) and close of an empty file.
    Create,
    /// stat of an empty file.
    Stat,
    /// unlink of an empty file.
    Unlink,
    /// read of 1 MiB, front to back through a file of 64 MiB.
    Read,
    /// write of 1 MiB, front to back into a new file of 64 MiB.
    Write,
}

impl FileWork {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Stat => "stat",
            Self::Unlink => "unlink",
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

impl FromStr for FileWork {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        [Self::Create, Self::Stat, Self::Unlink, Self::Read, Self::Write]
            .into_iter()
            .find(|work| work.name() == text)
            .ok_or_else(|| Error::new(ErrorKind::Invalid, format!("{text:?} is no work on files")))
    }
}

/// A turn as it travels between the two processes.
#[derive(Debug, Serialize, Deserialize)]
pub struct FileTurn {
    ops: u64,
    bytes: u64,
    elapsed_ns: u64,
    /// Time of an operation in ns, and how many took it.
    times: Vec<(u64, u64)>,
}

impl FileTurn {
    fn from_round(round: &WorkloadRound) -> Self {
        Self {
            ops: round.ops,
            bytes: round.bytes,
            elapsed_ns: round.elapsed.as_nanos() as u64,
            times: round
                .times
                .iter_recorded()
                .map(|step| (step.value_iterated_to(), step.count_at_value()))
                .collect(),
        }
    }

    /// Adds it to what other processes did at the same time.
    pub fn add_to(&self, round: &mut WorkloadRound) {
        round.ops += self.ops;
        round.bytes += self.bytes;
        round.elapsed = round.elapsed.max(Duration::from_nanos(self.elapsed_ns));
        for (value, count) in &self.times {
            // Taken from a histogram with the same bounds.
            let _ = round.times.record_n(*value, *count);
        }
    }
}

/// Does work as told until the input ends.
pub fn serve(dir: &Path) -> Result<()> {
    let mut bench = FileBench::new(dir)?;
    let mut out = std::io::stdout().lock();
    let told = failed("answer");
    writeln!(out, "ready").and_then(|()| out.flush()).map_err(told)?;
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(failed("read standard input"))?;
        let (work, millis) = line.split_once(' ').unwrap_or((&line, "0"));
        let length = Duration::from_millis(millis.parse().unwrap_or(0));
        let round = bench.work(work.parse()?, length)?;
        let answer = serde_json::to_string(&FileTurn::from_round(&round)).unwrap_or_default();
        writeln!(out, "{answer}").and_then(|()| out.flush()).map_err(failed("answer"))?;
    }
    bench.tidy();
    Ok(())
}

struct FileBench {
    dir: PathBuf,
    /// Paths of the empty files.
    names: Vec<CString>,
    /// The empty files are there.
    made: bool,
    data: CString,
    buffer: Vec<u8>,
    /// The file to read, open.
    reading: Option<sys::OwnedDescriptor>,
}

impl FileBench {
    fn new(dir: &Path) -> Result<Self> {
        let own = std::process::id();
        sys::mkdir(&path(dir)?).map_err(failed(format_args!("mkdir {}", dir.display())))?;
        let names: Result<Vec<_>> =
            (0..FILES).map(|number| path(&dir.join(format!("{own}-{number:04}")))).collect();
        Ok(Self {
            names: names?,
            made: false,
            data: path(&dir.join(format!("{own}-data")))?,
            buffer: vec![0x5a; PIECE_LEN],
            reading: None,
            dir: dir.to_path_buf(),
        })
    }

    fn work(&mut self, work: FileWork, length: Duration) -> Result<WorkloadRound> {
        let mut round = WorkloadRound::new()?;
        while round.elapsed < length || round.ops == 0 {
            match work {
                FileWork::Create => {
                    self.make(false, None)?;
                    self.make(true, Some(&mut round))?;
                }
                FileWork::Unlink => {
                    self.make(true, None)?;
                    self.make(false, Some(&mut round))?;
                }
                FileWork::Stat => {
                    self.make(true, None)?;
                    self.stat(&mut round)?;
                }
                FileWork::Read => self.read(&mut round, length)?,
                FileWork::Write => self.write(&mut round, length)?,
            }
        }
        Ok(round)
    }

    /// Makes the empty files, or removes them, unless that is so already.
    fn make(&mut self, make: bool, mut timed: Option<&mut WorkloadRound>) -> Result<()> {
        if self.made == make {
            return Ok(());
        }
        let mut before = Instant::now();
        for name in &self.names {
            if make {
                sys::open(name, libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL)
                    .and_then(sys::OwnedDescriptor::close)
                    .map_err(failed(format_args!("create {name:?}")))?;
            } else {
                sys::unlink(name).map_err(failed(format_args!("unlink {name:?}")))?;
            }
            if let Some(round) = timed.as_deref_mut() {
                let now = Instant::now();
                round.note(1, 0, now - before);
                before = now;
            }
        }
        self.made = make;
        Ok(())
    }

    fn stat(&self, round: &mut WorkloadRound) -> Result<()> {
        let mut before = Instant::now();
        for name in &self.names {
            sys::stat(name).map_err(failed(format_args!("stat {name:?}")))?;
            let now = Instant::now();
            round.note(1, 0, now - before);
            before = now;
        }
        Ok(())
    }

    fn read(&mut self, round: &mut WorkloadRound, length: Duration) -> Result<()> {
        let failed = |error| failed(format_args!("read {:?}", self.data))(error);
        let file = match &self.reading {
            Some(file) => file,
            None => {
                write_file(&self.data, &self.buffer, |_| true).map_err(failed)?;
                self.reading.insert(sys::open(&self.data, libc::O_RDONLY).map_err(failed)?)
            }
        };
        file.rewind().map_err(failed)?;
        let mut left = FILE_LEN;
        while left > 0 && round.elapsed < length {
            let before = Instant::now();
            let len = file.read(&mut self.buffer).map_err(failed)?;
            round.note(1, len as u64, before.elapsed());
            if len == 0 {
                return Err(Error::new(ErrorKind::Corrupt, "read: the file ends too early"));
            }
            left -= len;
        }
        Ok(())
    }

    fn write(&mut self, round: &mut WorkloadRound, length: Duration) -> Result<()> {
        let mut before = Instant::now();
        write_file(&self.data, &self.buffer, |len| {
            let now = Instant::now();
            if len > 0 {
                round.note(1, len as u64, now - before);
            }
            before = now;
            round.elapsed < length
        })
        .and_then(|()| sys::unlink(&self.data))
        .map_err(failed(format_args!("write {:?}", self.data)))
    }

    fn tidy(&mut self) {
        // The next benchmark has files of its own: what cannot be removed is removed with the store.
        let _ = self.make(false, None);
        if self.reading.take().is_some() {
            let _ = sys::unlink(&self.data);
        }
        if let Ok(dir) = path(&self.dir) {
            let _ = sys::rmdir(&dir);
        }
    }
}

/// Writes a file piece by piece. `wrote` hears of each piece (of 0 bytes: the file is open), and whether to go on.
fn write_file(
    path: &CStr,
    piece: &[u8],
    mut wrote: impl FnMut(usize) -> bool,
) -> std::io::Result<()> {
    let file = sys::open(path, libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC)?;
    let mut left = FILE_LEN;
    let mut go_on = wrote(0);
    while left > 0 && go_on {
        let len = file.write(&piece[..piece.len().min(left)])?;
        left -= len;
        go_on = wrote(len);
    }
    file.close()
}

fn path(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| Error::new(ErrorKind::Invalid, "a path with a zero byte"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_work_does_what_it_counts_and_leaves_nothing() {
        let parent = tempfile::tempdir().expect("a temporary directory");
        let dir = parent.path().join("bench");
        let mut bench = FileBench::new(&dir).expect("starts");
        for work in
            [FileWork::Create, FileWork::Stat, FileWork::Unlink, FileWork::Read, FileWork::Write]
        {
            let round = bench.work(work, Duration::from_millis(1)).expect("works");
            assert!(round.ops > 0, "{work:?}");
            let bytes = matches!(work, FileWork::Read | FileWork::Write);
            assert_eq!(round.bytes, if bytes { round.ops << 20 } else { 0 }, "{work:?}");
        }
        bench.tidy();
        assert!(!dir.exists());
    }

    #[test]
    fn a_turn_survives_its_travel() {
        let mut round = WorkloadRound::new().expect("a histogram");
        round.note(1, 7, Duration::from_micros(3));
        round.note(1, 7, Duration::from_micros(5));
        let raw = serde_json::to_string(&FileTurn::from_round(&round)).expect("encodes");
        let told: FileTurn = serde_json::from_str(&raw).expect("decodes");
        let mut sum = WorkloadRound::new().expect("a histogram");
        told.add_to(&mut sum);
        told.add_to(&mut sum);
        assert_eq!((sum.ops, sum.bytes, sum.elapsed), (4, 28, Duration::from_micros(8)));
        assert_eq!(sum.times.len(), 4);
    }
}
