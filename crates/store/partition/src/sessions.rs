//! Exactly once: the operations that each client session has had done.
//!
//! A mutation is known by its client session and sequence number. Its results are remembered until
//! the client says that it has them, so a repetition is answered, not done again. Memory is bounded
//! three ways: results per session, results in all, and sessions. A result that is forgotten before
//! the client had its answer is refused when the operation comes again, never redone.

use std::collections::{BTreeMap, VecDeque};

use samite_types::{ClientId, ErrorKind, Seq, Version};
use samite_wire::limits::SESSION_WINDOW;
use samite_wire::{FieldDecoder, WireError};
use smallvec::SmallVec;

use crate::fields::{bounded, put_u32, put_u64};
use crate::limits::{FORGOTTEN_MAX, REMEMBERED_LEN_MAX, RESULTS_MAX, SESSIONS_MAX};
use crate::refusals::ClientRefusals;

/// The remembered result of one action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RememberedAction {
    /// Of a `Put`, `Write`, `Append` or `Truncate`.
    Written { offset: u32, total_len: u32, created: bool },
    /// Of a `Delete`.
    Deleted(bool),
    /// Of the actions that answer with a number.
    Number(u64),
    /// Of a question with a short answer, such as a `Get` before a `Delete`: a record that is gone
    /// cannot be asked for again.
    Value { version: Version, total_len: u32, bytes: Box<[u8]> },
    /// Of any other question, which is asked again.
    Asked,
}

/// Results of the actions of one operation.
pub(crate) type Results = SmallVec<[RememberedAction; 1]>;

/// One operation that was decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AppliedOperation {
    seq: Seq,
    /// The partition's version that it made, or met.
    pub(crate) version: Version,
    pub(crate) results: Decided,
}

/// The decision: its results, or why it was refused and which guard or action was the reason.
pub(crate) type Decided = Result<Results, (ErrorKind, u16)>;

/// The known state of an operation before it is tried.
#[derive(Debug)]
pub(crate) enum KnownOperation<'a> {
    /// It did not take effect yet.
    New,
    /// It took effect, with these results; or it was refused for good.
    Applied(&'a AppliedOperation),
    /// This sending of it was refused, and why.
    Refused(ErrorKind, u16),
    /// It may have taken effect, and nobody knows any more.
    Lost,
    /// First sent, but so late that the window has passed it.
    Behind,
}

/// The sessions of a partition.
#[derive(Debug, Default)]
pub(crate) struct PartitionSessions {
    sessions: BTreeMap<ClientId, SessionEntry>,
    /// Sessions forgotten lately, oldest first.
    forgotten: VecDeque<ClientId>,
    /// Sessions were forgotten that `forgotten` does not name any more.
    forgot_more: bool,
    /// Results over all sessions.
    total: usize,
    /// Counts decisions; orders sessions by the last.
    tick: u64,
    /// First sendings that were refused here.
    refusals: ClientRefusals,
}

#[derive(Debug, Default)]
struct SessionEntry {
    /// Nothing below is remembered.
    low: Seq,
    /// The client has said that it has the answers to all below. Only here, and only for refusing:
    /// a session *is* the result of decisions alone, so that all members of a mirror group have the
    /// same.
    heard: Seq,
    /// By sequence number.
    applied: VecDeque<AppliedOperation>,
    used: u64,
}

impl SessionEntry {
    fn find(&self, seq: Seq) -> Result<usize, usize> {
        // Mostly the newest.
        if self.applied.back().is_none_or(|last| last.seq < seq) {
            return Err(self.applied.len());
        }
        self.applied.binary_search_by_key(&seq, |applied| applied.seq)
    }
}

impl PartitionSessions {
    /// The client has had the answers to all below `answered_below`.
    pub(crate) fn hear(&mut self, client: ClientId, answered_below: Seq) {
        if let Some(session) = self.sessions.get_mut(&client) {
            session.heard = session.heard.max(answered_below);
        }
        self.refusals.hear(client, answered_below);
    }

