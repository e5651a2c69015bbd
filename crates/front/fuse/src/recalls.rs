//! Recalls of delegations: the kernel forgets the answers that relied on them.
//!
//! One thread for each node hears of the recalls, makes the kernel forget the answers, and only
//! then gives the delegation back: so no program sees anything older than the store's state.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fuser::{INodeNo, Notifier};
use samite_client::RecallListener;
use samite_types::NodeId;

use crate::caching::RecalledAnswers;
use crate::ops::FuseOperations;

/// How long a question to a node stays open.
const LISTEN: Duration = Duration::from_secs(1);
/// Pause before a node is asked again that does not answer.
const RETRY: Duration = Duration::from_millis(100);
/// How long an answer that has left may take to become an inode in the kernel.
const ARRIVAL: Duration = Duration::from_millis(50);

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
        if !ops.caching.is_on() {
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
    let of = |key: &[u8]| ops.fs.record_of(key);
    let records = records.iter().filter_map(|record| of(&record.key)).collect();
    let RecalledAnswers { has_names, inos } = ops.caching.recalled(records);
    if has_names {
        // It can fail only for a mount that is over.
        let _ = kernel.forget_names();
    }
    for ino in inos {
        kernel.forget_attributes(ino, || ops.nodes.knows(ino));
    }
    Ok(())
}
