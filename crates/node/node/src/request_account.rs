//! What requests of clients are counted under, and how long they take.
//!
//! A request that waits is timed itself: the shard reads the clock for it anyhow, or waits for much
//! longer than that takes. Most requests are answered at once, and would be slower for two looks at
//! the clock: of these one in [`TIMED_EVERY`] of a kind is timed, and stands for all since the last.

use std::collections::HashMap;
use std::time::Duration;

use samite_metrics::registry::{self, RequestKind};
use samite_metrics::{MetricStore, MetricValues};
use samite_types::DatasetId;

/// Of so many requests of a kind that are answered at once, one is timed.
const TIMED_EVERY: u64 = 64;
/// Most users, and datasets, whose labels a shard keeps.
const LABELS_MAX: usize = 1024;

/// What one request is counted under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestAccount {
    kind: RequestKind,
    user: u16,
    dataset: u16,
    /// When it came, if it is timed.
    since: Option<Duration>,
    /// It was not answered at once.
    has_waited: bool,
}

impl RequestAccount {
    /// When the request came, if it is timed.
    pub(crate) const fn since(&self) -> Option<Duration> {
        self.since
    }

    /// The request waits, and came at `now` unless it came before.
    pub(crate) fn waiting(self, now: impl FnOnce() -> Duration) -> Self {
        Self { since: Some(self.since.unwrap_or_else(now)), has_waited: true, ..self }
    }
}

/// The accounts of one shard.
#[derive(Debug, Default)]
pub(crate) struct RequestAccounts {
    users: LabelCache<u32>,
    datasets: LabelCache<DatasetId>,
    /// Requests answered at once since the last one that was timed, by kind.
    untimed: [u64; RequestKind::TIMED],
    /// Kinds of which one was timed.
    has_timed: [bool; RequestKind::TIMED],
}

impl RequestAccounts {
    /// Whether a request of that kind is to be timed although nothing has it wait.
    pub(crate) const fn times(&self, kind: RequestKind) -> bool {
        let kind = kind.index();
        !self.has_timed[kind] || self.untimed[kind] + 1 >= TIMED_EVERY
    }

    /// A request is carried out; it brings `written` bytes of values. `came`: when it came, if it is
    /// timed, and whether it has waited.
    pub(crate) fn begin(
        &mut self,
        (store, values): (&MetricStore, &MetricValues),
        (kind, written): (RequestKind, usize),
        uid: u32,
        (dataset, name): (DatasetId, impl FnOnce() -> String),
        (since, has_waited): (Option<Duration>, bool),
    ) -> RequestAccount {
        let user = self.users.label(uid, || store.user(uid));
        let dataset = self.datasets.label(dataset, || store.dataset(&name()));
        values.add_at(registry::REQUESTS, kind.index(), 1);
        values.add_at(registry::USER_REQUESTS, usize::from(user), 1);
        values.add_at(registry::DATASET_REQUESTS, usize::from(dataset), 1);
        if written > 0 {
            values.add(registry::WRITTEN_BYTES, written as u64);
            values.add_at(registry::USER_WRITTEN_BYTES, usize::from(user), written as u64);
            values.add_at(registry::DATASET_WRITTEN_BYTES, usize::from(dataset), written as u64);
        }
        RequestAccount { kind, user, dataset, since, has_waited }
    }

    /// Its reply is made, with `read` bytes of values.
    pub(crate) fn read(values: &MetricValues, account: &RequestAccount, read: usize) {
        if read > 0 {
            values.add(registry::READ_BYTES, read as u64);
            let (user, dataset) = (usize::from(account.user), usize::from(account.dataset));
            values.add_at(registry::USER_READ_BYTES, user, read as u64);
            values.add_at(registry::DATASET_READ_BYTES, dataset, read as u64);
        }
    }

    /// Its reply leaves. `now` is asked only if the request is timed.
    pub(crate) fn answered(
        &mut self,
        values: &MetricValues,
        account: &RequestAccount,
        now: impl FnOnce() -> Duration,
    ) {
        let kind = account.kind.index();
        if !account.has_waited {
            self.untimed[kind] += 1;
        }
        let Some(since) = account.since else { return };
        let times = match account.has_waited {
            true => 1,
            false => {
                self.has_timed[kind] = true;
                std::mem::take(&mut self.untimed[kind])
            }
        };
        let micros = now().saturating_sub(since).as_micros() as u64;
        values.observe(registry::REQUEST_TIME, kind, micros, times);
    }
}

/// Labels that the store gave, the last one at hand.
#[derive(Debug)]
struct LabelCache<K> {
    last: Option<(K, u16)>,
    known: HashMap<K, u16>,
}

impl<K> Default for LabelCache<K> {
    fn default() -> Self {
        Self { last: None, known: HashMap::new() }
    }
}

