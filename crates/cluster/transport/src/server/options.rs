//! Limits and times of an event loop.

use std::sync::Arc;
use std::time::Duration;

use samite_types::fault::FaultSwitch;

use super::refusal_log::RefusalLog;
use super::ticket_lives::TicketLives;
use crate::TlsFiles;

/// Limits of an event loop.
#[derive(Clone, Debug)]
pub struct LoopOptions {
    /// Most connections; further ones are refused.
    pub connections_max: usize,
    /// Most connections that have not proved who they are yet; a further one replaces the oldest.
    pub handshakes_max: usize,
    /// Time a peer has to prove who it is.
    pub handshake_timeout: Duration,
    /// Bytes of output queued for a peer before no more requests are taken from it.
    pub output_len_max: usize,
    /// Time after which a peer is dropped that takes no output, or stops in the middle of a frame.
    pub stall_timeout: Duration,
    /// Time after the last request over shared memory for which the loop polls before it sleeps, when that has paid lately.
    pub spin: Duration,
    /// Time between calls of [`NodeService::tick`](super::NodeService::tick); `None` for none.
    pub tick: Option<Duration>,
    /// The certificate that `tls://` listeners show; `None`: the key pair that comes of the cluster key.
    pub tls: Option<Arc<TlsFiles>>,
    /// The refusals that were logged lately. Loops of one node have it in common.
    pub refusals: Arc<RefusalLog>,
    /// The tickets that were renewed. Loops of one node have it in common, and with its service.
    pub ticket_lives: Arc<TicketLives>,
    /// The node's faults; `None`: it never has any.
    pub faults: Option<Arc<FaultSwitch>>,
}

impl Default for LoopOptions {
    fn default() -> Self {
        Self {
            connections_max: 4096,
            handshakes_max: 64,
            handshake_timeout: Duration::from_secs(5),
            output_len_max: 1 << 20,
            stall_timeout: Duration::from_secs(30),
            // Longer than a client takes to copy 1 MiB, so that it finds the loop awake when it asks for the next.
            spin: Duration::from_micros(200),
            tick: None,
            tls: None,
            refusals: Arc::default(),
            ticket_lives: Arc::default(),
            faults: None,
        }
    }
}
