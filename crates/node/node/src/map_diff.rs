//! The difference of a cluster map from the one before it, in a few words for the log.

use std::collections::BTreeMap;
use std::fmt;

use samite_placement::{ClusterMap, PartitionLoss};
use samite_types::{Redundancy, TargetId};
use samite_wire::control::{MemberConsistency, MirrorGroup};

/// Most ranges of partitions, nodes and datasets that are named each time.
const NAMED_MAX: usize = 24;

/// The events, and the members and partitions that each is about.
type Words = BTreeMap<(Redundancy, TargetId, MemberChange), Vec<u32>>;

/// The difference of two maps: nodes that came, went or were started again, and of the groups which
/// member leads, which are good now, and which are not.
pub(crate) struct MapDiff<'a> {
    before: &'a ClusterMap,
    after: &'a ClusterMap,
    /// Changes of members of groups.
    words: Words,
}

/// A change of a member of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum MemberChange {
    /// It leads, and all members that had the records in their nodes' memory have been started
    /// again.
    BeginsAnew,
    Leads,
    IsGood,
    WasRestarted,
    NeedsResync,
    IsBad,
    Left,
}

impl From<MemberConsistency> for MemberChange {
    fn from(consistency: MemberConsistency) -> Self {
        match consistency {
            MemberConsistency::Good => Self::IsGood,
            MemberConsistency::Restarted => Self::WasRestarted,
            MemberConsistency::NeedsResync => Self::NeedsResync,
            MemberConsistency::Bad => Self::IsBad,
        }
    }
}

impl fmt::Display for MemberChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BeginsAnew => "begins anew",
            Self::Leads => "leads",
            Self::IsGood => "is good",
            Self::WasRestarted => "was started again",
            Self::NeedsResync => "needs resync",
            Self::IsBad => "is bad",
            Self::Left => "left",
        })
    }
}

impl fmt::Display for MapDiff<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes: Vec<String> = self.nodes().collect();
        for node in nodes.iter().take(NAMED_MAX) {
            write!(f, "{node}; ")?;
        }
        if nodes.len() > NAMED_MAX {
            write!(f, "{} more nodes; ", nodes.len() - NAMED_MAX)?;
        }
        let datasets = self.after.datasets();
        if self.before.datasets() != datasets {
            write!(f, "{} datasets; ", datasets.len())?;
        }
        for ((redundancy, target, word), partitions) in self.words.iter().take(NAMED_MAX * 4) {
            let (mirror, partitions) = (redundancy.get(), NumberRanges(partitions));
            write!(f, "mirror {mirror}: {target} {word} {partitions}; ")?;
        }
        Ok(())
    }
}

/// Says what is lost with `after`, and was not by `before`: partitions of datasets in memory of which
/// no node has anything any more.
pub(crate) fn lost(before: &ClusterMap, after: &ClusterMap) -> Option<String> {
    let words = |loss: &PartitionLoss| {
        format!("{} of {} partitions of `{}`", loss.partitions, loss.of, loss.dataset)
    };
    let lost: Vec<String> = before.losses(after).iter().map(words).collect();
    let more = if lost.len() > NAMED_MAX { ", …" } else { "" };
    (!lost.is_empty()).then(|| {
        let named = lost[..lost.len().min(NAMED_MAX)].join(", ");
        format!("lost, for all nodes that had them in memory were started again: {named}{more}")
    })
}

impl<'a> MapDiff<'a> {
    /// That of `after`.
    pub(crate) fn new(before: &'a ClusterMap, after: &'a ClusterMap) -> Self {
        let mut diff = Self { before, after, words: Words::new() };
        let mut words = Words::new();
        for table in &after.data().tables {
            let Some(before) = before.table(table.redundancy) else { continue };
            for ((before, after), partition) in before.groups.iter().zip(&table.groups).zip(0..) {
                diff.note(before, after, |target, word| {
                    words.entry((table.redundancy, target, word)).or_default().push(partition);
                });
            }
        }
        diff.words = words;
        diff
    }

