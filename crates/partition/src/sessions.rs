//! Exactly once: what each client session has had done.
//!
//! A mutation is known by its client session and sequence number. Its results are remembered until the client says that it
//! has them, so a repetition is answered, not done again. Memory is bounded three ways: results per session, results in all, and
//! sessions. What is forgotten before the client had its answer is refused when it comes again, never redone.

use std::collections::{BTreeMap, VecDeque};

use samite_types::{ClientId, Seq, Version};
use samite_wire::limits::SESSION_WINDOW;
use smallvec::SmallVec;

use crate::limits::{FORGOTTEN_MAX, RESULTS_MAX, SESSIONS_MAX};

/// What is remembered of one action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remembered {
    /// Of a `Put`, `Write`, `Append` or `Truncate`.
    Written { offset: u32, total_len: u32, created: bool },
    /// Of a `Delete`.
    Deleted(bool),
    /// Of the actions that answer with a number.
    Number(u64),
    /// Of a `Get` or `List`, which is done again.
    Asked,
}

/// Results of the actions of one operation.
pub(crate) type Results = SmallVec<[Remembered; 1]>;

/// One operation that took effect.
#[derive(Debug)]
pub(crate) struct Applied {
    seq: Seq,
    /// The partition's version that it made.
    pub(crate) version: Version,
    pub(crate) results: Results,
}

/// What is known of an operation before it is tried.
#[derive(Debug)]
pub(crate) enum Known<'a> {
    /// It did not take effect yet.
    New,
    /// It took effect: here is what it did.
    Applied(&'a Applied),
    /// It may have taken effect, and nobody knows any more.
    Lost,
    /// First sent, but so late that the window has passed it.
    Behind,
}

/// The sessions of a partition.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    sessions: BTreeMap<ClientId, Session>,
    /// Sessions forgotten lately, oldest first.
    forgotten: VecDeque<ClientId>,
    /// Sessions were forgotten that `forgotten` does not name any more.
    forgot_more: bool,
    /// Results over all sessions.
    total: usize,
    /// Counts uses; orders sessions by the last.
    tick: u64,
}

#[derive(Debug, Default)]
struct Session {
    /// Nothing below is remembered.
    low: Seq,
    /// By sequence number.
    applied: VecDeque<Applied>,
    used: u64,
}

impl Session {
    fn find(&self, seq: Seq) -> Result<usize, usize> {
        // Mostly the newest.
        if self.applied.back().is_none_or(|last| last.seq < seq) {
            return Err(self.applied.len());
        }
        self.applied.binary_search_by_key(&seq, |applied| applied.seq)
    }
}

