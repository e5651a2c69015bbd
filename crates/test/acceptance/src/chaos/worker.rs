//! One process that works while nodes die.

use std::collections::{HashMap, VecDeque};
use std::io::Read as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use samite_client::Client;
use samite_kv::KvView;
use samite_types::ErrorKind;

use crate::access_path::AccessPath;
use crate::access_path::library::LibraryPath;
use crate::rng::AcceptanceRng;
use crate::timeline::stamp;

/// Keys that each process writes.
const KEYS: u64 = 12;
/// Files that each process writes.
const FILES: u64 = 3;
/// Bytes of one record of a log.
const RECORD_LEN: usize = 16;
/// The counter that all raise.
pub const COUNTER: &[u8] = b"counter";
/// Name of the dataset.
pub const DATASET: &str = "kv";

/// Calls that a process remembers, to tell of them when something is wrong.
const REMEMBERED: usize = 500;
/// After this it looks again at what was wrong.
const LATER: Duration = Duration::from_secs(1);

/// The work of one process.
#[derive(Debug, Default)]
pub struct WorkerReport {
    calls: u64,
    /// Times it has raised the counter.
    raised: u64,
    /// Times it has found the store full.
    pub(super) full: u64,
    /// The longest call, and which it was.
    longest: (Duration, String),
    /// The last calls: when each ended, how long it took, which it was.
    last: VecDeque<(String, Duration, String)>,
}

impl WorkerReport {
    /// One call, with its time.
    ///
    /// # Errors
    /// That of the call, with its name.
    pub fn call<T>(
        &mut self,
        what: &str,
        call: impl FnOnce() -> Result<T, String>,
    ) -> Result<T, String> {
        let begun = Instant::now();
        let done = call();
        self.note(what, begun.elapsed(), done)
    }

    fn note<T>(
        &mut self,
        what: &str,
        took: Duration,
        done: Result<T, String>,
    ) -> Result<T, String> {
        if took > self.longest.0 {
            self.longest = (took, what.to_owned());
        }
        self.calls += 1;
        if self.last.len() == REMEMBERED {
            self.last.pop_front();
        }
        let failed = if done.is_err() { " (failed)" } else { "" };
        self.last.push_back((stamp(), took, format!("{what}{failed}")));
        done.map_err(|error| format!("{what}, after {} ms: {error}", took.as_millis()))
    }

    /// Says it on standard output: calls, raises of the counter, times that the store was full, and microseconds of the longest call; then which call that was.
    pub fn tell(&self) {
        let (longest, what) = &self.longest;
        println!("{} {} {} {}\n{what}", self.calls, self.raised, self.full, longest.as_micros());
    }
}

/// Whether standard input has ended: then it is over, also when the driver has died.
#[must_use]
pub fn until_input_ends() -> Arc<AtomicBool> {
    let is_over = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&is_over);
    std::thread::spawn(move || {
        // Ends with the driver, too, however that ends.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        flag.store(true, Ordering::Relaxed);
    });
    is_over
}

/// The knowledge of one process.
struct ChaosWorker {
    number: u64,
    of: u64,
    kv: KvView,
    files: LibraryPath,
    rng: AcceptanceRng,
    /// Number that each of its keys and files has; a key or file that is not here was never
    /// written.
    keys: HashMap<u64, u64>,
    file_numbers: HashMap<u64, u64>,
    /// Highest number seen in keys of others.
    seen: HashMap<(u64, u64), u64>,
    /// Records appended to its log.
    appended: u64,
    told: WorkerReport,
    /// There may be no room.
    gets_full: bool,
}

/// Works as process `number` of `of` until its standard input ends, checks all that it wrote, and says what it did on standard output.
///
/// # Errors
/// The error, in words.
pub fn run(
    client: &Client,
    (number, of): (u64, u64),
    seed: u64,
    gets_full: bool,
) -> Result<WorkerReport, String> {
    let kv = KvView::new(client.dataset(DATASET).map_err(|error| error.to_string())?);
    let files = LibraryPath::open(client).map_err(|error| error.to_string())?;
    let rng = AcceptanceRng::new(seed ^ (number << 32));
    let mut worker = ChaosWorker {
        number,
        of,
        kv,
        files,
        rng,
        keys: HashMap::new(),
        file_numbers: HashMap::new(),
        seen: HashMap::new(),
        appended: 0,
        told: WorkerReport::default(),
        gets_full,
    };
    worker.work(&until_input_ends()).map_err(|wrong| worker.look_again(&wrong))?;
    Ok(worker.told)
}

/// Content `count` of a key or file of process `number`.
pub fn value(number: u64, key: u64, count: u64) -> Vec<u8> {
    let mut bytes = format!("{number}/{key}/{count}/").into_bytes();
    // Small ones and large ones, told by their number alone.
    let len = [0, 100, 5000, 90_000][(count % 4) as usize];
    bytes.extend((0..len).map(|index: u64| (index * 7 + count) as u8));
    bytes
}

