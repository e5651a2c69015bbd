//! Is there an order of the calls on a partition, each between its beginning and its end, in which a plain map answers the same?
//!
//! The search of Wing and Gong ("Testing and verifying concurrent objects", 1993) with the memory that Lowe added ("Testing for
//! linearizability", 2016): a set of calls that were put in order, with the state after them, is tried once. A call that nobody was told the
//! end of may come at any time after it began, or never, and whatever the model answers is right.
//!
//! Holds are no mutations, and are not taken once only: a request that comes twice, late, may take one again that was released, or one
//! that was refused, until its client is gone. So a detach may find a record held without a known hold, once somebody has asked for one; never the other way.

use std::collections::HashSet;
use std::time::Duration;

use xxhash_rust::xxh3::Xxh3;

use crate::history::Call;
use crate::model::Model;
use crate::op::{Act, Outcome};

/// Steps of one search; far more than a history of this size takes.
const STEPS_MAX: usize = 2_000_000;

/// What the search found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is such an order.
    Linearizable,
    /// There is none. The call (its place in the list) is the first to end of those that could not be put in order in the longest attempt.
    Violated(usize),
    /// It took too long to tell.
    TooHard,
}

/// Searches for an order of `calls`.
#[must_use]
pub fn check(calls: &[&Call]) -> Verdict {
    Search::new(calls).run()
}

/// One choice of the search: which call came next, and how things were before.
struct Choice {
    call: usize,
    before: Model,
}

struct Search<'a> {
    calls: &'a [&'a Call],
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
    fn new(calls: &'a [&'a Call]) -> Self {
        let mut order: Vec<usize> = (0..calls.len()).collect();
        order.sort_by_key(|call| (calls[*call].begun, *call));
        Self {
            calls,
            order,
            done: vec![0; calls.len().div_ceil(64)],
            state: Model::default(),
            stack: Vec::new(),
            tried: HashSet::new(),
            furthest: (0, 0),
            left: calls.iter().filter(|call| call.ended.is_some()).count(),
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
            if self.calls[call].begun > end {
                return None;
            }
            if self.is_done(call) {
                continue;
            }
            let Some(after) = self.after(self.calls[call]) else { continue };
            self.done[call / 64] |= 1 << (call % 64);
            let is_new = self.tried.insert(self.fingerprint(&after));
            self.done[call / 64] &= !(1 << (call % 64));
            if is_new {
                return Some((place, after));
            }
        }
        None
    }

    /// The state after `call`, if it can come now.
    fn after(&self, call: &Call) -> Option<Model> {
        if call.is_refused_for_room() {
            return Some(self.state.clone());
        }
        let mut after = self.state.clone();
        let told = after.apply(&call.op);
        if agrees(call, &told) {
            return Some(after);
        }
        if self.holds_from > end_of(call) {
            return None;
        }
        let mut after = self.state.clone();
        let told = after.apply_held(&call.op)?;
        agrees(call, &told).then_some(after)
    }

    /// Of the calls that are not done, the first end, and whose it is: what begins after it cannot come next.
    fn first_end(&self) -> Option<(Duration, usize)> {
        let mut first: Option<(Duration, usize)> = None;
        for call in self.order[self.low..].iter().filter(|call| !self.is_done(**call)) {
            if first.is_some_and(|(end, _)| self.calls[*call].begun > end) {
                break;
            }
            let own = (end_of(self.calls[*call]), *call);
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
        self.left -= usize::from(self.calls[call].ended.is_some());
        while self.low < self.order.len() && self.is_done(self.order[self.low]) {
            self.low += 1;
        }
    }

    /// Takes the last choice back. Returns its place in the order.
    fn pop(&mut self) -> Option<usize> {
        let Choice { call, before } = self.stack.pop()?;
        self.state = before;
        self.done[call / 64] &= !(1 << (call % 64));
        self.left += usize::from(self.calls[call].ended.is_some());
        let key = (self.calls[call].begun, call);
        let place = self.order.binary_search_by_key(&key, |call| (self.calls[*call].begun, *call));
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

fn end_of(call: &Call) -> Duration {
    call.ended.as_ref().map_or(Duration::MAX, |(end, _)| *end)
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
        check(&calls.iter().collect::<Vec<_>>())
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
        let lost = call(0, 2, 0, Act::Put(0, 2), None);
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
}