impl Sessions {
    /// What is known of operation `seq` of `client`, who has had the answers to all below `answered_below`.
    pub(crate) fn look_up(
        &mut self,
        client: ClientId,
        seq: Seq,
        answered_below: Seq,
        is_retry: bool,
    ) -> Known<'_> {
        self.tick += 1;
        let Some(session) = self.sessions.get_mut(&client) else {
            let lost = is_retry && (self.forgot_more || self.forgotten.contains(&client));
            return if lost { Known::Lost } else { Known::New };
        };
        session.used = self.tick;
        session.low = session.low.max(answered_below);
        while session.applied.front().is_some_and(|first| first.seq < answered_below) {
            session.applied.pop_front();
            self.total -= 1;
        }
        match session.find(seq) {
            Ok(at) => Known::Applied(&session.applied[at]),
            Err(_) if seq >= session.low => Known::New,
            Err(_) if is_retry => Known::Lost,
            Err(_) => Known::Behind,
        }
    }

    /// Remembers that operation `seq` of `client`, which was [`Known::New`], took effect.
    pub(crate) fn remember(
        &mut self,
        client: ClientId,
        seq: Seq,
        answered_below: Seq,
        version: Version,
        results: Results,
    ) {
        if !self.sessions.contains_key(&client) {
            while self.sessions.len() >= SESSIONS_MAX {
                self.forget_oldest();
            }
        }
        let session = self
            .sessions
            .entry(client)
            .or_insert_with(|| Session { low: answered_below, ..Session::default() });
        session.used = self.tick;
        let at = session.find(seq).unwrap_or_else(|at| at);
        session.applied.insert(at, Applied { seq, version, results });
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

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Seq = Seq(0);

    fn remember(sessions: &mut Sessions, client: u64, seq: u64) {
        let (client, seq) = (ClientId(client), Seq(seq));
        assert!(matches!(sessions.look_up(client, seq, NONE, false), Known::New));
        let results = SmallVec::from_slice(&[Remembered::Number(seq.get())]);
        sessions.remember(client, seq, NONE, Version(seq.get()), results);
    }

    #[test]
    fn results_are_kept_until_answered_in_any_order_of_arrival() {
        let mut sessions = Sessions::default();
        for seq in [3, 1, 4, 2] {
            remember(&mut sessions, 1, seq);
        }
        for seq in 1..=4 {
            let known = sessions.look_up(ClientId(1), Seq(seq), NONE, true);
            assert!(matches!(known, Known::Applied(applied) if applied.version.get() == seq));
        }
        assert!(matches!(sessions.look_up(ClientId(1), Seq(5), Seq(3), true), Known::New));
        assert!(matches!(sessions.look_up(ClientId(1), Seq(2), NONE, true), Known::Lost));
        assert!(matches!(sessions.look_up(ClientId(1), Seq(2), NONE, false), Known::Behind));
        assert!(matches!(sessions.look_up(ClientId(1), Seq(3), NONE, true), Known::Applied(_)));
        assert_eq!(sessions.total, 2);
    }

    #[test]
    fn the_window_of_a_session_is_bounded() {
        let mut sessions = Sessions::default();
        for seq in 1..=SESSION_WINDOW as u64 + 10 {
            remember(&mut sessions, 1, seq);
        }
        assert_eq!(sessions.total, SESSION_WINDOW);
        assert!(matches!(sessions.look_up(ClientId(1), Seq(10), NONE, true), Known::Lost));
        assert!(matches!(sessions.look_up(ClientId(1), Seq(11), NONE, true), Known::Applied(_)));
    }

    #[test]
    fn forgotten_sessions_are_known_as_such_and_new_ones_are_not_confused_with_them() {
        let mut sessions = Sessions::default();
        for client in 0..SESSIONS_MAX as u64 + 5 {
            remember(&mut sessions, client, 1);
        }
        assert_eq!(sessions.sessions.len(), SESSIONS_MAX);
        assert!(matches!(sessions.look_up(ClientId(4), Seq(1), NONE, true), Known::Lost));
        assert!(matches!(sessions.look_up(ClientId(5), Seq(1), NONE, true), Known::Applied(_)));
        assert!(matches!(sessions.look_up(ClientId(1 << 40), Seq(1), NONE, true), Known::New));
        // Once too many were forgotten to name them, no retry of an unknown session is trusted.
        for client in 0..(SESSIONS_MAX + FORGOTTEN_MAX) as u64 {
            remember(&mut sessions, (1 << 20) + client, 1);
        }
        assert!(matches!(sessions.look_up(ClientId(1 << 40), Seq(1), NONE, true), Known::Lost));
        assert!(matches!(sessions.look_up(ClientId(1 << 40), Seq(1), NONE, false), Known::New));
        assert_eq!(sessions.forgotten.len(), FORGOTTEN_MAX);
    }

    #[test]
    fn results_in_all_are_bounded() {
        let mut sessions = Sessions::default();
        for client in 0..20 {
            for seq in 1..=SESSION_WINDOW as u64 {
                remember(&mut sessions, client, seq);
            }
        }
        assert!(sessions.total <= RESULTS_MAX);
        assert!(sessions.sessions.contains_key(&ClientId(19)));
    }
}
