//! Frames that are late on purpose.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use samite_wire::frame::CheckedHeader;

use super::conn_id::ConnId;

/// Most delayed frames in one event loop, and most bytes of them. A frame that finds no room is not
/// late.
const FRAMES_MAX: usize = 4096;
const BYTES_MAX: usize = 64 << 20;

/// A frame that is late.
#[derive(Debug)]
pub(super) enum DelayedItem {
    /// A frame to send.
    Output {
        /// The whole frame.
        frame: Vec<u8>,
        /// It goes by a ring.
        by_ring: bool,
    },
    /// A request to serve.
    Input {
        /// Its header.
        header: CheckedHeader,
        /// Body and payload.
        content: Vec<u8>,
    },
}

/// A late frame.
#[derive(Debug)]
pub(super) struct DelayedFrame {
    pub(super) conn: ConnId,
    pub(super) what: DelayedItem,
}

impl DelayedFrame {
    fn len(&self) -> usize {
        match &self.what {
            DelayedItem::Output { frame, .. } => frame.len(),
            DelayedItem::Input { content, .. } => content.len(),
        }
    }
}

/// In the heap by time, and then by order.
#[derive(Debug)]
struct DelayedEntry {
    key: Reverse<(Duration, u64)>,
    held: DelayedFrame,
}

impl PartialEq for DelayedEntry {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for DelayedEntry {}

impl PartialOrd for DelayedEntry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for DelayedEntry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key.cmp(&other.key)
    }
}

/// All late frames of an event loop.
#[derive(Debug, Default)]
pub(super) struct DelayQueue {
    entries: BinaryHeap<DelayedEntry>,
    len: usize,
    serial: u64,
}

impl DelayQueue {
    /// Keeps a frame until `due`; gives it back when there is no room.
    pub(super) fn delay(&mut self, due: Duration, held: DelayedFrame) -> Result<(), DelayedFrame> {
        if self.entries.len() == FRAMES_MAX || self.len + held.len() > BYTES_MAX {
            return Err(held);
        }
        self.len += held.len();
        self.serial += 1;
        self.entries.push(DelayedEntry { key: Reverse((due, self.serial)), held });
        Ok(())
    }

    /// When the next one is due.
    pub(super) fn next(&self) -> Option<Duration> {
        self.entries.peek().map(|entry| entry.key.0.0)
    }

    /// A frame that is due.
    pub(super) fn take(&mut self, now: Duration) -> Option<DelayedFrame> {
        if self.next()? > now {
            return None;
        }
        let held = self.entries.pop()?.held;
        self.len -= held.len();
        Some(held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(byte: u8, len: usize) -> DelayedFrame {
        let what = DelayedItem::Output { frame: vec![byte; len], by_ring: false };
        DelayedFrame { conn: ConnId::new(1, 0), what }
    }

    fn byte(held: &DelayedFrame) -> u8 {
        match &held.what {
            DelayedItem::Output { frame, .. } => frame[0],
            DelayedItem::Input { .. } => 0,
        }
    }

    #[test]
    fn frames_come_out_in_time_and_then_in_order() {
        let mut holdup = DelayQueue::default();
        for (due, number) in [(30, 1), (10, 2), (20, 3), (10, 4)] {
            assert!(holdup.delay(Duration::from_millis(due), frame(number, 8)).is_ok());
        }
        assert_eq!(holdup.next(), Some(Duration::from_millis(10)));
        assert!(holdup.take(Duration::from_millis(9)).is_none());
        let all: Vec<u8> = std::iter::from_fn(|| holdup.take(Duration::from_secs(1)))
            .map(|held| byte(&held))
            .collect();
        assert_eq!(all, [2, 4, 3, 1]);
    }

    #[test]
    fn there_is_room_for_so_many() {
        let mut holdup = DelayQueue::default();
        for _ in 0..FRAMES_MAX {
            assert!(holdup.delay(Duration::ZERO, frame(0, 1)).is_ok());
        }
        assert!(holdup.delay(Duration::ZERO, frame(0, 1)).is_err());
        while holdup.take(Duration::ZERO).is_some() {}
        assert_eq!(holdup.len, 0);
        assert!(holdup.delay(Duration::ZERO, frame(0, BYTES_MAX + 1)).is_err());
    }
}