    /// The first sending of operation `seq` was refused: should it come once more, it must not take effect, for the client may have the answer. Of a
    /// second sending it says nothing.
    pub(crate) fn refuse_first(&mut self, client: ClientId, seq: Seq, reason: (ErrorKind, u16)) {
        self.refusals.note(client, seq, reason);
    }

    /// Keeps the state that only this member has, of the sessions that were here before.
    pub(crate) fn inherit(&mut self, before: Self) {
        self.refusals = before.refusals;
    }

    /// The known state of operation `seq` of `client` (I10).
    pub(crate) fn look_up(&self, client: ClientId, seq: Seq, is_retry: bool) -> KnownOperation<'_> {
        let Some(session) = self.sessions.get(&client) else {
            let lost = is_retry && (self.forgot_more || self.forgotten.contains(&client));
            return if lost { KnownOperation::Lost } else { self.first(client, seq, is_retry) };
        };
        match session.find(seq) {
            Ok(at) => KnownOperation::Applied(&session.applied[at]),
            Err(_) if seq >= session.low.max(session.heard) => self.first(client, seq, is_retry),
            Err(_) if is_retry => KnownOperation::Lost,
            Err(_) => KnownOperation::Behind,
        }
    }

    /// The known state of an operation that was not decided for good.
    fn first(&self, client: ClientId, seq: Seq, is_retry: bool) -> KnownOperation<'_> {
        let known = if is_retry { None } else { self.refusals.find(client, seq) };
        known.unwrap_or(KnownOperation::New)
    }

    /// Remembers the decision on operation `seq` of `client`, which has had the answers to all
    /// below `answered_below`.
    pub(crate) fn remember(
        &mut self,
        client: ClientId,
        seq: Seq,
        answered_below: Seq,
        version: Version,
        results: Decided,
    ) {
        if !self.sessions.contains_key(&client) && self.sessions.len() >= SESSIONS_MAX {
            self.forget_oldest();
        }
        self.tick += 1;
        let session = self.sessions.entry(client).or_default();
        session.used = self.tick;
        session.low = session.low.max(answered_below);
        while session.applied.front().is_some_and(|first| first.seq < answered_below) {
            session.applied.pop_front();
            self.total -= 1;
        }
        let at = session.find(seq).unwrap_or_else(|at| at);
        session.applied.insert(at, AppliedOperation { seq, version, results });
        self.total += 1;
        if session.applied.len() > SESSION_WINDOW
            && let Some(first) = session.applied.pop_front()
        {
            session.low = session.low.max(Seq(first.seq.get() + 1));
            self.total -= 1;
        }
        while self.total > RESULTS_MAX {
            self.forget_oldest();
        }
    }

    /// Appends all that is remembered, for another member of the mirror group.
    pub(crate) fn export(&self, out: &mut Vec<u8>) {
        put_u64(out, self.tick);
        out.push(u8::from(self.forgot_more));
        put_u32(out, self.forgotten.len());
        self.forgotten.iter().for_each(|client| put_u64(out, client.get()));
        put_u32(out, self.sessions.len());
        for (client, session) in &self.sessions {
            put_u64(out, client.get());
            put_u64(out, session.low.get());
            put_u64(out, session.used);
            put_u32(out, session.applied.len());
            for applied in &session.applied {
                put_u64(out, applied.seq.get());
                put_u64(out, applied.version.get());
                put_decided(out, &applied.results);
            }
        }
    }

    /// The output of [`PartitionSessions::export`].
    pub(crate) fn import(decoder: &mut FieldDecoder<'_>) -> Result<Self, WireError> {
        let tick = decoder.u64("tick")?;
        let forgot_more = decoder.u8("forgot more")? != 0;
        let mut forgotten = VecDeque::new();
        for _ in 0..bounded(decoder, FORGOTTEN_MAX, "forgotten sessions")? {
            forgotten.push_back(ClientId(decoder.u64("client")?));
        }
        let mut imported = Self { forgotten, forgot_more, tick, ..Self::default() };
        for _ in 0..bounded(decoder, SESSIONS_MAX, "sessions")? {
            let client = ClientId(decoder.u64("client")?);
            let low = Seq(decoder.u64("lowest sequence")?);
            let used = decoder.u64("last use")?;
            let mut applied = VecDeque::new();
            for _ in 0..bounded(decoder, SESSION_WINDOW, "results")? {
                let seq = Seq(decoder.u64("sequence")?);
                let version = Version(decoder.u64("version")?);
                applied.push_back(AppliedOperation { seq, version, results: decided(decoder)? });
            }
            imported.total += applied.len();
            let session = SessionEntry { low, heard: Seq(0), applied, used };
            imported.sessions.insert(client, session);
        }
        Ok(imported)
    }

    /// Forgets the session that was not heard of for longest. It is never the one in use: others hold most of the results.
    fn forget_oldest(&mut self) {
        let oldest = self.sessions.iter().min_by_key(|(_, session)| session.used);
        let Some(client) = oldest.map(|(client, _)| *client) else { return };
        if let Some(session) = self.sessions.remove(&client) {
            self.total -= session.applied.len();
        }
        if self.forgotten.len() >= FORGOTTEN_MAX {
            self.forgotten.pop_front();
            self.forgot_more = true;
        }
        self.forgotten.push_back(client);
    }
}

