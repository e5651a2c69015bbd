//! Random calls in directories that all processes share: the answer of one call is open, the state
//! in the end is not.

use std::collections::{BTreeMap, BTreeSet};

use libc::{EEXIST, ENOENT, ENOTEMPTY, O_APPEND, O_CREAT, O_EXCL, O_RDWR, O_WRONLY};
use serde::{Deserialize, Serialize};

use super::own::Wrong;
use crate::access_path::{AccessPath, errno_text};
use crate::call::{CallLockMode, LockKind, PathHandle};
use crate::rng::AcceptanceRng;

const TOKENS: u64 = 12;
const TOKEN_HOMES: u64 = 4;
const MOVERS: u64 = 3;
const MOVER_HOMES: u64 = 3;
const COUNTERS: [(LockKind, &str); 3] = [
    (LockKind::Flock, "/shared/flock"),
    (LockKind::Process, "/shared/process"),
    (LockKind::OpenFile, "/shared/open-file"),
];

/// The effects of a process in one round that must be found in the end.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SharedEffect {
    /// Records appended.
    pub appended: u64,
    /// Additions to each counter.
    pub added: [u64; 3],
    /// Files made in each moving directory.
    pub made: BTreeSet<(u64, String)>,
    /// Exclusive names won.
    pub won: Vec<u64>,
    /// Calls that were made again because the kernel said ESTALE.
    pub stale: u64,
}

/// The state that a process carries through a round.
#[derive(Debug, Default)]
pub struct RoundPart {
    /// Its work so far.
    pub done: SharedEffect,
    /// The log, once it is open.
    pub log: Option<PathHandle>,
    next_exclusive: u64,
    generation: u64,
}

/// One process's calls in the shared directories.
pub struct SharedCalls<'a> {
    access: &'a mut dyn AccessPath,
    worker: u64,
    round: u64,
    /// The state that it carries on.
    pub part: RoundPart,
}

impl<'a> SharedCalls<'a> {
    /// Goes on with `part`.
    pub fn new(access: &'a mut dyn AccessPath, worker: u64, round: u64, part: RoundPart) -> Self {
        Self { access, worker, round, part }
    }

    /// Makes one random call, or a few that belong together.
    ///
    /// # Errors
    /// An answer that cannot be.
    pub fn step(
        &mut self,
        rng: &mut AcceptanceRng,
        record: &mut dyn FnMut(String),
    ) -> Result<(), Wrong> {
        match rng.below(9) {
            0 => self.move_token(rng, record),
            1 => self.move_directory(rng, record),
            2 => self.make_in_moving(rng, record),
            3 => self.append(rng, record),
            4 => self.count(rng, record),
            5 => self.replace_current(record),
            6 => self.read_current(record),
            7 => self.make_exclusive(record),
            _ => self.come_and_go(rng, record),
        }
    }

    fn move_token(
        &mut self,
        rng: &mut AcceptanceRng,
        record: &mut dyn FnMut(String),
    ) -> Result<(), Wrong> {
        let (from, to) = (rng.below(TOKEN_HOMES), rng.below(TOKEN_HOMES));
        let token = rng.below(TOKENS);
        if from == to {
            return Ok(());
        }
        record(format!("move token {token} from {from} to {to}"));
        let (from, to) = (token_path(from, token), token_path(to, token));
        one_of(self.access.rename(&from, &to), &[ENOENT], "move a token")
    }

    fn move_directory(
        &mut self,
        rng: &mut AcceptanceRng,
        record: &mut dyn FnMut(String),
    ) -> Result<(), Wrong> {
        let (from, to) = (rng.below(MOVER_HOMES), rng.below(MOVER_HOMES));
        let mover = rng.below(MOVERS);
        if from == to {
            return Ok(());
        }
        record(format!("move directory {mover} from {from} to {to}"));
        let (from, to) = (mover_path(from, mover), mover_path(to, mover));
        let moved = self.rename_directory(&from, &to);
        one_of(moved, &[ENOENT], "move a directory")
    }

