//! Reports about members that wait for the thread that takes them to the leader.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use samite_wire::membership::{MemberChanges, MemberReport, REPORTS_MAX};

use crate::mutex::lock;

/// Reports that wait, in the order in which they were made.
#[derive(Debug, Default)]
pub(crate) struct WaitingReports {
    waiting: Mutex<Vec<MemberReport>>,
    added: Condvar,
}

impl WaitingReports {
    /// Adds a report; whether there was room. A report that waits already is not added again.
    pub(crate) fn add(&self, report: MemberReport) -> bool {
        let mut waiting = lock(&self.waiting);
        if waiting.contains(&report) {
            return true;
        }
        if waiting.len() >= REPORTS_MAX {
            return false;
        }
        waiting.push(report);
        self.added.notify_one();
        true
    }

    /// Takes all; waits for some at most for `timeout`, and then for others at most for `gather` if
    /// none of them is urgent.
    pub(super) fn take(&self, timeout: Duration, gather: Duration) -> Vec<MemberReport> {
        let wait = |waiting, timeout, until: fn(&mut Vec<MemberReport>) -> bool| {
            let waited = self.added.wait_timeout_while(waiting, timeout, until);
            waited.unwrap_or_else(PoisonError::into_inner).0
        };
        let mut waiting = wait(lock(&self.waiting), timeout, |waiting| waiting.is_empty());
        if !waiting.is_empty() {
            waiting = wait(waiting, gather, |waiting| can_wait(waiting));
        }
        std::mem::take(&mut *waiting)
    }
}

/// Whether none of these is urgent, and there is room for others.
fn can_wait(waiting: &[MemberReport]) -> bool {
    waiting.len() < REPORTS_MAX
        && waiting.iter().all(|report| report.change == MemberChanges::Synced)
}

#[cfg(test)]
mod tests {
    use super::*;
    use samite_types::{Epoch, PartitionId, Redundancy, TargetId, Term};

    /// Longer than the test may take.
    const FOREVER: Duration = Duration::from_secs(600);

    fn report(partition: u32) -> MemberReport {
        change(partition, MemberChanges::Missed)
    }

    fn change(partition: u32, change: MemberChanges) -> MemberReport {
        MemberReport {
            redundancy: Redundancy(2),
            partition: PartitionId(partition),
            term: Term(1),
            epoch: Epoch(1),
            target: TargetId(1),
            change,
        }
    }

    #[test]
    fn good_reports_are_gathered_and_bad_ones_wait_for_nothing() {
        let reports = WaitingReports::default();
        reports.add(change(1, MemberChanges::Synced));
        reports.add(change(2, MemberChanges::Synced));
        assert_eq!(reports.take(FOREVER, Duration::from_millis(1)).len(), 2);
        std::thread::scope(|scope| {
            reports.add(change(1, MemberChanges::Synced));
            let taken = scope.spawn(|| reports.take(FOREVER, FOREVER));
            reports.add(change(2, MemberChanges::Synced));
            reports.add(report(3));
            let taken = taken.join().expect("it ends");
            assert!(taken.contains(&report(3)), "{taken:?}");
        });
    }

    #[test]
    fn reports_are_kept_once_in_order_and_bounded() {
        let reports = WaitingReports::default();
        for partition in (0..REPORTS_MAX as u32).chain([7]) {
            assert!(reports.add(report(partition)));
        }
        assert!(!reports.add(report(u32::MAX)));
        let taken = reports.take(Duration::ZERO, FOREVER);
        assert!(taken.into_iter().eq((0..REPORTS_MAX as u32).map(report)));
        assert!(reports.take(Duration::ZERO, FOREVER).is_empty());
    }
}
