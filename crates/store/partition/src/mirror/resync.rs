//! The primary's side of a resync: steps are sent one by one, each when the one before is answered.

use std::sync::Arc;
use std::time::Duration;

use samite_backend::ValuePiece;
use samite_types::{ErrorKind, Position, Result, TargetId};
use samite_wire::peer::{PeerMessage, RecordCopy};

use super::packet::{Payload, PeerPacket};
use super::peers::EntryStream;
use super::room::MemberRoom;
use super::sink::travelling;
use super::source::{CopiedRecord, CopyBatch, CopySource};
use super::{MemberRole, MirrorEffect, MirroredPartition};

/// Most bytes of the partition's state in one step.
const STATE_PART_LEN: usize = 256 << 10;
/// A step without an answer for so many times of waiting: the try is given up.
const SENDS_MAX: u32 = 100;

/// One try to bring a member up to date.
#[derive(Debug)]
pub(super) struct ResyncSource {
    source: CopySource,
    attempt: u32,
    step: u32,
    sent: Option<SentStep>,
    /// The part that remains to be sent once the copy is whole.
    cut: Option<ResyncCut>,
    /// Bytes sent.
    pub(super) len: u64,
}

/// A step that was sent and not answered yet.
#[derive(Debug)]
struct SentStep {
    body: Arc<[u8]>,
    payload: Payload,
    at: Duration,
    times: u32,
    /// With its answer the member is up to date.
    is_last: bool,
}

/// The partition's state where the copy is whole.
#[derive(Debug)]
struct ResyncCut {
    position: Position,
    state: Vec<u8>,
    done: usize,
}

impl ResyncSource {
    fn new(attempt: u32) -> Self {
        let source = CopySource::comparing();
        Self { source, attempt, step: 0, sent: None, cut: None, len: 0 }
    }

    /// The record with this key has changed.
    pub(super) fn note(&mut self, key: &[u8]) {
        if self.cut.is_none() {
            self.source.note(key);
        }
    }

    /// When the step that was sent is sent again.
    pub(super) fn resend_at(&self, retransmit: Duration) -> Option<Duration> {
        // Less often as time goes by: the member may be dead.
        self.sent.as_ref().map(|sent| sent.at + retransmit * sent.times.min(10))
    }
}

/// A step, encoded, and whether it is the last.
type Encoded = (Arc<[u8]>, Payload, bool);

fn encoded(message: &PeerMessage<'_>, payload: Vec<ValuePiece>) -> Encoded {
    let mut body = Vec::with_capacity(64);
    message.encode(&mut body);
    (body.into(), payload.into(), false)
}

fn records_step(attempt: u32, step: u32, copied: &[CopiedRecord]) -> Encoded {
    let records: Vec<RecordCopy<'_>> = copied.iter().map(travelling).collect();
    encoded(&PeerMessage::Records { attempt, step, records }, pieces_of(copied))
}

