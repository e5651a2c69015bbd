//! Clients, and the answers that they got.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use samite_partition::{ActionOutput, AppliedOutcome, RequestContext};
use samite_types::{ClientId, Epoch, ErrorKind, PartitionId, Seq};
use samite_wire::op::{Action, Guard, Operation, ValueData};

use crate::rng::Rng;

pub const TOKEN_LEN: usize = 8;
const LONG: Duration = Duration::from_millis(300);

/// The request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallAction {
    Append {
        key: u64,
    },
    /// If the record is no longer than that.
    AppendAt {
        key: u64,
        len: u32,
    },
    Read {
        key: u64,
    },
    Hold {
        key: u64,
    },
    Release,
}

/// An operation under way.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    pub client: usize,
    pub seq: u64,
    pub action: CallAction,
    /// The bytes that it appends.
    pub token: u64,
    pub is_retry: bool,
}

/// The contents of a reply.
#[derive(Clone, Debug)]
pub enum Said {
    Done,
    Value(Vec<u8>),
    Failed(ErrorKind),
}

pub struct Client {
    pub id: ClientId,
    next_seq: u64,
    pub waiting: Option<(Call, Duration, Duration)>,
    /// Longest that it has read each record.
    seen: BTreeMap<u64, usize>,
}

/// The shared knowledge of all clients.
#[derive(Default)]
pub struct History {
    /// Tokens and their record, when they were asked for and answered.
    pub asked: BTreeMap<u64, (u64, Duration)>,
    pub done: BTreeMap<u64, Duration>,
    pub refused: BTreeSet<u64>,
    /// Reads: record, value, when asked and answered.
    pub reads: Vec<(u64, Vec<u8>, Duration, Duration)>,
    pub answers: usize,
}

impl Client {
    pub fn new(index: usize) -> Self {
        let id = ClientId(index as u64 + 1);
        Self { id, next_seq: 1, waiting: None, seen: BTreeMap::new() }
    }

    /// A call to send now, if there is one.
    pub fn call(
        &mut self,
        index: usize,
        rng: &mut Rng,
        (keys, reads): (u64, u64),
        now: Duration,
        history: &mut History,
    ) -> Option<Call> {
        if let Some((call, _, sent)) = &mut self.waiting {
            if now < *sent + LONG {
                return None;
            }
            *sent = now;
            call.is_retry = true;
            return Some(*call);
        }
        let key = rng.below(keys);
        let is_read = rng.per_mille(reads);
        let action = match rng.below(10) {
            _ if is_read => CallAction::Read { key },
            0..5 => CallAction::Append { key },
            5..8 => {
                let len = self.seen.get(&key).copied().unwrap_or(0) as u32;
                CallAction::AppendAt { key, len }
            }
            8 => CallAction::Hold { key },
            _ => CallAction::Release,
        };
        let seq = self.next_seq;
        self.next_seq += 1;
        let token = (index as u64 + 1) << 32 | seq;
        let call = Call { client: index, seq, action, token, is_retry: false };
        if let CallAction::Append { key } | CallAction::AppendAt { key, .. } = action {
            history.asked.insert(token, (key, now));
        }
        self.waiting = Some((call, now, now));
        Some(call)
    }

    /// An answer comes. A request that is to be sent again stays.
    pub fn answered(&mut self, call: &Call, said: &Said, now: Duration, history: &mut History) {
        let Some((waiting, asked, sent)) = &mut self.waiting else { return };
        if waiting.seq != call.seq {
            return;
        }
        let asked = *asked;
        match (said, call.action) {
            (Said::Failed(ErrorKind::StaleMap | ErrorKind::Unavailable), _) => {
                // Soon again.
                *sent = now.saturating_sub(LONG - Duration::from_millis(30));
                return;
            }
            (Said::Failed(_), CallAction::Append { .. } | CallAction::AppendAt { .. }) => {
                history.refused.insert(call.token);
            }
            (_, CallAction::Append { .. } | CallAction::AppendAt { .. }) => {
                history.done.insert(call.token, now);
            }
            (Said::Value(value), CallAction::Read { key }) => {
                self.seen.insert(key, value.len());
                history.reads.push((key, value.clone(), asked, now));
            }
            (Said::Failed(ErrorKind::NotFound), CallAction::Read { key }) => {
                history.reads.push((key, Vec::new(), asked, now));
            }
            _ => {}
        }
        history.answers += 1;
        self.waiting = None;
    }
}

pub fn key_of(key: u64) -> Vec<u8> {
    format!("record-{key:06}").into_bytes()
}

/// Of the record beside the one of `key`.
pub fn stamp_of(key: u64) -> Vec<u8> {
    format!("marked-{key:06}").into_bytes()
}

impl Call {
    /// Carries it out by `apply`.
    pub fn carry_out<R>(
        &self,
        client: ClientId,
        apply: impl FnOnce(ClientId, &RequestContext, &Operation<'_>) -> R,
    ) -> R {
        let token = self.token.to_le_bytes();
        let (key, data) = match self.action {
            CallAction::Append { key }
            | CallAction::AppendAt { key, .. }
            | CallAction::Read { key }
            | CallAction::Hold { key } => (key_of(key), ValueData::Inline(&token[..])),
            CallAction::Release => (Vec::new(), ValueData::Inline(&[])),
        };
        // As with each entry that is made in a directory: a record beside, which a walk from the front has passed before the other.
        let stamp = match self.action {
            CallAction::Append { key } | CallAction::AppendAt { key, .. } => Some(stamp_of(key)),
            _ => None,
        };
        let len_max = 1 << 20;
        let action = match self.action {
            CallAction::Append { .. } | CallAction::AppendAt { .. } => {
                Action::Append { key: &key, data, len_max }
            }
            CallAction::Read { .. } => Action::Get { key: &key, offset: 0, len: u32::MAX },
            CallAction::Hold { .. } => Action::Hold { key: &key, token: self.token },
            CallAction::Release => Action::Release { token: self.token - 1 },
        };
        let mut operation = Operation::new(PartitionId(0), [action]);
        if let Some(key) = &stamp {
            let to = self.token.cast_signed();
            operation.actions.push(Action::Advance { key, offset: 0, count: 1, to, slack: 0 });
        }
        if let CallAction::AppendAt { len, .. } = self.action {
            operation = operation.guard(Guard::LenAtMost(&key, len));
        }
        if operation.is_mutation() {
            operation.seq = Seq(self.seq);
        }
        let context = RequestContext {
            // The one before it has been answered.
            answered_below: Seq(self.seq),
            is_retry: self.is_retry,
            name_space_generation: Epoch(u64::MAX),
            body_len_max: 1 << 16,
            now: Duration::ZERO,
            delegation_term_max: Duration::ZERO,
            reads_in_place: false,
            grants_all_delegations: false,
        };
        apply(client, &context, &operation)
    }
}

pub fn said(outcome: &AppliedOutcome) -> Said {
    match outcome {
        AppliedOutcome::Failed { kind, .. } => Said::Failed(*kind),
        AppliedOutcome::Done(outputs) => match &outputs[0] {
            ActionOutput::Value { pieces, .. } => {
                let mut value = Vec::new();
                pieces.iter().for_each(|piece| piece.append_to(&mut value));
                Said::Value(value)
            }
            _ => Said::Done,
        },
    }
}
