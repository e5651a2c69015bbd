//! A mirror group as its members see it.

use samite_types::{Epoch, TargetId, Term};
use samite_wire::control::{GroupMember, MirrorGroup};

/// A mirror group, as a map has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupView {
    /// Epoch of the map.
    pub epoch: Epoch,
    /// Term of the group.
    pub term: Term,
    /// Members; the first is the primary.
    pub members: Vec<GroupMember>,
    /// Incarnation of each member's node: after another one the member has nothing of the entries
    /// that it acknowledged.
    pub incarnations: Vec<u64>,
    /// The records of the partition died with its nodes, and no operator has acknowledged it: see
    /// [`ErrorKind::Lost`](samite_types::ErrorKind::Lost).
    pub is_lost: bool,
}

impl GroupView {
    /// The view of `group` in the map of `epoch`, which gives the incarnation of each target's
    /// node.
    #[must_use]
    pub fn new(
        epoch: Epoch,
        group: &MirrorGroup,
        incarnation_of: impl Fn(TargetId) -> u64,
    ) -> Self {
        let members = group.members.clone();
        let incarnations = members.iter().map(|member| incarnation_of(member.target)).collect();
        Self { epoch, term: group.term, members, incarnations, is_lost: false }
    }
}
