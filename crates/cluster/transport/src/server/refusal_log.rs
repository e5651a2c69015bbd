//! The refusals of users that a node has logged lately.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Most refusals that are remembered; more are logged each, as far as lines about strangers are.
const REFUSALS_MAX: usize = 256;
/// Time for which the same refusal is not logged again.
const QUIET: Duration = Duration::from_secs(60);

/// User, where the kernel tells, and words.
type Refusal = (Option<u32>, String);

/// Says which refusals are worth a line: the same one of the same user is so once in a minute.
#[derive(Debug, Default)]
pub struct RefusalLog(Mutex<HashMap<Refusal, Duration>>);

impl RefusalLog {
    /// Whether this refusal, at `now` on the monotonic clock, is the first of its kind for a
    /// minute.
    pub(super) fn is_first(&self, uid: Option<u32>, words: &str, now: Duration) -> bool {
        let mut logged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_recent = |since: &Duration| now.saturating_sub(*since) < QUIET;
        let refusal = (uid, words.to_owned());
        if logged.get(&refusal).is_some_and(is_recent) {
            return false;
        }
        if logged.len() >= REFUSALS_MAX {
            logged.retain(|_, since| is_recent(since));
        }
        if logged.len() < REFUSALS_MAX {
            logged.insert(refusal, now);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_same_refusal_is_logged_once_in_a_minute(
            refusals in proptest::collection::vec((0u32..4, 0u8..3, 0u64..40), 1..200),
        ) {
            let log = RefusalLog::default();
            let mut now = Duration::from_secs(1000);
            let mut last: HashMap<(u32, u8), Duration> = HashMap::new();
            for (uid, words, pause) in refusals {
                now += Duration::from_secs(pause);
                let known = last.get(&(uid, words)).copied();
                let expected = known.is_none_or(|since| now - since >= QUIET);
                let first = log.is_first(Some(uid), &words.to_string(), now);
                prop_assert_eq!(first, expected);
                if first {
                    last.insert((uid, words), now);
                }
            }
        }
    }

    #[test]
    fn it_keeps_no_more_than_its_limit() {
        let log = RefusalLog::default();
        let at = Duration::from_secs(5);
        for uid in 0..10 * REFUSALS_MAX as u32 {
            assert!(log.is_first(Some(uid), "words", at));
        }
        assert_eq!(log.0.lock().unwrap().len(), REFUSALS_MAX);
        assert!(!log.is_first(Some(0), "words", at), "the first ones are remembered");
        assert!(log.is_first(Some(7_000), "words", at + QUIET));
        assert_eq!(log.0.lock().unwrap().len(), 1);
    }
}
