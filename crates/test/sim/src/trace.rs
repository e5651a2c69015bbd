//! The events, as a number that two equal runs share, and as lines for people.

use std::fmt;
use std::time::Duration;

use xxhash_rust::xxh3::Xxh3;

/// The record of one run.
pub struct RunTrace {
    hasher: Xxh3,
    /// Lines; `None`: only the number is wanted.
    lines: Option<Vec<String>>,
    events: u64,
}

impl RunTrace {
    /// An empty record. `readable`: with lines.
    #[must_use]
    pub fn new(readable: bool) -> Self {
        Self { hasher: Xxh3::new(), lines: readable.then(Vec::new), events: 0 }
    }

    /// Notes an event. `bytes` tell it from other events.
    pub fn event(&mut self, now: Duration, bytes: &[u8]) {
        self.events += 1;
        self.hasher.update(&(now.as_nanos() as u64).to_le_bytes());
        self.hasher.update(bytes);
    }

    /// Whether lines are wanted; words for nobody cost time.
    #[must_use]
    pub const fn is_readable(&self) -> bool {
        self.lines.is_some()
    }

    /// Adds a line, if lines are wanted.
    pub fn line(&mut self, now: Duration, words: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.lines {
            lines.push(format!("{:>12.6} {}", now.as_secs_f64(), words()));
        }
    }

    /// The number of all events so far.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.hasher.digest()
    }

    /// How many events there were.
    #[must_use]
    pub const fn events(&self) -> u64 {
        self.events
    }

    /// The lines.
    #[must_use]
    pub fn into_lines(self) -> Vec<String> {
        self.lines.unwrap_or_default()
    }
}

impl fmt::Debug for RunTrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Trace({} events)", self.events)
    }
}
