//! Order between two voters: the library counts on messages that come once and in the order in which they were sent, or on being told that
//! some are lost.
//!
//! The receiver names a session, and the sender counts its messages in it. A message of another session, or twice, is dropped. Where one is
//! missing the receiver names a new session, and both ends tell the library that they have met again.

use serde::{Deserialize, Serialize};

/// A session, as its receiver has named it: a number drawn by the receiver's run, and one more for each.
pub type Session = (u64, u64);

/// A message's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessagePosition {
    session: Session,
    number: u64,
}

/// The treatment of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArrivalAction {
    Take,
    Drop,
    /// It is of no use, and the sender is to hear of the session.
    Tell,
    /// Messages before it are lost: a new session has begun, of which the sender is to hear.
    Lost,
}

/// The link with one other voter.
#[derive(Clone, Debug)]
pub struct VoterLink {
    /// Of messages that are sent; `None` until the other end has named one.
    sending: Option<MessagePosition>,
    /// Of messages that come.
    receiving: MessagePosition,
    /// Nothing came since the session was told last.
    is_quiet: bool,
    /// The tick in which something came last.
    heard: Option<u64>,
}

impl VoterLink {
    pub const fn new(run: u64) -> Self {
        let receiving = MessagePosition { session: (run, 1), number: 0 };
        Self { sending: None, receiving, is_quiet: true, heard: None }
    }

    /// The place of the next message to the other end; `None`: it is lost.
    pub fn send(&mut self) -> Option<MessagePosition> {
        let place = self.sending?;
        self.sending = Some(MessagePosition { number: place.number + 1, ..place });
        Some(place)
    }

    /// The other end has named a session. True: it is a new one.
    pub fn named(&mut self, session: Session) -> bool {
        let is_new = self.sending.is_none_or(|place| place.session != session);
        if is_new {
            self.sending = Some(MessagePosition { session, number: 0 });
        }
        is_new
    }

    /// A message came in this tick.
    pub fn receive(&mut self, place: MessagePosition, tick: u64) -> ArrivalAction {
        if place.session != self.receiving.session {
            return ArrivalAction::Tell;
        }
        if place.number < self.receiving.number {
            return ArrivalAction::Drop;
        }
        if place.number > self.receiving.number {
            let (run, count) = self.receiving.session;
            self.receiving = MessagePosition { session: (run, count + 1), number: 0 };
            return ArrivalAction::Lost;
        }
        self.receiving.number += 1;
        (self.is_quiet, self.heard) = (false, Some(tick));
        ArrivalAction::Take
    }

    /// The session of messages that come, as the other end is to be told it.
    pub const fn session(&self) -> Session {
        self.receiving.session
    }

    /// Whether the other end may not know of the configuration.
    pub const fn is_new(&self) -> bool {
        self.heard.is_none()
    }

    /// The tick in which something came last.
    pub const fn heard(&self) -> Option<u64> {
        self.heard
    }

    /// Whether nothing came since this was asked last: then the other end may not know the session.
    pub const fn was_quiet(&mut self) -> bool {
        std::mem::replace(&mut self.is_quiet, true)
    }
}