    /// Changes of nodes.
    fn nodes(&self) -> impl Iterator<Item = String> {
        let gone = self.before.nodes().iter().filter(|info| self.after.node(info.node).is_none());
        let gone = gone.map(|info| format!("{} is gone", info.node));
        let nodes = self.after.nodes().iter().zip(&self.after.data().states);
        let others = nodes.filter_map(|(info, state)| {
            let before = self.before.node(info.node).map(|before| before.incarnation);
            let is_new = before != Some(info.incarnation);
            let process = is_new.then(|| format!(", is process {:x}", info.incarnation));
            if self.before.state(info.node) == Some(*state) && !is_new {
                return None;
            }
            let drains = if state.is_draining { ", drains" } else { "" };
            let process = process.unwrap_or_default();
            Some(format!("{} {:?}{drains}{process}", info.node, state.reachability))
        });
        gone.chain(others)
    }

    fn note(
        &self,
        before: &MirrorGroup,
        after: &MirrorGroup,
        mut say: impl FnMut(TargetId, MemberChange),
    ) {
        if before == after && self.is_same_process(after) {
            return;
        }
        let consistency = |group: &MirrorGroup, target: TargetId| {
            group.members.iter().find(|one| one.target == target).map(|one| one.consistency)
        };
        for member in &after.members {
            if consistency(before, member.target) != Some(member.consistency) {
                say(member.target, member.consistency.into());
            }
        }
        for member in &before.members {
            if consistency(after, member.target).is_none() {
                say(member.target, MemberChange::Left);
            }
        }
        let first = after.members[0];
        if before.term != after.term || before.members[0].target != first.target {
            say(first.target, MemberChange::Leads);
        }
        if self.before.begins_anew(self.after, before, after) {
            say(first.target, MemberChange::BeginsAnew);
        }
    }

    /// Whether the primary's node is the process that it was.
    fn is_same_process(&self, group: &MirrorGroup) -> bool {
        let first = group.members[0].target;
        self.before.incarnation_of(first) == self.after.incarnation_of(first)
    }
}

/// Numbers that grow, as ranges.
struct NumberRanges<'a>(&'a [u32]);

impl fmt::Display for NumberRanges<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs = self.0.chunk_by(|one, next| one + 1 == *next);
        for (run, index) in runs.zip(0..) {
            if index == NAMED_MAX {
                return write!(f, ",… ({} in all)", self.0.len());
            }
            let comma = if index == 0 { "" } else { "," };
            match run {
                [one] => write!(f, "{comma}{one}")?,
                [first, .., last] => write!(f, "{comma}{first}-{last}")?,
                [] => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_map;

    #[test]
    fn a_death_and_a_start_are_told_in_a_line() {
        let [first, dead, after] = test_map::two_deaths();
        let diff = MapDiff::new(&first, &dead);
        let said = diff.to_string();
        assert!(said.starts_with("n1 Offline; "), "{said}");
        assert!(said.contains("mirror 2: t1 needs resync 0-3; "), "{said}");
        assert!(said.contains("mirror 2: t0 leads ") && !said.contains("anew"), "{said}");
        assert_eq!(lost(&first, &dead), None);
        // The node that has everything is started again, too.
        let diff = MapDiff::new(&dead, &after);
        let lost = lost(&dead, &after).unwrap();
        assert!(lost.ends_with(": 4 of 4 partitions of `d`"), "{lost}");
        let said = diff.to_string();
        assert!(said.contains("n0 Online, is process 2; "), "{said}");
        assert!(said.contains("mirror 2: t0 begins anew 0-3; "), "{said}");
    }

    #[test]
    fn many_are_named_in_part() {
        let numbers: Vec<u32> = (0..100).map(|number| number * 2).collect();
        let said = NumberRanges(&numbers).to_string();
        assert!(said.starts_with("0,2,4,") && said.ends_with("… (100 in all)"), "{said}");
        assert_eq!(NumberRanges(&[1, 2, 3, 7]).to_string(), "1-3,7");
    }
}
