//! Waiting for a lock, at whichever node grants it.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use samite_transport::client::{LinkReply, NodeLink, RequestTicket, WaitEnd};
use samite_types::{Deadline, Error, ErrorKind, Result};
use samite_wire::control::{ControlReply, ControlRequest, decode};
use samite_wire::lock::{LockAnswer, LockOwner, LockRequest};

use super::{LockSession, PRIMARY_PATIENCE, lock_answer, may_pass, may_pass_at, unexpected};
use crate::client::is_lost;
use crate::exec::is_absence;

/// Longest sleep of a waiter that is told when to stop.
const ALARM_INTERVAL: Duration = Duration::from_secs(60);
/// How often a waiter looks whether it is to stop.
const STOP_INTERVAL: Duration = Duration::from_millis(20);
/// How often a waiter for a lock looks whether another node grants it now.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// A lock that is waited for.
pub struct LockWait<'l> {
    pub(super) locker: &'l LockSession,
    pub(super) request: LockRequest,
    pub(super) is_mirrored: bool,
    pub(super) link: Arc<NodeLink>,
    pub(super) ticket: Option<RequestTicket>,
    pub(super) answered: Option<LockAnswer>,
    pub(super) number: u64,
    /// When to look whether another node grants the lock.
    pub(super) look_at: Deadline,
}