/// The pieces of records that are no holes.
pub(super) fn pieces_of(copied: &[CopiedRecord]) -> Vec<ValuePiece> {
    let pieces = copied.iter().filter_map(|record| record.value.as_ref()).flatten();
    pieces.filter(|piece| !matches!(piece, ValuePiece::Zeros(_))).cloned().collect()
}

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

    /// Sends the next step of about `len_max` bytes to each member that is to be brought up to date and waits for one. Returns bytes sent. The
    /// driver calls it as often as resync may take its time, at least at each [`tick`](Self::tick).
    pub fn resync_step(&mut self, len_max: usize, now: Duration) -> usize {
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

    /// Sends the next step to a member, unless the last one is not answered.
    fn next_step(&mut self, index: usize, len_max: usize, now: Duration) -> Result<usize> {
        let MemberRole::Primary(primary) = &mut self.role else { return Ok(0) };
        let peer = &mut primary.peers[index];
        let Some(mut resync) = peer.resync.take() else { return Ok(0) };
        if resync.sent.is_some() {
            peer.resync = Some(resync);
            return Ok(0);
        }
        let (body, payload, is_last) = self.encode_step(&mut resync, len_max)?;
        let len = body.len() + payload.iter().map(ValuePiece::len).sum::<usize>();
        resync.len += len as u64;
        let MemberRole::Primary(primary) = &mut self.role else { return Ok(0) };
        primary.resync_len += len as u64;
        let peer = &mut primary.peers[index];
        if let Some(cut) = &resync.cut
            && peer.stream.is_none()
        {
            // From here on entries are kept for it.
            peer.stream =
                Some(EntryStream { is_paused: true, ..EntryStream::new(cut.position, now) });
        }
        let target = peer.target;
        let envelope = self.envelope(target);
        self.effects.send(PeerPacket::shared(&envelope, &body, &payload));
        resync.sent = Some(SentStep { body, payload, at: now, times: 1, is_last });
        if let MemberRole::Primary(primary) = &mut self.role {
            primary.peers[index].resync = Some(resync);
        }
        Ok(len)
    }

    fn encode_step(&self, resync: &mut ResyncSource, len_max: usize) -> Result<Encoded> {
        let ResyncSource { source, attempt, step, cut, .. } = resync;
        let attempt = *attempt;
        if *step == 0 {
            return Ok(encoded(&PeerMessage::Begin { attempt }, Vec::new()));
        }
        let step = *step;
        if let Some(cut) = cut {
            return Ok(state_step(attempt, step, cut));
        }
        Ok(match source.next(&self.partition, len_max)? {
            CopyBatch::Compare { after, upto, records } => {
                let records = records.iter().map(|(key, version)| (&**key, *version)).collect();
                let (after, upto) = (&*after, &*upto);
                let message = PeerMessage::Compare { attempt, step, after, upto, records };
                encoded(&message, Vec::new())
            }
            CopyBatch::Records(records) => records_step(attempt, step, &records),
            CopyBatch::Last(records) => {
                let mut state = Vec::new();
                self.export(&mut state);
                let cut = cut.insert(ResyncCut { position: self.at.position, state, done: 0 });
                match records.is_empty() {
                    true => state_step(attempt, step, cut),
                    false => records_step(attempt, step, &records),
                }
            }
        })
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
        if (resync.attempt, resync.step) != (attempt, step) || resync.sent.is_none() {
            return;
        }
        if again {
            // At the last step it waits for its flash: it is asked again in a while. Else it has more to do.
            let is_last = resync.sent.as_ref().is_some_and(|sent| sent.is_last);
            if !is_last {
                self.resend_step(index, now);
            }
            return;
        }
        let is_last = resync.sent.take().is_some_and(|sent| sent.is_last);
        resync.step += 1;
        resync.source.want(wanted);
        if !is_last {
            return;
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
        if resync.attempt != attempt {
            return;
        }
        match kind {
            ErrorKind::NotFound => primary.peers[index].let_go(now),
            ErrorKind::NoSpace => {
                // It goes on when room was made.
                let peer = &mut primary.peers[index];
                peer.let_go(now + self.times.resync_again);
                if !std::mem::replace(&mut peer.lacks_room, true) {
                    self.effects.news(MirrorEffect::NoRoom { target: peer.target });
                }
            }
            kind => self.break_off(index, kind, now),
        }
    }

    /// A member cannot be brought up to date now.
    fn break_off(&mut self, index: usize, kind: ErrorKind, now: Duration) {
        let again_at = now + self.times.resync_again;
        let MemberRole::Primary(primary) = &mut self.role else { return };
        let peer = &mut primary.peers[index];
        peer.let_go(again_at);
        let target = peer.target;
        self.effects.news(MirrorEffect::Broken { target, kind });
    }

    /// Sends the last step again.
    pub(super) fn resend_step(&mut self, index: usize, now: Duration) {
        let MemberRole::Primary(primary) = &mut self.role else { return };
        let peer = &mut primary.peers[index];
        let Some(sent) = peer.resync.as_mut().and_then(|resync| resync.sent.as_mut()) else {
            return;
        };
        (sent.at, sent.times) = (now, sent.times + 1);
        let is_over = sent.times > SENDS_MAX && !sent.is_last;
        let (target, body, payload) = (peer.target, sent.body.clone(), sent.payload.clone());
        if is_over {
            // A member that lives again knows nothing of this try.
            peer.let_go(now + self.times.resync_again);
            return;
        }
        let envelope = self.envelope(target);
        self.effects.send(PeerPacket::shared(&envelope, &body, &payload));
    }

    /// Tells the driver that a member is up to date: at once, and again as long as no map says so, because a report may be lost, or
    /// come when it cannot count.
    pub(super) fn announce(&mut self, index: usize, now: Duration) {
        let again = self.times.missed;
        let MemberRole::Primary(primary) = &mut self.role else { return };
        let committed = primary.committed;
        let peer = &mut primary.peers[index];
        let is_due = peer.announced_at.is_none_or(|at| now >= at + again);
        if is_due && peer.is_unknown_to_be_synced(committed) {
            peer.announced_at = Some(now);
            self.effects.news(MirrorEffect::Synced { target: peer.target });
        }
    }
}

fn state_step(attempt: u32, step: u32, cut: &mut ResyncCut) -> Encoded {
    let end = cut.state.len().min(cut.done + STATE_PART_LEN);
    let bytes = &cut.state[cut.done..end];
    let (total_len, offset) = (cut.state.len() as u32, cut.done as u32);
    let message = PeerMessage::State { attempt, step, total_len, offset, bytes };
    let (body, payload, _) = encoded(&message, vec![ValuePiece::Bytes(bytes.into())]);
    cut.done = end;
    (body, payload, end == cut.state.len())
}
