//! A snapshot as Prometheus text, exposition format 0.0.4.

use std::fmt::{self, Write};

use crate::definition::{MetricDefinition, MetricUnit};
use crate::histogram::bound_of;
use crate::registry;
use crate::sample::{HistogramSample, MetricSample, SampleValue};

/// The content type of the text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The text of `samples`, in which the series of a metric follow one another.
#[must_use]
pub fn text(samples: &[MetricSample]) -> String {
    let mut text = String::with_capacity(samples.len() * 64);
    // Writing to a string does not fail.
    let _ = write_all(&mut text, samples);
    text
}

fn write_all(text: &mut String, samples: &[MetricSample]) -> fmt::Result {
    let mut last = None;
    let mut metric = None;
    for sample in samples {
        if last != Some(&*sample.name) {
            last = Some(&*sample.name);
            metric = registry::by_name(&sample.name);
            if let Some(metric) = metric {
                write_head(text, metric)?;
            }
        }
        let unit = metric.map_or(MetricUnit::Count, |metric| metric.unit);
        match &sample.value {
            SampleValue::Number(number) => {
                write_series(text, sample, "", None)?;
                write_number(text, *number, unit)?;
            }
            SampleValue::Histogram(histogram) => {
                write_histogram(text, sample, histogram, unit)?;
            }
        }
    }
    Ok(())
}

fn write_head(text: &mut String, metric: &MetricDefinition) -> fmt::Result {
    write!(text, "# HELP {} ", metric.name)?;
    escape(text, metric.help, false)?;
    writeln!(text, "\n# TYPE {} {}", metric.name, metric.kind.word())
}

fn write_histogram(
    text: &mut String,
    sample: &MetricSample,
    histogram: &HistogramSample,
    unit: MetricUnit,
) -> fmt::Result {
    let mut below = 0;
    for (bucket, times) in histogram.buckets.iter().enumerate() {
        below += times;
        let mut bound = String::new();
        match bound_of(bucket) {
            Some(micros) => write_value(&mut bound, micros, unit)?,
            None => bound.push_str("+Inf"),
        }
        write_series(text, sample, "_bucket", Some(&bound))?;
        writeln!(text, "{below}")?;
    }
    write_series(text, sample, "_sum", None)?;
    write_number(text, histogram.sum, unit)?;
    write_series(text, sample, "_count", None)?;
    writeln!(text, "{below}")
}

/// Name and labels of a line; `bound`: of a bucket.
fn write_series(
    text: &mut String,
    sample: &MetricSample,
    suffix: &str,
    bound: Option<&str>,
) -> fmt::Result {
    write!(text, "{}{suffix}", sample.name)?;
    let labels = sample.labels.iter().map(|(name, value)| (&**name, &**value));
    let mut sep = '{';
    for (name, value) in labels.chain(bound.map(|bound| ("le", bound))) {
        write!(text, "{sep}{name}=\"")?;
        escape(text, value, true)?;
        text.push('"');
        sep = ',';
    }
    text.push_str(if sep == ',' { "} " } else { " " });
    Ok(())
}

fn write_number(text: &mut String, number: u64, unit: MetricUnit) -> fmt::Result {
    write_value(text, number, unit)?;
    text.push('\n');
    Ok(())
}

/// A number in the unit that is told: times in seconds, which are kept in microseconds.
fn write_value(text: &mut String, number: u64, unit: MetricUnit) -> fmt::Result {
    const MICROS: u64 = 1_000_000;
    match unit {
        MetricUnit::Count | MetricUnit::Bytes => write!(text, "{number}"),
        MetricUnit::Seconds if number.is_multiple_of(MICROS) => write!(text, "{}", number / MICROS),
        MetricUnit::Seconds => {
            write!(text, "{}.{:06}", number / MICROS, number % MICROS)?;
            text.truncate(text.trim_end_matches('0').len());
            Ok(())
        }
    }
}

