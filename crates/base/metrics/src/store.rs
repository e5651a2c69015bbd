//! The metrics of a node: those of its shards, its own, and the names of users and datasets.

use std::borrow::Cow;

use crate::definition::{
    CounterMetric, GaugeMetric, MergeRule, MetricDefinition, MetricKind, MetricLabels,
};
use crate::family::FamilyNames;
use crate::histogram::BUCKETS;
use crate::registry::METRICS;
use crate::sample::{HistogramSample, MetricSample, SampleValue};
use crate::values::MetricValues;

/// All metrics of a node.
#[derive(Debug)]
pub struct MetricStore {
    shards: Vec<MetricValues>,
    node: MetricValues,
    users: FamilyNames,
    datasets: FamilyNames,
}

impl MetricStore {
    /// For so many shards.
    #[must_use]
    pub fn new(shards: usize) -> Self {
        Self {
            shards: (0..shards).map(|_| MetricValues::default()).collect(),
            node: MetricValues::default(),
            users: FamilyNames::default(),
            datasets: FamilyNames::default(),
        }
    }

    /// The numbers of a shard.
    ///
    /// # Panics
    /// There is no such shard.
    #[must_use]
    pub fn shard(&self, shard: usize) -> &MetricValues {
        &self.shards[shard]
    }

    /// The numbers that no shard counts; they are set when somebody asks.
    #[must_use]
    pub const fn node(&self) -> &MetricValues {
        &self.node
    }

    /// The label of a user in families by user. Takes a lock: to be kept by the caller.
    #[must_use]
    pub fn user(&self, uid: u32) -> usize {
        self.users.number(&uid.to_string())
    }

    /// The label of a dataset in families by dataset. Takes a lock: to be kept by the caller.
    #[must_use]
    pub fn dataset(&self, name: &str) -> usize {
        self.datasets.number(name)
    }

    /// A counter without labels, merged.
    #[must_use]
    pub fn counter(&self, metric: CounterMetric) -> u64 {
        self.merged(&METRICS[metric.0], (metric.0, 0, 0), 0)
    }

    /// A gauge without labels, merged.
    #[must_use]
    pub fn gauge(&self, metric: GaugeMetric) -> u64 {
        self.merged(&METRICS[metric.0], (metric.0, 0, 0), 0)
    }

    fn merged(
        &self,
        metric: &MetricDefinition,
        (position, label, index): (usize, usize, usize),
        now_micros: u64,
    ) -> u64 {
        let mut shards = self.shards.iter().map(|values| values.read(position, label, index));
        match metric.merge {
            MergeRule::Sum => {
                shards.fold(self.node.read(position, label, index), u64::wrapping_add)
            }
            MergeRule::Least => shards.min().unwrap_or_default(),
            MergeRule::Age => {
                let since = shards.by_ref().filter(|since| *since > 0).min();
                since.map_or(0, |since| now_micros.saturating_sub(since))
            }
        }
    }

    /// All series at `now_micros`, in microseconds of the clock that [`MergeRule::Age`] goes by.
    #[must_use]
    pub fn snapshot(&self, now_micros: u64) -> Vec<MetricSample> {
        let (users, datasets) = (self.users.all(), self.datasets.all());
        let mut samples = Vec::new();
        for (position, metric) in METRICS.iter().enumerate() {
            let named = match metric.labels {
                MetricLabels::User => Some(&users),
                MetricLabels::Dataset => Some(&datasets),
                MetricLabels::None | MetricLabels::Fixed(..) => None,
            };
            for label in 0..named.map_or(metric.labels.series(), Vec::len) {
                let value = self.value(metric, position, label, now_micros);
                if named.is_some() && label == 0 && value == SampleValue::Number(0) {
                    // Nobody is left over.
                    continue;
                }
                let label_value = match metric.labels {
                    MetricLabels::Fixed(_, values) => Some(Cow::Borrowed(values[label])),
                    _ => named.map(|names| Cow::Owned(names[label].clone())),
                };
                let labels = metric.labels.name().zip(label_value);
                samples.push(MetricSample {
                    name: Cow::Borrowed(metric.name),
                    labels: labels
                        .map(|(name, value)| (Cow::Borrowed(name), value))
                        .into_iter()
                        .collect(),
                    value,
                });
            }
        }
        samples
    }

