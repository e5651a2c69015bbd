//! What a process sees of the world.

use std::any::Any;
use std::collections::BTreeMap;
use std::time::Duration;

use samite_log::memory::MemoryDisk;

use crate::audit::Audit;
use crate::history::History;
use crate::message::Message;
use crate::net::Place;
use crate::rng::Rng;
use crate::trace::Trace;

/// A process: a node, a client, a coordinator, the store.
pub trait Process: Any {
    /// It has just been started.
    fn start(&mut self, context: &mut Context<'_>);
    /// A message has come.
    fn receive(&mut self, from: Place, message: Message, context: &mut Context<'_>);
    /// Its connection to `peer` is broken, or could not be made.
    fn broken(&mut self, peer: Place, context: &mut Context<'_>);
    /// The time that it asked to be woken at has come.
    fn wake(&mut self, context: &mut Context<'_>);
    /// It dies now, whatever it was doing with its disk.
    fn die(&mut self, _: &mut Rng, _: &mut Disk) {}
}

/// What outlives a process.
#[derive(Debug)]
pub struct Disk {
    /// Small files, each of which is replaced whole or appended to, and never lost unless the disk is.
    pub files: BTreeMap<&'static str, Vec<u8>>,
    /// A disk that loses what was not synced.
    pub flash: MemoryDisk,
}

/// What a process may use while it acts.
pub struct Context<'w> {
    /// Its own clock, which never goes back.
    pub now: Duration,
    /// The world's clock; only for what observers note.
    pub world_now: Duration,
    /// Chance.
    pub rng: &'w mut Rng,
    /// Its disk.
    pub disk: &'w mut Disk,
    /// What clients did.
    pub history: &'w mut History,
    /// What observers noticed.
    pub audit: &'w mut Audit,
    /// Words for people.
    pub trace: &'w mut Trace,
    /// Where it runs.
    pub place: Place,
    pub(crate) sends: Vec<(Place, Message)>,
    pub(crate) wake: Option<Duration>,
}

impl Context<'_> {
    /// Sends a message.
    pub fn send(&mut self, to: Place, message: Message) {
        self.sends.push((to, message));
    }

    /// Asks to be woken at this time of its own clock, or earlier.
    pub fn wake_at(&mut self, at: Duration) {
        self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
    }

    /// Notes a decision.
    pub fn note(&mut self, words: impl FnOnce() -> String) {
        let place = self.place;
        self.trace.line(self.world_now, || format!("{place}: {}", words()));
    }
}
