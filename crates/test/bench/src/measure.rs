//! Turns of measuring, and their results.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use samite_types::{Error, ErrorKind, Result};

/// Turns that each workload takes; odd, so that a median is one of them.
const TURNS: u32 = 5;
const NS_MAX: u64 = 120_000_000_000;

/// Result of one turn of a workload.
pub struct WorkloadRound {
    /// Operations done.
    pub ops: u64,
    /// Bytes moved, of data.
    pub bytes: u64,
    /// Time spent on them; setting up and tidying away between them is left out.
    pub elapsed: Duration,
    /// Time of each operation, in ns.
    pub times: Histogram<u64>,
}

impl WorkloadRound {
    pub fn new() -> Result<Self> {
        let times = Histogram::new_with_bounds(1, NS_MAX, 3)
            .map_err(|error| Error::new(ErrorKind::Internal, format!("histogram: {error}")))?;
        Ok(Self { ops: 0, bytes: 0, elapsed: Duration::ZERO, times })
    }

    /// Notes one step of `ops` operations that moved `bytes` bytes in `took`.
    pub fn note(&mut self, ops: u64, bytes: u64, took: Duration) {
        self.ops += ops;
        self.bytes += bytes;
        self.elapsed += took;
        let each = (took.as_nanos() / u128::from(ops.max(1))).min(u128::from(NS_MAX)) as u64;
        // The value is within the bounds: recording cannot fail.
        let _ = self.times.record(each.max(1));
    }

    fn ops_per_s(&self) -> f64 {
        self.ops as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    fn bytes_per_s(&self) -> f64 {
        self.bytes as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

/// Something that can be done again and again.
pub trait Workload {
    /// Does it for about `length`.
    fn round(&mut self, length: Duration) -> Result<WorkloadRound>;
}

/// A workload made of steps in this process; each does some operations on some bytes.
pub struct StepWorkload<F> {
    pub ops: u64,
    pub bytes: u64,
    pub step: F,
}

impl<F: FnMut() -> Result<()>> Workload for StepWorkload<F> {
    fn round(&mut self, length: Duration) -> Result<WorkloadRound> {
        let mut round = WorkloadRound::new()?;
        let mut before = Instant::now();
        while round.elapsed < length {
            (self.step)()?;
            let now = Instant::now();
            round.note(self.ops, self.bytes, now - before);
            before = now;
        }
        Ok(round)
    }
}

/// A workload from a step: `ops` operations and `bytes` bytes each time.
pub fn steps<F>(ops: u64, bytes: u64, step: F) -> Box<dyn Workload>
where
    F: FnMut() -> Result<()> + 'static,
{
    Box::new(StepWorkload { ops, bytes, step })
}

/// The figure by which a benchmark is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JudgedBy {
    /// Time of one operation (p50); less is better.
    Time,
    /// Operations, or bytes, in a second; more is better.
    Rate,
    /// Time of one operation (p50) beyond the reference's, in ms; less is better.
    Excess,
}

/// The aim of a comparison.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ComparisonAim {
    AtMost(f64),
    AtLeast(f64),
}

/// A benchmark beside its reference.
#[derive(Clone, Copy, Debug)]
pub struct Comparison {
    pub what: JudgedBy,
    /// Ratio, or milliseconds for [`JudgedBy::Excess`]; median over the turns.
    pub value: f64,
    pub aim: Option<ComparisonAim>,
}

impl Comparison {
    /// Whether the aim is met; `None` without one.
    pub fn holds(&self) -> Option<bool> {
        self.aim.map(|aim| match aim {
            ComparisonAim::AtMost(limit) => self.value <= limit,
            ComparisonAim::AtLeast(limit) => self.value >= limit,
        })
    }
}

/// Results of one workload over all of its turns.
#[derive(Clone, Copy, Debug, Default)]
pub struct WorkloadResult {
    pub ops: u64,
    /// Medians over the turns.
    pub ops_per_s: f64,
    pub bytes_per_s: f64,
    /// Median over the turns of each turn's median.
    pub p50_ns: u64,
    /// Percentiles over all operations of all turns.
    pub p90_ns: u64,
    pub p99_ns: u64,
    pub p999_ns: u64,
    pub max_ns: u64,
}

/// All turns of all workloads.
pub struct WorkloadTurns {
    /// By workload, then by turn.
    rounds: Vec<Vec<WorkloadRound>>,
}

impl WorkloadTurns {
    /// Measures the workloads in turns, `length` for each in all, after a short warm-up that does not count.
    pub fn measure(workloads: &mut [Box<dyn Workload>], length: Duration) -> Result<Self> {
        let turn = length / TURNS;
        for workload in workloads.iter_mut() {
            workload.round(turn / 2)?;
        }
        let mut rounds: Vec<Vec<WorkloadRound>> = workloads.iter().map(|_| Vec::new()).collect();
        for _ in 0..TURNS {
            for (workload, rounds) in workloads.iter_mut().zip(&mut rounds) {
                rounds.push(workload.round(turn)?);
            }
        }
        Ok(Self { rounds })
    }