impl LockWait<'_> {
    /// The node knows of the wait, so that a client that looks for a circle finds it; false: it is
    /// over already. The question goes the same way as the request, and is answered after it.
    pub(super) fn is_known(&mut self, owner: LockOwner, deadline: Deadline) -> Result<bool> {
        let asked = ControlRequest::LockWaits(owner);
        match self.locker.client.control(&self.link, &asked, deadline) {
            Ok(_) => {}
            Err(error) if self.is_mirrored && may_pass(&error) => return Ok(false),
            // The waiter for the answer finds that out, and asks again.
            Err(error) if is_lost(&self.link, &error) => return Ok(false),
            Err(error) => return Err(error),
        }
        // The answer to the request may have come before that to the question.
        let Some(ticket) = &mut self.ticket else { return Ok(false) };
        let here = Deadline::at_time(Duration::ZERO);
        let read = |reply: &mut LinkReply<'_>| decode::<ControlReply>(reply.body());
        let Some(reply) = self.link.wait_until(ticket, here, deadline, read)? else {
            return Ok(true);
        };
        self.ticket = None;
        let answer = lock_answer(reply?, &self.link);
        self.has_come(answer).map(|_| false)
    }

    /// Waits until there is something for [`LockWait::proceed`], or something can be read from `alarm`. It takes no
    /// lock, and neither opens nor closes anything.
    ///
    /// # Errors
    /// `Unavailable`: in a forked child.
    pub fn block_beside(&self, alarm: BorrowedFd<'_>) -> Result<WaitEnd> {
        if self.answered.is_some() {
            return Ok(WaitEnd::Arrived);
        }
        let interval = if self.is_mirrored {
            self.look_at.remaining().unwrap_or_default()
        } else {
            ALARM_INTERVAL
        };
        self.link.wait_beside(Some(alarm), interval)
    }

    /// After a wait that ended with `woken`: takes the messages that have come, and asks another
    /// node if that grants the lock by now. Whether the answer is there; then [`LockWait::finish`].
    /// To be called after each wait, also one that `alarm` has ended: it may do so again and again.
    ///
    /// # Errors
    /// As [`LockSession::ask`].
    pub fn proceed(&mut self, woken: WaitEnd) -> Result<bool> {
        if self.answered.is_some() || woken == WaitEnd::Arrived && self.has_answer()? {
            return Ok(true);
        }
        if self.is_mirrored && self.look_at.remaining().is_none() {
            self.follow()?;
            self.look_at = Deadline::after(LOOK_INTERVAL);
        }
        Ok(false)
    }

    /// Waits until the answer is there or `stop` says so. Then [`LockWait::finish`].
    ///
    /// # Errors
    /// As [`LockSession::ask`].
    pub fn block_until(&mut self, stop: &dyn Fn() -> bool) -> Result<WaitEnd> {
        while self.answered.is_none() {
            let woken = self.link.wait_beside(None, STOP_INTERVAL)?;
            if woken != WaitEnd::Arrived && stop() {
                return Ok(WaitEnd::Interrupted);
            }
            if self.proceed(woken)? {
                break;
            }
        }
        Ok(WaitEnd::Arrived)
    }

    /// The message that has come is the answer; if it is the end of the connection, and another
    /// node grants the lock, that is asked.
    fn has_answer(&mut self) -> Result<bool> {
        let answer = self.answer();
        self.has_come(answer)
    }

    /// The same about an answer. A lock that was granted has to last: if its node has no say any more, another one is asked.
    fn has_come(&mut self, answer: Result<LockAnswer>) -> Result<bool> {
        match answer {
            Ok(LockAnswer::Done) if !self.is_kept()? => self.ask_again().map(|()| false),
            Ok(answer) => {
                self.answered = Some(answer);
                Ok(true)
            }
            Err(error) if may_pass_at(&error, self.is_mirrored) || is_lost(&self.link, &error) => {
                self.ask_again_after(&error).map(|()| false)
            }
            Err(error) => Err(error),
        }
    }

    /// Asks another node when another one grants the lock by now.
    fn follow(&mut self) -> Result<()> {
        let deadline = self.locker.client.deadline();
        let known = self.locker.client.view(deadline)?.map.epoch();
        let node = self.link.node();
        let is_there = || Ok::<_, Error>(self.locker.granter(&self.request, deadline)?.0 == node);
        if is_there()? {
            self.locker.client.look(known, node);
        }
        if is_there()? { Ok(()) } else { self.ask_again() }
    }

    fn ask_again_after(&mut self, error: &Error) -> Result<()> {
        if !is_absence(error) {
            self.locker.newer_map(self.locker.client.deadline())?;
        }
        self.ask_again()
    }

    fn ask_again(&mut self) -> Result<()> {
        self.ticket = None;
        self.locker.drop_connection(&self.link);
        let deadline = self.locker.client.deadline();
        let sent = self.locker.send_wait(&self.request, self.is_mirrored, deadline)?;
        let ticket;
        (self.request, self.link, ticket) = sent;
        self.ticket = Some(ticket);
        Ok(())
    }

    /// Takes the answer, or ends the wait if there is none.
    ///
    /// # Errors
    /// `Interrupted`: the wait was ended; `Deadlock`, `NoLocks`; as [`LockSession::ask`].
    pub fn finish(mut self, woken: WaitEnd) -> Result<()> {
        let answer = match (self.answered.take(), woken) {
            (Some(LockAnswer::Done), _) => return Ok(()),
            (Some(answer), _) => answer,
            (None, WaitEnd::Arrived) => self.answer()?,
            (None, WaitEnd::Interrupted | WaitEnd::TimedOut) => self.cancel()?,
        };
        match answer {
            // It came first. Where its node has no say any more, the wait is over as well.
            LockAnswer::Done if self.is_kept()? => Ok(()),
            LockAnswer::Done | LockAnswer::Cancelled => {
                Err(Error::new(ErrorKind::Interrupted, "lock: interrupted"))
            }
            LockAnswer::Deadlock => Err(Error::new(ErrorKind::Deadlock, "lock: deadlock")),
            LockAnswer::Full => Err(Error::new(ErrorKind::NoLocks, "lock: too many locks")),
            LockAnswer::Held(_) => Err(unexpected(&self.link)),
        }
    }

    /// Sees to it that a lock that was granted lasts. False: another node grants locks by now.
    fn is_kept(&self) -> Result<bool> {
        self.locker.is_kept(&self.request, self.locker.client.deadline())
    }

    fn answer(&mut self) -> Result<LockAnswer> {
        let ticket = self.ticket.take().ok_or(ErrorKind::Internal)?;
        let reply = self.link.wait(ticket, self.locker.client.deadline(), |reply| {
            decode::<ControlReply>(reply.body()).map_err(Error::from)
        })??;
        lock_answer(reply, &self.link)
    }

    pub(super) fn cancel(&mut self) -> Result<LockAnswer> {
        let deadline = self.locker.client.deadline();
        let by = if self.is_mirrored {
            deadline.min(Deadline::after(PRIMARY_PATIENCE))
        } else {
            deadline
        };
        let request = ControlRequest::CancelLock { wait: self.number };
        match self.locker.client.control(&self.link, &request, by) {
            Ok(_) => self.answer(),
            Err(error) if self.is_mirrored && may_pass(&error) || is_lost(&self.link, &error) => {
                // With the connection the wait ends, also at a node that answers again later.
                self.ticket = None;
                self.locker.drop_connection(&self.link);
                Ok(LockAnswer::Cancelled)
            }
            Err(error) => Err(error),
        }
    }
}

impl Drop for LockWait<'_> {
    fn drop(&mut self) {
        if self.ticket.is_some() {
            // No thread takes the answer: with the connection the wait ends.
            self.locker.drop_connection(&self.link);
        } else {
            self.locker.put_back(&self.link);
        }
    }
}
