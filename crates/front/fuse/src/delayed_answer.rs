//! An answer that waits until another request has been served.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

type Answer = Box<dyn FnOnce() + Send>;

/// Room for one.
pub struct DelayedAnswer {
    /// Spares those the lock who have nothing to send.
    is_there: AtomicBool,
    answer: Mutex<Option<Answer>>,
}

impl DelayedAnswer {
    pub const fn new() -> Self {
        Self { is_there: AtomicBool::new(false), answer: Mutex::new(None) }
    }

    /// Keeps an answer until [`DelayedAnswer::send`]; gives it back where another one is there.
    pub fn keep<F: FnOnce() + Send + 'static>(&self, answer: F) -> Result<(), F> {
        let mut place = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
        if place.is_some() {
            return Err(answer);
        }
        *place = Some(Box::new(answer));
        self.is_there.store(true, Ordering::Release);
        Ok(())
    }

    pub fn is_there(&self) -> bool {
        self.is_there.load(Ordering::Acquire)
    }

    /// Sends the answer, if there is one.
    pub fn send(&self) {
        if self.is_there() {
            let mut place = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
            self.is_there.store(false, Ordering::Relaxed);
            let answer = place.take();
            drop(place);
            if let Some(answer) = answer {
                answer();
            }
        }
    }
}

impl std::fmt::Debug for DelayedAnswer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DelayedAnswer").field("is_there", &self.is_there).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[test]
    fn an_answer_is_sent_once_and_another_one_has_no_room() {
        let (held, sent) = (DelayedAnswer::new(), Arc::new(AtomicU32::new(0)));
        let answer = |value| {
            let sent = Arc::clone(&sent);
            move || _ = sent.fetch_add(value, Ordering::Relaxed)
        };
        held.send();
        assert!(held.keep(answer(1)).is_ok());
        let back = held.keep(answer(10)).unwrap_err();
        assert_eq!(sent.load(Ordering::Relaxed), 0);
        held.send();
        held.send();
        assert_eq!(sent.load(Ordering::Relaxed), 1);
        back();
        assert!(held.keep(answer(100)).is_ok());
        held.send();
        assert_eq!(sent.load(Ordering::Relaxed), 111);
    }
}
