//! The log of a node or a mount: a file of bounded length, or stderr, which a service manager or a
//! container takes over.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{Stat, fstat};
use samite_types::{Error, ErrorKind, Result};
use samite_wire::events::LogPart;

use crate::io_context::SystemContext as _;

/// Length at which a file is set aside as `FILE.1`, in bytes, unless told otherwise.
pub const LOG_LEN_MAX: u64 = 16 << 20;

/// Where a process writes its log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogDestination {
    /// To this file.
    File(PathBuf),
    /// To stderr.
    Stderr,
}

impl LogDestination {
    /// The destination that the user chose (`stderr` or a file); without a choice stderr if
    /// somebody collects it, and `usual` otherwise.
    #[must_use]
    pub fn choose(choice: Option<&str>, usual: PathBuf) -> Self {
        match choice {
            Some("stderr") => Self::Stderr,
            Some(path) => Self::File(path.into()),
            None if is_collected() => Self::Stderr,
            None => Self::File(usual),
        }
    }
}

/// Whether stderr is a service manager's or a container's: systemd says which stream is its journal
/// (systemd.exec(5), `JOURNAL_STREAM`), and in a container the program is the first process.
fn is_collected() -> bool {
    let journal = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    let own = fstat(io::stderr().as_fd()).ok();
    own.is_some_and(|own| journal == format!("{}:{}", own.st_dev, own.st_ino))
        || std::process::id() == 1
}

/// A log that goes on in a fresh file when its file is long, or [`ProcessLog::reopen`] is called.
#[derive(Debug)]
pub struct ProcessLog {
    destination: LogDestination,
    len_max: u64,
    /// Lines go to stderr, too.
    tells: bool,
    file: Mutex<OpenFile>,
}

/// The open file and its length; `None`: stderr.
type OpenFile = Option<(File, u64)>;

impl ProcessLog {
    /// Opens it; what a file has stays. A file of `len_max` bytes is set aside. `tells`: what goes to
    /// the file goes to stderr, too, unless that is the same file.
    ///
    /// # Errors
    /// `Io`: the file cannot be opened.
    pub fn open(destination: LogDestination, len_max: u64, tells: bool) -> Result<Self> {
        let file = match &destination {
            LogDestination::Stderr => None,
            LogDestination::File(path) => {
                Some(open(path).doing(format_args!("open {}", path.display()))?)
            }
        };
        let is_elsewhere = |(file, _): &(File, u64)| {
            let (file, stderr) = (fstat(file).ok(), fstat(io::stderr().as_fd()).ok());
            !file.zip(stderr).is_some_and(|(file, stderr)| is_same(&file, &stderr))
        };
        let tells = tells && file.as_ref().is_some_and(is_elsewhere);
        Ok(Self { destination, len_max, tells, file: Mutex::new(file) })
    }

