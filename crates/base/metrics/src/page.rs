//! docs/metrics.md, made of the registry.

use std::fmt::Write as _;

use crate::definition::{FAMILY_MAX, MetricLabels, SERIES_MAX};
use crate::registry::METRICS;

/// The page.
#[must_use]
pub fn page() -> String {
    let mut page = format!(
        "# Metrics

<!-- By cargo xtask metrics, of crates/base/metrics/src/registry.rs. -->

Each node counts by itself, from its start. `samite status --json` tells the numbers of all nodes
(`nodes[].metrics`), and a node that was started with `--metrics` serves them as Prometheus text
([how to scrape](deployment.md#metrics)). Times are seconds in the text, and whole microseconds in
JSON. Stable metrics keep name, unit and meaning; experimental ones may change with any version.

A node tells at most {SERIES_MAX} series. The first {FAMILY_MAX} users, and the first {FAMILY_MAX} \
datasets, that it meets have
series of their own until it ends; all others are counted together, under `other`. Operations that
clients complete early, and look-ups in shared memory, are no requests: they have neither user nor
dataset here. Nothing is evicted from a store, so no metric is about that.

| metric | type | unit | labels | stability | meaning |
|---|---|---|---|---|---|
"
    );
    for metric in METRICS {
        let labels = match metric.labels {
            MetricLabels::None => String::new(),
            MetricLabels::Fixed(name, values) => {
                let values: Vec<String> = values.iter().map(|value| format!("`{value}`")).collect();
                format!("`{name}`: {}", values.join(", "))
            }
            other => format!("`{}`", other.name().unwrap_or_default()),
        };
        let (kind, unit) = (metric.kind.word(), metric.unit.word());
        let (name, stability, help) = (metric.name, metric.stability.word(), metric.help);
        let _ = writeln!(page, "| `{name}` | {kind} | {unit} | {labels} | {stability} | {help} |");
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_metric_has_a_row_of_six_cells() {
        let page = page();
        let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| `")).collect();
        assert_eq!(rows.len(), METRICS.len());
        for (row, metric) in rows.iter().zip(METRICS) {
            assert_eq!(row.matches('|').count(), 7, "{row}");
            assert!(row.contains(metric.name) && row.contains(metric.help));
        }
    }
}
