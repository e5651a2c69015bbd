//! What a catching-up primary knows of the good members from which it takes entries. How it goes on
//! is in `member/catching_up.rs`.

use std::time::Duration;

use samite_types::{ErrorKind, Position, TargetId};
use samite_wire::control::{GroupMember, MemberConsistency};
use smallvec::SmallVec;

use crate::commit::NO_ENTRY;
use crate::group_view::GroupView;
use crate::times::MirrorTimes;

/// The state that only a catching-up primary has.
#[derive(Debug)]
pub(crate) struct CatchingUpPrimary {
    view: GroupView,
    /// Good members that have something to say still, or have said it.
    others: SmallVec<[GoodMember; 2]>,
    /// It cannot apply the entries of others, and has said so last then.
    failed_at: Option<Duration>,
}

/// Another good member.
#[derive(Clone, Debug)]
struct GoodMember {
    target: TargetId,
    /// The entries that it can give end there, once it has said so.
    upto: Option<Position>,
    /// It is asked again then, unless it was asked for something since.
    ask_at: Duration,
    /// Where the log stood when it was asked last.
    asked: Position,
    /// Since when nothing has come of asking.
    since: Duration,
    /// When it was last reported not to answer.
    reported_at: Option<Duration>,
}

/// The tasks that are due.
#[derive(Debug, Default)]
pub(crate) struct CatchingUpTasks {
    /// Members to ask for the entries that are lacking here.
    pub(crate) asked: SmallVec<[TargetId; 2]>,
    /// Members to report, and why: this one cannot apply entries, or others do not answer.
    pub(crate) missed: SmallVec<[(TargetId, ErrorKind); 2]>,
}

/// Ends of the logs of members.
pub(crate) type LogEnds = SmallVec<[(TargetId, Position); 2]>;

impl GoodMember {
    const fn new(target: TargetId, now: Duration) -> Self {
        let (asked, since) = (NO_ENTRY, now);
        Self { target, upto: None, ask_at: now, asked, since, reported_at: None }
    }

    fn is_settled(&self, here: Position) -> bool {
        self.upto.is_some_and(|upto| upto <= here)
    }
}

impl CatchingUpPrimary {
    /// The first member of `view` begins; or goes on by a newer map, if it was catching up `before`
    /// in the same term.
    pub(crate) fn new(view: &GroupView, before: Option<&Self>, now: Duration) -> Self {
        let before = before.filter(|before| before.view.term == view.term);
        let known = before.map_or(&[][..], |before| &before.others);
        let is_good = |member: &&GroupMember| member.consistency == MemberConsistency::Good;
        let others =
            view.members[1..].iter().filter(is_good).map(|&GroupMember { target, .. }| {
                let before = known.iter().find(|other| other.target == target);
                before.cloned().unwrap_or_else(|| GoodMember::new(target, now))
            });
        let failed_at = before.and_then(|before| before.failed_at);
        Self { others: others.collect(), view: view.clone(), failed_at }
    }

    /// The view to begin with, and the ends of the logs of the others, if there is nothing to be
    /// taken over any more. The log stands at `here`.
    pub(crate) fn settled(&self, here: Position) -> Option<(GroupView, LogEnds)> {
        // A member that cannot take over the entries leaves the lead to another, if there is
        // another.
        let may_lead = self.failed_at.is_none() || self.others.is_empty();
        if !may_lead || !self.others.iter().all(|other| other.is_settled(here)) {
            return None;
        }
        let ends = self.others.iter().map(|other| (other.target, other.upto.unwrap_or(here)));
        Some((self.view.clone(), ends.collect()))
    }

    /// The tasks of `me` that are due `now`, which are taken for done: members that have not
    /// answered are asked again, and reported if they do not answer at all.
    pub(crate) fn due(
        &mut self,
        me: TargetId,
        here: Position,
        times: &MirrorTimes,
        now: Duration,
    ) -> CatchingUpTasks {
        let is_due = |at: Option<Duration>| at.is_none_or(|at| now >= at + times.report_again);
        let mut tasks = CatchingUpTasks::default();
        if self.failed_at.is_some_and(|at| is_due(Some(at))) {
            self.failed_at = Some(now);
            tasks.missed.push((me, ErrorKind::Corrupt));
        }
        for other in self.others.iter_mut().filter(|other| !other.is_settled(here)) {
            if now >= other.ask_at {
                (other.ask_at, other.asked) = (now + times.retransmit, here);
                tasks.asked.push(other.target);
            }
            if now >= other.since + times.missed && is_due(other.reported_at) {
                other.reported_at = Some(now);
                tasks.missed.push((other.target, ErrorKind::Timeout));
            }
        }
        tasks
    }

    /// When the next task is due; reports are made again after `report_again`.
    pub(crate) fn next(&self, here: Position, report_again: Duration) -> Option<Duration> {
        let open = self.others.iter().filter(|other| !other.is_settled(here));
        let failed = self.failed_at.map(|at| at + report_again);
        open.map(|other| other.ask_at).chain(failed).min()
    }

    /// A member cannot be told anything for now. Whether it is to be reported at once.
    pub(crate) fn unheard(
        &mut self,
        target: TargetId,
        here: Position,
        (now, report_again): (Duration, Duration),
    ) -> bool {
        let mut open = self.others.iter_mut().filter(|other| !other.is_settled(here));
        let other = open.find(|other| other.target == target);
        let is_due =
            |other: &&mut GoodMember| other.reported_at.is_none_or(|at| now >= at + report_again);
        other.filter(is_due).map(|other| other.reported_at = Some(now)).is_some()
    }

