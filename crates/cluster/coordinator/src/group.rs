//! Changes of one mirror group when nodes come and go. Pure.

use samite_types::{TargetId, Term, Version};
use samite_wire::control::{GroupMember, MemberConsistency, MirrorGroup, NodeReachability};

/// Draws the consequences for `group` of which nodes can be reached.
///
/// - While a good member is online, members that are not are taken to have missed something, and
///   those that were started again did. If the primary is not good, or its lease has ended, the
///   first good member that is online takes its place.
/// - While there are good members but none is online, everybody waits: one of them may know more than all others.
/// - When all members that were good have been started again, the data that outlives that is
///   equally complete on each. The first of them that is online is good from then on, and the
///   others follow it.
///
/// Nothing else makes a member good here, and the last one never stops being it.
///
/// A group that has used up its terms stays as it is: it waits for its primary, and when that has lost something, for a person.
pub(crate) fn settle(group: &mut MirrorGroup, reach: impl Fn(TargetId) -> NodeReachability) {
    let is_good = |member: &GroupMember| member.consistency == MemberConsistency::Good;
    let online = |member: &GroupMember| reach(member.target) == NodeReachability::Online;
    if group.members.iter().any(|member| is_good(member) && online(member)) {
        for member in &mut group.members {
            let has_missed = match member.consistency {
                MemberConsistency::Good => reach(member.target) == NodeReachability::Offline,
                MemberConsistency::Restarted => true,
                MemberConsistency::NeedsResync | MemberConsistency::Bad => false,
            };
            if has_missed {
                member.consistency = MemberConsistency::NeedsResync;
            }
        }
        // A good primary that is merely late has its lease still.
        if !is_good(&group.members[0])
            && has_next_term(group)
            && let Some(next) =
                group.members.iter().position(|member| is_good(member) && online(member))
        {
            lead(group, next);
        }
        return;
    }
    if group.members.iter().any(is_good) || !has_next_term(group) {
        return;
    }
    let restarted = |member: &GroupMember| member.consistency == MemberConsistency::Restarted;
    let Some(next) = group.members.iter().position(|member| restarted(member) && online(member))
    else {
        return;
    };
    for member in group.members.iter_mut().filter(|member| restarted(member)) {
        member.consistency = MemberConsistency::NeedsResync;
    }
    group.members[next].consistency = MemberConsistency::Good;
    lead(group, next);
}

/// Whether the group can get another primary: versions have room for so many terms, and no version may come twice.
pub(crate) fn has_next_term(group: &MirrorGroup) -> bool {
    group.term < Version::TERM_MAX
}

/// Makes the member at `index` the primary, in a new term. The group [has one](has_next_term).
pub(crate) fn lead(group: &mut MirrorGroup, index: usize) {
    debug_assert!(has_next_term(group));
    let member = group.members.remove(index);
    group.members.insert(0, member);
    group.term = Term(group.term.get() + 1);
}

/// The member that is on this target.
pub(crate) fn member_mut(group: &mut MirrorGroup, target: TargetId) -> Option<&mut GroupMember> {
    group.members.iter_mut().find(|member| member.target == target)
}

/// The consistency of the group's member on this target.
pub(crate) fn consistency(group: &MirrorGroup, target: TargetId) -> Option<MemberConsistency> {
    group.members.iter().find(|member| member.target == target).map(|member| member.consistency)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_without_terms_waits() {
        let member = |target, consistency| GroupMember { target: TargetId(target), consistency };
        let members =
            vec![member(1, MemberConsistency::Restarted), member(2, MemberConsistency::Good)];
        let before = Term(Version::TERM_MAX.get() - 1);
        let mut group = MirrorGroup { term: before, members };
        let online = |_| NodeReachability::Online;
        settle(&mut group, online);
        assert_eq!((group.term, group.members[0].target), (Version::TERM_MAX, TargetId(2)));
        // Versions that another primary makes could not be told from those of this one.
        group.members[0].consistency = MemberConsistency::Restarted;
        group.members[1].consistency = MemberConsistency::Good;
        settle(&mut group, online);
        assert_eq!((group.term, group.members[0].target), (Version::TERM_MAX, TargetId(2)));
        group.members[1].consistency = MemberConsistency::Restarted;
        let waits = group.clone();
        settle(&mut group, online);
        assert_eq!(group, waits);
    }
}
