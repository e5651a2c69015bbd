//! A snapshot of metrics, as it is told to others.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// One series of a metric. Names are told in full, so that versions may differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetricSample {
    /// Name of the metric.
    pub name: Cow<'static, str>,
    /// Labels: name and value.
    pub labels: Vec<(Cow<'static, str>, Cow<'static, str>)>,
    /// The number, or the histogram.
    pub value: SampleValue,
}

/// The value of a series; times are in microseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SampleValue {
    /// Of a counter or a gauge.
    Number(u64),
    /// Of a histogram.
    Histogram(HistogramSample),
}

/// A histogram of times.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistogramSample {
    /// How often, for each bucket alone (see [`histogram`](crate::histogram)).
    pub buckets: Vec<u64>,
    /// Sum of all times, in microseconds.
    pub sum: u64,
}

impl HistogramSample {
    /// How often, over all buckets.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }
}
