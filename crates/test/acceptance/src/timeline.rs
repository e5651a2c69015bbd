//! The events of a run with their times, on the clock that nodes' logs show, and written as they
//! write it.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Most lines of the timeline; the first ones go.
const LINES_MAX: usize = 10_000;

/// Lines with times.
#[derive(Debug, Default)]
pub struct Timeline {
    lines: std::collections::VecDeque<String>,
}

impl Timeline {
    /// This happens now.
    pub fn note(&mut self, what: impl fmt::Display) {
        self.lines.push_back(format!("{}  {what}", stamp()));
        if self.lines.len() > LINES_MAX {
            self.lines.pop_front();
        }
    }
}

impl fmt::Display for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

/// The time now.
#[must_use]
pub fn stamp() -> String {
    utc(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// A time since 1970 as `2026-03-01T12:00:05.000123Z`.
fn utc(since: Duration) -> String {
    let (days, in_day) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    // Years begin in March, so that the leap day comes last (H. Hinnant, "chrono-Compatible Low-Level Date Algorithms").
    let shifted = days + 719_468;
    let (era, day) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (in_day / 3600, in_day / 60 % 60, in_day % 60);
    let micros = since.subsec_micros();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        let at = |seconds| utc(Duration::from_secs(seconds) + Duration::from_micros(123));
        assert_eq!(at(0), "1970-01-01T00:00:00.000123Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00.000123Z");
        assert_eq!(at(1_795_370_206), "2026-11-22T17:56:46.000123Z");
    }

    #[test]
    fn only_the_last_lines_are_kept() {
        let mut timeline = Timeline::default();
        (0..LINES_MAX + 2).for_each(|number| timeline.note(number));
        assert_eq!(timeline.to_string().lines().count(), LINES_MAX);
    }
}
