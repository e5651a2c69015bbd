//! Metrics of a node: which there are, where they are counted, and how they are told.
//!
//! [`registry`] has one line for each metric. [`MetricStore`] keeps the numbers: each shard writes
//! its own [`MetricValues`] and takes no lock; a snapshot merges them. [`exposition`] writes a
//! snapshot as Prometheus text, [`page`] writes docs/metrics.md. No I/O, no clock.

pub mod definition;
pub mod exposition;
mod family;
pub mod histogram;
pub mod page;
pub mod registry;
mod sample;
pub mod scrape;
mod store;
mod values;

pub use sample::{HistogramSample, MetricSample, SampleValue};
pub use store::MetricStore;
pub use values::MetricValues;
