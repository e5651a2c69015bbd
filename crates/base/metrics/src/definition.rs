//! The properties of a metric.

use crate::histogram::BUCKETS;

/// Users, and datasets, that have series of their own at a node; all others are counted together.
pub const FAMILY_MAX: usize = 120;
/// Series of a family by user or by dataset: the named ones, and `other`.
pub const FAMILY_SERIES: usize = FAMILY_MAX + 1;
/// Label value of the users or datasets that have no series of their own.
pub const OTHER: &str = "other";
/// Most lines with numbers that a scrape can have.
pub const SERIES_MAX: usize = 1000;

/// What the number of a metric means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// It only grows while the process lives.
    Counter,
    /// It is so now.
    Gauge,
    /// How often something took so long.
    Histogram,
}

impl MetricKind {
    /// The word of the text format.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// The unit of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricUnit {
    /// Things.
    Count,
    /// Bytes.
    Bytes,
    /// Seconds; kept, and told in snapshots, as whole microseconds.
    Seconds,
}

impl MetricUnit {
    /// Its name on pages.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Count => "count",
            Self::Bytes => "bytes",
            Self::Seconds => "seconds",
        }
    }
}

/// How the numbers of the shards become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergeRule {
    /// Their sum, and what the node itself has added.
    Sum,
    /// The least of the shards.
    Least,
    /// Shards set the time since which, in microseconds, or 0 for nothing; told is the longest time
    /// until now.
    Age,
}

/// Whether dashboards may rely on a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricStability {
    /// Name, unit and meaning stay.
    Stable,
    /// It may change or go with a version.
    Experimental,
}

impl MetricStability {
    /// Its name on pages.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Stable => "stable",
            Self::Experimental => "experimental",
        }
    }
}

/// What tells the series of one metric apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricLabels {
    /// There is one.
    None,
    /// One for each of these values of the label.
    Fixed(&'static str, &'static [&'static str]),
    /// One for each user that has made requests: `uid`.
    User,
    /// One for each dataset that requests were made on: `dataset`.
    Dataset,
}

impl MetricLabels {
    /// Name of the label, if there is one.
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Fixed(name, _) => Some(name),
            Self::User => Some("uid"),
            Self::Dataset => Some("dataset"),
        }
    }

    /// Series at most.
    #[must_use]
    pub const fn series(self) -> usize {
        match self {
            Self::None => 1,
            Self::Fixed(_, values) => values.len(),
            Self::User | Self::Dataset => FAMILY_SERIES,
        }
    }
}

/// One line of the registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricDefinition {
    /// Name, as Prometheus has it.
    pub name: &'static str,
    /// What the number means.
    pub kind: MetricKind,
    /// Its unit.
    pub unit: MetricUnit,
    /// How shards are merged.
    pub merge: MergeRule,
    /// Whether it stays.
    pub stability: MetricStability,
    /// Its series.
    pub labels: MetricLabels,
    /// What it counts, in a sentence.
    pub help: &'static str,
}

impl MetricDefinition {
    /// Numbers that one series takes in memory: buckets and sum of a histogram, or one.
    #[must_use]
    pub const fn numbers(&self) -> usize {
        match self.kind {
            MetricKind::Histogram => BUCKETS + 1,
            MetricKind::Counter | MetricKind::Gauge => 1,
        }
    }

    /// Lines with numbers that it takes in a scrape, at most.
    #[must_use]
    pub const fn lines(&self) -> usize {
        let one = match self.kind {
            // The buckets, one of them without an upper bound; sum; count.
            MetricKind::Histogram => BUCKETS + 2,
            MetricKind::Counter | MetricKind::Gauge => 1,
        };
        self.labels.series() * one
    }
}

/// A counter of the registry, by position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterMetric(pub(crate) usize);

/// A gauge of the registry, by position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GaugeMetric(pub(crate) usize);

/// A histogram of the registry, by position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistogramMetric(pub(crate) usize);

impl CounterMetric {
    pub(crate) const KIND: MetricKind = MetricKind::Counter;
}

impl GaugeMetric {
    pub(crate) const KIND: MetricKind = MetricKind::Gauge;
}

impl HistogramMetric {
    pub(crate) const KIND: MetricKind = MetricKind::Histogram;
}
