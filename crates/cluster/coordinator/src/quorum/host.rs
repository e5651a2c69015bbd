//! The voter of a node, or a request for one: a node whose voter's state is gone, or that never had
//! one, waits until the others give it a new one. The promises of the lost one are not known any
//! more, so it never votes again.

use samite_types::{NodeId, Result};

use super::configuration::{VoterConfiguration, VoterId};
use super::journal::VoterState;
use super::register::{RegisterChange, StateRegister};
use super::voter::{LOG_LEN_MAX, Voter, VoterMessage, VoterOutput, VoterPayload};

/// Ticks after which a node without a voter says so again.
const VACANT_TICKS: u64 = 10;
/// Most voters that are believed to be some.
const OTHERS_MAX: usize = 64;

/// A node's voter, if it has one. Its driver carries out [`VoterOutput`] after each call.
#[derive(Debug)]
pub struct VoterHost {
    node: NodeId,
    /// Drawn for this run of the node, and again when it loses its voter.
    run: u64,
    /// Nodes that may have voters, as of the configuration of this number.
    others: (u32, Vec<NodeId>),
    ticks: u64,
    voter: Option<Voter>,
    output: VoterOutput,
    log_len_max: usize,
}

impl VoterHost {
    /// Of `node`, with the voter that it kept, if it did. `run` is drawn at random, and is not 0; `others` are nodes that may have voters.
    ///
    /// # Errors
    /// `Invalid`: the kept state is of no use.
    pub fn new(
        (node, run): (NodeId, u64),
        kept: Option<(VoterId, VoterState)>,
        others: Vec<NodeId>,
    ) -> Result<Self> {
        let voter = kept.map(|(me, kept)| Voter::new(me, kept, run)).transpose()?;
        let (others, output) = ((0, others), VoterOutput::default());
        Ok(Self { node, run, others, ticks: 0, voter, output, log_len_max: LOG_LEN_MAX })
    }

    /// The same, with a log that is compacted when it has so many entries.
    #[must_use]
    pub fn with_log_len_max(mut self, entries: usize) -> Self {
        self.log_len_max = entries;
        self.voter = self.voter.map(|voter| voter.with_log_len_max(entries));
        self
    }

    /// Lets time pass; to be called every [`super::TICK`].
    pub fn tick(&mut self) {
        self.ticks += 1;
        if let Some(voter) = &mut self.voter {
            voter.tick();
            return;
        }
        let message = VoterMessage { from: 0, envelope: VoterPayload::Vacant { run: self.run } };
        if self.ticks % VACANT_TICKS == 1
            && let Ok(bytes) = postcard::to_stdvec(&message)
        {
            let others = self.others.1.iter().filter(|other| **other != self.node);
            self.output.messages.extend(others.map(|other| (*other, bytes.clone())));
        }
    }

    /// Takes a message from the node `sender`.
    ///
    /// # Errors
    /// `Corrupt`: it is none.
    pub fn receive(&mut self, sender: NodeId, bytes: &[u8]) -> Result<()> {
        if let Some(voter) = &mut self.voter {
            return voter.receive(sender, bytes);
        }
        let VoterMessage { envelope, .. } = super::voter::parse_message(bytes)?;
        match envelope {
            VoterPayload::Moved { configuration, base } => {
                if let Some(member) = configuration.voter_in(self.node)
                    && member.run == self.run
                {
                    let kept = VoterState::new(configuration, base);
                    self.output.whole = Some((member.id, kept.clone()));
                    let voter = Voter::new(member.id, kept, self.run)?;
                    self.voter = Some(voter.with_log_len_max(self.log_len_max));
                }
            }
            VoterPayload::Voters { configuration, nodes } => {
                if configuration > self.others.0 && (1..=OTHERS_MAX).contains(&nodes.len()) {
                    self.others = (configuration, nodes);
                }
            }
            // The sender looks for voters where none is any more.
            VoterPayload::Vacant { .. } => {
                let (configuration, nodes) = self.others.clone();
                let envelope = VoterPayload::Voters { configuration, nodes };
                let bytes = postcard::to_stdvec(&VoterMessage { from: 0, envelope });
                self.output.messages.extend(bytes.into_iter().map(|bytes| (sender, bytes)));
            }
            VoterPayload::Of { .. } | VoterPayload::Session { .. } => {}
        }
        Ok(())
    }

    /// As [`Voter::propose`].
    pub fn propose(&mut self, change: RegisterChange) -> Option<u64> {
        self.voter.as_mut()?.propose(change)
    }

    /// As [`Voter::replace`].
    pub fn replace(&mut self, old: NodeId, node: NodeId) -> bool {
        self.voter.as_mut().is_some_and(|voter| voter.replace(old, node))
    }

    /// As [`Voter::replace_absent`].
    pub fn replace_absent(&mut self, nodes: &[NodeId]) {
        if let Some(voter) = &mut self.voter {
            voter.replace_absent(nodes);
        }
    }

    /// The tasks since the last call. `run` is drawn at random: the node's next one, should it have
    /// lost its voter.
    pub fn output(&mut self, run: u64) -> VoterOutput {
        let Some(voter) = &mut self.voter else { return std::mem::take(&mut self.output) };
        let mut output = voter.output();
        if voter.is_retired() {
            let configuration = voter.configuration();
            let nodes = configuration.voters.iter().map(|member| member.node).collect();
            self.others = (configuration.number, nodes);
            (self.run, self.voter) = (run, None);
            output.is_retired = true;
        }
        let begun = std::mem::take(&mut self.output);
        if output.whole.is_none() {
            output.whole = begun.whole;
        }
        output.messages.extend(begun.messages);
        output
    }

    /// The register as far as this node knows it; `None`: it has no voter.
    #[must_use]
    pub fn register(&self) -> Option<&StateRegister> {
        self.voter.as_ref().map(Voter::register)
    }

    /// The voters, as far as this node knows.
    #[must_use]
    pub fn configuration(&self) -> Option<&VoterConfiguration> {
        self.voter.as_ref().map(Voter::configuration)
    }

    /// All its state on flash, once the output of [`Self::output`] is.
    #[must_use]
    pub fn saved(&self) -> Option<(VoterId, VoterState)> {
        self.voter.as_ref().map(|voter| (voter.id(), voter.saved()))
    }
}
