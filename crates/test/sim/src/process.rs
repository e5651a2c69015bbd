//! The view that a process has of the world.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use samite_backend::memory_rows::MemoryRows;
use samite_log::memory::MemoryDisk;

use crate::audit::AuditSet;
use crate::history::CallHistory;
use crate::message::SimMessage;
use crate::net::ProcessPlace;
use crate::rng::SimRng;
use crate::trace::RunTrace;

/// A process: a node, a client, a coordinator, the store.
pub trait SimProcess: Any {
    /// It has just been started.
    fn start(&mut self, context: &mut ProcessContext<'_>);
    /// A message has come.
    fn receive(
        &mut self,
        from: ProcessPlace,
        message: SimMessage,
        context: &mut ProcessContext<'_>,
    );
    /// Its connection to `peer` is broken, or could not be made.
    fn broken(&mut self, peer: ProcessPlace, context: &mut ProcessContext<'_>);
    /// The time that it asked to be woken at has come.
    fn wake(&mut self, context: &mut ProcessContext<'_>);
    /// It dies now, whatever it was doing with its disk.
    fn die(&mut self, _: &mut SimRng, _: &mut SimDisk) {}
}

/// The state that outlives a process.
#[derive(Debug)]
pub struct SimDisk {
    /// Small files, each of which is replaced whole or appended to, and never lost unless the disk is.
    pub files: BTreeMap<&'static str, Vec<u8>>,
    /// A disk that loses bytes that were not synced.
    pub flash: MemoryDisk,
    /// The rows of a target that remembers.
    pub rows: Arc<MemoryRows>,
}

/// The means of a process while it acts.
pub struct ProcessContext<'w> {
    /// Its own clock, which never goes back.
    pub now: Duration,
    /// The world's clock; only for the notes of observers.
    pub world_now: Duration,
    /// Chance.
    pub rng: &'w mut SimRng,
    /// Its disk.
    pub disk: &'w mut SimDisk,
    /// The calls of clients.
    pub history: &'w mut CallHistory,
    /// The observations of observers.
    pub audit: &'w mut AuditSet,
    /// Words for people.
    pub trace: &'w mut RunTrace,
    /// Where it runs.
    pub place: ProcessPlace,
    pub(crate) sends: Vec<(ProcessPlace, SimMessage)>,
    pub(crate) wake: Option<Duration>,
    pub(crate) is_stopped: bool,
}

impl ProcessContext<'_> {
    /// Sends a message.
    pub fn send(&mut self, to: ProcessPlace, message: SimMessage) {
        self.sends.push((to, message));
    }

    /// Asks to be woken at this time of its own clock, or earlier.
    pub fn wake_at(&mut self, at: Duration) {
        self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
    }

    /// Ends the process after this, as if it had crashed; it is started again.
    pub fn stop(&mut self, words: &str) {
        self.note(|| format!("stops: {words}"));
        self.is_stopped = true;
    }

    /// Notes a decision.
    pub fn note(&mut self, words: impl FnOnce() -> String) {
        let place = self.place;
        self.trace.line(self.world_now, || format!("{place}: {}", words()));
    }
}