    /// Whether it has failed to apply the entries of others.
    pub(crate) const fn has_failed(&self) -> bool {
        self.failed_at.is_some()
    }

    /// It cannot apply the entries of others; that is to be said at `report_at`, and again
    /// `report_again` after it.
    pub(crate) fn fail(&mut self, report_at: Duration, report_again: Duration) {
        self.failed_at = Some(report_at.saturating_sub(report_again));
    }

    /// The next entry has come from a member.
    pub(crate) fn heard(&mut self, from: TargetId, now: Duration) {
        if let Some(other) = self.others.iter_mut().find(|other| other.target == from) {
            other.since = now;
        }
    }

    /// The entries that a member can give end there. Whether it is one of those that are asked.
    pub(crate) fn tail_ends(
        &mut self,
        from: TargetId,
        upto: Position,
        (here, now): (Position, Duration),
    ) -> bool {
        let Some(other) = self.others.iter_mut().find(|other| other.target == from) else {
            return false;
        };
        other.upto = Some(upto);
        if other.asked < here {
            // Some of it has come: the rest, if there is more.
            other.ask_at = now;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use samite_types::{Epoch, Term};

    use super::*;

    const ME: TargetId = TargetId(1);
    const OTHER: TargetId = TargetId(2);
    const TIMES: MirrorTimes = MirrorTimes::DEFAULT;

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn view(term: u32, others: &[(u32, MemberConsistency)]) -> GroupView {
        let member = |&(target, consistency)| GroupMember { target: TargetId(target), consistency };
        let members = [(1, MemberConsistency::Good)].iter().chain(others).map(member).collect();
        let incarnations = vec![0; others.len() + 1];
        GroupView { epoch: Epoch(1), term: Term(term), members, incarnations, is_lost: false }
    }

    #[test]
    fn it_begins_when_all_good_members_have_given_what_it_lacks() {
        let view = view(3, &[(2, MemberConsistency::Good), (3, MemberConsistency::NeedsResync)]);
        let mut catching_up = CatchingUpPrimary::new(&view, None, at(0));
        assert!(catching_up.settled(Position(5)).is_none());
        assert_eq!(catching_up.due(ME, Position(5), &TIMES, at(0)).asked.as_slice(), [OTHER]);
        assert!(catching_up.due(ME, Position(5), &TIMES, at(1)).asked.is_empty(), "asked just now");
        assert!(
            !catching_up.tail_ends(TargetId(3), Position(9), (Position(5), at(2))),
            "not a good one"
        );
        assert!(catching_up.tail_ends(OTHER, Position(7), (Position(6), at(2))));
        let tasks = catching_up.due(ME, Position(6), &TIMES, at(2));
        assert_eq!(tasks.asked.as_slice(), [OTHER], "for the rest");
        let settled = catching_up.settled(Position(7)).expect("it has all");
        assert_eq!(settled.1.as_slice(), [(OTHER, Position(7))]);
        assert_eq!(catching_up.next(Position(7), TIMES.report_again), None);
    }

    #[test]
    fn silent_members_are_reported_again_and_again_also_by_newer_maps() {
        let first = view(3, &[(2, MemberConsistency::Good)]);
        let mut catching_up = CatchingUpPrimary::new(&first, None, at(0));
        let missed = |catching_up: &mut CatchingUpPrimary, now| {
            catching_up.due(ME, Position(5), &TIMES, now).missed.to_vec()
        };
        assert!(missed(&mut catching_up, TIMES.missed - at(1)).is_empty());
        assert_eq!(missed(&mut catching_up, TIMES.missed), [(OTHER, ErrorKind::Timeout)]);
        let mut catching_up = CatchingUpPrimary::new(&first, Some(&catching_up), TIMES.missed);
        assert!(missed(&mut catching_up, TIMES.missed).is_empty(), "just now");
        let again = TIMES.missed + TIMES.report_again;
        assert!(!catching_up.unheard(OTHER, Position(5), (again - at(1), TIMES.report_again)));
        assert!(catching_up.unheard(OTHER, Position(5), (again, TIMES.report_again)));
        let next_term = view(4, &[(2, MemberConsistency::Good)]);
        let mut catching_up = CatchingUpPrimary::new(&next_term, Some(&catching_up), again);
        assert!(missed(&mut catching_up, again).is_empty(), "it has not been asked for long");
    }

    #[test]
    fn a_member_that_cannot_apply_entries_leads_only_alone() {
        let two = view(3, &[(2, MemberConsistency::Good)]);
        let mut catching_up = CatchingUpPrimary::new(&two, None, at(0));
        catching_up.tail_ends(OTHER, Position(5), (Position(5), at(0)));
        catching_up.fail(at(1), TIMES.report_again);
        assert!(catching_up.has_failed() && catching_up.settled(Position(5)).is_none());
        let tasks = catching_up.due(ME, Position(5), &TIMES, at(1000));
        assert_eq!(tasks.missed.as_slice(), [(ME, ErrorKind::Corrupt)]);
        let alone = CatchingUpPrimary::new(&view(3, &[]), Some(&catching_up), at(1000));
        assert!(alone.settled(Position(5)).is_some());
    }
}
