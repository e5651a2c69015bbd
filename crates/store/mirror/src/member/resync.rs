//! The primary's side of a resync: steps are sent one by one, each when the one before is answered.

use std::time::Duration;

use samite_types::{ErrorKind, Result, TargetId};
use samite_wire::peer::PeerEnvelope;

use super::MirroredPartition;
use crate::effects::MirrorEffect;
use crate::peers::EntryStream;
use crate::resync_source::{ResyncSource, StepAnswer};
use crate::role::MemberRole;
use crate::room::MemberRoom;

impl MirroredPartition {
    /// Members that are being brought up to date, or have to be.
    pub fn resyncing(&self) -> impl Iterator<Item = TargetId> {
        let peers = match &self.role {
            MemberRole::Primary(primary) => primary.peers.as_slice(),
            _ => &[],
        };
        peers.iter().filter(|peer| peer.needs_resync()).map(|peer| peer.target)
    }

    /// The members of them for which there was no room when it was last tried.
    pub fn lacking_room(&self) -> impl Iterator<Item = TargetId> {
        let peers = match &self.role {
            MemberRole::Primary(primary) => primary.peers.as_slice(),
            _ => &[],
        };
        let lacking = peers.iter().filter(|peer| peer.needs_resync() && peer.lacks_room);
        lacking.map(|peer| peer.target)
    }

    /// Sends the next step of about `len_max` bytes to each member that is to be brought up to date
    /// and waits for one. Returns bytes sent. The driver calls it as often as resync may take its
    /// time, at least at each [`tick`](Self::tick).
    pub fn resync_step(&mut self, len_max: usize, now: Duration) -> usize {
        if self.failed().is_some() {
            return 0;
        }
        let mut sent = 0;
        let mut index = 0;
        while let MemberRole::Primary(primary) = &mut self.role
            && let Some(peer) = primary.peers.get_mut(index)
        {
            if peer.needs_resync() && now >= peer.resync_at {
                if peer.resync.is_none() {
                    primary.attempts += 1;
                    peer.resync = Some(ResyncSource::new(primary.attempts));
                    self.partition.set_notes_touched(true);
                }
                match self.next_step(index, len_max, now) {
                    Ok(len) => sent += len,
                    Err(error) => self.break_off(index, error.kind(), now),
                }
            }
            index += 1;
        }
        sent
    }

    /// Sends the next step to a member, unless the last one is not answered. Returns bytes sent.
    fn next_step(&mut self, index: usize, len_max: usize, now: Duration) -> Result<usize> {
        let envelope = self.envelope(TargetId(0));
        let Self {
            role: MemberRole::Primary(primary),
            partition,
            effects,
            at,
            grants_delegations,
            ..
        } = self
        else {
            return Ok(0);
        };
        let peer = &mut primary.peers[index];
        let Some(resync) = peer.resync.as_mut().filter(|resync| !resync.waits()) else {
            return Ok(0);
        };
        let step = resync.next(partition, (*at, *grants_delegations), len_max, now)?;
        if let Some(position) = resync.whole_at()
            && peer.stream.is_none()
        {
            // From here on entries are kept for it.
            peer.stream = Some(EntryStream { is_paused: true, ..EntryStream::new(position, now) });
        }
        primary.resync_len += step.len() as u64;
        effects.send(step.packet(&PeerEnvelope { to: peer.target, ..envelope }));
        Ok(step.len())
    }

    /// A member has answered a step.
    pub(super) fn step_done(
        &mut self,
        index: usize,
        (attempt, step): (u32, u32),
        (again, wanted): (bool, &[u8]),
        now: Duration,
    ) {
        let (requires, last) = (!self.rules.requires_late, self.at.position);
        let MemberRole::Primary(primary) = &mut self.role else { return };
        let peer = &mut primary.peers[index];
        let Some(resync) = &mut peer.resync else { return };
        match resync.answered((attempt, step), (again, wanted)) {
            StepAnswer::Nothing | StepAnswer::Next => return,
            StepAnswer::SendAgain => return self.resend_step(index, now),
            StepAnswer::Whole => {}
        }
        peer.resync = None;
        peer.lacks_room = false;
        peer.is_required = requires;
        if let Some(stream) = &mut peer.stream {
            stream.is_paused = false;
            stream.blind_upto = last;
            stream.room = MemberRoom::new(last, now);
            (stream.since, stream.resend_at) = (now, now + self.times.retransmit);
        }
        self.pump(index, now);
        self.advance();
        self.announce(index, now);
    }

    /// A member cannot go on with a try.
    pub(super) fn step_lost(&mut self, index: usize, attempt: u32, kind: ErrorKind, now: Duration) {
        let MemberRole::Primary(primary) = &mut self.role else { return };
        let Some(resync) = &primary.peers[index].resync else { return };
        if resync.attempt() != attempt {
            return;
        }
        match kind {
            ErrorKind::NotFound => primary.peers[index].let_go(now),
            ErrorKind::NoSpace => {
                // It goes on when room was made.
                let peer = &mut primary.peers[index];
                peer.let_go(now + self.times.resync_again);
                if !std::mem::replace(&mut peer.lacks_room, true) {
                    self.effects.report(MirrorEffect::NoRoom { target: peer.target });
                }
            }
            kind => self.break_off(index, kind, now),
        }
    }

    /// A member cannot be brought up to date now. When one of the two stores did not answer, it is
    /// tried again: that says nothing of the records.
    fn break_off(&mut self, index: usize, kind: ErrorKind, now: Duration) {
        let again_at = now + self.times.resync_again;
        let MemberRole::Primary(primary) = &mut self.role else { return };
        let peer = &mut primary.peers[index];
        peer.let_go(again_at);
        let target = peer.target;
        if kind != ErrorKind::Io {
            self.effects.report(MirrorEffect::Broken { target, kind });
        }
    }

    /// Sends the last step again.
    pub(super) fn resend_step(&mut self, index: usize, now: Duration) {
        let MemberRole::Primary(primary) = &mut self.role else { return };
        let peer = &mut primary.peers[index];
        let Some(resync) = peer.resync.as_mut() else { return };
        let Some(step) = resync.send_again(now) else { return };
        if resync.is_hopeless() {
            peer.let_go(now + self.times.resync_again);
            return;
        }
        let target = peer.target;
        let envelope = self.envelope(target);
        self.effects.send(step.packet(&envelope));
    }

    /// Tells the driver that a member is up to date: at once, and again as long as no map says so,
    /// because a report may be lost, or come when it cannot count.
    pub(super) fn announce(&mut self, index: usize, now: Duration) {
        let again = self.times.missed;
        let MemberRole::Primary(primary) = &mut self.role else { return };
        let committed = primary.committed;
        let peer = &mut primary.peers[index];
        let is_due = peer.announced_at.is_none_or(|at| now >= at + again);
        if is_due && peer.is_unknown_to_be_synced(committed) {
            peer.announced_at = Some(now);
            self.effects.report(MirrorEffect::Synced { target: peer.target });
        }
    }
}