    pub fn summary(&self, workload: usize) -> WorkloadResult {
        let rounds = &self.rounds[workload];
        let mut all = rounds[0].times.clone();
        for round in &rounds[1..] {
            // Same bounds: adding cannot fail.
            let _ = all.add(&round.times);
        }
        WorkloadResult {
            ops: rounds.iter().map(|round| round.ops).sum(),
            ops_per_s: median(rounds.iter().map(WorkloadRound::ops_per_s)),
            bytes_per_s: median(rounds.iter().map(WorkloadRound::bytes_per_s)),
            p50_ns: median(rounds.iter().map(p50)) as u64,
            p90_ns: all.value_at_quantile(0.9),
            p99_ns: all.value_at_quantile(0.99),
            p999_ns: all.value_at_quantile(0.999),
            max_ns: all.max(),
        }
    }

    /// Workload 0 beside workload `other`: turn by turn, then the median.
    pub fn compare(&self, what: JudgedBy, other: usize, aim: Option<ComparisonAim>) -> Comparison {
        let pairs = self.rounds[0].iter().zip(&self.rounds[other]);
        let value = median(pairs.map(|(one, other)| match what {
            JudgedBy::Time => p50(one) / p50(other).max(1.0),
            JudgedBy::Excess => (p50(one) - p50(other)) / 1e6,
            JudgedBy::Rate if one.bytes > 0 => one.bytes_per_s() / other.bytes_per_s().max(1e-9),
            JudgedBy::Rate => one.ops_per_s() / other.ops_per_s().max(1e-9),
        }));
        Comparison { what, value, aim }
    }
}

fn p50(round: &WorkloadRound) -> f64 {
    round.times.value_at_quantile(0.5) as f64
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed(u64);

    impl Workload for Fixed {
        fn round(&mut self, _length: Duration) -> Result<WorkloadRound> {
            let mut round = WorkloadRound::new()?;
            for _ in 0..10 {
                round.note(1, 1000, Duration::from_micros(self.0));
            }
            Ok(round)
        }
    }

    #[test]
    fn ratios_are_taken_turn_by_turn() {
        let mut workloads: Vec<Box<dyn Workload>> = vec![Box::new(Fixed(30)), Box::new(Fixed(20))];
        let turns =
            WorkloadTurns::measure(&mut workloads, Duration::from_millis(5)).expect("measures");
        let time = turns.compare(JudgedBy::Time, 1, Some(ComparisonAim::AtMost(1.25)));
        assert!((time.value - 1.5).abs() < 0.01, "{time:?}");
        assert_eq!(time.holds(), Some(false));
        let rate = turns.compare(JudgedBy::Rate, 1, Some(ComparisonAim::AtLeast(0.5)));
        assert!((rate.value - 0.667).abs() < 0.01, "{rate:?}");
        assert_eq!(rate.holds(), Some(true));
        let excess = turns.compare(JudgedBy::Excess, 1, None);
        assert!((excess.value - 0.01).abs() < 0.001, "{excess:?}");
        let measured = turns.summary(0);
        assert_eq!(measured.ops, 50);
        assert!((29_900..=30_100).contains(&measured.p50_ns), "{measured:?}");
    }

    #[test]
    fn steps_fill_about_the_time_asked_for() {
        let mut workload = steps(2, 8, || {
            std::thread::sleep(Duration::from_millis(1));
            Ok(())
        });
        let round = workload.round(Duration::from_millis(10)).expect("runs");
        assert!(round.ops >= 2 && round.ops <= 22 && round.bytes == round.ops * 4);
    }
}
