//! Metrics as `samite status --json` tells them.

use samite_metrics::histogram::bound_of;
use samite_metrics::{HistogramSample, MetricSample, SampleValue};
use serde_json::{Map, Value, json};

/// One object for each series: name, labels, and the number, or what a histogram has.
pub fn samples_as_json(samples: &[MetricSample]) -> Value {
    samples.iter().map(sample_as_json).collect()
}

fn sample_as_json(sample: &MetricSample) -> Value {
    let labels: Map<String, Value> =
        sample.labels.iter().map(|(name, value)| (name.to_string(), json!(value))).collect();
    match &sample.value {
        SampleValue::Number(number) => {
            json!({ "name": sample.name, "labels": labels, "value": number })
        }
        SampleValue::Histogram(histogram) => json!({
            "name": sample.name,
            "labels": labels,
            "count": histogram.count(),
            "sum_us": histogram.sum,
            "buckets": buckets(histogram),
        }),
    }
}

/// The buckets that have anything: how often, and the longest time, `null` for any.
fn buckets(histogram: &HistogramSample) -> Value {
    let filled = histogram.buckets.iter().enumerate().filter(|(_, times)| **times > 0);
    filled.map(|(bucket, times)| json!({ "up_to_us": bound_of(bucket), "count": times })).collect()
}

#[cfg(test)]
mod tests {
    use samite_metrics::{MetricStore, registry};

    use super::*;

    #[test]
    fn numbers_and_histograms_are_told_by_name_and_labels() {
        let store = MetricStore::new(1);
        store.shard(0).add_at(registry::REQUESTS, 2, 5);
        store.shard(0).observe(registry::REQUEST_TIME, 2, 3, 4);
        let all = samples_as_json(&store.snapshot(0));
        let of = |name: &str, kind: &str| {
            let mut found = all.as_array().unwrap().iter().filter(|sample| {
                sample["name"] == name && sample["labels"] == json!({ "kind": kind })
            });
            found.next().unwrap().clone()
        };
        assert_eq!(of("samite_requests_total", "write")["value"], 5);
        let times = of("samite_request_duration_seconds", "write");
        assert_eq!((&times["count"], &times["sum_us"]), (&json!(4), &json!(12)));
        assert_eq!(times["buckets"], json!([{ "up_to_us": 4, "count": 4 }]));
    }
}
