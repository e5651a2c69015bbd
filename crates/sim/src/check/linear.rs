//! Is there an order of the calls on a partition, each between its beginning and its end, in which a plain map answers the same?
//!
//! The search of Wing and Gong ("Testing and verifying concurrent objects", 1993) with the memory that Lowe added ("Testing for
//! linearizability", 2016): a set of calls that were put in order, with the state after them, is tried once. A call that nobody was told the
//! end of may come at any time after it began, or never, and whatever the model answers is right.
//!
//! Holds are no mutations, and are not taken once only: a request that comes twice, late, may take one again that was released, or one
//! that was refused, until its client is gone. So a detach may find a record held without a known hold, once somebody has asked for one; never the other way.
//!
//! What happened to all records at once ([`Happening`]) has a place in the order, too. A change under way when the records were lost may have
//! been among them, and is made once more afterwards, or refused: nobody is left who knew.

use std::collections::HashSet;
use std::time::Duration;

use samite_types::ErrorKind;
use xxhash_rust::xxh3::Xxh3;

use crate::history::Call;
use crate::losses::{Happening, What};
use crate::model::Model;
use crate::op::{Act, Outcome, Seen};

/// Steps of one search; far more than a history of this size takes.
const STEPS_MAX: usize = 2_000_000;

/// What the search found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is such an order.
    Linearizable,
    /// There is none. The call (its place in the list) is the first to end of those that could not be put in order in the longest attempt; places after the
    /// last call are of what happened.
    Violated(usize),
    /// It took too long to tell.
    TooHard,
}

/// Searches for an order of `calls`, and of what `happened` to all records at once, which has an order already.
#[must_use]
pub fn check(calls: &[&Call], happened: &[Happening]) -> Verdict {
    Search::new(calls, happened).run()
}

/// What is put in order.
#[derive(Clone, Copy)]
enum Item<'a> {
    Call(&'a Call),
    /// That of so many before has happened.
    Happening(usize, &'a Happening),
    /// A call that took effect among what was lost when so much had happened before; what its client was told is another matter.
    Gone(usize, &'a Call),
}

impl Item<'_> {
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
fn items<'a>(calls: &[&'a Call], happened: &'a [Happening]) -> Vec<Item<'a>> {
    let mut items: Vec<_> = calls.iter().map(|call| Item::Call(call)).collect();
    let numbered = || happened.iter().enumerate();
    items.extend(numbered().map(|(index, happening)| Item::Happening(index, happening)));
    for (index, loss) in numbered().filter(|(_, happening)| happening.what == What::Lost) {
        let under_way = calls.iter().filter(|call| {
            call.op.is_mutation()
                && call.done.is_some_and(|done| loss.to.is_none_or(|to| done < to))
                && end_of(&Item::Call(call)) > loss.from
        });
        items.extend(under_way.map(|call| Item::Gone(index, call)));
    }
    items
}

/// One choice of the search: which call came next, and how things were before.
struct Choice {
    call: usize,
    before: Model,
}

struct Search<'a> {
    items: Vec<Item<'a>>,
    happened: &'a [Happening],
    /// By beginning.
    order: Vec<usize>,
    done: Vec<u64>,
    state: Model,
    stack: Vec<Choice>,
    tried: HashSet<u64>,
    /// Of the longest attempt: how many calls, and what stopped it.
    furthest: (usize, usize),
    /// Calls that ended and are not in order yet.
    left: usize,
    /// Place in `order` before which all calls are done.
    low: usize,
    /// When somebody first asked for a hold.
    holds_from: Duration,
}