/// The count in a value of `key` of process `number`, if it is a whole one.
pub fn count_of(bytes: &[u8], number: u64, key: u64) -> Option<u64> {
    let head = &bytes[..bytes.len().min(64)];
    let text: Vec<&[u8]> = head.split(|byte| *byte == b'/').collect();
    let count = std::str::from_utf8(text.get(2)?).ok()?.parse().ok()?;
    (value(number, key, count) == bytes).then_some(count)
}

/// Record `count` of the log of process `number`.
pub fn record(number: u64, count: u64) -> [u8; RECORD_LEN] {
    let mut record = [0; RECORD_LEN];
    record[..8].copy_from_slice(&number.to_le_bytes());
    record[8..].copy_from_slice(&count.to_le_bytes());
    record
}

impl ChaosWorker {
    fn work(&mut self, is_over: &AtomicBool) -> Result<(), String> {
        while !is_over.load(Ordering::Relaxed) {
            self.step()?;
        }
        self.check_all()
    }

    /// Something was wrong: whether it stays so, and what else is. Tells of the last calls on standard error.
    fn look_again(&mut self, wrong: &str) -> String {
        for (ended, took, what) in &self.told.last {
            eprintln!("{ended}  {what}, {} us", took.as_micros());
        }
        let at = stamp();
        std::thread::sleep(LATER);
        let keys: Vec<_> = (0..KEYS).map(|key| self.check_key(key)).collect();
        let files: Vec<_> = (0..FILES).map(|file| self.check_file(file)).collect();
        let all = keys.into_iter().chain(files).chain([self.check_log()]);
        let left: Vec<String> = all.filter_map(Result::err).collect();
        let left = if left.is_empty() { "nothing".into() } else { left.join("; ") };
        format!("at {at}: {wrong}; wrong {} ms later: {left}", LATER.as_millis())
    }

    /// One call, with its time.
    fn call<T>(
        &mut self,
        what: &str,
        call: impl FnOnce(&mut Self) -> Result<T, String>,
    ) -> Result<T, String> {
        let begun = Instant::now();
        let done = call(self);
        self.told.note(what, begun.elapsed(), done)
    }

    /// The outcome of a change; `None`: it was refused because there was no room, which may be only
    /// where the store gets full.
    fn room<T>(&self, done: samite_types::Result<T>) -> Result<Option<T>, String> {
        match done {
            Err(error) if error.kind() == ErrorKind::NoSpace && self.gets_full => Ok(None),
            done => done.map(Some).map_err(|error| error.to_string()),
        }
    }

    fn step(&mut self) -> Result<(), String> {
        match self.rng.below(10) {
            0..=2 => self.put(),
            3..=4 => self.get_own(),
            5..=6 => self.get_foreign(),
            7 => self.append(),
            8 => self.raise(),
            _ => self.write_file(),
        }
    }

    fn put(&mut self) -> Result<(), String> {
        let (number, key) = (self.number, self.rng.below(KEYS));
        let count = self.keys.get(&key).map_or(0, |count| count + 1);
        let bytes = value(number, key, count);
        let put = self.call(&format!("put {number}/{key}"), |worker| {
            worker.room(worker.kv.put(name(number, key).as_bytes(), &bytes))
        })?;
        if put.is_some() {
            self.keys.insert(key, count);
        }
        Ok(())
    }

    fn get(&mut self, number: u64, key: u64) -> Result<Option<Vec<u8>>, String> {
        self.call(&format!("get {number}/{key}"), |worker| {
            let got = worker.kv.get(name(number, key).as_bytes());
            Ok(got.map_err(|error| error.to_string())?.map(|value| value.bytes))
        })
    }

    fn get_own(&mut self) -> Result<(), String> {
        let key = self.rng.below(KEYS);
        self.check_key(key)
    }

    fn check_key(&mut self, key: u64) -> Result<(), String> {
        let number = self.number;
        let wanted = self.keys.get(&key).map(|count| value(number, key, *count));
        let found = self.get(number, key)?;
        if found == wanted {
            return Ok(());
        }
        let count = found.as_deref().map(|bytes| count_of(bytes, number, key));
        Err(format!("own key {number}/{key}: wrote {:?}, found {count:?}", self.keys.get(&key)))
    }

    fn get_foreign(&mut self) -> Result<(), String> {
        let (number, key) = (self.rng.below(self.of), self.rng.below(KEYS));
        let found = self.get(number, key)?;
        let seen = self.seen.get(&(number, key)).copied();
        let count = match &found {
            None if seen.is_none() => return Ok(()),
            None => return Err(format!("key {number}/{key}: had {seen:?}, is gone")),
            Some(bytes) => count_of(bytes, number, key)
                .ok_or_else(|| format!("key {number}/{key}: nothing that was written"))?,
        };
        if seen.is_some_and(|seen| count < seen) {
            return Err(format!("key {number}/{key}: had {seen:?}, and now {count}"));
        }
        self.seen.insert((number, key), count);
        Ok(())
    }