    /// On a mount, the kernel does not move on a directory that another client has moved while a
    /// file in it is open there. It does once it has looked the directory up; SEMANTICS.md says so.
    fn rename_directory(&mut self, from: &str, to: &str) -> Result<(), i32> {
        const TRIES_MAX: u32 = 5;
        let mut tries = 0;
        loop {
            tries += 1;
            match self.access.rename(from, to) {
                Err(libc::ESTALE) if tries < TRIES_MAX => {
                    self.part.done.stale += 1;
                    self.access.facts(from).map(drop)?;
                }
                moved => return moved,
            }
        }
    }

    fn make_in_moving(
        &mut self,
        rng: &mut AcceptanceRng,
        record: &mut dyn FnMut(String),
    ) -> Result<(), Wrong> {
        let (home, mover) = (rng.below(MOVER_HOMES), rng.below(MOVERS));
        let name = format!("w{}-{}", self.worker, self.part.done.made.len());
        record(format!("make {name} in directory {mover} at {home}"));
        let path = format!("{}/{name}", mover_path(home, mover));
        match self.access.open(&path, O_CREAT | O_EXCL | O_WRONLY) {
            Ok(file) => {
                self.part.done.made.insert((mover, name));
                self.access.write(file, 0, b"made").map_err(|errno| wrong("write", errno))?;
                self.access.close(file).map_err(|errno| wrong("close", errno))
            }
            Err(ENOENT) => Ok(()),
            Err(errno) => Err(wrong("make a file in a moving directory", errno)),
        }
    }

    fn append(
        &mut self,
        rng: &mut AcceptanceRng,
        record: &mut dyn FnMut(String),
    ) -> Result<(), Wrong> {
        let log = match self.part.log {
            Some(log) => log,
            None => {
                let log = self.access.open(&log_path(self.round), O_CREAT | O_APPEND | O_WRONLY);
                *self.part.log.insert(log.map_err(|errno| wrong("open the log", errno))?)
            }
        };
        let len = 20 + rng.below(1500) as usize;
        record(format!("append record {} with {len} bytes", self.part.done.appended));
        let mut line = format!("{} {} ", self.worker, self.part.done.appended);
        while line.len() < len {
            line.push('x');
        }
        line.push('\n');
        self.access.append(log, line.as_bytes()).map_err(|errno| wrong("append", errno))?;
        self.part.done.appended += 1;
        Ok(())
    }

    fn count(
        &mut self,
        rng: &mut AcceptanceRng,
        record: &mut dyn FnMut(String),
    ) -> Result<(), Wrong> {
        let index = rng.below(COUNTERS.len() as u64) as usize;
        let (kind, path) = COUNTERS[index];
        record(format!("add one under a lock: {kind:?}"));
        let told = |what: &'static str| move |errno| wrong(what, errno);
        let file = self.access.open(path, O_RDWR).map_err(told("open a counter"))?;
        if rng.one_in(2) {
            self.access.wait_lock(file, kind).map_err(told("wait for a lock"))?;
        } else if let Err(errno) = self.access.lock(file, kind, CallLockMode::Exclusive) {
            self.access.close(file).map_err(told("close a counter"))?;
            return one_of(Err(errno), &[libc::EAGAIN], "try a lock");
        }
        let text = self.access.read(file, 0, 20).map_err(told("read a counter"))?;
        let count = number(&text)?;
        let text = format!("{:020}", count + 1);
        self.access.write(file, 0, text.as_bytes()).map_err(told("write a counter"))?;
        self.part.done.added[index] += 1;
        if rng.one_in(2) {
            self.access.lock(file, kind, CallLockMode::Unlock).map_err(told("unlock"))?;
        }
        self.access.close(file).map_err(told("close a counter"))
    }