impl<'a> Search<'a> {
    fn new(calls: &[&'a Call], happened: &'a [Happening]) -> Self {
        let items = items(calls, happened);
        // What no node has carried out, and nobody was told, has not happened.
        let happened_at_all = |item: &usize| match items[*item] {
            Item::Call(call) => call.ended.is_some() || call.done.is_some(),
            _ => true,
        };
        let mut order: Vec<usize> = (0..items.len()).filter(happened_at_all).collect();
        order.sort_by_key(|item| (items[*item].begin(), *item));
        Self {
            order,
            done: vec![0; items.len().div_ceil(64)],
            state: Model::default(),
            stack: Vec::new(),
            tried: HashSet::new(),
            furthest: (0, 0),
            left: items.iter().filter(|item| item.end().is_some()).count(),
            items,
            happened,
            low: 0,
            holds_from: calls
                .iter()
                .filter(|call| call.op.acts.iter().any(|act| matches!(act, Act::Hold(..))))
                .map(|call| call.begun)
                .min()
                .unwrap_or(Duration::MAX),
        }
    }

    fn run(mut self) -> Verdict {
        let mut from = 0;
        for _ in 0..STEPS_MAX {
            if self.left == 0 {
                return Verdict::Linearizable;
            }
            match self.next(from) {
                Some((place, after)) => {
                    self.push(self.order[place], after);
                    from = self.low;
                }
                None => {
                    let Some(place) = self.pop() else { return Verdict::Violated(self.furthest.1) };
                    from = place + 1;
                }
            }
        }
        Verdict::TooHard
    }

    fn is_done(&self, call: usize) -> bool {
        self.done[call / 64] & 1 << (call % 64) != 0
    }

    /// The next call from place `from` on that may come now and answers as it did, and the state after it.
    fn next(&mut self, from: usize) -> Option<(usize, Model)> {
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
    fn after(&self, item: &Item<'_>) -> Option<Model> {
        let mut after = self.state.clone();
        let call = match item {
            Item::Call(call) => call,
            Item::Happening(before, happening) => {
                let is_next = self.state.happened() == *before;
                after.happens(happening.what);
                return is_next.then_some(after);
            }
            Item::Gone(before, call) => {
                let is_before = self.state.happened() == *before;
                let took_effect = is_before && matches!(after.apply(&call.op), Outcome::Done(_));
                return took_effect.then_some(after);
            }
        };
        if call.is_refused_for_room() {
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
        let told = after.apply_held(&call.op)?;
        agrees(call, &told).then_some(after)
    }

    /// Whether a call was answered by a node that does not know yet that a loss was acknowledged: it may still say what it said,
    /// and carries nothing out. The primary may be that one, when another member has answered a read by the newer map already.
    fn is_told_late(&self, call: &Call, told: &Outcome) -> bool {
        let last = self.state.happened().checked_sub(1).map(|last| self.happened[last]);
        let is_known = |last: Happening| {
            last.what != What::Acknowledged || last.to.is_some_and(|to| call.begun > to)
        };
        if last.is_none_or(is_known) {
            return false;
        }
        match (&call.ended, told) {
            (Some((_, Outcome::Failed(ErrorKind::Lost))), _) => self.state.may_have_had(&call.op),
            (Some((_, Outcome::Done(seen))), Outcome::Done(told)) => match (&seen[..], &told[..]) {
                ([Seen::Listing(seen, false)], [Seen::Listing(told, true)]) => seen == told,
                _ => false,
            },
            _ => false,
        }
    }

    /// Of the calls that are not done, the first end, and whose it is: what begins after it cannot come next.
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

    fn fingerprint(&self, state: &Model) -> u64 {
        use std::hash::{Hash, Hasher};
        let mut hasher = Xxh3::new();
        self.done.hash(&mut hasher);
        state.hash(&mut hasher);
        hasher.finish()
    }

    fn push(&mut self, call: usize, after: Model) {
        let before = std::mem::replace(&mut self.state, after);
        self.stack.push(Choice { call, before });
        self.done[call / 64] |= 1 << (call % 64);
        self.left -= usize::from(self.items[call].end().is_some());
        while self.low < self.order.len() && self.is_done(self.order[self.low]) {
            self.low += 1;
        }
    }

    /// Takes the last choice back. Returns its place in the order.
    fn pop(&mut self) -> Option<usize> {
        let Choice { call, before } = self.stack.pop()?;
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

/// Whether a call was answered as the model answers. How many hold a record is said of the moment of the answer, which for a
/// repetition is not the moment at which the hold began: only failures count there.
fn agrees(call: &Call, told: &Outcome) -> bool {
    let holds = |act: &Act| matches!(act, Act::Hold(..) | Act::Release(_));
    match (&call.ended, told) {
        (Some((_, Outcome::Done(_))), Outcome::Done(_)) if call.op.acts.iter().all(holds) => true,
        (Some((_, outcome)), told) => outcome == told,
        (None, _) => true,
    }
}

fn end_of(item: &Item<'_>) -> Duration {
    item.end().unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use samite_types::{ErrorKind, PartitionId};
    use samite_wire::op::{DETACHED_KEPT, DETACHED_REMOVED};

    use super::*;
    use crate::op::{Op, Seen};

    fn call(client: usize, begun: u64, ended: u64, act: Act, outcome: Option<Outcome>) -> Call {
        let time = Duration::from_micros;
        Call {
            client,
            partition: PartitionId(0),
            op: Op::of([act]),
            begun: time(begun),
            ended: outcome.map(|outcome| (time(ended), outcome)),
            done: None,
            version: None,
        }
    }

    fn put(client: usize, begun: u64, ended: u64, number: u64, created: bool) -> Call {
        let written = Seen::Written { offset: 0, len: 8, created };
        call(client, begun, ended, Act::Put(0, number), Some(Outcome::Done(vec![written])))
    }

    fn get(client: usize, begun: u64, ended: u64, number: u64) -> Call {
        let value = Seen::Value(number.to_le_bytes().to_vec());
        call(client, begun, ended, Act::Get(0), Some(Outcome::Done(vec![value])))
    }

    fn verdict(calls: &[Call]) -> Verdict {
        check(&calls.iter().collect::<Vec<_>>(), &[])
    }

    #[test]
    fn calls_that_overlap_may_come_in_any_order() {
        let calls = [put(0, 0, 10, 1, true), put(1, 1, 9, 2, false), get(2, 11, 12, 1)];
        assert_eq!(verdict(&calls), Verdict::Violated(2));
        let calls = [put(0, 0, 10, 1, false), put(1, 1, 9, 2, true), get(2, 11, 12, 1)];
        assert_eq!(verdict(&calls), Verdict::Linearizable);
    }

    #[test]
    fn a_stale_read_is_found() {
        let calls = [put(0, 0, 1, 1, true), put(0, 2, 3, 2, false), get(1, 4, 5, 1)];
        assert_eq!(verdict(&calls), Verdict::Violated(2));
        let calls = [put(0, 0, 1, 1, true), put(0, 2, 6, 2, false), get(1, 4, 5, 1)];
        assert_eq!(verdict(&calls), Verdict::Linearizable);
    }

    #[test]
    fn a_detach_may_meet_a_hold_that_came_late_and_must_meet_one_that_is_there() {
        let detach = |begun, told| {
            let number = Some(Outcome::Done(vec![Seen::Number(told)]));
            call(1, begun, begun + 1, Act::Detach(0, 1), number)
        };
        let hold = |outcome| call(2, 2, 3, Act::Hold(0, 7), Some(outcome));
        let refused = Outcome::Failed(ErrorKind::NotFound);
        let held = Outcome::Done(vec![Seen::Number(1)]);
        let put = put(0, 4, 5, 1, true);
        let (kept, removed) = (DETACHED_KEPT, DETACHED_REMOVED);
        assert_eq!(verdict(&[put.clone(), detach(6, removed)]), Verdict::Linearizable);
        assert_eq!(verdict(&[put.clone(), detach(6, kept)]), Verdict::Violated(1));
        let calls = [hold(refused), put.clone(), detach(6, kept)];
        assert_eq!(verdict(&calls), Verdict::Linearizable);
        let held = Call { begun: Duration::from_micros(6), ended: None, ..hold(held) };
        let held = Call { ended: Some((Duration::from_micros(7), Outcome::Done(vec![]))), ..held };
        assert_eq!(verdict(&[put, held, detach(8, removed)]), Verdict::Violated(2));
    }

    #[test]
    fn what_nobody_was_told_may_have_happened_or_not() {
        let unheard = call(0, 2, 0, Act::Put(0, 2), None);
        let calls = [put(0, 0, 1, 1, true), unheard.clone(), get(1, 4, 5, 2)];
        assert_eq!(verdict(&calls), Verdict::Violated(2), "no node has carried it out");
        let lost = Call { done: Some(Duration::from_micros(3)), ..unheard };
        for seen in [1, 2] {
            let calls = [put(0, 0, 1, 1, true), lost.clone(), get(1, 4, 5, seen)];
            assert_eq!(verdict(&calls), Verdict::Linearizable);
        }
        let calls = [put(0, 0, 1, 1, true), lost.clone(), get(1, 4, 5, 2), get(1, 6, 7, 1)];
        assert_eq!(verdict(&calls), Verdict::Violated(3));
        let early = [get(1, 0, 1, 2), lost];
        assert_eq!(verdict(&early), Verdict::Violated(0));
        let missing = call(1, 0, 1, Act::Get(0), Some(Outcome::Failed(ErrorKind::NotFound)));
        assert_eq!(verdict(&[missing]), Verdict::Linearizable);
    }

    #[test]
    fn what_is_lost_is_neither_there_nor_missing_until_that_is_acknowledged() {
        let time = Duration::from_micros;
        let lost = Happening { what: What::Lost, from: time(10), to: Some(time(12)) };
        let seen = Happening { what: What::Acknowledged, from: time(20), to: Some(time(25)) };
        let put = put(0, 0, 1, 1, true);
        let refused =
            |begun, kind| call(1, begun, begun + 1, Act::Get(0), Some(Outcome::Failed(kind)));
        let judge = |told: Call, happened: &[Happening]| check(&[&put, &told], happened);
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
            assert_eq!(verdict == Verdict::Linearizable, is_right, "{begun} {kind:?}");
        }
        let still_there = judge(get(1, 14, 15, 1), &[lost, seen]);
        assert_ne!(still_there, Verdict::Linearizable);
        assert_eq!(judge(get(1, 9, 15, 1), &[lost, seen]), Verdict::Linearizable);
        // Carried out among what was lost, and once more by whom nobody told.
        let written = Seen::Written { offset: 0, len: 8, created: true };
        let again = call(2, 3, 31, Act::Put(1, 7), Some(Outcome::Done(vec![written])));
        let value = || Some(Outcome::Done(vec![Seen::Value(7u64.to_le_bytes().to_vec())]));
        let early = call(1, 6, 7, Act::Get(1), value());
        let late = call(1, 33, 34, Act::Get(1), value());
        let order = |again: &Call| check(&[&put, again, &early, &late], &[lost, seen]);
        assert_ne!(order(&again), Verdict::Linearizable);
        let again = Call { done: Some(time(5)), ..again };
        assert_eq!(order(&again), Verdict::Linearizable);
    }

    #[test]
    fn until_all_nodes_know_of_an_acknowledgement_a_change_may_be_refused_and_is_not_made() {
        let time = Duration::from_micros;
        let lost = Happening { what: What::Lost, from: time(10), to: Some(time(12)) };
        let seen = Happening { what: What::Acknowledged, from: time(20), to: Some(time(30)) };
        let told = |begun, act, kind| call(1, begun, begun + 1, act, Some(Outcome::Failed(kind)));
        let missing = |begun| told(begun, Act::Get(0), ErrorKind::NotFound);
        let refused = |begun| told(begun, Act::Put(0, 2), ErrorKind::Lost);
        let order = |calls: &[Call]| check(&calls.iter().collect::<Vec<_>>(), &[lost, seen]);
        let put = put(0, 0, 1, 1, true);
        // One member has the newer map, the primary has not.
        let calls = [put.clone(), missing(22), refused(24), missing(26), missing(32)];
        assert_eq!(order(&calls), Verdict::Linearizable);
        assert_ne!(order(&[put.clone(), missing(22), refused(32)]), Verdict::Linearizable);
        // What was refused is not there.
        assert_ne!(
            order(&[put, missing(22), refused(24), get(1, 26, 27, 2)]),
            Verdict::Linearizable
        );
    }
}
