//! One try of a primary to bring a member up to date: steps one by one, each when the one before is
//! answered.

use std::sync::Arc;
use std::time::Duration;

use samite_backend::ValuePiece;
use samite_partition::Partition;
use samite_types::{Position, Result};
use samite_wire::peer::{LogPoint, PeerEnvelope, PeerMessage, RecordCopy};

use crate::copy_source::{CopiedRecord, CopyBatch, CopySource, pieces_of};
use crate::member_state;
use crate::packet::{Payload, PeerPacket};

/// Most bytes of the partition's state in one step.
const STATE_PART_LEN: usize = 256 << 10;
/// A step without an answer for so many times of waiting: the try is given up.
const SENDS_MAX: u32 = 100;

/// One try to bring a member up to date.
#[derive(Debug)]
pub(crate) struct ResyncSource {
    source: CopySource,
    attempt: u32,
    step: u32,
    sent: Option<SentStep>,
    /// The part that remains to be sent once the copy is whole.
    cut: Option<ResyncCut>,
}

/// A step, encoded. A clone shares its bytes.
#[derive(Clone, Debug)]
pub(crate) struct EncodedStep {
    body: Arc<[u8]>,
    payload: Payload,
    /// With its answer the member is up to date.
    is_last: bool,
}

/// A step that was sent and not answered yet.
#[derive(Debug)]
struct SentStep {
    step: EncodedStep,
    at: Duration,
    times: u32,
}

/// The partition's state where the copy is whole.
#[derive(Debug)]
struct ResyncCut {
    position: Position,
    state: Vec<u8>,
    done: usize,
}

/// The consequence of a member's answer to a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepAnswer {
    /// Nothing for now: it is about another step, or the member waits for its flash, and is asked
    /// again in a while.
    Nothing,
    /// The step has more to do: it is sent again at once.
    SendAgain,
    /// The next step may be sent.
    Next,
    /// The member is up to date.
    Whole,
}

impl EncodedStep {
    fn new(message: &PeerMessage<'_>, payload: Vec<ValuePiece>) -> Self {
        let mut body = Vec::with_capacity(64);
        message.encode(&mut body);
        Self { body: body.into(), payload: payload.into(), is_last: false }
    }

    fn records(attempt: u32, step: u32, copied: &[CopiedRecord]) -> Self {
        let records: Vec<RecordCopy<'_>> = copied.iter().map(CopiedRecord::as_copy).collect();
        Self::new(&PeerMessage::Records { attempt, step, records }, pieces_of(copied))
    }

    fn state(attempt: u32, step: u32, cut: &mut ResyncCut) -> Self {
        let end = cut.state.len().min(cut.done + STATE_PART_LEN);
        let bytes = &cut.state[cut.done..end];
        let (total_len, offset) = (cut.state.len() as u32, cut.done as u32);
        let message = PeerMessage::State { attempt, step, total_len, offset, bytes };
        let encoded = Self::new(&message, vec![ValuePiece::Bytes(bytes.into())]);
        cut.done = end;
        Self { is_last: end == cut.state.len(), ..encoded }
    }

    /// The message to the receiver of `envelope`.
    pub(crate) fn packet(&self, envelope: &PeerEnvelope) -> PeerPacket {
        PeerPacket::shared(envelope, &self.body, &self.payload)
    }

    /// Bytes of it.
    pub(crate) fn len(&self) -> usize {
        self.body.len() + self.payload.iter().map(ValuePiece::len).sum::<usize>()
    }
}

impl ResyncSource {
    /// Try `attempt` of a primary; it has no other of this number.
    pub(crate) fn new(attempt: u32) -> Self {
        let source = CopySource::comparing();
        Self { source, attempt, step: 0, sent: None, cut: None }
    }

    /// Its number.
    pub(crate) const fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The record with this key has changed.
    pub(crate) fn note(&mut self, key: &[u8]) {
        if self.cut.is_none() {
            self.source.note(key);
        }
    }

    /// Whether a step was sent and is not answered.
    pub(crate) const fn waits(&self) -> bool {
        self.sent.is_some()
    }

    /// The last entry that the copy includes, once it is whole.
    pub(crate) fn whole_at(&self) -> Option<Position> {
        self.cut.as_ref().map(|cut| cut.position)
    }

    /// When the step that was sent is sent again.
    pub(crate) fn resend_at(&self, retransmit: Duration) -> Option<Duration> {
        // Less often as time goes by: the member may be dead.
        self.sent.as_ref().map(|sent| sent.at + retransmit * sent.times.min(10))
    }

    /// The next step, of about `len_max` bytes, which is sent `now`. The one before is answered.
    /// `at` and `grants_delegations`: where the log stands here, and whether delegations may be
    /// out.
    ///
    /// # Errors
    /// Errors of the store; the try is over.
    pub(crate) fn next(
        &mut self,
        partition: &Partition,
        (at, grants_delegations): (LogPoint, bool),
        len_max: usize,
        now: Duration,
    ) -> Result<EncodedStep> {
        let step = self.encode(partition, (at, grants_delegations), len_max)?;
        self.sent = Some(SentStep { step: step.clone(), at: now, times: 1 });
        Ok(step)
    }

