//! Limits the log lines about strangers.
//!
//! Anyone who can open a socket can be refused as often as he likes. Each time is worth a line, but
//! not the disk: beyond some in a minute they are counted, and the count is told with the first one
//! of a later minute.

use std::fmt;
use std::time::Duration;

/// Lines in a minute.
const LINES: u32 = 20;
const MINUTE: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct LogRation {
    /// When the minute began.
    since: Duration,
    said: u32,
    left_out: u64,
}

/// A line may be written; how many were not, before it.
pub(super) struct RationedLine {
    left_out: u64,
}

impl LogRation {
    /// At `now` on the monotonic clock there is something to say.
    pub(super) fn line(&mut self, now: Duration) -> Option<RationedLine> {
        if now.saturating_sub(self.since) >= MINUTE || self.said == 0 {
            *self = Self { since: now, said: 0, left_out: self.left_out };
        }
        if self.said >= LINES {
            self.left_out += 1;
            return None;
        }
        self.said += 1;
        Some(RationedLine { left_out: std::mem::take(&mut self.left_out) })
    }
}

impl fmt::Display for RationedLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.left_out {
            0 => Ok(()),
            count => write!(f, " (and {count} more like this, which are not in the log)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_counted_and_told_later() {
        let mut ration = LogRation::default();
        let at = |ms| Duration::from_secs(7) + Duration::from_millis(ms);
        let said = (0..30_000).filter_map(|ms| ration.line(at(ms))).count();
        assert_eq!(said, LINES as usize);
        let line = ration.line(at(60_000)).unwrap().to_string();
        assert!(line.contains("29980 more"), "{line}");
        assert_eq!(ration.line(at(60_001)).unwrap().to_string(), "");
    }
}