    fn append(&mut self) -> Result<(), String> {
        let (number, count) = (self.number, self.appended);
        let end = self.call(&format!("append {number}"), |worker| {
            worker.room(worker.kv.append(log(number).as_bytes(), &record(number, count)))
        })?;
        let Some(end) = end else { return Ok(()) };
        self.appended += 1;
        let wanted = self.appended * RECORD_LEN as u64;
        // Whether the call tells where the record begins or where it ends is no matter here.
        if end != wanted && end + RECORD_LEN as u64 != wanted {
            return Err(format!("log {number}: {} records, and its end is {end}", self.appended));
        }
        Ok(())
    }

    fn check_log(&mut self) -> Result<(), String> {
        let number = self.number;
        let wanted: Vec<u8> = (0..self.appended).flat_map(|count| record(number, count)).collect();
        let found = self.call("read a log", |worker| {
            let got = worker.kv.get(log(number).as_bytes()).map_err(|error| error.to_string())?;
            Ok(got.map_or_else(Vec::new, |value| value.bytes))
        })?;
        if found == wanted {
            return Ok(());
        }
        let same = found.iter().zip(&wanted).take_while(|(a, b)| a == b).count();
        Err(format!(
            "log {number}: {} bytes in place of {}, other from {same} on",
            found.len(),
            wanted.len()
        ))
    }

    /// Raises the counter once.
    fn raise(&mut self) -> Result<(), String> {
        loop {
            let now = self.call("read the counter", |worker| {
                worker.kv.get(COUNTER).map_err(|error| error.to_string())
            })?;
            let swapped = self.call("raise the counter", |worker| {
                let done = match &now {
                    None => worker.kv.put_if_absent(COUNTER, &1u64.to_le_bytes()),
                    Some(value) => {
                        let count = parse(&value.bytes)? + 1;
                        worker.kv.compare_and_swap(COUNTER, value.version, &count.to_le_bytes())
                    }
                };
                match done {
                    Err(error)
                        if matches!(error.kind(), ErrorKind::Conflict | ErrorKind::Exists) =>
                    {
                        Ok(None)
                    }
                    done => Ok(Some(worker.room(done)?.is_some())),
                }
            })?;
            if let Some(is_raised) = swapped {
                self.told.raised += u64::from(is_raised);
                return Ok(());
            }
        }
    }

    fn write_file(&mut self) -> Result<(), String> {
        let (number, file) = (self.number, self.rng.below(FILES));
        self.check_file(file)?;
        let count = self.file_numbers.get(&file).map_or(0, |count| count + 1);
        let bytes = value(number, file, count);
        let path = path(number, file);
        let new = format!("{path}.new");
        let is_there = self.call(&format!("write file {number}-{file}"), |worker| {
            let files = &mut worker.files;
            match files.put(&new, &bytes).and_then(|()| files.rename(&new, &path)) {
                Err(libc::ENOSPC) if worker.gets_full => Ok(false),
                done => done.map(|()| true).map_err(|errno| format!("errno {errno}")),
            }
        })?;
        if is_there {
            self.file_numbers.insert(file, count);
            return Ok(());
        }
        self.call(&format!("remove file {number}-{file}.new"), |worker| {
            match worker.files.unlink(&new) {
                Ok(()) | Err(libc::ENOENT) => Ok(()),
                Err(errno) => Err(format!("errno {errno}")),
            }
        })
    }

    fn check_file(&mut self, file: u64) -> Result<(), String> {
        let number = self.number;
        let Some(count) = self.file_numbers.get(&file).copied() else { return Ok(()) };
        let found = self.call(&format!("read file {number}-{file}"), |worker| {
            worker.files.get(&path(number, file)).map_err(|error| format!("{error:?}"))
        })?;
        if found == value(number, file, count) {
            return Ok(());
        }
        let seen = count_of(&found, number, file);
        Err(format!("file {number}-{file}: wrote {count}, found {seen:?}, {} bytes", found.len()))
    }

    fn check_all(&mut self) -> Result<(), String> {
        (0..KEYS).try_for_each(|key| self.check_key(key))?;
        (0..FILES).try_for_each(|file| self.check_file(file))?;
        self.check_log()
    }
}

fn name(number: u64, key: u64) -> String {
    format!("c{number}-{key}")
}

fn log(number: u64) -> String {
    format!("log{number}")
}

fn path(number: u64, file: u64) -> String {
    format!("/c{number}-{file}")
}

/// The number in the counter.
///
/// # Errors
/// It is none.
pub fn parse(bytes: &[u8]) -> Result<u64, String> {
    let raw = bytes.try_into().map_err(|_| format!("the counter is {} bytes", bytes.len()))?;
    Ok(u64::from_le_bytes(raw))
}
