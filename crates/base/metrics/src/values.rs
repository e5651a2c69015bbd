//! The numbers of one shard.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::definition::{CounterMetric, GaugeMetric, HistogramMetric};
use crate::histogram::{BUCKETS, bucket_of};
use crate::registry::{METRICS, OFFSETS};

/// Numbers on one pair of cache lines.
const LINE_LEN: usize = 16;

/// Numbers that share no cache line, nor a pair of them, with those of another shard.
#[derive(Debug, Default)]
#[repr(align(128))]
struct ValueLine([AtomicU64; LINE_LEN]);

/// The numbers of all metrics, as one shard counts them. Only its thread adds; any thread reads.
#[derive(Debug)]
pub struct MetricValues {
    lines: Box<[ValueLine]>,
}

impl Default for MetricValues {
    fn default() -> Self {
        let lines = OFFSETS[METRICS.len()].div_ceil(LINE_LEN);
        Self { lines: (0..lines).map(|_| ValueLine::default()).collect() }
    }
}

impl MetricValues {
    /// The number at `index` of series `label` of the metric at `position`. A label that there is
    /// not counts as the first.
    #[inline]
    fn number(&self, position: usize, label: usize, index: usize) -> &AtomicU64 {
        let metric = &METRICS[position];
        debug_assert!(label < metric.labels.series(), "{}: label {label}", metric.name);
        let label = if label < metric.labels.series() { label } else { 0 };
        let at = OFFSETS[position] + label * metric.numbers() + index;
        &self.lines[at / LINE_LEN].0[at % LINE_LEN]
    }

    /// Reads a number.
    pub(crate) fn read(&self, position: usize, label: usize, index: usize) -> u64 {
        self.number(position, label, index).load(Ordering::Relaxed)
    }

    /// Adds to a counter.
    #[inline]
    pub fn add(&self, metric: CounterMetric, more: u64) {
        self.add_at(metric, 0, more);
    }

    /// Adds to the series `label` of a counter: the position of its label value, or the number that
    /// [`MetricStore`](crate::MetricStore) gave a user or dataset.
    #[inline]
    pub fn add_at(&self, metric: CounterMetric, label: usize, more: u64) {
        grow(self.number(metric.0, label, 0), more);
    }

    /// Sets a counter that something else counts.
    pub fn set_total(&self, metric: CounterMetric, label: usize, total: u64) {
        self.number(metric.0, label, 0).store(total, Ordering::Relaxed);
    }

    /// Sets a gauge.
    #[inline]
    pub fn set(&self, metric: GaugeMetric, value: u64) {
        self.set_at(metric, 0, value);
    }

    /// Sets the series `label` of a gauge.
    #[inline]
    pub fn set_at(&self, metric: GaugeMetric, label: usize, value: u64) {
        self.number(metric.0, label, 0).store(value, Ordering::Relaxed);
    }

    /// `times` times something took `micros` microseconds.
    #[inline]
    pub fn observe(&self, metric: HistogramMetric, label: usize, micros: u64, times: u64) {
        grow(self.number(metric.0, label, bucket_of(micros)), times);
        grow(self.number(metric.0, label, BUCKETS), micros.saturating_mul(times));
    }

    /// What this shard has of a counter without labels.
    #[must_use]
    pub fn counter(&self, metric: CounterMetric) -> u64 {
        self.read(metric.0, 0, 0)
    }

    /// What this shard has of a gauge without labels.
    #[must_use]
    pub fn gauge(&self, metric: GaugeMetric) -> u64 {
        self.read(metric.0, 0, 0)
    }
}

/// Adds to a number that only this thread writes: cheaper than an atomic addition.
#[inline]
fn grow(number: &AtomicU64, more: u64) {
    number.store(number.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}
