//! Results for people and for programs.

use std::io::Write;

use samite_types::{Error, ErrorKind, Result};
use serde_json::{Value, json};

use crate::MeasuredRow;
use crate::measure::{Comparison, ComparisonAim, JudgedBy, WorkloadResult};

/// The benchmark against which one was measured.
pub struct MeasuredAgainst {
    pub name: String,
    pub measured: WorkloadResult,
    pub comparison: Comparison,
}

/// Writes one line.
pub fn line(out: &mut dyn Write, line: &str) -> Result<()> {
    // A reader that has gone away (`samite bench | head`) ends the run like any other error.
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .map_err(|error| Error::new(ErrorKind::Io, format!("write results: {error}")))
}

/// A block of lines: the benchmark, then one line for each that it was measured against.
pub fn table(out: &mut dyn Write, result: &MeasuredRow) -> Result<()> {
    if let Some(why) = &result.skipped {
        return line(out, &format!("{:<36} skipped: {why}", result.name));
    }
    let aim = result.per_s_min.map_or_else(String::new, |least| {
        let held = if result.measured.ops_per_s >= least { "ok" } else { "MISSED" };
        format!("(aim ≥ {}/s: {held})", count(least))
    });
    let text = format!("{:<36} {:<52} {aim}", result.name, measured(&result.measured));
    line(out, text.trim_end())?;
    for against in &result.against {
        let text = format!(
            "  {:<34} {:<52} {}",
            against.name,
            measured(&against.measured),
            comparison(&against.comparison)
        );
        line(out, text.trim_end())?;
    }
    Ok(())
}

fn measured(measured: &WorkloadResult) -> String {
    let rate = if measured.bytes_per_s > 64e6 {
        format!("{:>7.2} GiB/s", measured.bytes_per_s / f64::from(1 << 30))
    } else {
        format!("{:>7}/s   ", count(measured.ops_per_s))
    };
    format!("p50 {:>8}  p99 {:>8}  {rate}", time(measured.p50_ns), time(measured.p99_ns))
}

fn comparison(comparison: &Comparison) -> String {
    let value = match comparison.what {
        JudgedBy::Time => format!("time × {:.2}", comparison.value),
        JudgedBy::Rate => format!("rate × {:.2}", comparison.value),
        JudgedBy::Excess => format!("time + {:.2} ms", comparison.value),
    };
    let aim = match comparison.aim {
        None => return value,
        Some(ComparisonAim::AtMost(limit)) => format!("aim ≤ {limit}"),
        Some(ComparisonAim::AtLeast(limit)) => format!("aim ≥ {limit}"),
    };
    let held = if comparison.holds() == Some(true) { "ok" } else { "MISSED" };
    format!("{value}  ({aim}: {held})")
}

fn time(ns: u64) -> String {
    let ns = ns as f64;
    match ns {
        _ if ns < 1e3 => format!("{ns:.0} ns"),
        _ if ns < 1e6 => format!("{:.2} µs", ns / 1e3),
        _ => format!("{:.2} ms", ns / 1e6),
    }
}

fn count(value: f64) -> String {
    match value {
        _ if value < 1e3 => format!("{value:.1}"),
        _ if value < 1e6 => format!("{:.1}k", value / 1e3),
        _ => format!("{:.2}M", value / 1e6),
    }
}

/// One JSON object on a line of its own.
pub fn json(out: &mut dyn Write, result: &MeasuredRow) -> Result<()> {
    let mut object = match &result.skipped {
        Some(why) => json!({ "skipped": why }),
        None => measured_json(&result.measured),
    };
    object["name"] = result.name.clone().into();
    if let Some(least) = result.per_s_min {
        object["aim_ops_per_s_min"] = least.into();
    }
    if result.skipped.is_none() {
        object["against"] = result.against.iter().map(against_json).collect();
    }
    line(out, &object.to_string())
}

fn against_json(against: &MeasuredAgainst) -> Value {
    let mut object = measured_json(&against.measured);
    object["name"] = against.name.clone().into();
    let (kind, value) = match against.comparison.what {
        JudgedBy::Time => ("time_ratio", against.comparison.value),
        JudgedBy::Rate => ("rate_ratio", against.comparison.value),
        JudgedBy::Excess => ("time_excess_ms", against.comparison.value),
    };
    object[kind] = value.into();
    match against.comparison.aim {
        None => {}
        Some(ComparisonAim::AtMost(limit)) => object["aim_at_most"] = limit.into(),
        Some(ComparisonAim::AtLeast(limit)) => object["aim_at_least"] = limit.into(),
    }
    if let Some(holds) = against.comparison.holds() {
        object["aim_holds"] = holds.into();
    }
    object
}

fn measured_json(measured: &WorkloadResult) -> Value {
    json!({
        "ops": measured.ops,
        "ops_per_s": measured.ops_per_s,
        "bytes_per_s": measured.bytes_per_s,
        "p50_ns": measured.p50_ns,
        "p90_ns": measured.p90_ns,
        "p99_ns": measured.p99_ns,
        "p999_ns": measured.p999_ns,
        "max_ns": measured.max_ns,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(skipped: Option<String>) -> MeasuredRow {
        let measured = WorkloadResult {
            ops: 9,
            ops_per_s: 51_000.0,
            p50_ns: 19_600,
            ..WorkloadResult::default()
        };
        let comparison =
            Comparison { what: JudgedBy::Time, value: 1.3, aim: Some(ComparisonAim::AtMost(1.25)) };
        let against = vec![MeasuredAgainst { name: "/floor".into(), measured, comparison }];
        MeasuredRow { name: "/kv/get".into(), skipped, measured, per_s_min: Some(60e3), against }
    }

    #[test]
    fn a_missed_aim_is_told_in_both_forms() {
        let mut text = Vec::new();
        table(&mut text, &sample(None)).expect("writes");
        let text = String::from_utf8(text).expect("text");
        assert!(text.contains("time × 1.30  (aim ≤ 1.25: MISSED)"), "{text}");
        assert!(text.contains("p50 19.60 µs") && text.contains("51.0k/s"), "{text}");
        assert!(text.contains("(aim ≥ 60.0k/s: MISSED)"), "{text}");

        let mut raw = Vec::new();
        json(&mut raw, &sample(None)).expect("writes");
        let value: Value = serde_json::from_slice(&raw).expect("one object");
        assert_eq!(value["against"][0]["aim_holds"], false);
        assert_eq!(value["p50_ns"], 19_600);
    }

    #[test]
    fn what_was_skipped_says_why() {
        let mut raw = Vec::new();
        json(&mut raw, &sample(Some("not installed".into()))).expect("writes");
        let value: Value = serde_json::from_slice(&raw).expect("one object");
        assert_eq!(value["skipped"], "not installed");
    }
}