fn put_decided(out: &mut Vec<u8>, decided: &Decided) {
    match decided {
        Err((kind, index)) => {
            out.extend_from_slice(&[1, kind.code()]);
            out.extend_from_slice(&index.to_le_bytes());
        }
        Ok(results) => {
            // An operation has at most 64 actions.
            out.extend_from_slice(&[0, results.len() as u8]);
            results.iter().for_each(|result| put_remembered(out, result));
        }
    }
}

fn put_remembered(out: &mut Vec<u8>, result: &RememberedAction) {
    match result {
        RememberedAction::Written { offset, total_len, created } => {
            out.extend_from_slice(&[1, u8::from(*created)]);
            out.extend_from_slice(&offset.to_le_bytes());
            out.extend_from_slice(&total_len.to_le_bytes());
        }
        RememberedAction::Deleted(existed) => out.extend_from_slice(&[2, u8::from(*existed)]),
        RememberedAction::Number(number) => {
            out.push(3);
            put_u64(out, *number);
        }
        RememberedAction::Asked => out.push(4),
        RememberedAction::Value { version, total_len, bytes } => {
            out.push(5);
            put_u64(out, version.get());
            out.extend_from_slice(&total_len.to_le_bytes());
            put_u32(out, bytes.len());
            out.extend_from_slice(bytes);
        }
    }
}

fn decided(decoder: &mut FieldDecoder<'_>) -> Result<Decided, WireError> {
    if decoder.u8("decision")? == 0 {
        let count = decoder.u8("result count")?;
        let results = (0..count).map(|_| remembered(decoder));
        return Ok(Ok(results.collect::<Result<_, _>>()?));
    }
    let kind = ErrorKind::from_code(decoder.u8("kind")?).ok_or(WireError::Unknown("kind"))?;
    Ok(Err((kind, decoder.u16("index")?)))
}

