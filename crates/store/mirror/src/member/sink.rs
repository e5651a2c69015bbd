//! A member that is being brought up to date.

use samite_types::{ErrorKind, Result, TargetId};
use samite_wire::peer::PeerMessage;

use super::MirroredPartition;
use crate::resync_sink::{ResyncSink, ResyncStep, SinkProgress};

impl MirroredPartition {
    /// Whether clients are served where this member is, which should not wait for its being brought
    /// up to date: the primary is told with the next answer.
    pub const fn set_busy(&mut self, is_busy: bool) {
        if let Some(sink) = &mut self.sink {
            sink.set_busy(is_busy);
        }
    }

    /// A message of a resync, from the primary.
    pub(super) fn resync_message(&mut self, from: TargetId, message: &PeerMessage<'_>) {
        match message {
            PeerMessage::Begin { attempt } => self.begin_sink(from, *attempt),
            PeerMessage::Compare { attempt, step, after, upto, records } => {
                let what = ResyncStep::Compare { after, upto, records };
                self.sink_step(from, (*attempt, *step), what);
            }
            PeerMessage::Records { attempt, step, records } => {
                self.sink_step(from, (*attempt, *step), ResyncStep::Records(records));
            }
            PeerMessage::State { attempt, step, total_len, offset, bytes } => {
                let (total_len, offset) = (*total_len as usize, *offset as usize);
                let what = ResyncStep::State { total_len, offset, bytes };
                self.sink_step(from, (*attempt, *step), what);
            }
            _ => {}
        }
    }

    fn begin_sink(&mut self, from: TargetId, attempt: u32) {
        if (self.term, attempt) > self.last_attempt {
            self.last_attempt = (self.term, attempt);
            self.sink = Some(ResyncSink::new(attempt));
            self.become_unfit();
            self.log.clear();
            self.checkpoint = None;
            self.discard_committed();
        }
        if self.sink.as_ref().is_some_and(|sink| sink.attempt() == attempt && sink.step() == 0) {
            let (again, is_busy) = (false, false);
            self.answer(from, &PeerMessage::Done { attempt, step: 0, again, is_busy, wanted: &[] });
        }
    }

    fn sink_step(&mut self, from: TargetId, (attempt, step): (u32, u32), what: ResyncStep<'_, '_>) {
        if (self.term, attempt) < self.last_attempt {
            return;
        }
        let is_known = self.sink.as_ref().is_some_and(|sink| sink.attempt() == attempt);
        let Some(mut sink) = self.sink.take_if(|_| is_known) else {
            return self.answer(from, &PeerMessage::Lost { attempt, kind: ErrorKind::NotFound });
        };
        let mut again = false;
        if sink.is_next(step) && self.is_behind_commits() {
            again = true;
        } else if sink.is_next(step) {
            match self.sink_do(&mut sink, what) {
                Ok(is_done) => again = !is_done,
                Err(error) => {
                    let kind = error.kind();
                    return self.answer(from, &PeerMessage::Lost { attempt, kind });
                }
            }
        } else if step > sink.step() {
            return self.answer(from, &PeerMessage::Lost { attempt, kind: ErrorKind::NotFound });
        }
        // It counts when it is on flash, if it has to be there.
        again |= sink.waits_for_flash(self.logged);
        if step == sink.step() || again {
            self.answer(from, &sink.answer(step, again));
        }
        self.sink = Some(sink);
    }

    /// Does the next step. Returns whether it is done.
    fn sink_do(&mut self, sink: &mut ResyncSink, what: ResyncStep<'_, '_>) -> Result<bool> {
        match sink.take(&mut self.partition, what, self.is_doubtful)? {
            SinkProgress::Unfinished => return Ok(false),
            SinkProgress::Done => sink.done(None),
            SinkProgress::Whole(state) => {
                self.import(&state)?;
                sink.done(Some(self.at.position));
            }
        }
        Ok(true)
    }
}
