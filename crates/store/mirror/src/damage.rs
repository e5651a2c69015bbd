//! Records whose bytes are damaged here, and who was asked for them. How they are put right is in
//! `member/repair.rs`.

use std::collections::BTreeMap;
use std::time::Duration;

use samite_partition::RecordKey;
use samite_types::TargetId;
use smallvec::SmallVec;

/// Most damaged records that are known of at a time; more are found when these are put right.
const DAMAGED_MAX: usize = 1024;

/// Records that are damaged here.
#[derive(Debug, Default)]
pub(crate) struct DamagedRecords {
    records: BTreeMap<RecordKey, DamagedRecord>,
}

#[derive(Debug)]
struct DamagedRecord {
    /// When somebody is to be asked; `None`: there is nobody.
    at: Option<Duration>,
    /// The members that were asked and cannot help, since all were asked last.
    helpless: SmallVec<[TargetId; 2]>,
    /// All have been asked, and none can help.
    is_lost: bool,
}

impl DamagedRecords {
    /// How many there are, as far as is known.
    pub(crate) fn count(&self) -> usize {
        self.records.len()
    }

    /// Whether the record is known to be damaged.
    pub(crate) fn has(&self, key: &[u8]) -> bool {
        self.records.contains_key(key)
    }

    /// Whether the record is damaged, and all that may have it were asked and cannot help.
    pub(crate) fn is_lost(&self, key: &[u8]) -> bool {
        self.records.get(key).is_some_and(|known| known.is_lost)
    }

    /// A record was found damaged: somebody is to be asked for it `now`. False: that is known, or
    /// too many are.
    pub(crate) fn note(&mut self, key: &[u8], now: Duration) -> bool {
        let is_new = self.records.len() < DAMAGED_MAX && !self.records.contains_key(key);
        if is_new {
            let damaged =
                DamagedRecord { at: Some(now), helpless: SmallVec::new(), is_lost: false };
            self.records.insert(key.into(), damaged);
        }
        is_new
    }

    /// When something is to be done.
    pub(crate) fn next(&self) -> Option<Duration> {
        self.records.values().filter_map(|damaged| damaged.at).min()
    }

    /// All are to be looked at `now`.
    pub(crate) fn look_again(&mut self, now: Duration) {
        self.records.values_mut().for_each(|damaged| damaged.at = Some(now));
    }

    /// Those for which something is to be done `now`.
    pub(crate) fn due(&self, now: Duration) -> Vec<RecordKey> {
        let due = self.records.iter().filter(|(_, known)| known.at.is_some_and(|at| at <= now));
        due.map(|(key, _)| key.clone()).collect()
    }

    /// Which of the `helpers` is to be asked for a record; it is to be looked at again at `again`.
    /// `None`: none can help; they are tried once more at `retry`, if that may help.
    pub(crate) fn ask(
        &mut self,
        key: &[u8],
        helpers: &[TargetId],
        again: Duration,
        retry: Option<Duration>,
    ) -> Option<TargetId> {
        let damaged = self.records.get_mut(key)?;
        let helper = helpers.iter().find(|helper| !damaged.helpless.contains(helper));
        if helper.is_some() {
            damaged.at = Some(again);
        } else {
            damaged.is_lost = true;
            damaged.helpless.clear();
            damaged.at = retry;
        }
        helper.copied()
    }

    /// A member that was asked cannot help: another one is to be asked `now`.
    pub(crate) fn cannot_help(&mut self, key: &[u8], member: TargetId, now: Duration) {
        let Some(damaged) = self.records.get_mut(key) else { return };
        if !damaged.helpless.contains(&member) {
            damaged.helpless.push(member);
        }
        damaged.at = Some(now);
    }

    /// The record is right, or gone. Whether it was known to be damaged.
    pub(crate) fn mended(&mut self, key: &[u8]) -> bool {
        self.records.remove(key).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_helper_is_asked_before_a_record_is_lost_and_all_again_after_a_while() {
        let mut damage = DamagedRecords::default();
        let (helpers, ms) = ([TargetId(1), TargetId(2)], Duration::from_millis);
        assert!(damage.note(b"k", ms(5)) && !damage.note(b"k", ms(6)));
        assert_eq!((damage.next(), damage.due(ms(4)).len()), (Some(ms(5)), 0));
        let ask = |damage: &mut DamagedRecords| damage.ask(b"k", &helpers, ms(105), Some(ms(1000)));
        assert_eq!(ask(&mut damage), Some(TargetId(1)));
        assert_eq!(damage.next(), Some(ms(105)));
        damage.cannot_help(b"k", TargetId(1), ms(7));
        assert_eq!((damage.due(ms(7)).len(), ask(&mut damage)), (1, Some(TargetId(2))));
        damage.cannot_help(b"k", TargetId(2), ms(8));
        assert_eq!((ask(&mut damage), damage.is_lost(b"k")), (None, true));
        assert_eq!((damage.next(), ask(&mut damage)), (Some(ms(1000)), Some(TargetId(1))));
        assert!(damage.mended(b"k") && !damage.mended(b"k") && !damage.has(b"k"));
    }

    #[test]
    fn no_more_damage_is_known_than_there_is_room_for() {
        let mut damage = DamagedRecords::default();
        for number in 0..2 * DAMAGED_MAX {
            damage.note(&number.to_le_bytes(), Duration::ZERO);
        }
        assert_eq!(damage.count(), DAMAGED_MAX);
    }
}
