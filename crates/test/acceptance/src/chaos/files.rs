//! One process that works on files while nodes die, over whatever access path, and one that fills
//! the store.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::worker::{WorkerReport, count_of, record, value};
use crate::access_path::{AccessPath, Refused};
use crate::rng::AcceptanceRng;

/// Files that each process writes.
const FILES: u64 = 6;
/// Bytes of a file that fills.
const FILLING_LEN: u64 = 70_000;
/// So many refusals one after the other, and the store is full.
const FULL: u32 = 5;
/// For how long it is left so.
const STAYS_FULL: Duration = Duration::from_millis(700);

/// The knowledge of one process of its files.
struct FileWorker<'d> {
    access: &'d mut dyn AccessPath,
    number: u64,
    rng: AcceptanceRng,
    /// Which content each of its files has; 0: it was never written.
    files: Vec<u64>,
    /// Records appended to its log.
    appended: u64,
    told: WorkerReport,
    /// There may be no room.
    gets_full: bool,
}

/// Writes files anew and appends to a log as process `number` until `is_over`, and checks all.
///
/// # Errors
/// The error, in words.
pub fn run(
    access: &mut dyn AccessPath,
    (number, seed): (u64, u64),
    gets_full: bool,
    is_over: &AtomicBool,
) -> Result<WorkerReport, String> {
    let (rng, told) = (AcceptanceRng::new(seed ^ (number << 32)), WorkerReport::default());
    let files = vec![0; FILES as usize];
    let mut worker = FileWorker { access, number, rng, files, appended: 0, told, gets_full };
    while !is_over.load(Ordering::Relaxed) {
        let file = worker.rng.below(FILES);
        match worker.rng.below(4) {
            0 => worker.append()?,
            1 => worker.check(file)?,
            _ => worker.write(file)?,
        }
    }
    (0..FILES).try_for_each(|file| worker.check(file))?;
    worker.check_log()?;
    Ok(worker.told)
}

/// Fills the store, leaves it full for a while and makes room again, as process `number`, until `is_over`. Nothing that it has written may be lost, and what is to go
/// has to go.
///
/// # Errors
/// The error, in words.
pub fn fill(
    access: &mut dyn AccessPath,
    number: u64,
    is_over: &AtomicBool,
) -> Result<WorkerReport, String> {
    let mut told = WorkerReport::default();
    let directory = format!("/fill-{number}");
    told.call("make a directory", || done(access.mkdir(&directory)))?;
    let (mut next, mut there) = (0, Vec::new());
    while !is_over.load(Ordering::Relaxed) {
        let mut refused = 0;
        while refused < FULL && !is_over.load(Ordering::Relaxed) {
            next += 1;
            let path = format!("{directory}/{next}");
            let filling = filling(next);
            let written =
                told.call(&format!("write {path}"), || room(access.put(&path, &filling)))?;
            if written {
                there.push(next);
                refused = 0;
            } else {
                refused += 1;
                remove(access, &path, &mut told)?;
            }
        }
        told.full += u64::from(refused == FULL);
        let until = Instant::now() + STAYS_FULL;
        while Instant::now() < until && !is_over.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(20));
        }
        // Every second one goes; all, when it is over.
        let is_last = is_over.load(Ordering::Relaxed);
        for (index, file) in std::mem::take(&mut there).into_iter().enumerate() {
            let path = format!("{directory}/{file}");
            let found = told.call(&format!("read {path}"), || done(access.get(&path)))?;
            if found != filling(file) {
                return Err(format!("{path}: {} bytes, and not those written", found.len()));
            }
            if is_last || index % 2 == 0 {
                remove(access, &path, &mut told)?;
            } else {
                there.push(file);
            }
        }
    }
    Ok(told)
}

fn filling(file: u64) -> Vec<u8> {
    (0..FILLING_LEN).map(|at| (at * 13 + file) as u8).collect()
}

fn done<T>(result: Result<T, Refused>) -> Result<T, String> {
    result.map_err(|errno| format!("errno {errno}"))
}

/// Whether there was room.
fn room(result: Result<(), Refused>) -> Result<bool, String> {
    match result {
        Err(libc::ENOSPC) => Ok(false),
        result => done(result).map(|()| true),
    }
}

/// Removes a file, if it is there.
fn remove(access: &mut dyn AccessPath, path: &str, told: &mut WorkerReport) -> Result<(), String> {
    told.call(&format!("remove {path}"), || match access.unlink(path) {
        Err(libc::ENOENT) => Ok(()),
        result => done(result),
    })
}

impl FileWorker<'_> {
    fn path(&self, file: u64) -> String {
        format!("/w{}-{file}", self.number)
    }

    fn log(&self) -> String {
        format!("/wlog-{}", self.number)
    }

    /// Whether there was room, which has to be where nothing fills the store.
    fn has_room(&self, there_was: bool, what: &str) -> Result<bool, String> {
        if there_was || self.gets_full { Ok(there_was) } else { Err(format!("{what}: no space")) }
    }

    /// Writes a file beside the one of before and puts it in its place.
    fn write(&mut self, file: u64) -> Result<(), String> {
        self.check(file)?;
        let (path, count) = (self.path(file), self.files[file as usize] + 1);
        let (new, bytes) = (format!("{path}.new"), value(self.number, file, count));
        let Self { access, told, .. } = self;
        let written = told.call(&format!("write {new}"), || room(access.put(&new, &bytes)))?;
        let is_there =
            written && told.call(&format!("rename {new}"), || room(access.rename(&new, &path)))?;
        if is_there {
            self.files[file as usize] = count;
        } else {
            remove(&mut **access, &new, told)?;
        }
        self.has_room(is_there, &path).map(drop)
    }

    fn check(&mut self, file: u64) -> Result<(), String> {
        let (path, count) = (self.path(file), self.files[file as usize]);
        if count == 0 {
            return Ok(());
        }
        let Self { access, told, .. } = self;
        let found = told.call(&format!("read {path}"), || done(access.get(&path)))?;
        if found == value(self.number, file, count) {
            return Ok(());
        }
        let seen = count_of(&found, self.number, file);
        Err(format!("{path}: wrote {count}, found {seen:?}, {} bytes", found.len()))
    }

    fn append(&mut self) -> Result<(), String> {
        let (path, bytes) = (self.log(), record(self.number, self.appended));
        let flags = libc::O_CREAT | libc::O_APPEND | libc::O_WRONLY;
        let Self { access, told, .. } = self;
        let appended = told.call(&format!("append to {path}"), || {
            let file = match access.open(&path, flags) {
                Err(libc::ENOSPC) => return Ok(false),
                file => done(file)?,
            };
            let appended = room(access.append(file, &bytes));
            // A close that fails for want of space tells of earlier writes.
            let closed = room(access.close(file));
            Ok(appended? && closed?)
        })?;
        self.appended += u64::from(appended);
        self.has_room(appended, &path).map(drop)
    }

    fn check_log(&mut self) -> Result<(), String> {
        if self.appended == 0 {
            return Ok(());
        }
        let path = self.log();
        let wanted: Vec<u8> =
            (0..self.appended).flat_map(|count| record(self.number, count)).collect();
        let Self { access, told, .. } = self;
        let found = told.call(&format!("read {path}"), || done(access.get(&path)))?;
        if found == wanted {
            return Ok(());
        }
        let same = found.iter().zip(&wanted).take_while(|(a, b)| a == b).count();
        let (found, wanted) = (found.len(), wanted.len());
        Err(format!("{path}: {found} bytes in place of {wanted}, other from {same} on"))
    }
}
