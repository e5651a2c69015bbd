//! The kernel's cached answers: how long it may use them.
//!
//! The nodes grant delegations on records that were looked up, and recall them before they let
//! another client change the record (`recalls.rs`). The kernel is told to keep an answer for less
//! than the delegation lasts.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use samite_fs::{DelegationStamp, FileSystem, RecordOf};

use crate::directories::{CachedAnswer, DirectoryCache};

/// How much of a delegation has to be left for the kernel to rely on an answer.
pub const LEFT_MIN: Duration = Duration::from_secs(2);
/// How long before the end of the delegation the kernel stops relying on an answer: for the time
/// that the answer takes on its way into the kernel.
const SLACK: Duration = Duration::from_secs(1);
/// Most inodes whose attributes the kernel is let keep by the name they live in: more than a listing can tell of before they are
/// forgotten, about 30 MB.
const KEPT_MAX: usize = 1 << 18;
/// For how long they are known: longer than any delegation lasts.
const KEPT_FOR: Duration = Duration::from_secs(4);
/// Time between two sweeps of names that need not be known any more.
const SWEEP_EVERY: Duration = Duration::from_millis(200);
/// Directory and name → inode number, and until when.
type Names = HashMap<(u64, Box<[u8]>), (u64, Instant)>;

/// Where inodes live whose attributes the kernel keeps.
#[derive(Default)]
struct KernelInode {
    names: Names,
    /// When it was last looked for names whose time has ended.
    swept: Option<Instant>,
}

impl KernelInode {
    /// Whether one more has room.
    fn has_room(&mut self, now: Instant) -> bool {
        if self.names.len() >= KEPT_MAX
            && self.swept.is_none_or(|swept| now.saturating_duration_since(swept) >= SWEEP_EVERY)
        {
            self.swept = Some(now);
            self.names.retain(|_, (_, until)| *until > now);
        }
        self.names.len() < KEPT_MAX
    }
}

/// The answers that the kernel may keep.
pub struct KernelCache {
    fs: FileSystem,
    is_on: bool,
    /// Read-locked from the check of a delegation until the kernel has its answer. A thread that
    /// has heard of recalls takes the write lock, once: then all answers that relied on those
    /// delegations are in the kernel, where they can be invalidated.
    gate: RwLock<()>,
    kept: Mutex<KernelInode>,
    /// Attributes that the kernel asks for after each change of its own.
    pub directories: DirectoryCache,
}

/// The ground on which an answer is valid.
#[derive(Clone, Copy, Debug)]
pub enum AnswerBasis {
    /// A delegation of the nodes.
    Delegation(DelegationStamp),
    /// Attributes in the directory cache.
    Directory(CachedAnswer),
}

/// The answers that the kernel has to forget after a recall.
#[derive(Debug, PartialEq, Eq)]
pub struct RecalledAnswers {
    /// Names are among them.
    pub has_names: bool,
    /// The inodes whose attributes are among them.
    pub inos: Vec<u64>,
}

impl KernelCache {
    /// For a mount of `fs`; the kernel keeps nothing unless it `is_on`.
    pub fn new(fs: FileSystem, is_on: bool) -> Self {
        Self {
            fs,
            is_on,
            gate: RwLock::default(),
            kept: Mutex::default(),
            directories: DirectoryCache::default(),
        }
    }

    /// Whether the kernel keeps anything at all.
    pub const fn is_on(&self) -> bool {
        self.is_on
    }

    /// Sends an answer that relies on delegations: `send` is given how long each may be relied on.
    pub fn answer<const N: usize>(
        &self,
        relied: [Option<AnswerBasis>; N],
        send: impl FnOnce([Duration; N]),
    ) {
        self.answer_many(|left| send(relied.map(left)));
    }

    /// Sends an answer that relies on many: `send` asks how long each may be relied on, and must ask no node for anything.
    pub fn answer_many(&self, send: impl FnOnce(&dyn Fn(Option<AnswerBasis>) -> Duration)) {
        let _gate = self.gate.read().unwrap_or_else(PoisonError::into_inner);
        send(&|relied| match relied.and_then(|relied| self.left(relied)) {
            Some(left) if left >= LEFT_MIN => left.saturating_sub(SLACK),
            _ => Duration::ZERO,
        });
    }

    fn left(&self, relied: AnswerBasis) -> Option<Duration> {
        match relied {
            AnswerBasis::Delegation(delegation) => delegation.left(&self.fs),
            AnswerBasis::Directory(standing) => self.directories.left(standing),
        }
    }

    /// The kernel is about to be let keep attributes of inode `ino`, which lives in `record`. False: it must not.
    pub fn keeps(&self, record: Option<RecordOf>, ino: u64) -> bool {
        match record {
            Some(RecordOf::Inode(_)) => true,
            Some(RecordOf::Name { parent, name }) => {
                let (now, mut kept) = (Instant::now(), self.lock());
                let has_room = kept.has_room(now);
                if has_room {
                    kept.names.insert((parent, name), (ino, now + KEPT_FOR));
                }
                has_room
            }
            None => false,
        }
    }

    /// The inode whose attributes the kernel may keep by this record.
    fn ino_of(&self, record: RecordOf) -> Option<u64> {
        match record {
            RecordOf::Inode(ino) => Some(ino),
            RecordOf::Name { parent, name } => {
                self.lock().names.remove(&(parent, name)).map(|(ino, _)| ino)
            }
        }
    }

    /// The delegations on these records are recalled: no answer may rely on them any more. Returns
    /// when all that did are in the kernel; says what the kernel has to forget then.
    pub fn recalled(&self, records: Vec<RecordOf>) -> RecalledAnswers {
        let has_names = records.iter().any(|record| matches!(record, RecordOf::Name { .. }));
        let inos: Vec<u64> = records.into_iter().filter_map(|record| self.ino_of(record)).collect();
        // Before the lock is taken: an answer that locks it later relies on this no more.
        inos.iter().for_each(|ino| self.directories.forget(*ino));
        drop(self.gate.write().unwrap_or_else(PoisonError::into_inner));
        RecalledAnswers { has_names, inos }
    }

    fn lock(&self) -> MutexGuard<'_, KernelInode> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