    fn value(
        &self,
        metric: &MetricDefinition,
        position: usize,
        label: usize,
        now_micros: u64,
    ) -> SampleValue {
        let number = |index| self.merged(metric, (position, label, index), now_micros);
        match metric.kind {
            MetricKind::Counter | MetricKind::Gauge => SampleValue::Number(number(0)),
            MetricKind::Histogram => SampleValue::Histogram(HistogramSample {
                buckets: (0..BUCKETS).map(number).collect(),
                sum: number(BUCKETS),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::{FAMILY_MAX, OTHER, SERIES_MAX};
    use crate::registry::{self, RequestKind};

    fn number(store: &MetricStore, name: &str, label: Option<&str>) -> Option<u64> {
        let samples = store.snapshot(1_000);
        let mut found = samples.iter().filter(|sample| {
            sample.name == name && sample.labels.first().map(|(_, value)| &**value) == label
        });
        match (&found.next()?.value, found.next()) {
            (SampleValue::Number(number), None) => Some(*number),
            other => panic!("{name}: {other:?}"),
        }
    }

    #[test]
    fn numbers_of_shards_are_merged_by_their_rule() {
        let store = MetricStore::new(3);
        for shard in 0..3 {
            let values = store.shard(shard);
            values.add(registry::OPERATIONS, 10 + shard as u64);
            values.set(registry::RECORDS, 5);
            values.add(registry::SCRUB_WALKS, 4 - shard as u64);
        }
        store.node().set(registry::MEMORY_USED, 77);
        store.shard(1).set(registry::OLDEST_WAITING, 900);
        store.shard(2).set(registry::OLDEST_WAITING, 400);
        assert_eq!(store.counter(registry::OPERATIONS), 33);
        assert_eq!(store.gauge(registry::RECORDS), 15);
        assert_eq!(store.counter(registry::SCRUB_WALKS), 2);
        assert_eq!(number(&store, "samite_memory_used_bytes", None), Some(77));
        assert_eq!(number(&store, "samite_oldest_waiting_request_seconds", None), Some(600));
        store.shard(1).set(registry::OLDEST_WAITING, 0);
        store.shard(2).set(registry::OLDEST_WAITING, 0);
        assert_eq!(number(&store, "samite_oldest_waiting_request_seconds", None), Some(0));
    }

    #[test]
    fn histograms_of_shards_become_one() {
        let store = MetricStore::new(2);
        let kind = RequestKind::Write.index();
        store.shard(0).observe(registry::REQUEST_TIME, kind, 3, 2);
        store.shard(1).observe(registry::REQUEST_TIME, kind, 4, 1);
        store.shard(1).observe(registry::REQUEST_TIME, kind, 5, 1);
        store.shard(1).observe(registry::REQUEST_TIME, RequestKind::Read.index(), 0, 9);
        let samples = store.snapshot(0);
        let label = |value: &'static str| vec![(Cow::Borrowed("kind"), Cow::Borrowed(value))];
        let of = |kind: &'static str| {
            let mut all = samples.iter().filter(|sample| {
                sample.name == "samite_request_duration_seconds" && sample.labels == label(kind)
            });
            match &all.next().expect("it is told").value {
                SampleValue::Histogram(histogram) => histogram.clone(),
                SampleValue::Number(_) => panic!("a histogram"),
            }
        };
        let write = of("write");
        assert_eq!((write.count(), write.sum), (4, 15));
        assert_eq!((write.buckets[2], write.buckets[3]), (3, 1));
        assert_eq!((of("read").buckets[0], of("read").sum, of("list").count()), (9, 0, 0));
    }

    #[test]
    fn users_and_datasets_beyond_the_bound_are_counted_together() {
        let store = MetricStore::new(2);
        for uid in 0..3000 {
            let label = store.user(uid);
            assert_eq!(label, if uid < FAMILY_MAX as u32 { uid as usize + 1 } else { 0 });
            assert_eq!(store.user(uid), label, "it stays");
            store.shard(uid as usize % 2).add_at(registry::USER_REQUESTS, label, 1);
        }
        (0..3000).for_each(|one| {
            let label = store.dataset(&format!("set{one}"));
            store.shard(0).add_at(registry::DATASET_WRITTEN_BYTES, label, 10);
        });
        let samples = store.snapshot(0);
        assert!(samples.len() <= SERIES_MAX, "{}", samples.len());
        assert_eq!(number(&store, "samite_user_requests_total", Some("7")), Some(1));
        let others = 3000 - FAMILY_MAX as u64;
        assert_eq!(number(&store, "samite_user_requests_total", Some(OTHER)), Some(others));
        let bytes = number(&store, "samite_dataset_written_bytes_total", Some(OTHER));
        assert_eq!(bytes, Some(10 * others));
        assert_eq!(number(&store, "samite_dataset_read_bytes_total", Some(OTHER)), None);
    }
}
