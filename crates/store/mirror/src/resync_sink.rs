//! One try of a member to be brought up to date, as the steps of its primary come.

use std::ops::ControlFlow;

use samite_backend::QuotaLimit;
use samite_partition::{Partition, PartitionCursor, RecordKey};
use samite_types::{ErrorKind, Position, Result, Version};
use samite_wire::peer::{PeerMessage, RecordCopy};

/// Most records that one step deletes; the rest goes when the step comes again.
const DELETES_MAX: usize = 4096;

/// One try to be brought up to date.
#[derive(Debug)]
pub(crate) struct ResyncSink {
    attempt: u32,
    /// The last step that was done, and the answer to it.
    step: u32,
    wanted: Vec<u8>,
    /// Clients are served here meanwhile.
    is_busy: bool,
    /// The part of the partition's state that has come.
    state: Vec<u8>,
    /// All has come, and the log stood there then.
    whole_at: Option<Position>,
}

/// One step.
#[derive(Clone, Copy)]
pub(crate) enum ResyncStep<'m, 'a> {
    /// All records of the primary behind `after` up to and with `upto`.
    Compare { after: &'a [u8], upto: &'a [u8], records: &'m [(&'a [u8], Version)] },
    /// Some records.
    Records(&'m [RecordCopy<'a>]),
    /// A part of the state beside the records, of `total_len` bytes.
    State { total_len: usize, offset: usize, bytes: &'a [u8] },
}

/// How far a step has come.
pub(crate) enum SinkProgress {
    /// It is done.
    Done,
    /// The primary is to send it again, for the rest of it.
    Unfinished,
    /// It was the last, and this is the state that is to be taken over.
    Whole(Vec<u8>),
}

impl ResyncSink {
    /// Try `attempt` of a primary.
    pub(crate) const fn new(attempt: u32) -> Self {
        Self {
            attempt,
            step: 0,
            wanted: Vec::new(),
            is_busy: false,
            state: Vec::new(),
            whole_at: None,
        }
    }

    /// The number of the try.
    pub(crate) const fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The last step that was done; 0: none.
    pub(crate) const fn step(&self) -> u32 {
        self.step
    }

    /// Whether clients are served here, so that the primary is to take its time.
    pub(crate) const fn set_busy(&mut self, is_busy: bool) {
        self.is_busy = is_busy;
    }

    /// Whether `step` is the one to be done now.
    pub(crate) const fn is_next(&self, step: u32) -> bool {
        step == self.step + 1 && self.whole_at.is_none()
    }

    /// Does the next step. `wants_all`: the records here may differ at the same version.
    ///
    /// # Errors
    /// Errors of the store; `Corrupt`: a part of the state is missing. The try is over.
    pub(crate) fn take(
        &mut self,
        partition: &mut Partition,
        what: ResyncStep<'_, '_>,
        wants_all: bool,
    ) -> Result<SinkProgress> {
        self.wanted.clear();
        match what {
            ResyncStep::Compare { after, upto, records } => {
                return compare(partition, (after, upto), records, wants_all, &mut self.wanted);
            }
            ResyncStep::Records(records) => {
                for record in records {
                    partition.install(record, QuotaLimit::Open)?;
                }
            }
            ResyncStep::State { total_len, offset, bytes } => {
                if offset != self.state.len() {
                    return Err(ErrorKind::Corrupt.into());
                }
                self.state.extend_from_slice(bytes);
                if self.state.len() == total_len {
                    return Ok(SinkProgress::Whole(std::mem::take(&mut self.state)));
                }
            }
        }
        Ok(SinkProgress::Done)
    }

    /// The next step is done. `whole_at`: all has come, and the log stands there.
    pub(crate) const fn done(&mut self, whole_at: Option<Position>) {
        self.step += 1;
        self.whole_at = whole_at;
    }

