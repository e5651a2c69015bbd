//! Is there an order of the calls on a partition, each between its beginning and its end, in which a plain map answers the same?
//!
//! The search of Wing and Gong ("Testing and verifying concurrent objects", 1993) with the memory that Lowe added ("Testing for
//! linearizability", 2016): a set of calls that were put in order, with the state after them, is tried once. A call that nobody was told the
//! end of may come at any time after it began, or never, and whatever the model answers is right.
//!
//! Open references are no mutations, and are not taken once only: a request that comes twice, late,
//! may take one again that was released, or one that was refused, until its client is gone. So an
//! unlink to an orphan may find a record with an open reference that is not known, once a client
//! has asked for one; never the other way.
//!
//! An event of all records at once ([`TimedEvent`]) has a place in the order, too. A change under
//! way when the records were lost may have been among them, and is made once more afterwards, or
//! refused: no process is left that knew.

use std::collections::HashSet;
use std::time::Duration;

use samite_types::ErrorKind;
use xxhash_rust::xxh3::Xxh3;

use crate::history::ClientCall;
use crate::losses::{PartitionEvent, TimedEvent};
use crate::model::PartitionModel;
use crate::op::{OpOutcome, OpStep, StepResultSeen};

/// Steps of one search; far more than a history of this size takes.
const STEPS_MAX: usize = 2_000_000;

/// The result of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchVerdict {
    /// There is such an order.
    Linearizable,
    /// There is none. The call (its place in the list) is the first to end of those that could not
    /// be put in order in the longest attempt; places after the last call are of events.
    Violated(usize),
    /// It took too long to tell.
    TooHard,
}

/// Searches for an order of `calls`, and of the events in `happened` of all records at once, which
/// have an order already.
#[must_use]
pub fn check(calls: &[&ClientCall], happened: &[TimedEvent]) -> SearchVerdict {
    OrderSearch::new(calls, happened).run()
}

/// The elements of the order.
#[derive(Clone, Copy)]
enum OrderedItem<'a> {
    Call(&'a ClientCall),
    /// That of so many before has happened.
    Happening(usize, &'a TimedEvent),
    /// A call that took effect among the lost changes when so much had happened before; the answer
    /// to its client is another matter.
    Gone(usize, &'a ClientCall),
}

impl OrderedItem<'_> {
    const fn begin(&self) -> Duration {
        match self {
            Self::Call(call) | Self::Gone(_, call) => call.begun,
            Self::Happening(_, happening) => happening.from,
        }
    }

    /// When it was over; `None`: it need not have been.
    fn end(&self) -> Option<Duration> {
        match self {
            Self::Call(call) => call.ended.as_ref().map(|(end, _)| *end),
            Self::Happening(_, happening) => happening.to,
            Self::Gone(..) => None,
        }
    }
}

/// Everything that is to be put in order: calls first.
fn items<'a>(calls: &[&'a ClientCall], happened: &'a [TimedEvent]) -> Vec<OrderedItem<'a>> {
    let mut items: Vec<_> = calls.iter().map(|call| OrderedItem::Call(call)).collect();
    let numbered = || happened.iter().enumerate();
    items.extend(numbered().map(|(index, happening)| OrderedItem::Happening(index, happening)));
    for (index, loss) in numbered().filter(|(_, happening)| happening.what == PartitionEvent::Lost)
    {
        let under_way = calls.iter().filter(|call| {
            call.op.is_mutation()
                && call.done.is_some_and(|done| loss.to.is_none_or(|to| done < to))
                && end_of(&OrderedItem::Call(call)) > loss.from
        });
        items.extend(under_way.map(|call| OrderedItem::Gone(index, call)));
    }
    items
}

/// One choice of the search: which call came next, and the state before.
struct SearchChoice {
    call: usize,
    before: PartitionModel,
}

struct OrderSearch<'a> {
    items: Vec<OrderedItem<'a>>,
    happened: &'a [TimedEvent],
    /// By beginning.
    order: Vec<usize>,
    done: Vec<u64>,
    state: PartitionModel,
    stack: Vec<SearchChoice>,
    tried: HashSet<u64>,
    /// Of the longest attempt: how many calls, and which one stopped it.
    furthest: (usize, usize),
    /// Calls that ended and are not in order yet.
    left: usize,
    /// Place in `order` before which all calls are done.
    low: usize,
    /// When a client first asked for an open reference.
    holds_from: Duration,
}

