//! Whether the durable data that a node brings are those with which it joined last, and no older copy of them.
//!
//! The map keeps the storage of each target as of its last join; a node draws another one for each process, and says by which it joined last. It
//! goes on where it was if the map's is that one, or the one by which it joins now: a process that joined and died before it could note that
//! tries the same again. Anything else is a directory that was put back as it had been, or a map that was.

use samite_types::{Error, ErrorKind, Result, utc};
use samite_wire::control::{NodeInfo, TargetInfo};

/// Years from 2020 to 2100, in seconds since 1970. A number outside these was drawn before storages
/// were times.
const TIMES: std::ops::Range<u64> = 1_577_836_800..4_102_444_800;

/// The storage of a target as of its last join; 0: none.
fn kept(target: &TargetInfo, known: &NodeInfo) -> u64 {
    let found = known.targets.iter().find(|known| known.target == target.target);
    found.map_or(0, |known| known.storage)
}

/// Whether a target that its node brings now has the data that it had when the node was `known`.
pub(crate) fn is_continued(target: &TargetInfo, before: u64, known: &NodeInfo) -> bool {
    let kept = kept(target, known);
    kept == target.storage || (before != 0 && kept == before)
}

/// Refuses a node whose durable data are not those with which it joined last, though they are durable data of it.
pub(crate) fn check(info: &NodeInfo, before: u64, known: &NodeInfo) -> Result<()> {
    let is_other =
        |target: &&TargetInfo| kept(target, known) != 0 && !is_continued(target, before, known);
    let Some(target) = info.targets.iter().find(is_other).filter(|_| before != 0) else {
        return Ok(());
    };
    let kept = kept(target, known);
    let which = match (time(kept), time(before)) {
        (Some(_), Some(_)) if kept < before => "the cluster map is an older copy",
        _ => "they are an older copy",
    };
    let node = info.node;
    Err(Error::new(
        ErrorKind::Invalid,
        format!(
            "join of {node}: the durable data of target {} are of a process that started {}, and by the cluster map the last one that joined with them started {}: {which}; put the newest ones back, or have them made again from the other members of its groups with `samite node restart {} --renew` (or `samite up … --renew {}`)",
            target.target,
            words(before),
            words(kept),
            node.get(),
            node.get(),
        ),
    ))
}

fn time(storage: u64) -> Option<u64> {
    Some(storage / 1_000_000_000).filter(|seconds| TIMES.contains(seconds))
}

fn words(storage: u64) -> String {
    let long_ago = || "before this was noted".to_owned();
    time(storage).map_or_else(long_ago, |seconds| format!("at {}", utc(seconds.cast_signed())))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use samite_types::{NodeId, TargetId};

    use super::*;
    use crate::Coordinator;

    fn info(incarnation: u64, storage: u64) -> NodeInfo {
        let targets = vec![TargetInfo { target: TargetId(0), capacity_bytes: 1 << 30, storage }];
        let (host, addresses) = ("h".into(), vec!["tcp://h:1".into()]);
        NodeInfo { node: NodeId(0), host, rack: String::new(), addresses, incarnation, targets }
    }

    /// A coordinator that a node has joined by this storage.
    fn joined(storage: u64) -> Coordinator {
        let mut coordinator = Coordinator::new("c", 1).unwrap();
        coordinator.join(info(1, storage), Duration::ZERO).unwrap();
        coordinator
    }

    const LATER: Duration = Duration::from_secs(60);
    /// In 2026, a day apart.
    const MONDAY: u64 = 1_769_990_400_000_000_000;
    const TUESDAY: u64 = MONDAY + 86_400_000_000_000;
    const WEDNESDAY: u64 = TUESDAY + 86_400_000_000_000;

    #[test]
    fn a_node_goes_on_from_its_last_join_or_from_the_one_that_it_tried() {
        let mut coordinator = joined(MONDAY);
        coordinator.join_again(info(2, TUESDAY), MONDAY, LATER).unwrap();
        // It died before it could note that it had joined.
        coordinator.join_again(info(3, TUESDAY), MONDAY, LATER).unwrap();
        // It says where it is reached now.
        coordinator.join_again(info(3, TUESDAY), MONDAY, LATER).unwrap();
        coordinator.join_again(info(4, WEDNESDAY), TUESDAY, LATER).unwrap();
    }

    #[test]
    fn an_older_copy_is_refused_and_leaves_everything_as_it_was() {
        let mut coordinator = joined(MONDAY);
        coordinator.join_again(info(2, TUESDAY), MONDAY, LATER).unwrap();
        let map = coordinator.map().unwrap().data().clone();
        for tries in [MONDAY, WEDNESDAY] {
            let older = coordinator.join_again(info(3, tries), MONDAY, LATER).unwrap_err();
            assert_eq!(older.kind(), ErrorKind::Invalid);
            let said = older.to_string();
            for part in ["n0", "2026-02-02T00:00:00Z", "2026-02-03T00:00:00Z", "--renew 0"] {
                assert!(said.contains(part), "{part} in {said}");
            }
            assert!(said.contains("they are an older copy"), "{said}");
        }
        assert_eq!(coordinator.map().unwrap().data(), &map);
        let newer = coordinator.join_again(info(3, WEDNESDAY + 1), WEDNESDAY, LATER).unwrap_err();
        assert!(newer.to_string().contains("the cluster map is an older copy"), "{newer}");
        coordinator.join_again(info(3, WEDNESDAY), TUESDAY, LATER).unwrap();
    }

    #[test]
    fn directories_of_before_and_new_ones_join() {
        // The first is the number that named the directory.
        let mut coordinator = joined(7);
        coordinator.join_again(info(2, MONDAY), 7, LATER).unwrap();
        let older = coordinator.join_again(info(3, TUESDAY), 7, LATER).unwrap_err();
        assert!(older.to_string().contains("before this was noted"), "{older}");
        // A new directory is no older one; data that was lost with the other is for others to see.
        coordinator.join_again(info(3, TUESDAY), 0, LATER).unwrap();
        // None before.
        joined(0).join_again(info(2, TUESDAY), MONDAY, LATER).unwrap();
    }
}