    /// Whether all has come, and it has to be on flash, where entries up to `logged` are.
    pub(crate) fn waits_for_flash(&self, logged: Option<Position>) -> bool {
        logged.zip(self.whole_at).is_some_and(|(logged, whole_at)| logged < whole_at)
    }

    /// The answer to `step`. `again`: the primary is to send it again.
    pub(crate) fn answer(&self, step: u32, again: bool) -> PeerMessage<'_> {
        let (attempt, is_busy, wanted) = (self.attempt, self.is_busy, &*self.wanted);
        PeerMessage::Done { attempt, step, again, is_busy, wanted }
    }
}

/// Deletes records that the primary has not, and finds those that it is to send: their bits are set
/// in `wanted`.
fn compare(
    partition: &mut Partition,
    (after, upto): (&[u8], &[u8]),
    records: &[(&[u8], Version)],
    wants_all: bool,
    wanted: &mut Vec<u8>,
) -> Result<SinkProgress> {
    wanted.resize(records.len().div_ceil(8), 0);
    let mut want = |index: usize| wanted[index / 8] |= 1 << (index % 8);
    let mut extra: Vec<RecordKey> = Vec::new();
    let mut is_over = true;
    // Both are in the order of their keys.
    let mut next = 0;
    PartitionCursor::range(after, upto).visit(partition, &mut |key, meta| {
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
        return Ok(SinkProgress::Unfinished);
    }
    (next..records.len()).for_each(want);
    Ok(SinkProgress::Done)
}

#[cfg(test)]
mod tests {
    use samite_backend::Backend as _;
    use samite_backend::memory::MemoryBackend;
    use samite_types::{DatasetId, PartitionId};

    use super::*;

    fn partition() -> Partition {
        let mut backend = MemoryBackend::new(1 << 20, 1).unwrap();
        Partition::new(backend.open(DatasetId(1), PartitionId(0)).unwrap())
    }

    #[test]
    fn a_comparison_deletes_what_the_primary_has_not_and_wants_what_differs() {
        let (mut sink, mut partition) = (ResyncSink::new(1), partition());
        for (key, version) in [(b"b", 1), (b"c", 2), (b"d", 3)] {
            let record =
                RecordCopy { key, version: Version(version), value: Some(Default::default()) };
            partition.install(&record, QuotaLimit::Open).unwrap();
        }
        let records: [(&[u8], Version); 3] =
            [(b"a", Version(9)), (b"b", Version(1)), (b"c", Version(8))];
        let what = ResyncStep::Compare { after: b"", upto: b"", records: &records };
        let progress = sink.take(&mut partition, what, false).unwrap();
        assert!(matches!(progress, SinkProgress::Done));
        assert_eq!(sink.wanted, [0b101]);
        assert_eq!(partition.record_count(), 2, "there is no d");
        sink.take(&mut partition, what, true).unwrap();
        assert_eq!(sink.wanted, [0b111], "equal versions say nothing");
    }

    #[test]
    fn the_state_comes_in_order_and_counts_when_it_is_on_flash() {
        let (mut sink, mut partition) = (ResyncSink::new(1), partition());
        let part = |offset, bytes: &'static [u8]| ResyncStep::State { total_len: 4, offset, bytes };
        let first = sink.take(&mut partition, part(0, b"st"), false).unwrap();
        assert!(matches!(first, SinkProgress::Done));
        sink.done(None);
        assert!(sink.take(&mut partition, part(3, b"e"), false).is_err(), "a part is missing");
        let last = sink.take(&mut partition, part(2, b"at"), false).unwrap();
        assert!(matches!(last, SinkProgress::Whole(state) if state == b"stat"));
        assert!(sink.is_next(2));
        sink.done(Some(Position(7)));
        assert!(!sink.is_next(3) && sink.step() == 2);
        assert!(sink.waits_for_flash(Some(Position(6))));
        assert!(!sink.waits_for_flash(Some(Position(7))) && !sink.waits_for_flash(None));
    }
}
