//! A member that is being brought up to date.

use std::ops::ControlFlow;

use samite_backend::QuotaLimit;
use samite_partition::{Partition, RecordKey};
use samite_types::{ErrorKind, Position, Result, TargetId, Version};
use samite_wire::peer::{PeerMessage, RecordCopy};

use super::MirroredPartition;

/// Most records that one step deletes; the rest goes when the step comes again.
const DELETES_MAX: usize = 4096;

/// One try to be brought up to date.
#[derive(Debug)]
pub(super) struct ResyncSink {
    attempt: u32,
    /// The last step that was done, and the answer to it.
    step: u32,
    wanted: Vec<u8>,
    /// Clients are served here meanwhile.
    is_busy: bool,
    /// The part of the partition's state that has come.
    state: Vec<u8>,
    /// All has come.
    is_whole: bool,
    /// Where the log stood then.
    whole_at: Position,
}

/// One step.
#[derive(Clone, Copy)]
enum ResyncStep<'m, 'a> {
    Compare { after: &'a [u8], upto: &'a [u8], records: &'m [(&'a [u8], Version)] },
    Records(&'m [RecordCopy<'a>]),
    State { total_len: usize, offset: usize, bytes: &'a [u8] },
}

impl MirroredPartition {
    /// Whether clients are served where this member is, which should not wait for its being brought
    /// up to date: the primary is told with the next answer.
    pub const fn set_busy(&mut self, is_busy: bool) {
        if let Some(sink) = &mut self.sink {
            sink.is_busy = is_busy;
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
            self.sink = Some(ResyncSink {
                attempt,
                step: 0,
                wanted: Vec::new(),
                is_busy: false,
                state: Vec::new(),
                is_whole: false,
                whole_at: Position(0),
            });
            self.become_unfit();
            self.log.clear();
            self.checkpoint = None;
            if self.logged.is_some() {
                self.effects.discard();
            }
        }
        if self.sink.as_ref().is_some_and(|sink| sink.attempt == attempt && sink.step == 0) {
            let (again, is_busy) = (false, false);
            self.answer(from, &PeerMessage::Done { attempt, step: 0, again, is_busy, wanted: &[] });
        }
    }

    fn sink_step(&mut self, from: TargetId, (attempt, step): (u32, u32), what: ResyncStep<'_, '_>) {
        if (self.term, attempt) < self.last_attempt {
            return;
        }
        let is_known = self.sink.as_ref().is_some_and(|sink| sink.attempt == attempt);
        let Some(mut sink) = self.sink.take_if(|_| is_known) else {
            return self.answer(from, &PeerMessage::Lost { attempt, kind: ErrorKind::NotFound });
        };
        let mut again = false;
        if step == sink.step + 1 && !sink.is_whole {
            match self.sink_do(&mut sink, what) {
                Ok(ControlFlow::Continue(())) => sink.step = step,
                Ok(ControlFlow::Break(())) => again = true,
                Err(error) => {
                    let kind = error.kind();
                    return self.answer(from, &PeerMessage::Lost { attempt, kind });
                }
            }
        } else if step > sink.step {
            return self.answer(from, &PeerMessage::Lost { attempt, kind: ErrorKind::NotFound });
        }
        if sink.is_whole {
            // It counts when it is on flash, if it has to be there.
            again = self.logged.is_some_and(|logged| logged < sink.whole_at);
        }
        if step == sink.step || again {
            let (is_busy, wanted) = (sink.is_busy, &*sink.wanted);
            let message = PeerMessage::Done { attempt, step, again, is_busy, wanted };
            self.answer(from, &message);
        }
        self.sink = Some(sink);
    }

    /// Breaks when the step is not over.
    fn sink_do(
        &mut self,
        sink: &mut ResyncSink,
        what: ResyncStep<'_, '_>,
    ) -> Result<ControlFlow<()>> {
        sink.wanted.clear();
        match what {
            ResyncStep::Compare { after, upto, records } => {
                let wants_all = self.is_doubtful;
                return compare(&mut self.partition, (after, upto), records, wants_all, sink);
            }
            ResyncStep::Records(records) => {
                for record in records {
                    self.partition.install(record, QuotaLimit::Open)?;
                }
            }
            ResyncStep::State { total_len, offset, bytes } => {
                if offset != sink.state.len() {
                    return Err(ErrorKind::Corrupt.into());
                }
                sink.state.extend_from_slice(bytes);
                if sink.state.len() == total_len {
                    let state = std::mem::take(&mut sink.state);
                    self.import(&state)?;
                    sink.is_whole = true;
                    sink.whole_at = self.at.position;
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// Deletes records that the primary has not, and finds those that it is to send.
fn compare(
    partition: &mut Partition,
    (after, upto): (&[u8], &[u8]),
    records: &[(&[u8], Version)],
    wants_all: bool,
    sink: &mut ResyncSink,
) -> Result<ControlFlow<()>> {
    sink.wanted.resize(records.len().div_ceil(8), 0);
    let mut want = |index: usize| sink.wanted[index / 8] |= 1 << (index % 8);
    let mut extra: Vec<RecordKey> = Vec::new();
    let mut is_over = true;
    // Both are in the order of their keys.
    let mut next = 0;
    partition.visit_records(after, &mut |key, meta| {
        if !upto.is_empty() && key > upto {
            return ControlFlow::Break(());
        }
        while records.get(next).is_some_and(|(other, _)| *other < key) {
            want(next);
            next += 1;
        }
        match records.get(next) {
            Some((other, version)) if *other == key => {
                if *version != meta.version || wants_all {
                    want(next);
                }
                next += 1;
            }
            _ => extra.push(key.into()),
        }
        is_over = extra.len() < DELETES_MAX;
        if is_over { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    for key in &extra {
        let gone = RecordCopy { key, version: Version(0), value: None };
        partition.install(&gone, QuotaLimit::Open)?;
    }
    if !is_over {
        return Ok(ControlFlow::Break(()));
    }
    (next..records.len()).for_each(want);
    Ok(ControlFlow::Continue(()))
}
