//! Comparing copies at rest, and mending those that differ.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::time::Duration;

use samite_types::Result;
use samite_wire::peer::Event;

use super::resync::pieces_of;
use super::sink::travelling;
use super::source::copy_some;
use super::{Mirrored, digest};
use crate::Key;

/// Most bytes of records in one comparison and in one repair, and most records in a repair.
const LEN_MAX: usize = 256 << 10;
const RECORDS_MAX: usize = 1024;

impl Mirrored {
    /// Compares the records behind `after`, at most `count` of them, with those of the other members, which are mended where they differ. Returns the last key; `None` at
    /// the end.
    ///
    /// # Errors
    /// Those of the store.
    pub fn scrub_step(&mut self, after: &[u8], count: usize, now: Duration) -> Result<Option<Key>> {
        if !self.is_primary() || self.is_stuffed(now) {
            return Ok(None);
        }
        let (mut upto, mut left, mut len) = (Key::default(), count.max(1), 0);
        let mut is_over = true;
        self.partition.visit_records(after, &mut |key, meta| {
            if left == 0 || len > LEN_MAX {
                is_over = false;
                return ControlFlow::Break(());
            }
            left -= 1;
            len += key.len() + meta.len as usize;
            upto = key.into();
            ControlFlow::Continue(())
        })?;
        if is_over {
            upto = Key::default();
        }
        let digest = digest::of_range(&self.partition, after, &upto)?;
        self.record(Event::Digest { after, upto: &upto, digest }, 0, Vec::new(), now);
        Ok((!is_over).then_some(upto))
    }

    /// A member has other records in a range: all members get those that are here.
    pub(super) fn mend(&mut self, after: &[u8], upto: &[u8], now: Duration) {
        if self.is_stuffed(now) {
            return;
        }
        let (mut keys, mut len, mut end) = (VecDeque::new(), 0, Key::from(upto));
        let visited = self.partition.visit_records(after, &mut |key, meta| {
            if !upto.is_empty() && key > upto {
                return ControlFlow::Break(());
            }
            keys.push_back(Key::from(key));
            len += key.len() + meta.len as usize;
            if len > LEN_MAX || keys.len() >= RECORDS_MAX {
                end = key.into();
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        });
        let copied =
            visited.and_then(|()| copy_some(&self.partition, usize::MAX, || keys.pop_front()));
        // What cannot be read here cannot be mended there.
        let Ok(copied) = copied else { return };
        let records = copied.iter().map(travelling).collect();
        let payload = pieces_of(&copied);
        self.record(Event::Range { after, upto: &end, records }, 0, payload, now);
    }
}