    fn replace_current(&mut self, record: &mut dyn FnMut(String)) -> Result<(), Wrong> {
        self.part.generation += 1;
        record(format!("replace the current file, generation {}", self.part.generation));
        let new = format!("/shared/new-{}", self.worker);
        let line = format!("{} {}\n", self.worker, self.part.generation);
        let content = line.repeat(1 + (self.part.generation as usize * 97) % 3000);
        self.access.put(&new, content.as_bytes()).map_err(|errno| wrong("put", errno))?;
        self.access.rename(&new, "/shared/current").map_err(|errno| wrong("replace", errno))
    }

    fn read_current(&mut self, record: &mut dyn FnMut(String)) -> Result<(), Wrong> {
        record("read the current file".into());
        let content = self.get_current().map_err(|errno| wrong("read the current file", errno))?;
        let content = String::from_utf8_lossy(&content);
        let mut lines = content.lines();
        let first = lines.next().ok_or("the current file is empty")?;
        let generation = first.split_once(' ').and_then(|(_, number)| number.parse().ok());
        let generation: usize = generation.ok_or_else(|| format!("current file: {first:?}"))?;
        let expected = if generation == 0 { 1 } else { 1 + (generation * 97) % 3000 };
        let count = 1 + lines.clone().count();
        if count != expected || lines.any(|line| line != first) {
            return Err(format!("current file: {count} lines of {first:?}, expected {expected}"));
        }
        Ok(())
    }

    /// On a mount, the kernel looks a name up and then opens what it found. It tries again when that has been replaced meanwhile,
    /// but only once; SEMANTICS.md says so.
    fn get_current(&mut self) -> Result<Vec<u8>, i32> {
        const TRIES_MAX: u32 = 20;
        let mut tries = 0;
        loop {
            tries += 1;
            match self.access.get("/shared/current") {
                Err(libc::ESTALE) if tries < TRIES_MAX => self.part.done.stale += 1,
                content => return content,
            }
        }
    }

    fn make_exclusive(&mut self, record: &mut dyn FnMut(String)) -> Result<(), Wrong> {
        let number = self.part.next_exclusive;
        self.part.next_exclusive += 1;
        record(format!("make exclusive {number}"));
        let path = format!("{}/{number}", exclusive_path(self.round));
        match self.access.open(&path, O_CREAT | O_EXCL | O_WRONLY) {
            Ok(file) => {
                self.part.done.won.push(number);
                self.access.close(file).map_err(|errno| wrong("close", errno))
            }
            Err(errno) => one_of(Err(errno), &[EEXIST], "make an exclusive name"),
        }
    }

    /// A directory that all make and remove, and files in it that their maker must find.
    fn come_and_go(
        &mut self,
        rng: &mut AcceptanceRng,
        record: &mut dyn FnMut(String),
    ) -> Result<(), Wrong> {
        const DIRECTORY: &str = "/shared/sometimes";
        match rng.below(3) {
            0 => {
                record("make the directory that comes and goes".into());
                one_of(self.access.mkdir(DIRECTORY), &[EEXIST], "mkdir")
            }
            1 => {
                record("remove the directory that comes and goes".into());
                one_of(self.access.rmdir(DIRECTORY), &[ENOENT, ENOTEMPTY], "rmdir")
            }
            _ => {
                record("make a file in the directory that comes and goes".into());
                let path = format!("{DIRECTORY}/w{}", self.worker);
                match self.access.open(&path, O_CREAT | O_EXCL | O_WRONLY) {
                    Ok(file) => {
                        self.access.close(file).map_err(|errno| wrong("close", errno))?;
                        let found = self.access.facts(&path).map(drop);
                        found.map_err(|errno| wrong("find a file in a directory", errno))?;
                        self.access.unlink(&path).map_err(|errno| wrong("unlink it", errno))
                    }
                    Err(errno) => one_of(Err(errno), &[ENOENT], "make a file there"),
                }
            }
        }
    }
}

