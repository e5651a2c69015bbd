//! The simulated network: which process hears which message, when, how often.
//!
//! Links behave like connections (messages from one to another arrive in order, once) until a fault
//! says otherwise. A process that dies breaks its connections: the other end hears of it, unless a
//! cut keeps that from it, too. A message that is damaged ends its connection for both ends;
//! messages under way by it are lost, and later ones go by a new one.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::message::SimMessage;
use crate::rng::SimRng;

/// Where a process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ProcessPlace {
    /// A node, by its id.
    Node(u32),
    /// An instance of the coordinator.
    Coordinator(u32),
    /// The store in which the coordinator keeps the map.
    Store,
    /// A client.
    Client(u32),
}

impl fmt::Display for ProcessPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(id) => write!(f, "n{id}"),
            Self::Coordinator(id) => write!(f, "k{id}"),
            Self::Store => f.write_str("store"),
            Self::Client(id) => write!(f, "c{id}"),
        }
    }
}

/// How well links work. Chances are in a thousand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkQuality {
    /// A message is lost.
    pub loss: u16,
    /// A message comes twice.
    pub duplicate: u16,
    /// A message does not wait for those before it, and takes up to ten times as long.
    pub reorder: u16,
    /// A message is damaged on its way, or a reset comes in its place.
    pub corrupt: u16,
    /// Longest way, in microseconds; the shortest is a tenth of it.
    pub latency_us: u32,
}

impl LinkQuality {
    /// A quick network that loses nothing.
    pub const GOOD: Self = Self { loss: 0, duplicate: 0, reorder: 0, corrupt: 0, latency_us: 500 };
}

/// The costs of messages, when they count. Faults aside, it takes the place of a latency by chance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MessageCost {
    /// The way of the first byte.
    pub latency: Duration,
    /// Bytes that a place can send, and can receive, in a second.
    pub bytes_per_s: f64,
    /// The work of a place for each message that it sends or receives.
    pub per_message: Duration,
    /// How many bytes each byte of payload between members counts for.
    pub peer_payload_factor: usize,
    /// The bytes of answers of the coordinator count, which are maps for the most part.
    pub counts_maps: bool,
}

/// When a place is done with the messages that it has to send, and with those that it has received.
#[derive(Clone, Copy, Debug, Default)]
struct PlaceLoad {
    sends: Duration,
    receives: Duration,
}

/// Bytes of a message beside its body and payload.
const FRAME_LEN: usize = 32;

/// All links.
#[derive(Debug)]
pub struct SimNetwork {
    rng: SimRng,
    quality: LinkQuality,
    /// How many cuts are on each ordered pair.
    cuts: BTreeMap<(ProcessPlace, ProcessPlace), u32>,
    /// When the last message in order arrives, for each ordered pair.
    last: BTreeMap<(ProcessPlace, ProcessPlace), Duration>,
    cost: Option<MessageCost>,
    loads: BTreeMap<ProcessPlace, PlaceLoad>,
}

impl SimNetwork {
    /// A good network.
    #[must_use]
    pub const fn new(rng: SimRng, quality: LinkQuality) -> Self {
        Self {
            rng,
            quality,
            cuts: BTreeMap::new(),
            last: BTreeMap::new(),
            cost: None,
            loads: BTreeMap::new(),
        }
    }

    /// How many bytes a message counts for.
    #[must_use]
    pub fn len_of(&self, message: &SimMessage) -> usize {
        let (_, body, payload) = message.parts();
        match (message, &self.cost) {
            (SimMessage::Peer { .. }, Some(cost)) => {
                body.len() + payload.len() * cost.peer_payload_factor
            }
            (SimMessage::ControlReply { .. }, Some(MessageCost { counts_maps: false, .. })) => 0,
            _ => body.len() + payload.len(),
        }
    }

    /// From now on messages cost that.
    pub const fn set_cost(&mut self, cost: MessageCost) {
        self.cost = Some(cost);
    }

