//! Configurations: the sets of voters.

use omnipaxos::ClusterConfig;
use samite_types::{Error, ErrorKind, NodeId, Result};
use serde::{Deserialize, Serialize};

/// A voter's number; never given to another one. From 1 on.
pub type VoterId = u64;

/// Most voters.
pub const VOTERS_MAX: usize = 7;

/// A voter, as its configuration has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VoterMember {
    /// Its number.
    pub id: VoterId,
    /// The node in which it runs.
    pub node: NodeId,
    /// Which of the node's runs may begin it: the one that has drawn this number. 0: it is one of the first voters.
    pub run: u64,
}

/// The set of voters. Another set is another configuration, which begins with the register that the
/// one before it left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VoterConfiguration {
    /// From 1 on.
    pub number: u32,
    /// Each voter, in nodes of their own.
    pub voters: Vec<VoterMember>,
    /// The number of the next voter that there has never been.
    pub next: VoterId,
}

impl VoterConfiguration {
    /// The first voters, in these nodes.
    ///
    /// # Errors
    /// `Invalid`: fewer than 2 or more than [`VOTERS_MAX`] nodes, or one twice.
    pub fn first(nodes: &[NodeId]) -> Result<Self> {
        let is_new = |index: usize| !nodes[..index].contains(&nodes[index]);
        if !(2..=VOTERS_MAX).contains(&nodes.len()) || !(0..nodes.len()).all(is_new) {
            let words = format!(
                "{} voters; 2 to {VOTERS_MAX} in different nodes are possible",
                nodes.len()
            );
            return Err(Error::new(ErrorKind::Invalid, words));
        }
        let voters = (1..).zip(nodes).map(|(id, node)| VoterMember { id, node: *node, run: 0 });
        let voters: Vec<VoterMember> = voters.collect();
        Ok(Self { number: 1, next: voters.len() as VoterId + 1, voters })
    }

    /// The same, with a new voter of that run of `node` in the place of the one in the node `old`.
    pub(super) fn replacing(&self, old: NodeId, (node, run): (NodeId, u64)) -> Option<Self> {
        if old != node && self.voter_in(node).is_some() {
            return None;
        }
        let mut voters = self.voters.clone();
        let member = voters.iter_mut().find(|member| member.node == old)?;
        *member = VoterMember { id: self.next, node, run };
        Some(Self { number: self.number + 1, voters, next: self.next + 1 })
    }

    /// The voter in this node.
    #[must_use]
    pub fn voter_in(&self, node: NodeId) -> Option<VoterMember> {
        self.voters.iter().copied().find(|member| member.node == node)
    }

    pub(super) fn cluster(&self) -> ClusterConfig {
        ClusterConfig {
            configuration_id: self.number,
            nodes: self.voters.iter().map(|member| member.id).collect(),
            flexible_quorum: None,
        }
    }

    pub(super) fn member(&self, voter: VoterId) -> Option<VoterMember> {
        self.voters.iter().copied().find(|member| member.id == voter)
    }

    pub(super) fn has(&self, voter: VoterId) -> bool {
        self.member(voter).is_some()
    }
}
