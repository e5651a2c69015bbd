//! Deadlines.

use std::time::Duration;

use crate::{Clock, SystemClock};

/// A point in time by which a call must have ended, on the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Duration);

impl Deadline {
    /// The point `at` on the monotonic clock.
    #[must_use]
    pub const fn at_time(at: Duration) -> Self {
        Self(at)
    }

    /// `timeout` from now.
    #[must_use]
    pub fn after(timeout: Duration) -> Self {
        Self(SystemClock.monotonic().saturating_add(timeout))
    }

    /// Time left; `None` once it has passed.
    #[must_use]
    pub fn remaining(self) -> Option<Duration> {
        self.0.checked_sub(SystemClock.monotonic()).filter(|left| !left.is_zero())
    }

    /// The point itself, on the monotonic clock.
    #[must_use]
    pub const fn at(self) -> Duration {
        self.0
    }
}

/// A time, in seconds since 1970, in words: `2026-02-03T04:05:06Z`.
#[must_use]
pub fn utc(seconds: i64) -> String {
    let days = seconds.div_euclid(86_400);
    let in_day = seconds.rem_euclid(86_400);
    // Days to a civil date, with years that start in March so that the leap day comes last
    // (H. Hinnant, "chrono-Compatible Low-Level Date Algorithms").
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z",
        in_day / 3600,
        in_day / 60 % 60,
        in_day % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_as_expected() {
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(utc(-1), "1969-12-31T23:59:59Z");
    }
}
