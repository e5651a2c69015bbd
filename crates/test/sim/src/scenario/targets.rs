//! Targets that remember, and targets that fail.

use std::time::Duration;

use clap::ValueEnum;

use super::{OperatorRequest, RunScenario};
use crate::rng::SimRng;

/// The targets of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TargetKind {
    /// Records are in memory, or in a log beside it.
    Memory,
    /// They remember: records and state are committed together.
    Remembering,
    /// Of either kind, and calls of them fail.
    Failing,
}

impl RunScenario {
    /// Draws the kind of targets, if it is not given, and all that belongs to it.
    pub(super) fn draw_targets(&mut self, kind: Option<TargetKind>) {
        let mut rng = SimRng::new(self.seed).fork(19);
        let drawn = match rng.below(100) {
            0..15 => TargetKind::Remembering,
            15..28 => TargetKind::Failing,
            _ => TargetKind::Memory,
        };
        match kind.unwrap_or(drawn) {
            TargetKind::Memory => {}
            TargetKind::Remembering => self.remember(&mut rng),
            TargetKind::Failing => {
                self.flash_us = None;
                if rng.chance(500) {
                    self.remember(&mut rng);
                }
                self.fail(&mut rng);
            }
        }
        self.faults.sort_by_key(|planned| planned.at);
    }

    /// Whether acknowledged changes outlive all processes.
    #[must_use]
    pub const fn is_durable(&self) -> bool {
        self.flash_us.is_some() || self.commit_us.is_some()
    }

    /// When the disk of a node is full.
    #[must_use]
    pub fn full_of(&self, node: u32) -> Vec<(Duration, Duration)> {
        let of_node = self.full.iter().filter(|(other, ..)| *other == node);
        of_node.map(|(_, from, to)| (*from, *to)).collect()
    }

    /// Records and state are committed together, so that all nodes may die at once; also those of a
    /// dataset without mirrors.
    fn remember(&mut self, rng: &mut SimRng) {
        (self.flash_us, self.commit_us) = (None, Some(*rng.pick(&[200, 5_000, 30_000])));
        self.room.clear();
        // Nothing is lost.
        self.admin_requests.retain(|request| request.want != OperatorRequest::Acknowledge);
        if rng.chance(300) {
            self.redundancy = 1;
        }
        // Something is under way at any time.
        (self.calls, self.pause_us) = (60, *rng.pick(&[50_000, 300_000]));
        self.clients = self.clients.max(3);
        self.cut_power(rng);
        if rng.chance(300) {
            for _ in 0..rng.between(1, 3) {
                let node = rng.below(self.nodes.into()) as u32;
                let from = rng.micros(200_000, 6_000_000);
                self.full.push((node, from, from + rng.micros(100_000, 3_000_000)));
            }
        }
    }

    /// Calls of the stores of some nodes fail.
    fn fail(&mut self, rng: &mut SimRng) {
        let mut within = || if rng.chance(600) { *rng.pick(&[40, 400, 4_000]) } else { 0 };
        self.failing = (0..self.nodes).map(|_| within()).collect();
    }
}