    fn encode(
        &mut self,
        partition: &Partition,
        (at, grants_delegations): (LogPoint, bool),
        len_max: usize,
    ) -> Result<EncodedStep> {
        let (attempt, step) = (self.attempt, self.step);
        if step == 0 {
            return Ok(EncodedStep::new(&PeerMessage::Begin { attempt }, Vec::new()));
        }
        if let Some(cut) = &mut self.cut {
            return Ok(EncodedStep::state(attempt, step, cut));
        }
        Ok(match self.source.next(partition, len_max)? {
            CopyBatch::Compare { after, upto, records } => {
                let records = records.iter().map(|(key, version)| (&**key, *version)).collect();
                let (after, upto) = (&*after, &*upto);
                let message = PeerMessage::Compare { attempt, step, after, upto, records };
                EncodedStep::new(&message, Vec::new())
            }
            CopyBatch::Records(records) => EncodedStep::records(attempt, step, &records),
            CopyBatch::Last(records) => {
                let mut state = Vec::new();
                member_state::export(partition, at, grants_delegations, &mut state);
                let cut = self.cut.insert(ResyncCut { position: at.position, state, done: 0 });
                match records.is_empty() {
                    true => EncodedStep::state(attempt, step, cut),
                    false => EncodedStep::records(attempt, step, &records),
                }
            }
        })
    }

    /// The member has answered step `step` of try `attempt`. `again`: it has more to do there;
    /// `wanted`: the records of a comparison that it wants, a bit for each.
    pub(crate) fn answered(
        &mut self,
        (attempt, step): (u32, u32),
        (again, wanted): (bool, &[u8]),
    ) -> StepAnswer {
        let Some(sent) = self.sent.as_ref() else { return StepAnswer::Nothing };
        let is_last = sent.step.is_last;
        if (self.attempt, self.step) != (attempt, step) || again && is_last {
            return StepAnswer::Nothing;
        }
        if again {
            return StepAnswer::SendAgain;
        }
        self.sent = None;
        self.step += 1;
        self.source.want(wanted);
        if is_last { StepAnswer::Whole } else { StepAnswer::Next }
    }

    /// The step that is not answered, to be sent once more `now`.
    pub(crate) fn send_again(&mut self, now: Duration) -> Option<EncodedStep> {
        let sent = self.sent.as_mut()?;
        (sent.at, sent.times) = (now, sent.times + 1);
        Some(sent.step.clone())
    }

    /// Whether a step was sent so often that the try is given up: a member that lives again knows
    /// nothing of it.
    pub(crate) fn is_hopeless(&self) -> bool {
        self.sent.as_ref().is_some_and(|sent| sent.times > SENDS_MAX && !sent.step.is_last)
    }
}

#[cfg(test)]
mod tests {
    use samite_backend::memory::MemoryBackend;
    use samite_backend::{Backend as _, QuotaLimit};
    use samite_types::{DatasetId, PartitionId, Version};

    use super::*;

    const RETRANSMIT: Duration = Duration::from_millis(100);

    /// A partition with one record.
    fn partition() -> Partition {
        let mut backend = MemoryBackend::new(1 << 20, 1).unwrap();
        let mut partition = Partition::new(backend.open(DatasetId(1), PartitionId(0)).unwrap());
        let record = RecordCopy { key: b"k", version: Version(1), value: Some(Default::default()) };
        partition.install(&record, QuotaLimit::Open).unwrap();
        partition
    }

    fn next(source: &mut ResyncSource, partition: &Partition) -> EncodedStep {
        let at = LogPoint { position: Position(7), ..LogPoint::default() };
        source.next(partition, (at, false), 1 << 20, Duration::ZERO).unwrap()
    }

    #[test]
    fn steps_follow_on_their_answers_until_the_copy_is_whole() {
        let (partition, mut source) = (partition(), ResyncSource::new(3));
        next(&mut source, &partition);
        assert!(source.waits());
        assert_eq!(source.answered((2, 0), (false, &[])), StepAnswer::Nothing, "of another try");
        assert_eq!(source.answered((3, 0), (false, &[])), StepAnswer::Next);
        next(&mut source, &partition);
        assert_eq!(source.answered((3, 1), (true, &[])), StepAnswer::SendAgain);
        assert_eq!(source.answered((3, 1), (false, &[1])), StepAnswer::Next);
        assert_eq!(source.answered((3, 1), (false, &[1])), StepAnswer::Nothing, "it comes twice");
        next(&mut source, &partition);
        assert_eq!(source.answered((3, 2), (false, &[])), StepAnswer::Next);
        assert_eq!(source.whole_at(), None);
        next(&mut source, &partition);
        assert_eq!(source.whole_at(), Some(Position(7)));
        assert_eq!(source.answered((3, 3), (true, &[])), StepAnswer::Nothing, "not on flash yet");
        assert_eq!(source.answered((3, 3), (false, &[])), StepAnswer::Whole);
    }

    #[test]
    fn a_step_without_an_answer_is_sent_less_and_less_often_and_then_given_up() {
        let mut source = ResyncSource::new(1);
        assert!(source.send_again(Duration::ZERO).is_none());
        let len = next(&mut source, &partition()).len();
        assert_eq!(source.resend_at(RETRANSMIT), Some(RETRANSMIT));
        for _ in 1..SENDS_MAX {
            assert_eq!(source.send_again(Duration::ZERO).map(|step| step.len()), Some(len));
        }
        assert_eq!(source.resend_at(RETRANSMIT), Some(RETRANSMIT * 10));
        assert!(!source.is_hopeless());
        source.send_again(Duration::ZERO);
        assert!(source.is_hopeless());
    }
}