impl<'a> OrderSearch<'a> {
    fn new(calls: &[&'a ClientCall], happened: &'a [TimedEvent]) -> Self {
        let items = items(calls, happened);
        // A call that no node has carried out, and whose client was not answered, has not happened.
        let happened_at_all = |item: &usize| match items[*item] {
            OrderedItem::Call(call) => call.ended.is_some() || call.done.is_some(),
            _ => true,
        };
        let mut order: Vec<usize> = (0..items.len()).filter(happened_at_all).collect();
        order.sort_by_key(|item| (items[*item].begin(), *item));
        Self {
            order,
            done: vec![0; items.len().div_ceil(64)],
            state: PartitionModel::default(),
            stack: Vec::new(),
            tried: HashSet::new(),
            furthest: (0, 0),
            left: items.iter().filter(|item| item.end().is_some()).count(),
            items,
            happened,
            low: 0,
            holds_from: calls
                .iter()
                .filter(|call| call.op.acts.iter().any(|act| matches!(act, OpStep::Hold(..))))
                .map(|call| call.begun)
                .min()
                .unwrap_or(Duration::MAX),
        }
    }

    fn run(mut self) -> SearchVerdict {
        let mut from = 0;
        for _ in 0..STEPS_MAX {
            if self.left == 0 {
                return SearchVerdict::Linearizable;
            }
            match self.next(from) {
                Some((place, after)) => {
                    self.push(self.order[place], after);
                    from = self.low;
                }
                None => {
                    let Some(place) = self.pop() else {
                        return SearchVerdict::Violated(self.furthest.1);
                    };
                    from = place + 1;
                }
            }
        }
        SearchVerdict::TooHard
    }

    fn is_done(&self, call: usize) -> bool {
        self.done[call / 64] & 1 << (call % 64) != 0
    }

    /// The next call from place `from` on that may come now and answers as it did, and the state after it.
    fn next(&mut self, from: usize) -> Option<(usize, PartitionModel)> {
        let (end, first) = self.first_end()?;
        if self.stack.len() >= self.furthest.0 {
            self.furthest = (self.stack.len(), first);
        }
        for place in from..self.order.len() {
            let call = self.order[place];
            if self.items[call].begin() > end {
                return None;
            }
            if self.is_done(call) {
                continue;
            }
            let Some(after) = self.after(&self.items[call]) else { continue };
            self.done[call / 64] |= 1 << (call % 64);
            let is_new = self.tried.insert(self.fingerprint(&after));
            self.done[call / 64] &= !(1 << (call % 64));
            if is_new {
                return Some((place, after));
            }
        }
        None
    }

    /// The state after `item`, if it can come now.
    fn after(&self, item: &OrderedItem<'_>) -> Option<PartitionModel> {
        let mut after = self.state.clone();
        let call = match item {
            OrderedItem::Call(call) => call,
            OrderedItem::Happening(before, happening) => {
                let is_next = self.state.happened() == *before;
                after.happens(happening.what);
                return is_next.then_some(after);
            }
            OrderedItem::Gone(before, call) => {
                let is_before = self.state.happened() == *before;
                let took_effect = is_before && matches!(after.apply(&call.op), OpOutcome::Done(_));
                return took_effect.then_some(after);
            }
        };
        if call.is_refused_for_room() || call.is_refused_by_store() {
            return Some(after);
        }
        let told = after.apply(&call.op);
        if agrees(call, &told) {
            return Some(after);
        }
        if self.is_told_late(call, &told) {
            return Some(self.state.clone());
        }
        if self.holds_from > end_of(item) {
            return None;
        }
        let mut after = self.state.clone();
        let told = after.apply_referenced(&call.op)?;
        agrees(call, &told).then_some(after)
    }

    /// Whether a call was answered by a node that does not know yet that a loss was acknowledged:
    /// it may still give its old answer, and carries nothing out. The primary may be that one, when
    /// another member has answered a read by the newer map already.
    fn is_told_late(&self, call: &ClientCall, told: &OpOutcome) -> bool {
        let last = self.state.happened().checked_sub(1).map(|last| self.happened[last]);
        let is_known = |last: TimedEvent| {
            last.what != PartitionEvent::Acknowledged || last.to.is_some_and(|to| call.begun > to)
        };
        if last.is_none_or(is_known) {
            return false;
        }
        match (&call.ended, told) {
            (Some((_, OpOutcome::Failed(ErrorKind::Lost))), _) => self.state.may_have_had(&call.op),
            (Some((_, OpOutcome::Done(seen))), OpOutcome::Done(told)) => {
                match (&seen[..], &told[..]) {
                    (
                        [StepResultSeen::Listing(seen, false)],
                        [StepResultSeen::Listing(told, true)],
                    ) => seen == told,
                    _ => false,
                }
            }
            _ => false,
        }
    }

    /// Of the calls that are not done, the first end, and its client: a call that begins after it
    /// cannot come next.
    fn first_end(&self) -> Option<(Duration, usize)> {
        let mut first: Option<(Duration, usize)> = None;
        for call in self.order[self.low..].iter().filter(|call| !self.is_done(**call)) {
            if first.is_some_and(|(end, _)| self.items[*call].begin() > end) {
                break;
            }
            let own = (end_of(&self.items[*call]), *call);
            first = Some(first.map_or(own, |first| first.min(own)));
        }
        first
    }

    fn fingerprint(&self, state: &PartitionModel) -> u64 {
        use std::hash::{Hash, Hasher};
        let mut hasher = Xxh3::new();
        self.done.hash(&mut hasher);
        state.hash(&mut hasher);
        hasher.finish()
    }

    fn push(&mut self, call: usize, after: PartitionModel) {
        let before = std::mem::replace(&mut self.state, after);
        self.stack.push(SearchChoice { call, before });
        self.done[call / 64] |= 1 << (call % 64);
        self.left -= usize::from(self.items[call].end().is_some());
        while self.low < self.order.len() && self.is_done(self.order[self.low]) {
            self.low += 1;
        }
    }

    /// Takes the last choice back. Returns its place in the order.
    fn pop(&mut self) -> Option<usize> {
        let SearchChoice { call, before } = self.stack.pop()?;
        self.state = before;
        self.done[call / 64] &= !(1 << (call % 64));
        self.left += usize::from(self.items[call].end().is_some());
        let key = (self.items[call].begin(), call);
        let place =
            self.order.binary_search_by_key(&key, |call| (self.items[*call].begin(), *call));
        let place = place.unwrap_or_else(|place| place);
        self.low = self.low.min(place);
        Some(place)
    }
}

/// Whether a call was answered as the model answers. How many open references a record has is said
/// of the time of the answer, which for a repetition is not the time at which the open reference
/// began: only failures count there.
fn agrees(call: &ClientCall, told: &OpOutcome) -> bool {
    let holds = |act: &OpStep| matches!(act, OpStep::Hold(..) | OpStep::Release(_));
    match (&call.ended, told) {
        (Some((_, OpOutcome::Done(_))), OpOutcome::Done(_)) if call.op.acts.iter().all(holds) => {
            true
        }
        (Some((_, outcome)), told) => outcome == told,
        (None, _) => true,
    }
}

fn end_of(item: &OrderedItem<'_>) -> Duration {
    item.end().unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use samite_types::{ErrorKind, PartitionId};
    use samite_wire::op::{UNLINKED_KEPT, UNLINKED_REMOVED};

    use super::*;
    use crate::op::{SimOperation, StepResultSeen};

    fn call(
        client: usize,
        begun: u64,
        ended: u64,
        act: OpStep,
        outcome: Option<OpOutcome>,
    ) -> ClientCall {
        let time = Duration::from_micros;
        ClientCall {
            client,
            partition: PartitionId(0),
            op: SimOperation::of([act]),
            begun: time(begun),
            ended: outcome.map(|outcome| (time(ended), outcome)),
            done: None,
            version: None,
        }
    }

    fn put(client: usize, begun: u64, ended: u64, number: u64, created: bool) -> ClientCall {
        let written = StepResultSeen::Written { offset: 0, len: 8, created };
        call(client, begun, ended, OpStep::Put(0, number), Some(OpOutcome::Done(vec![written])))
    }

    fn get(client: usize, begun: u64, ended: u64, number: u64) -> ClientCall {
        let value = StepResultSeen::Value(number.to_le_bytes().to_vec());
        call(client, begun, ended, OpStep::Get(0), Some(OpOutcome::Done(vec![value])))
    }

    fn verdict(calls: &[ClientCall]) -> SearchVerdict {
        check(&calls.iter().collect::<Vec<_>>(), &[])
    }

    #[test]
    fn calls_that_overlap_may_come_in_any_order() {
        let calls = [put(0, 0, 10, 1, true), put(1, 1, 9, 2, false), get(2, 11, 12, 1)];
        assert_eq!(verdict(&calls), SearchVerdict::Violated(2));
        let calls = [put(0, 0, 10, 1, false), put(1, 1, 9, 2, true), get(2, 11, 12, 1)];
        assert_eq!(verdict(&calls), SearchVerdict::Linearizable);
    }

    #[test]
    fn a_stale_read_is_found() {
        let calls = [put(0, 0, 1, 1, true), put(0, 2, 3, 2, false), get(1, 4, 5, 1)];
        assert_eq!(verdict(&calls), SearchVerdict::Violated(2));
        let calls = [put(0, 0, 1, 1, true), put(0, 2, 6, 2, false), get(1, 4, 5, 1)];
        assert_eq!(verdict(&calls), SearchVerdict::Linearizable);
    }

    #[test]
    fn an_unlink_may_meet_a_late_open_reference_and_must_meet_one_that_is_there() {
        let unlink = |begun, told| {
            let number = Some(OpOutcome::Done(vec![StepResultSeen::Number(told)]));
            call(1, begun, begun + 1, OpStep::Detach(0, 1), number)
        };
        let hold = |outcome| call(2, 2, 3, OpStep::Hold(0, 7), Some(outcome));
        let refused = OpOutcome::Failed(ErrorKind::NotFound);
        let held = OpOutcome::Done(vec![StepResultSeen::Number(1)]);
        let put = put(0, 4, 5, 1, true);
        let (kept, removed) = (UNLINKED_KEPT, UNLINKED_REMOVED);
        assert_eq!(verdict(&[put.clone(), unlink(6, removed)]), SearchVerdict::Linearizable);
        assert_eq!(verdict(&[put.clone(), unlink(6, kept)]), SearchVerdict::Violated(1));
        let calls = [hold(refused), put.clone(), unlink(6, kept)];
        assert_eq!(verdict(&calls), SearchVerdict::Linearizable);
        let held = ClientCall { begun: Duration::from_micros(6), ended: None, ..hold(held) };
        let held =
            ClientCall { ended: Some((Duration::from_micros(7), OpOutcome::Done(vec![]))), ..held };
        assert_eq!(verdict(&[put, held, unlink(8, removed)]), SearchVerdict::Violated(2));
    }

    #[test]
    fn what_nobody_was_told_may_have_happened_or_not() {
        let unheard = call(0, 2, 0, OpStep::Put(0, 2), None);
        let calls = [put(0, 0, 1, 1, true), unheard.clone(), get(1, 4, 5, 2)];
        assert_eq!(verdict(&calls), SearchVerdict::Violated(2), "no node has carried it out");
        let lost = ClientCall { done: Some(Duration::from_micros(3)), ..unheard };
        for seen in [1, 2] {
            let calls = [put(0, 0, 1, 1, true), lost.clone(), get(1, 4, 5, seen)];
            assert_eq!(verdict(&calls), SearchVerdict::Linearizable);
        }
        let calls = [put(0, 0, 1, 1, true), lost.clone(), get(1, 4, 5, 2), get(1, 6, 7, 1)];
        assert_eq!(verdict(&calls), SearchVerdict::Violated(3));
        let early = [get(1, 0, 1, 2), lost];
        assert_eq!(verdict(&early), SearchVerdict::Violated(0));
        let missing = call(1, 0, 1, OpStep::Get(0), Some(OpOutcome::Failed(ErrorKind::NotFound)));
        assert_eq!(verdict(&[missing]), SearchVerdict::Linearizable);
    }

    #[test]
    fn what_is_lost_is_neither_there_nor_missing_until_that_is_acknowledged() {
        let time = Duration::from_micros;
        let lost = TimedEvent { what: PartitionEvent::Lost, from: time(10), to: Some(time(12)) };
        let seen =
            TimedEvent { what: PartitionEvent::Acknowledged, from: time(20), to: Some(time(25)) };
        let put = put(0, 0, 1, 1, true);
        let refused =
            |begun, kind| call(1, begun, begun + 1, OpStep::Get(0), Some(OpOutcome::Failed(kind)));
        let judge = |told: ClientCall, happened: &[TimedEvent]| check(&[&put, &told], happened);
        for (begun, kind, is_right) in [
            (5, ErrorKind::Lost, false),
            (14, ErrorKind::Lost, true),
            (14, ErrorKind::NotFound, false),
            (22, ErrorKind::Lost, true),
            (22, ErrorKind::NotFound, true),
            (30, ErrorKind::Lost, false),
            (30, ErrorKind::NotFound, true),
        ] {
            let verdict = judge(refused(begun, kind), &[lost, seen]);
            assert_eq!(verdict == SearchVerdict::Linearizable, is_right, "{begun} {kind:?}");
        }
        let still_there = judge(get(1, 14, 15, 1), &[lost, seen]);
        assert_ne!(still_there, SearchVerdict::Linearizable);
        assert_eq!(judge(get(1, 9, 15, 1), &[lost, seen]), SearchVerdict::Linearizable);
        // Carried out among the lost changes, and once more by a node that was not told.
        let written = StepResultSeen::Written { offset: 0, len: 8, created: true };
        let again = call(2, 3, 31, OpStep::Put(1, 7), Some(OpOutcome::Done(vec![written])));
        let value =
            || Some(OpOutcome::Done(vec![StepResultSeen::Value(7u64.to_le_bytes().to_vec())]));
        let early = call(1, 6, 7, OpStep::Get(1), value());
        let late = call(1, 33, 34, OpStep::Get(1), value());
        let order = |again: &ClientCall| check(&[&put, again, &early, &late], &[lost, seen]);
        assert_ne!(order(&again), SearchVerdict::Linearizable);
        let again = ClientCall { done: Some(time(5)), ..again };
        assert_eq!(order(&again), SearchVerdict::Linearizable);
    }

    #[test]
    fn until_all_nodes_know_of_an_acknowledgement_a_change_may_be_refused_and_is_not_made() {
        let time = Duration::from_micros;
        let lost = TimedEvent { what: PartitionEvent::Lost, from: time(10), to: Some(time(12)) };
        let seen =
            TimedEvent { what: PartitionEvent::Acknowledged, from: time(20), to: Some(time(30)) };
        let told = |begun, act, kind| call(1, begun, begun + 1, act, Some(OpOutcome::Failed(kind)));
        let missing = |begun| told(begun, OpStep::Get(0), ErrorKind::NotFound);
        let refused = |begun| told(begun, OpStep::Put(0, 2), ErrorKind::Lost);
        let order = |calls: &[ClientCall]| check(&calls.iter().collect::<Vec<_>>(), &[lost, seen]);
        let put = put(0, 0, 1, 1, true);
        // One member has the newer map, the primary has not.
        let calls = [put.clone(), missing(22), refused(24), missing(26), missing(32)];
        assert_eq!(order(&calls), SearchVerdict::Linearizable);
        assert_ne!(order(&[put.clone(), missing(22), refused(32)]), SearchVerdict::Linearizable);
        // A record that was refused is not there.
        assert_ne!(
            order(&[put, missing(22), refused(24), get(1, 26, 27, 2)]),
            SearchVerdict::Linearizable
        );
    }
}
