//! The kernel's cached answers: how long it may use them, and how they are invalidated.
//!
//! The nodes grant delegations on records that were looked up, and recall them before they let
//! another client change the record. The kernel is told to keep an answer for less than the
//! delegation lasts. One thread for each node hears of the recalls, makes the kernel forget the
//! answers, and only then gives the delegation back: so no program sees anything older than the
//! store's state.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use fuser::{INodeNo, Notifier};
use samite_client::RecallListener;
use samite_fs::{DelegationStamp, FileSystem, RecordOf};
use samite_types::NodeId;

use crate::directories::{CachedAnswer, DirectoryCache};
use crate::ops::FuseOperations;

/// How much of a delegation has to be left for the kernel to rely on an answer.
pub const LEFT_MIN: Duration = Duration::from_secs(2);
/// How long before the end of the delegation the kernel stops relying on an answer: for the time
/// that the answer takes on its way into the kernel.
const SLACK: Duration = Duration::from_secs(1);
/// How long a question to a node stays open.
const LISTEN: Duration = Duration::from_secs(1);
/// Pause before a node is asked again that does not answer.
const RETRY: Duration = Duration::from_millis(100);
/// Most inodes whose attributes the kernel is let keep by the name they live in: more than a listing can tell of before they are
/// forgotten, about 30 MB.
const KEPT_MAX: usize = 1 << 18;
/// For how long they are known: longer than any delegation lasts.
const KEPT_FOR: Duration = Duration::from_secs(4);
/// Time between two sweeps of names that need not be known any more.
const SWEEP_EVERY: Duration = Duration::from_millis(200);
/// How long an answer that has left may take to become an inode in the kernel.
const ARRIVAL: Duration = Duration::from_millis(50);

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
    Promise(DelegationStamp),
    /// Attributes in the directory cache.
    Directory(CachedAnswer),
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
            AnswerBasis::Promise(promise) => promise.left(&self.fs),
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

    fn lock(&self) -> MutexGuard<'_, KernelInode> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes the kernel forget.
struct KernelNotifier {
    notifier: Notifier,
    /// Its device.
    device: OwnedFd,
}

impl KernelNotifier {
    /// Names mean nothing any more until they were looked up again.
    fn forget_names(&self) -> io::Result<()> {
        /// Length, code and number of the message, as `struct fuse_out_header` has them.
        const MESSAGE_LEN: u32 = 16;
        /// `FUSE_NOTIFY_INC_EPOCH`, since Linux 6.16.
        const INC_EPOCH: i32 = 8;
        let mut message = [0; MESSAGE_LEN as usize];
        message[..4].copy_from_slice(&MESSAGE_LEN.to_ne_bytes());
        message[4..8].copy_from_slice(&INC_EPOCH.to_ne_bytes());
        rustix::io::write(&self.device, &message)?;
        Ok(())
    }

    /// Whether the kernel knows how to forget names that way.
    fn can_forget_names(&self) -> bool {
        self.forget_names().is_ok()
    }

    /// The attributes of an inode have to be asked for again. An inode that the kernel has been
    /// told of may still be on its way there.
    fn forget_attributes(&self, ino: u64, is_known: impl Fn() -> bool) {
        let end = Instant::now() + ARRIVAL;
        while let Err(error) = self.notifier.inval_inode(INodeNo(ino), -1, 0) {
            let is_missing = error.kind() == io::ErrorKind::NotFound;
            if !is_missing || !is_known() || Instant::now() >= end {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Listens to the nodes for as long as it lives.
pub struct RecallThread {
    is_over: Arc<AtomicBool>,
}

impl Drop for RecallThread {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

impl RecallThread {
    /// Begins to listen for recalls, on one thread for each node. Without it nodes grant no
    /// delegation that the kernel could rely on.
    ///
    /// # Errors
    /// A thread or descriptor cannot be had.
    pub fn begin(
        ops: &Arc<FuseOperations>,
        notifier: &Notifier,
        device: &impl std::os::fd::AsFd,
    ) -> io::Result<Self> {
        let is_over = Arc::new(AtomicBool::new(false));
        let listening = Self { is_over: Arc::clone(&is_over) };
        if !ops.caching.is_on {
            return Ok(listening);
        }
        let map = ops.fs.client().map().map_err(io::Error::other)?;
        for node in map.nodes() {
            let kernel = KernelNotifier {
                notifier: notifier.clone(),
                device: device.as_fd().try_clone_to_owned()?,
            };
            if !kernel.can_forget_names() {
                tracing::info!("this kernel cannot be told to forget names: nothing is cached");
                return Ok(listening);
            }
            let (ops, is_over, node) = (Arc::clone(ops), Arc::clone(&is_over), node.node);
            std::thread::Builder::new()
                .name(format!("revoke-{}", node.get()))
                .spawn(move || listen(&ops, &kernel, node, &is_over))?;
        }
        Ok(listening)
    }
}

fn listen(ops: &FuseOperations, kernel: &KernelNotifier, node: NodeId, is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) {
        let heard = ops.fs.client().revocations(node).and_then(|mut revocations| {
            while !is_over.load(Ordering::Relaxed) {
                hear(ops, kernel, &mut revocations)?;
            }
            Ok(())
        });
        if let Err(error) = heard {
            // Its delegations run out, and it grants no more until it is listened to again.
            tracing::debug!(%error, %node, "listen for revocations");
            std::thread::sleep(RETRY);
        }
    }
}

/// Hears of one batch of recalls, and has the kernel forget the answers that relied on them.
fn hear(
    ops: &FuseOperations,
    kernel: &KernelNotifier,
    revocations: &mut RecallListener,
) -> samite_types::Result<()> {
    let records = revocations.next(LISTEN)?;
    if records.is_empty() {
        return Ok(());
    }
    let caching = &ops.caching;
    let of = |record| caching.fs.record_of(record);
    let records: Vec<RecordOf> = records.iter().filter_map(|record| of(&record.key)).collect();
    let has_names = records.iter().any(|record| matches!(record, RecordOf::Name { .. }));
    let inos: Vec<u64> = records.into_iter().filter_map(|record| caching.ino_of(record)).collect();
    // Before the lock is taken: an answer that locks it later relies on this no more.
    inos.iter().for_each(|ino| caching.directories.forget(*ino));
    drop(caching.gate.write().unwrap_or_else(PoisonError::into_inner));
    if has_names {
        // It can fail only for a mount that is over.
        let _ = kernel.forget_names();
    }
    for ino in inos {
        kernel.forget_attributes(ino, || ops.nodes.knows(ino));
    }
    Ok(())
}