/// Sets the shared directories up.
///
/// # Errors
/// It cannot.
pub fn set_up(access: &mut dyn AccessPath) -> Result<(), Wrong> {
    let told = |what: &'static str| move |errno| wrong(what, errno);
    access.mkdir("/shared").map_err(told("mkdir"))?;
    for home in 0..TOKEN_HOMES {
        access.mkdir(&format!("/shared/tokens{home}")).map_err(told("mkdir"))?;
    }
    for token in 0..TOKENS {
        let path = token_path(token % TOKEN_HOMES, token);
        access.put(&path, format!("token {token}").as_bytes()).map_err(told("put"))?;
    }
    for home in 0..MOVER_HOMES {
        access.mkdir(&format!("/shared/home{home}")).map_err(told("mkdir"))?;
    }
    for mover in 0..MOVERS {
        access.mkdir(&mover_path(mover % MOVER_HOMES, mover)).map_err(told("mkdir"))?;
    }
    for (_, path) in COUNTERS {
        access.put(path, b"").map_err(told("put"))?;
    }
    access.put("/shared/current", b"0 0\n").map_err(told("put"))
}

/// Makes what one round needs.
///
/// # Errors
/// It cannot.
pub fn begin_round(access: &mut dyn AccessPath, round: u64) -> Result<(), Wrong> {
    access.mkdir(&exclusive_path(round)).map_err(|errno| wrong("mkdir", errno))
}

/// Checks what all processes did in a round against what is there, and removes what only this round needed.
///
/// # Errors
/// Something is lost, doubled or mixed.
pub fn end_round(
    access: &mut dyn AccessPath,
    round: u64,
    done: &[SharedEffect],
) -> Result<(), Wrong> {
    check_tokens(access)?;
    check_moved(access, done)?;
    check_log(access, round, done)?;
    check_counters(access, done)?;
    check_exclusive(access, round, done)
}

fn check_tokens(access: &mut dyn AccessPath) -> Result<(), Wrong> {
    let mut seen = BTreeMap::new();
    for home in 0..TOKEN_HOMES {
        for name in list(access, &format!("/shared/tokens{home}"))? {
            let path = format!("/shared/tokens{home}/{name}");
            let content = access.get(&path).map_err(|errno| wrong(&path, errno))?;
            if content != format!("token {name}").as_bytes() {
                return Err(format!("{path}: has another token's content"));
            }
            if let Some(other) = seen.insert(name, home) {
                return Err(format!("{path}: is in directory {other}, too"));
            }
        }
    }
    if seen.len() as u64 == TOKENS {
        return Ok(());
    }
    Err(format!("tokens are lost: {seen:?} are there, of {TOKENS}"))
}

fn check_moved(access: &mut dyn AccessPath, done: &[SharedEffect]) -> Result<(), Wrong> {
    let made: BTreeSet<&(u64, String)> = done.iter().flat_map(|done| &done.made).collect();
    let (mut found, mut homes) = (BTreeSet::new(), BTreeMap::new());
    for home in 0..MOVER_HOMES {
        for name in list(access, &format!("/shared/home{home}"))? {
            let mover: u64 = name.parse().map_err(|_| format!("home {home} has {name:?}"))?;
            if let Some(other) = homes.insert(mover, home) {
                return Err(format!("directory {mover} is at {home} and at {other}"));
            }
            for file in list(access, &mover_path(home, mover))? {
                let path = format!("{}/{file}", mover_path(home, mover));
                let content = access.get(&path).map_err(|errno| wrong(&path, errno))?;
                if content != b"made" {
                    return Err(format!("{path}: {} bytes", content.len()));
                }
                access.unlink(&path).map_err(|errno| wrong(&path, errno))?;
                found.insert((mover, file));
            }
        }
    }
    if homes.len() as u64 != MOVERS {
        return Err(format!("directories are lost: {homes:?} are there, of {MOVERS}"));
    }
    let found: BTreeSet<&(u64, String)> = found.iter().collect();
    if found == made {
        return Ok(());
    }
    let lost: Vec<_> = made.difference(&found).collect();
    let extra: Vec<_> = found.difference(&made).collect();
    Err(format!("files in directories that moved: lost {lost:?}, not made {extra:?}"))
}