    /// From now on all links are so.
    pub const fn set_quality(&mut self, quality: LinkQuality) {
        self.quality = quality;
    }

    /// Nothing from `from` reaches `to` until [`Self::mend`] was called as often.
    pub fn cut(&mut self, from: ProcessPlace, to: ProcessPlace) {
        *self.cuts.entry((from, to)).or_default() += 1;
    }

    /// Takes a cut back.
    pub fn mend(&mut self, from: ProcessPlace, to: ProcessPlace) {
        if let Some(cuts) = self.cuts.get_mut(&(from, to)) {
            *cuts = cuts.saturating_sub(1);
        }
    }

    /// Takes all cuts back, and makes the links good.
    pub fn heal(&mut self) {
        self.cuts.clear();
        self.quality = LinkQuality::GOOD;
    }

    /// Whether messages of `from` reach `to`.
    #[must_use]
    pub fn reaches(&self, from: ProcessPlace, to: ProcessPlace) -> bool {
        self.cuts.get(&(from, to)).is_none_or(|cuts| *cuts == 0)
    }

    /// When a message of `len` bytes that is sent now arrives: not at all, once or twice.
    pub fn deliveries(
        &mut self,
        now: Duration,
        from: ProcessPlace,
        to: ProcessPlace,
        len: usize,
    ) -> [Option<Duration>; 2] {
        if let Some(cost) = self.cost {
            return [self.reaches(from, to).then(|| self.carry(&cost, now, from, to, len)), None];
        }
        let LinkQuality { loss, duplicate, reorder, latency_us, .. } = self.quality;
        if !self.reaches(from, to) || self.rng.chance(loss.into()) {
            return [None, None];
        }
        let latency = u64::from(latency_us);
        let hurries = self.rng.chance(reorder.into());
        let first = if hurries {
            now + self.rng.micros(latency / 10, latency * 10)
        } else {
            let last = self.last.get(&(from, to)).copied().unwrap_or_default();
            let arrival = last.max(now + self.rng.micros(latency / 10, latency));
            self.last.insert((from, to), arrival);
            arrival
        };
        let second = self.rng.chance(duplicate.into()).then(|| {
            let late = self.rng.chance(200);
            first + self.rng.micros(0, if late { 2_000_000 } else { latency * 4 })
        });
        [Some(first), second]
    }

    /// Sender and receiver each handle one message at a time, and each byte takes its time at both ends.
    fn carry(
        &mut self,
        cost: &MessageCost,
        now: Duration,
        from: ProcessPlace,
        to: ProcessPlace,
        len: usize,
    ) -> Duration {
        let bytes = Duration::from_secs_f64((len + FRAME_LEN) as f64 / cost.bytes_per_s);
        let sender = self.loads.entry(from).or_default();
        let begun = sender.sends.max(now) + cost.per_message;
        sender.sends = begun + bytes;
        let receiver = self.loads.entry(to).or_default();
        receiver.receives = receiver.receives.max(begun + cost.latency) + bytes + cost.per_message;
        receiver.receives
    }

    /// Whether a message that gets to `to` now is damaged on its way. That ends the connection for both ends, with all that is under way by it.
    pub fn damages(&mut self, from: ProcessPlace, to: ProcessPlace) -> bool {
        let corrupt = self.quality.corrupt;
        corrupt > 0 && self.reaches(from, to) && self.rng.chance(corrupt.into())
    }

    /// When `to` hears that its connection to `from` is broken; `None`: it does not.
    pub fn break_reaches(
        &mut self,
        now: Duration,
        from: ProcessPlace,
        to: ProcessPlace,
    ) -> Option<Duration> {
        let hears = self.reaches(from, to) && self.reaches(to, from);
        let latency = u64::from(self.quality.latency_us);
        hears.then(|| now + self.rng.micros(latency / 10, latency))
    }
}