impl<K: Copy + Eq + std::hash::Hash> LabelCache<K> {
    /// The label of `key`, which `find` finds if it is new here.
    #[inline]
    fn label(&mut self, key: K, find: impl FnOnce() -> usize) -> u16 {
        match self.last {
            Some((last, label)) if last == key => label,
            _ => self.look_up(key, find),
        }
    }

    fn look_up(&mut self, key: K, find: impl FnOnce() -> usize) -> u16 {
        if self.known.len() >= LABELS_MAX {
            self.known.clear();
        }
        // There are few labels, all below `FAMILY_SERIES`.
        let label = *self.known.entry(key).or_insert_with(|| find() as u16);
        self.last = Some((key, label));
        label
    }
}

#[cfg(test)]
mod tests {
    use samite_metrics::SampleValue;

    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const READ: RequestKind = RequestKind::Read;

    /// A shard's accounts and metrics.
    struct Rig {
        store: MetricStore,
        accounts: RequestAccounts,
    }

    impl Rig {
        fn new() -> Self {
            Self { store: MetricStore::new(1), accounts: RequestAccounts::default() }
        }

        fn begin(
            &mut self,
            uid: u32,
            dataset: u32,
            came: (Option<Duration>, bool),
        ) -> RequestAccount {
            let place = (&self.store, self.store.shard(0));
            let named = (DatasetId(dataset), || format!("set{dataset}"));
            self.accounts.begin(place, (READ, 10), uid, named, came)
        }

        fn numbers(&self, name: &str) -> Vec<(String, u64)> {
            let samples = self.store.snapshot(0);
            let numbers = samples.into_iter().filter(|sample| sample.name == name);
            let number = |value| match value {
                SampleValue::Number(number) => number,
                SampleValue::Histogram(times) => times.count(),
            };
            numbers.map(|one| (one.labels[0].1.to_string(), number(one.value))).collect()
        }

        fn timed(&self) -> u64 {
            self.numbers("samite_request_duration_seconds")[READ.index()].1
        }
    }

    fn named(name: &str, number: u64) -> (String, u64) {
        (name.to_owned(), number)
    }

    #[test]
    fn one_of_many_that_are_answered_at_once_is_timed_and_stands_for_all() {
        let mut rig = Rig::new();
        let mut looks = 0;
        for number in 0..1 + 3 * TIMED_EVERY {
            let since = rig.accounts.times(READ).then_some(MS);
            looks += u64::from(since.is_some());
            let account = rig.begin(7, 1, (since, false));
            rig.accounts.answered(rig.store.shard(0), &account, || 3 * MS);
            assert_eq!(rig.timed(), 1 + number / TIMED_EVERY * TIMED_EVERY, "{number}");
        }
        assert_eq!(looks, 4);
    }

    #[test]
    fn a_request_that_waits_is_timed_itself() {
        let mut rig = Rig::new();
        let account = rig.begin(7, 1, (None, false)).waiting(|| 2 * MS);
        assert_eq!(account.since(), Some(2 * MS));
        assert_eq!(account.waiting(|| 9 * MS).since(), Some(2 * MS), "it came before");
        rig.accounts.answered(rig.store.shard(0), &account, || 3 * MS);
        assert_eq!(rig.timed(), 1);
        let retried = rig.begin(7, 1, (Some(MS), true));
        rig.accounts.answered(rig.store.shard(0), &retried, || 3 * MS);
        assert_eq!(rig.timed(), 2);
        assert!(rig.accounts.times(READ), "none was answered at once yet");
    }

    #[test]
    fn requests_and_bytes_are_counted_by_user_and_by_dataset() {
        let mut rig = Rig::new();
        for (uid, dataset) in [(7, 1), (8, 1), (7, 2), (7, 1)] {
            let account = rig.begin(uid, dataset, (None, false));
            RequestAccounts::read(rig.store.shard(0), &account, 100);
        }
        let users = rig.numbers("samite_user_requests_total");
        assert_eq!(users, [named("7", 3), named("8", 1)]);
        let written = rig.numbers("samite_user_written_bytes_total");
        assert_eq!(written, [named("7", 30), named("8", 10)]);
        let read = rig.numbers("samite_dataset_read_bytes_total");
        assert_eq!(read, [named("set1", 300), named("set2", 100)]);
    }

    #[test]
    fn labels_are_kept_within_bounds() {
        let mut rig = Rig::new();
        for uid in 0..3 * LABELS_MAX as u32 {
            rig.begin(uid, uid, (None, false));
            assert!(rig.accounts.users.known.len() <= LABELS_MAX);
        }
        let users = rig.numbers("samite_user_requests_total");
        assert_eq!(users.iter().map(|(_, requests)| requests).sum::<u64>(), 3 * LABELS_MAX as u64);
    }
}