fn check_log(access: &mut dyn AccessPath, round: u64, done: &[SharedEffect]) -> Result<(), Wrong> {
    let path = log_path(round);
    let content = match access.get(&path) {
        Err(ENOENT) if done.iter().all(|done| done.appended == 0) => return Ok(()),
        content => content.map_err(|errno| wrong("read the log", errno))?,
    };
    let mut next = vec![0; done.len()];
    for (index, line) in String::from_utf8_lossy(&content).lines().enumerate() {
        let mut words = line.split(' ');
        let mut number = || words.next()?.parse::<u64>().ok();
        let (worker, record) = (number(), number());
        let place = worker.and_then(|worker| next.get_mut(worker as usize));
        match (place, record) {
            (Some(next), Some(record)) if *next == record => *next += 1,
            _ => {
                let line: String = line.chars().take(60).collect();
                return Err(format!("log, record {index}: {line:?} after {next:?} of each"));
            }
        }
    }
    let expected: Vec<u64> = done.iter().map(|done| done.appended).collect();
    if next != expected {
        return Err(format!("log: {next:?} records of each process, expected {expected:?}"));
    }
    access.unlink(&path).map_err(|errno| wrong("unlink the log", errno))
}

fn check_counters(access: &mut dyn AccessPath, done: &[SharedEffect]) -> Result<(), Wrong> {
    for (index, (kind, path)) in COUNTERS.iter().enumerate() {
        let text = access.get(path).map_err(|errno| wrong("read a counter", errno))?;
        let expected: u64 = done.iter().map(|done| done.added[index]).sum();
        let found = number(&text)?;
        if found != expected {
            return Err(format!("{found} additions under {kind:?} locks, expected {expected}"));
        }
        access.put(path, b"").map_err(|errno| wrong("reset a counter", errno))?;
    }
    Ok(())
}

fn check_exclusive(
    access: &mut dyn AccessPath,
    round: u64,
    done: &[SharedEffect],
) -> Result<(), Wrong> {
    let dir = exclusive_path(round);
    let mut won = BTreeSet::new();
    for number in done.iter().flat_map(|done| &done.won) {
        if !won.insert(number.to_string()) {
            return Err(format!("exclusive name {number} was won twice"));
        }
    }
    let found = list(access, &dir)?;
    if found.iter().collect::<BTreeSet<_>>() != won.iter().collect() {
        return Err(format!("exclusive names: {found:?} are there, won {won:?}"));
    }
    for name in found {
        access.unlink(&format!("{dir}/{name}")).map_err(|errno| wrong("unlink", errno))?;
    }
    access.rmdir(&dir).map_err(|errno| wrong("rmdir", errno))
}

fn token_path(home: u64, token: u64) -> String {
    format!("/shared/tokens{home}/{token}")
}

fn mover_path(home: u64, mover: u64) -> String {
    format!("/shared/home{home}/{mover}")
}

fn log_path(round: u64) -> String {
    format!("/shared/log{round}")
}

fn exclusive_path(round: u64) -> String {
    format!("/shared/exclusive{round}")
}

fn list(access: &mut dyn AccessPath, path: &str) -> Result<Vec<String>, Wrong> {
    access.list(path).map_err(|errno| wrong(&format!("list {path}"), errno))
}

fn number(text: &[u8]) -> Result<u64, Wrong> {
    let text = String::from_utf8_lossy(text);
    if text.is_empty() { Ok(0) } else { text.parse().map_err(|_| format!("counter {text:?}")) }
}

fn wrong(what: &str, errno: i32) -> Wrong {
    format!("{what}: {}", errno_text(errno))
}

fn one_of(found: Result<(), i32>, allowed: &[i32], what: &str) -> Result<(), Wrong> {
    match found {
        Err(errno) if !allowed.contains(&errno) => Err(wrong(what, errno)),
        _ => Ok(()),
    }
}
