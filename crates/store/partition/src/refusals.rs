//! First sendings that were refused.
//!
//! A refusal changes nothing, so it is no entry of the log, and members do not know of it. But the
//! operation may come a second time from the same connection, late, when its client has been told;
//! by then nothing might stand in its way. The member that refused it remembers that, until the
//! client says that it has the answer. No other need to: a second *sending* says that it is one,
//! and a refusal of that is an entry.

use std::collections::BTreeMap;

use samite_types::{ClientId, ErrorKind, Seq};

use crate::limits::{RESULTS_MAX, SESSIONS_MAX};
use crate::sessions::KnownOperation;
use crate::{Partition, RequestContext};

/// Refusals of one client.
#[derive(Debug, Default)]
struct OfClient {
    /// All below are answered.
    heard: Seq,
    refused: BTreeMap<Seq, (ErrorKind, u16)>,
    used: u64,
}

/// Refusals by client.
#[derive(Debug, Default)]
pub(crate) struct ClientRefusals {
    clients: BTreeMap<ClientId, OfClient>,
    /// Refusals over all clients.
    total: usize,
    tick: u64,
}

impl ClientRefusals {
    /// The client has had the answers to all below `answered_below`.
    pub(crate) fn hear(&mut self, client: ClientId, answered_below: Seq) {
        if let Some(known) = self.clients.get_mut(&client)
            && known.heard < answered_below
        {
            known.heard = answered_below;
            let kept = known.refused.split_off(&answered_below);
            self.total -= std::mem::replace(&mut known.refused, kept).len();
        }
    }

    /// `seq` was refused. Bounded like the results of sessions: the client that was not refused
    /// anything for longest is forgotten first.
    pub(crate) fn note(&mut self, client: ClientId, seq: Seq, reason: (ErrorKind, u16)) {
        let is_known = self.clients.contains_key(&client);
        if self.total >= RESULTS_MAX || !is_known && self.clients.len() >= SESSIONS_MAX {
            let oldest = self.clients.iter().min_by_key(|(_, known)| known.used);
            if let Some(forgotten) = oldest.map(|(client, _)| *client) {
                let forgotten = self.clients.remove(&forgotten).unwrap_or_default();
                self.total -= forgotten.refused.len();
            }
        }
        self.tick += 1;
        let known = self.clients.entry(client).or_default();
        known.used = self.tick;
        self.total += usize::from(known.refused.insert(seq, reason).is_none());
    }

    /// The answer to the first sending of `seq`, if that was refused.
    pub(crate) fn find(&self, client: ClientId, seq: Seq) -> Option<KnownOperation<'static>> {
        let known = self.clients.get(&client)?;
        if seq < known.heard {
            return Some(KnownOperation::Behind);
        }
        known.refused.get(&seq).map(|(kind, index)| KnownOperation::Refused(*kind, *index))
    }
}

impl Partition {
    /// Notes why a change was refused for good, so that a sending of it that is still under way is refused, too.
    pub(crate) fn note_refusal(
        &mut self,
        client: ClientId,
        context: &RequestContext,
        seq: Seq,
        reason: (ErrorKind, u16),
    ) {
        if context.is_retry {
            // The first sending may still be under way: it must not take effect after this answer.
            self.refusals += 1;
            self.remember(client, (seq, context.answered_below), Err(reason));
        } else if !self.follows && !self.forgets {
            self.sessions.refuse_first(client, seq, reason);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_known_until_its_answer_is_there_and_bounded_in_all() {
        let (mut refusals, one) = (ClientRefusals::default(), ClientId(1));
        for seq in 1..=4 {
            refusals.note(one, Seq(seq), (ErrorKind::Conflict, 2));
        }
        assert!(refusals.find(ClientId(2), Seq(1)).is_none());
        assert!(refusals.find(one, Seq(5)).is_none());
        refusals.hear(one, Seq(3));
        assert!(matches!(refusals.find(one, Seq(2)), Some(KnownOperation::Behind)));
        let known = refusals.find(one, Seq(3));
        assert!(matches!(known, Some(KnownOperation::Refused(ErrorKind::Conflict, 2))));
        assert_eq!(refusals.total, 2);
        for seq in 1..=2 * RESULTS_MAX as u64 {
            let client = ClientId(2 + seq % (2 * SESSIONS_MAX as u64));
            refusals.note(client, Seq(seq), (ErrorKind::NotFound, 0));
        }
        assert!(refusals.total <= RESULTS_MAX && refusals.clients.len() <= SESSIONS_MAX);
        let counted: usize = refusals.clients.values().map(|known| known.refused.len()).sum();
        assert_eq!(refusals.total, counted);
    }
}