/// Writes a text with what the format escapes; quotes are escaped in label values only.
fn escape(text: &mut String, raw: &str, is_label: bool) -> fmt::Result {
    for character in raw.chars() {
        match character {
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '"' if is_label => text.push_str("\\\""),
            other => text.write_char(other)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::MetricStore;
    use crate::definition::MetricLabels;
    use crate::registry::RequestKind;

    /// A line as a scraper reads it.
    type ReadLine = (String, Vec<(String, String)>, f64);

    fn read_line(line: &str) -> ReadLine {
        let end = line.find(['{', ' ']).expect("a name");
        let (name, mut rest) = line.split_at(end);
        let mut labels = Vec::new();
        if let Some(mut inner) = rest.strip_prefix('{') {
            while !inner.starts_with('}') {
                inner = inner.strip_prefix(',').unwrap_or(inner);
                let (label, after) = inner.split_once("=\"").expect("a label");
                let (mut value, mut chars) = (String::new(), after.char_indices());
                inner = loop {
                    match chars.next().expect("the end of a value") {
                        (at, '"') => break &after[at + 1..],
                        (_, '\\') => value.push(match chars.next().expect("what is escaped").1 {
                            'n' => '\n',
                            other => other,
                        }),
                        (_, other) => value.push(other),
                    }
                };
                labels.push((label.to_owned(), value));
            }
            rest = &inner[1..];
        }
        (name.to_owned(), labels, rest.trim_start().parse().expect("a number"))
    }

    fn read(text: &str) -> (HashMap<String, String>, Vec<ReadLine>) {
        let mut types = HashMap::new();
        let mut lines = Vec::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').expect("a type");
                assert!(types.insert(name.to_owned(), kind.to_owned()).is_none(), "{name} twice");
            } else if !line.starts_with("# HELP ") {
                lines.push(read_line(line));
            }
        }
        (types, lines)
    }

    fn value(lines: &[ReadLine], name: &str, labels: &[(&str, &str)]) -> f64 {
        let is = |line: &&ReadLine| {
            let told = line.1.iter().map(|(name, value)| (&**name, &**value));
            line.0 == name && told.eq(labels.iter().copied())
        };
        let found: Vec<_> = lines.iter().filter(is).collect();
        assert_eq!(found.len(), 1, "{name} {labels:?}");
        found[0].2
    }

    #[test]
    #[allow(clippy::float_cmp, reason = "they are written exactly")]
    fn a_scraper_reads_what_was_counted() {
        let store = MetricStore::new(1);
        let (values, write) = (store.shard(0), RequestKind::Write.index());
        values.add_at(registry::REQUESTS, write, 7);
        values.observe(registry::REQUEST_TIME, write, 3, 5);
        values.observe(registry::REQUEST_TIME, write, 1_500_000, 1);
        values.observe(registry::REQUEST_TIME, write, u64::from(u32::MAX), 1);
        store.node().set(registry::UPTIME, 61_250_000);
        let strange = "a \"set\\\" of\nlines";
        values.add_at(registry::DATASET_REQUESTS, store.dataset(strange), 2);
        let text = text(&store.snapshot(0));
        let (types, lines) = read(&text);
        for metric in registry::METRICS {
            let is_empty = metric.labels == MetricLabels::User;
            let kind = types.get(metric.name).map(String::as_str);
            assert_eq!(kind, (!is_empty).then_some(metric.kind.word()), "{}", metric.name);
            assert_eq!(text.contains(&format!("# HELP {} ", metric.name)), !is_empty);
        }
        assert_eq!(value(&lines, "samite_uptime_seconds", &[]), 61.25);
        assert_eq!(value(&lines, "samite_requests_total", &[("kind", "write")]), 7.0);
        let named = [("dataset", strange)];
        assert_eq!(value(&lines, "samite_dataset_requests_total", &named), 2.0);
        let of = |part: &str, le: Option<&str>| {
            let mut labels = vec![("kind", "write")];
            labels.extend(le.map(|le| ("le", le)));
            value(&lines, &format!("samite_request_duration_seconds_{part}"), &labels)
        };
        assert_eq!(of("bucket", Some("0.000002")), 0.0);
        assert_eq!(of("bucket", Some("0.000004")), 5.0);
        assert_eq!(of("bucket", Some("2.097152")), 6.0);
        assert_eq!((of("bucket", Some("+Inf")), of("count", None)), (7.0, 7.0));
        let sum = 5.0 * 3e-6 + 1.5 + f64::from(u32::MAX) / 1e6;
        assert!((of("sum", None) - sum).abs() < 1e-6);
    }

    #[test]
    fn buckets_grow_and_have_bounds_in_order() {
        let store = MetricStore::new(1);
        (0..40).for_each(|bits| store.shard(0).observe(registry::REQUEST_TIME, 0, 1 << bits, 1));
        let (_, lines) = read(&text(&store.snapshot(0)));
        let buckets = lines.iter().filter(|line| line.0.ends_with("_bucket"));
        let read: Vec<(f64, f64)> = buckets
            .filter(|line| line.1[0].1 == "read")
            .map(|line| (line.1[1].1.parse().expect("a bound"), line.2))
            .collect();
        assert!(read.is_sorted_by(|one, next| one.0 < next.0 && one.1 <= next.1), "{read:?}");
        assert_eq!(read.last().copied(), Some((f64::INFINITY, 40.0)));
    }

    #[test]
    fn a_metric_of_another_version_is_told_without_a_head() {
        let sample = MetricSample {
            name: Cow::Borrowed("samite_news"),
            labels: Vec::new(),
            value: SampleValue::Number(3),
        };
        assert_eq!(text(&[sample]), "samite_news 3\n");
    }

    proptest! {
        #[test]
        fn label_values_survive(value in any::<String>(), number in any::<u32>()) {
            let labels = vec![(Cow::Borrowed("one"), Cow::Borrowed("1")), (Cow::Borrowed("two"), Cow::Owned(value.clone()))];
            let name = Cow::Borrowed("some_total");
            let sample = MetricSample { name, labels, value: SampleValue::Number(number.into()) };
            let text = text(&[sample]);
            prop_assert_eq!(text.matches('\n').count(), 1);
            let (name, labels, read) = read_line(text.trim_end_matches('\n'));
            prop_assert_eq!(name, "some_total");
            prop_assert_eq!(&labels[1].1, &value);
            prop_assert!((read - f64::from(number)).abs() < 0.5);
        }
    }
}