    /// The file that it is in.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match &self.destination {
            LogDestination::File(path) => Some(path),
            LogDestination::Stderr => None,
        }
    }

    /// Goes on in the file that has the log's name now: the one before was moved away.
    ///
    /// # Errors
    /// `Io`: it cannot be opened; the log goes on where it was.
    pub fn reopen(&self) -> Result<()> {
        let Some(path) = self.path() else { return Ok(()) };
        let fresh = open(path).doing(format_args!("open {}", path.display()))?;
        replace(&mut self.lock(), fresh);
        Ok(())
    }

    /// A part of the file, of `len_max` bytes at most: from the byte `from` on, or from the start
    /// when the file is shorter than that; `None`: its end. Whole lines, unless one is longer.
    ///
    /// # Errors
    /// `Unsupported`: it is in no file; `Io`.
    pub fn read(&self, from: Option<u64>, len_max: usize) -> Result<LogPart> {
        let Some(path) = self.path() else {
            let words = "the log goes to stderr; a service manager or container has it";
            return Err(Error::new(ErrorKind::Unsupported, words));
        };
        read_part(path, from, len_max).doing(format_args!("read {}", path.display()))
    }

    /// Adds to the file; how many bytes. `None`: there is none.
    fn write_to_file(&self, line: &[u8]) -> io::Result<Option<usize>> {
        let mut file = self.lock();
        let (Some((to, len)), Some(path)) = (file.as_mut(), self.path()) else { return Ok(None) };
        let written = to.write(line)?;
        *len += written as u64;
        if *len >= self.len_max {
            let mut aside = path.as_os_str().to_owned();
            aside.push(".1");
            match std::fs::rename(path, aside).and_then(|()| open(path)) {
                Ok(fresh) => replace(&mut file, fresh),
                // It goes on in the file that it has, and is tried again when that is twice as long.
                Err(_) => *len = 0,
            }
        }
        Ok(Some(written))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, OpenFile> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Write for &ProcessLog {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // Whoever reads stderr may be slow: other threads go on with the file meanwhile.
        let Some(written) = self.write_to_file(line)? else { return io::stderr().write(line) };
        if self.tells {
            // The file has it.
            let _ = io::stderr().write_all(&line[..written]);
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A part of the log in the file `path`, as [`ProcessLog::read`] says.
///
/// # Errors
/// That of the system.
pub fn read_part(path: &Path, from: Option<u64>, len_max: usize) -> io::Result<LogPart> {
    let mut file = File::open(path)?;
    let len = file.metadata()?.len();
    let tail = len.saturating_sub(len_max as u64);
    let mut at = from.map_or(tail, |from| if from > len { 0 } else { from });
    file.seek(SeekFrom::Start(at))?;
    let mut bytes = Vec::new();
    file.take(len_max as u64).read_to_end(&mut bytes)?;
    if from.is_none()
        && at > 0
        && let Some(end) = bytes.iter().position(|byte| *byte == b'\n')
    {
        // The first line may have lost its beginning.
        bytes.drain(..=end);
        at += end as u64 + 1;
    }
    if let Some(end) = bytes.iter().rposition(|byte| *byte == b'\n') {
        bytes.truncate(end + 1);
    }
    Ok(LogPart { at, bytes })
}

fn open(path: &Path) -> io::Result<(File, u64)> {
    let file = File::options().append(true).create(true).open(path)?;
    let len = file.metadata()?.len();
    Ok((file, len))
}

fn is_same(one: &Stat, other: &Stat) -> bool {
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}

/// Puts `fresh` in the place of the open file. What the process says on stdout and stderr follows,
/// if it went to that file.
fn replace(file: &mut OpenFile, fresh: (File, u64)) {
    if let Some((before, _)) = file.as_ref()
        && let Ok(before) = fstat(before)
    {
        // There is nobody to be told of a failure.
        if fstat(io::stdout().as_fd()).is_ok_and(|stdout| is_same(&stdout, &before)) {
            let _ = rustix::stdio::dup2_stdout(&fresh.0);
        }
        if fstat(io::stderr().as_fd()).is_ok_and(|stderr| is_same(&stderr, &before)) {
            let _ = rustix::stdio::dup2_stderr(&fresh.0);
        }
    }
    *file = Some(fresh);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(path: &Path) -> String {
        std::fs::read_to_string(path).unwrap_or_default()
    }

    #[test]
    fn a_long_file_is_set_aside_once_and_nothing_is_lost_meanwhile() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("n0.log");
        std::fs::write(&path, "before\n").expect("it is free");
        let log =
            ProcessLog::open(LogDestination::File(path.clone()), 30, false).expect("it opens");
        for number in 0..5 {
            (&log).write_all(format!("line {number}\n").as_bytes()).expect("it is written");
        }
        let aside = dir.path().join("n0.log.1");
        assert_eq!(read(&aside), "before\nline 0\nline 1\nline 2\nline 3\n");
        assert_eq!(read(&path), "line 4\n");
        for number in 5..10 {
            (&log).write_all(format!("line {number}\n").as_bytes()).expect("it is written");
        }
        assert_eq!(read(&aside), "line 4\nline 5\nline 6\nline 7\nline 8\n");
        assert_eq!(read(&path), "line 9\n");
    }

    #[test]
    fn a_file_that_was_moved_away_is_left_when_told_to() {
        let dir = tempfile::tempdir().expect("a directory");
        let (path, moved) = (dir.path().join("log"), dir.path().join("moved"));
        let log =
            ProcessLog::open(LogDestination::File(path.clone()), 1 << 20, false).expect("it opens");
        (&log).write_all(b"one\n").expect("it is written");
        std::fs::rename(&path, &moved).expect("it is there");
        (&log).write_all(b"two\n").expect("it is written");
        log.reopen().expect("it opens");
        (&log).write_all(b"three\n").expect("it is written");
        assert_eq!((read(&moved), read(&path)), ("one\ntwo\n".into(), "three\n".into()));
        std::fs::remove_file(&path).expect("it is there");
        std::fs::create_dir(&path).expect("the name is free");
        assert!(log.reopen().is_err(), "a directory is no log");
    }

    #[test]
    fn parts_are_whole_lines_and_follow_each_other() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("log");
        let text = "first\nsecond\nthird\nunfinished";
        std::fs::write(&path, text).expect("it is free");
        let part = |from, len_max| {
            let part = read_part(&path, from, len_max).expect("it is there");
            (part.at, String::from_utf8(part.bytes).expect("text"))
        };
        assert_eq!(part(None, 100), (0, "first\nsecond\nthird\n".into()));
        assert_eq!(part(None, 20), (13, "third\n".into()));
        assert_eq!(part(Some(0), 14), (0, "first\nsecond\n".into()));
        assert_eq!(part(Some(13), 100), (13, "third\n".into()));
        assert_eq!(part(Some(19), 5), (19, "unfin".into()), "a long line in pieces");
        assert_eq!(part(Some(1000), 7).0, 0, "another file has its name now");
        let log = ProcessLog::open(LogDestination::Stderr, 1, false).expect("it opens");
        assert_eq!(log.read(None, 1).unwrap_err().kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn a_choice_counts() {
        let usual = || PathBuf::from("/run/n0.log");
        assert_eq!(LogDestination::choose(Some("stderr"), usual()), LogDestination::Stderr);
        let file = LogDestination::choose(Some("/var/log/n0"), usual());
        assert_eq!(file, LogDestination::File("/var/log/n0".into()));
    }
}