fn remembered(decoder: &mut FieldDecoder<'_>) -> Result<RememberedAction, WireError> {
    Ok(match decoder.u8("result")? {
        1 => {
            let created = decoder.u8("created")? != 0;
            let offset = decoder.u32("offset")?;
            RememberedAction::Written { offset, total_len: decoder.u32("length")?, created }
        }
        2 => RememberedAction::Deleted(decoder.u8("existed")? != 0),
        3 => RememberedAction::Number(decoder.u64("number")?),
        4 => RememberedAction::Asked,
        5 => {
            let version = Version(decoder.u64("version of a value")?);
            let total_len = decoder.u32("length of a value")?;
            let len = bounded(decoder, REMEMBERED_LEN_MAX, "remembered value")?;
            RememberedAction::Value {
                version,
                total_len,
                bytes: decoder.bytes(len, "value")?.into(),
            }
        }
        _ => return Err(WireError::Unknown("result")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Seq = Seq(0);

    fn remember(sessions: &mut PartitionSessions, client: u64, seq: u64) {
        let (client, seq) = (ClientId(client), Seq(seq));
        assert!(matches!(sessions.look_up(client, seq, false), KnownOperation::New));
        let results = SmallVec::from_elem(RememberedAction::Number(seq.get()), 1);
        sessions.remember(client, seq, NONE, Version(seq.get()), Ok(results));
    }

    #[test]
    fn results_are_kept_until_answered_in_any_order_of_arrival() {
        let mut sessions = PartitionSessions::default();
        for seq in [3, 1, 4, 2] {
            remember(&mut sessions, 1, seq);
        }
        for seq in 1..=4 {
            let known = sessions.look_up(ClientId(1), Seq(seq), true);
            assert!(
                matches!(known, KnownOperation::Applied(applied) if applied.version.get() == seq)
            );
        }
        sessions.hear(ClientId(1), Seq(3));
        assert!(matches!(sessions.look_up(ClientId(1), Seq(5), true), KnownOperation::New));
        let refused = Err((ErrorKind::Conflict, 0));
        sessions.remember(ClientId(1), Seq(5), Seq(3), Version(4), refused.clone());
        let known = sessions.look_up(ClientId(1), Seq(5), false);
        assert!(matches!(known, KnownOperation::Applied(applied) if applied.results == refused));
        assert!(matches!(sessions.look_up(ClientId(1), Seq(2), true), KnownOperation::Lost));
        assert!(matches!(sessions.look_up(ClientId(1), Seq(2), false), KnownOperation::Behind));
        assert!(matches!(sessions.look_up(ClientId(1), Seq(3), true), KnownOperation::Applied(_)));
        assert_eq!(sessions.total, 3);
    }

    #[test]
    fn the_window_of_a_session_is_bounded() {
        let mut sessions = PartitionSessions::default();
        for seq in 1..=SESSION_WINDOW as u64 + 10 {
            remember(&mut sessions, 1, seq);
        }
        assert_eq!(sessions.total, SESSION_WINDOW);
        assert!(matches!(sessions.look_up(ClientId(1), Seq(10), true), KnownOperation::Lost));
        assert!(matches!(sessions.look_up(ClientId(1), Seq(11), true), KnownOperation::Applied(_)));
    }

    #[test]
    fn forgotten_sessions_are_known_as_such_and_new_ones_are_not_confused_with_them() {
        let mut sessions = PartitionSessions::default();
        for client in 0..SESSIONS_MAX as u64 + 5 {
            remember(&mut sessions, client, 1);
        }
        assert_eq!(sessions.sessions.len(), SESSIONS_MAX);
        assert!(matches!(sessions.look_up(ClientId(4), Seq(1), true), KnownOperation::Lost));
        assert!(matches!(sessions.look_up(ClientId(5), Seq(1), true), KnownOperation::Applied(_)));
        assert!(matches!(sessions.look_up(ClientId(1 << 40), Seq(1), true), KnownOperation::New));
        // Once too many were forgotten to name them, no retry of an unknown session is trusted.
        for client in 0..(SESSIONS_MAX + FORGOTTEN_MAX) as u64 {
            remember(&mut sessions, (1 << 20) + client, 1);
        }
        assert!(matches!(sessions.look_up(ClientId(1 << 40), Seq(1), true), KnownOperation::Lost));
        assert!(matches!(sessions.look_up(ClientId(1 << 40), Seq(1), false), KnownOperation::New));
        assert_eq!(sessions.forgotten.len(), FORGOTTEN_MAX);
    }

    #[test]
    fn results_in_all_are_bounded() {
        let mut sessions = PartitionSessions::default();
        for client in 0..20 {
            for seq in 1..=SESSION_WINDOW as u64 {
                remember(&mut sessions, client, seq);
            }
        }
        assert!(sessions.total <= RESULTS_MAX);
        assert!(sessions.sessions.contains_key(&ClientId(19)));
    }
}
