//! Which targets hold each partition of mirrored datasets: groups of one primary and its secondaries.
//!
//! Three things are to be even, in proportion to the weights: how many members a target is, how
//! many primaries it is, and, for each primary, which targets its secondaries are. So the load of a
//! node that dies falls on all others, and all others help to restore it.
//!
//! [`arrange`] starts from the groups that are and changes as few members as it can: the partitions
//! that a target that is gone held go to others, and a new target's share comes from those that
//! have too much. Then it turns roles round within groups, which moves no data.

mod shares;

use std::cmp::{Ordering, Reverse};
use std::collections::{HashMap, VecDeque};

use samite_types::{Error, ErrorKind, NodeId, PartitionId, Redundancy, Result, TargetId};

use crate::assign::{assign, quotas, score};

/// A target that groups may be placed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementTarget {
    /// The target.
    pub target: TargetId,
    /// Its node: never two members of a group on one.
    pub node: NodeId,
    /// Name of its host: two members of a group only where there are too few hosts.
    pub host: String,
    /// Name of the rack of that host: two members of a group only where there are too few racks, or
    /// some have too little room. Empty: not known.
    pub rack: String,
    /// Its share of everything, which is its capacity.
    pub weight: u64,
    /// Whether it may become a member of more groups than it is.
    pub is_open: bool,
}

/// Members of each group, the primary first, from `groups` (as they are; empty ones for partitions that are new) to what suits `places`. The order of
/// `places` does not matter; a member that is not among them is replaced.
///
/// A group has fewer than `redundancy` members only when there are not enough open nodes.
///
/// # Errors
/// [`ErrorKind::Invalid`]: a target is named twice, or none is open and has a weight.
pub fn arrange(
    groups: &[Vec<TargetId>],
    redundancy: Redundancy,
    places: &[PlacementTarget],
) -> Result<Vec<Vec<TargetId>>> {
    let mut places: Vec<&PlacementTarget> = places.iter().collect();
    places.sort_unstable_by_key(|place| place.target);
    let invalid = |cause: &str| Error::new(ErrorKind::Invalid, format!("placement: {cause}"));
    if places.windows(2).any(|pair| pair[0].target == pair[1].target) {
        return Err(invalid("a target is named twice"));
    }
    if !places.iter().any(|place| place.is_open && place.weight > 0) {
        return Err(invalid("no target is open and has a weight"));
    }
    let mut work = PlacementWork::new(groups, usize::from(redundancy.get()), &places);
    let is_new = work.groups.iter().all(Vec::is_empty);
    if is_new {
        work.found()?;
    }
    work.fill();
    work.level();
    if work.separate() {
        work.level();
    }
    if is_new {
        work.even_out();
    }
    work.turn_roles();
    work.even_roles();
    work.order_secondaries();
    Ok(work.finish())
}

/// From which difference on roles are turned round for the sake of evenness.
const LEAN_MAX: i32 = 2;

/// Rounds over all pairs of targets to make followers even; a few are enough.
const ROUNDS_MAX: usize = 64;

/// Resolution of shares.
const PARTS: u64 = 64;

/// Comparisons of groups to make a new table more even.
const SWAPS_TRIED_MAX: usize = 1 << 18;

/// [`PlacementWork::closeness`] of two on a host, in members in one rack.
const ON_HOST: usize = 16;

/// For each place the first one with the same name.
fn first_alike<'a>(
    places: &[&'a PlacementTarget],
    name: impl Fn(&'a PlacementTarget) -> (&'a str, &'a str),
) -> Vec<usize> {
    let mut first: HashMap<(&str, &str), usize> = HashMap::new();
    let places = places.iter().enumerate();
    places.map(|(at, place)| *first.entry(name(place)).or_insert(at)).collect()
}

/// For each place the first one on the same node.
fn nodes_of(places: &[&PlacementTarget]) -> Vec<usize> {
    let mut first: HashMap<NodeId, usize> = HashMap::new();
    let places = places.iter().enumerate();
    places.map(|(at, place)| *first.entry(place.node).or_insert(at)).collect()
}

/// Positions in `places`; ids only at both ends.
struct PlacementWork<'a> {
    places: &'a [&'a PlacementTarget],
    /// The first place on the host of each.
    hosts: Vec<usize>,
    /// The first place in the rack of each, or on its host where the rack is not known.
    racks: Vec<usize>,
    redundancy: usize,
    /// The first place on the node of each.
    nodes: Vec<usize>,
    /// Members, the primary first.
    groups: Vec<Vec<usize>>,
    /// Memberships of each place, and how many it should have.
    count: Vec<usize>,
    quota: Vec<usize>,
    /// `beside[a * places + b]`: how many groups have both, for any roles. Symmetric.
    beside: Vec<u16>,
    /// The same, of those groups of which `a` is the primary.
    follows: Vec<u16>,
    /// Mean weight of open places.
    mean: u64,
}

impl<'a> PlacementWork<'a> {
    fn new(groups: &[Vec<TargetId>], redundancy: usize, places: &'a [&'a PlacementTarget]) -> Self {
        let position: HashMap<TargetId, usize> =
            places.iter().enumerate().map(|(at, place)| (place.target, at)).collect();
        let kept = |group: &Vec<TargetId>| {
            let mut members: Vec<usize> = Vec::with_capacity(redundancy);
            for at in group.iter().filter_map(|target| position.get(target).copied()) {
                if members.iter().all(|member| places[*member].node != places[at].node) {
                    members.push(at);
                }
            }
            members.truncate(redundancy);
            members
        };
        let groups_kept: Vec<Vec<usize>> = groups.iter().map(kept).collect();
        let open: Vec<u64> =
            places.iter().filter(|place| place.is_open).map(|place| place.weight).collect();
        let mean =
            open.iter().map(|weight| u128::from(*weight)).sum::<u128>() / open.len().max(1) as u128;
        let mut work = Self {
            places,
            hosts: first_alike(places, |place| (&place.host, "")),
            racks: first_alike(places, |place| match place.rack.is_empty() {
                true => (&place.host, ""),
                false => ("", &place.rack),
            }),
            nodes: nodes_of(places),
            redundancy,
            groups: Vec::new(),
            count: vec![0; places.len()],
            quota: Vec::new(),
            beside: vec![0; places.len() * places.len()],
            follows: vec![0; places.len() * places.len()],
            // The mean of 64-bit numbers.
            mean: u64::try_from(mean).unwrap_or(u64::MAX).max(1),
        };
        work.groups = vec![Vec::new(); groups_kept.len()];
        for (group, members) in groups_kept.into_iter().enumerate() {
            for member in members {
                work.add(group, member);
            }
        }
        work.quota = work.quotas();
        work
    }

    fn add(&mut self, group: usize, place: usize) {
        self.count_pairs(group, false);
        self.groups[group].push(place);
        self.count_pairs(group, true);
        self.count[place] += 1;
    }

    fn replace(&mut self, group: usize, old: usize, new: usize) {
        self.count_pairs(group, false);
        for member in self.groups[group].iter_mut().filter(|member| **member == old) {
            *member = new;
        }
        self.count_pairs(group, true);
        self.count[old] -= 1;
        self.count[new] += 1;
    }

    /// Makes another member of `group` its primary.
    fn lead(&mut self, group: usize, place: usize) {
        self.count_pairs(group, false);
        if let Some(slot) = self.groups[group].iter().position(|member| *member == place) {
            self.groups[group].swap(0, slot);
        }
        self.count_pairs(group, true);
    }

    /// Counts the pairs of a group, or forgets them before it changes. No count exceeds that of partitions.
    fn count_pairs(&mut self, group: usize, is_there: bool) {
        let len = self.places.len();
        let members = &self.groups[group];
        for (slot, a) in members.iter().enumerate() {
            for b in members.iter().filter(|b| *b != a) {
                for (counts, counted) in [(&mut self.beside, true), (&mut self.follows, slot == 0)]
                {
                    let count = &mut counts[a * len + b];
                    if counted && is_there {
                        *count = count.saturating_add(1);
                    } else if counted {
                        *count = count.saturating_sub(1);
                    }
                }
            }
        }
    }

    /// Gives partitions that are new their primaries: as if they were not mirrored.
    fn found(&mut self) -> Result<()> {
        let open: Vec<(TargetId, u64)> = self
            .places
            .iter()
            .filter(|place| place.is_open)
            .map(|place| (place.target, place.weight))
            .collect();
        // At most 2^16 partitions.
        let primaries = assign(self.groups.len() as u32, &open)?;
        let position: HashMap<TargetId, usize> =
            self.places.iter().enumerate().map(|(at, place)| (place.target, at)).collect();
        for (group, target) in primaries.into_iter().enumerate() {
            self.add(group, position[&target]);
        }
        Ok(())
    }

    /// Gives groups the members that they lack.
    fn fill(&mut self) {
        for wanted in 1..=self.redundancy {
            for group in 0..self.groups.len() {
                if self.groups[group].len() < wanted
                    && let Some(best) = (0..self.places.len())
                        .filter(|at| self.may_join(group, *at, None))
                        .min_by_key(|at| self.aversion(group, *at, None))
                {
                    self.add(group, best);
                }
            }
        }
    }

    /// Whether `place` may be in `group` beside all of its members but `instead`.
    fn may_join(&self, group: usize, place: usize, instead: Option<usize>) -> bool {
        let node = self.places[place].node;
        self.places[place].is_open
            && self.places[place].weight > 0
            && self.groups[group]
                .iter()
                .all(|member| self.places[*member].node != node || Some(*member) == instead)
    }

    /// How little `group` wants `place` in place of `instead`: the same host or rack, no room, too often beside the other members, load, and the score.
    fn aversion(
        &self,
        group: usize,
        place: usize,
        instead: Option<usize>,
    ) -> (usize, bool, u64, u64, Reverse<u64>) {
        let is_full = self.count[place] >= self.quota[place];
        let others = || self.groups[group].iter().filter(|member| Some(**member) != instead);
        let nearness = others().map(|member| self.nearness(*member, place)).sum();
        let load = (self.count[place] as u64) * 1024 / (self.quota[place] as u64).max(1);
        let score = score(PartitionId(group as u32), self.places[place].target);
        (self.closeness(group, place, instead), is_full, nearness, load, Reverse(score))
    }

    /// How often `other` is beside `member`, in proportion to its weight, rounded.
    fn nearness(&self, member: usize, other: usize) -> u64 {
        (self.share(self.beside[self.pair_index(member, other)], other) + PARTS / 2) / PARTS
    }

    /// `times` in proportion to the weight of `place`: [`PARTS`] for once and a mean weight.
    fn share(&self, times: u16, place: usize) -> u64 {
        if self.places[place].weight == self.mean {
            return u64::from(times) * PARTS;
        }
        let weight = u128::from(self.places[place].weight.max(1));
        let share = u128::from(times) * u128::from(PARTS) * u128::from(self.mean) / weight;
        u64::try_from(share).unwrap_or(u64::MAX / 8)
    }

    fn pair_index(&self, a: usize, b: usize) -> usize {
        a * self.places.len() + b
    }

    /// Takes members from targets that have more than they should, for those that have less, until nothing more helps.
    fn level(&mut self) {
        for over in 0..self.places.len() {
            let mut held: Vec<usize> = Vec::new();
            if self.count[over] > self.quota[over] {
                held = (0..self.groups.len())
                    .filter(|group| self.groups[*group].contains(&over))
                    .collect();
            }
            while self.count[over] > self.quota[over] {
                let under: Vec<usize> =
                    (0..self.places.len()).filter(|at| self.count[*at] < self.quota[*at]).collect();
                let best = held
                    .iter()
                    .enumerate()
                    .flat_map(|(index, group)| under.iter().map(move |to| (index, *group, *to)))
                    .filter(|(_, group, to)| self.may_join(*group, *to, Some(over)))
                    .filter_map(|(index, group, to)| {
                        let gained = self.aversion(group, to, Some(over));
                        let lost = self.aversion(group, over, Some(over));
                        // Better uneven than together.
                        let closer = gained.0.cmp(&lost.0);
                        let nearer = (gained.2 + 1024).saturating_sub(lost.2);
                        let key = (closer, nearer, Reverse(gained.4));
                        (closer != Ordering::Greater).then_some((key, (index, group, to)))
                    })
                    .min_by_key(|(key, _)| *key)
                    .map(|(_, found)| found);
                let Some((index, group, to)) = best else { break };
                self.replace(group, over, to);
                held.swap_remove(index);
            }
        }
    }

    /// Replaces members that are closer to others of their group than they need be, where there is no
    /// room left for better ones, too: better uneven than together. Returns whether there were any.
    fn separate(&mut self) -> bool {
        let mut found = false;
        for group in 0..self.groups.len() {
            for slot in 0..self.groups[group].len() {
                let member = self.groups[group][slot];
                let close = self.closeness(group, member, Some(member));
                if close == 0 || !self.places[member].is_open {
                    continue;
                }
                let best = (0..self.places.len())
                    .filter(|at| self.may_join(group, *at, Some(member)))
                    .min_by_key(|at| self.aversion(group, *at, Some(member)));
                if let Some(best) = best
                    && self.closeness(group, best, Some(member)) < close
                {
                    self.replace(group, member, best);
                    found = true;
                }
            }
        }
        found
    }

    /// Swaps secondaries between groups wherever that makes the neighbours of targets more even. Only while there is no data.
    fn even_out(&mut self) {
        let groups = self.groups.len();
        let strides = (SWAPS_TRIED_MAX / groups.max(1)).clamp(8, 128);
        for stride in (1..groups).take(strides) {
            for one in 0..groups {
                let other = (one + stride) % groups;
                for slots in 0..self.redundancy * self.redundancy {
                    let (slot, to) = (slots / self.redundancy, slots % self.redundancy);
                    if slot > 0 && to > 0 {
                        self.try_swap((one, slot), (other, to));
                    }
                }
            }
        }
    }

    /// Swaps two secondaries if that is better.
    fn try_swap(&mut self, one: (usize, usize), other: (usize, usize)) {
        let at = |work: &Self, (group, slot): (usize, usize)| work.groups[group].get(slot).copied();
        let (Some(x), Some(y)) = (at(self, one), at(self, other)) else { return };
        let is_possible = x != y
            && self.may_join(one.0, y, Some(x))
            && self.may_join(other.0, x, Some(y))
            && self.closeness(one.0, y, Some(x)) + self.closeness(other.0, x, Some(y))
                <= self.closeness(one.0, x, Some(x)) + self.closeness(other.0, y, Some(y));
        if !is_possible {
            return;
        }
        let before = self.crowd(one.0, x) + self.crowd(other.0, y);
        self.replace(one.0, x, y);
        self.replace(other.0, y, x);
        if self.crowd(one.0, y) + self.crowd(other.0, x) >= before {
            self.replace(one.0, y, x);
            self.replace(other.0, x, y);
        }
    }

    /// How close `place` is to the members of `group` other than `instead`: what may fail together.
    fn closeness(&self, group: usize, place: usize, instead: Option<usize>) -> usize {
        let others = self.groups[group].iter().filter(|member| Some(**member) != instead);
        let close = others.map(|member| {
            if self.hosts[*member] == self.hosts[place] {
                return ON_HOST;
            }
            usize::from(self.racks[*member] == self.racks[place])
        });
        close.sum()
    }

    /// How often `member` is beside the others of its group, and follows its primary.
    fn crowd(&self, group: usize, member: usize) -> u64 {
        let others = self.groups[group].iter().filter(|other| **other != member);
        let beside: u64 = others
            .map(|other| self.share(self.beside[self.pair_index(*other, member)], member))
            .sum();
        let primary = self.groups[group][0];
        beside + self.share(self.follows[self.pair_index(primary, member)], member)
    }

    /// Makes other members primaries, so that each target is primary as often as its weight asks. Moves no data.
    ///
    /// The excess of one target may have to go to another through a third: the shortest way is found from group to group, and every
    /// group on it passes its role on.
    fn turn_roles(&mut self) {
        let mut primary = vec![0; self.places.len()];
        for group in self.groups.iter().filter(|group| !group.is_empty()) {
            primary[group[0]] += 1;
        }
        let open: Vec<usize> =
            (0..self.places.len()).filter(|at| self.places[*at].is_open).collect();
        let wanted: Vec<(u64, usize)> =
            open.iter().map(|at| (self.places[*at].weight, primary[*at])).collect();
        let held = open.iter().map(|at| primary[*at]).sum();
        let mut quota = primary.clone();
        for (at, part) in open.iter().zip(quotas(&wanted, held)) {
            quota[*at] = part;
        }
        let mut over = 0;
        while over < self.places.len() {
            if primary[over] <= quota[over] || !self.pass_on(over, &mut primary, &quota) {
                over += 1;
            }
        }
    }

    /// Passes one role on from `from`; whether there was a way.
    fn pass_on(&mut self, from: usize, primary: &mut [usize], quota: &[usize]) -> bool {
        let mut led: Vec<Vec<usize>> = vec![Vec::new(); self.places.len()];
        for (group, members) in self.groups.iter().enumerate() {
            if let Some(first) = members.first() {
                led[*first].push(group);
            }
        }
        // By which group, from which place, each place was reached.
        let mut reached: HashMap<usize, (usize, usize)> = HashMap::new();
        let mut ways = VecDeque::from([from]);
        while let Some(at) = ways.pop_front() {
            if primary[at] < quota[at] {
                primary[from] -= 1;
                primary[at] += 1;
                let mut to = at;
                while let Some((group, before)) = reached.get(&to).copied() {
                    self.lead(group, to);
                    to = before;
                }
                return true;
            }
            for group in &led[at] {
                for to in self.groups[*group].iter().skip(1).copied() {
                    if to != from && self.places[to].is_open && !reached.contains_key(&to) {
                        reached.insert(to, (*group, at));
                        ways.push_back(to);
                    }
                }
            }
        }
        false
    }

    /// Where one target follows another much more often than the other way round, turns roles round in a circle that leads through both: nobody
    /// is primary more or less often, and followers are more even.
    fn even_roles(&mut self) {
        let len = self.places.len();
        for _ in 0..ROUNDS_MAX {
            let mut turned = false;
            for (a, b) in (0..len * len).map(|pair| (pair / len, pair % len)) {
                // Each time followers are more even, so this ends.
                while self.lean(a, b) >= LEAN_MAX && self.turn_circle(a, b) {
                    turned = true;
                }
            }
            if !turned {
                return;
            }
        }
    }

    /// How much more often `b` follows `a` than the other way round.
    fn lean(&self, a: usize, b: usize) -> i32 {
        i32::from(self.follows[self.pair_index(a, b)])
            - i32::from(self.follows[self.pair_index(b, a)])
    }

    /// Passes a role from `a` to `b`, and on, until `a` gets one in return. Only where followers are more even after it.
    fn turn_circle(&mut self, a: usize, b: usize) -> bool {
        let mut reached: HashMap<usize, usize> = HashMap::from([(b, a)]);
        let mut ways = VecDeque::from([b]);
        while let Some(at) = ways.pop_front().filter(|_| !reached.contains_key(&a)) {
            for to in 0..self.places.len() {
                if self.lean(at, to) > 0 && !reached.contains_key(&to) {
                    reached.insert(to, at);
                    ways.push_back(to);
                }
            }
        }
        let mut circle = Vec::new();
        let mut to = a;
        while let Some(from) = reached.get(&to).copied() {
            circle.push((from, to));
            to = from;
            if to == a {
                break;
            }
        }
        let mut turned = Vec::new();
        let mut gained = 0;
        for (from, to) in circle {
            let found = (0..self.groups.len()).find(|group| {
                self.groups[*group].first() == Some(&from) && self.groups[*group].contains(&to)
            });
            let Some(group) = found else { continue };
            gained += self.squares(group);
            self.lead(group, to);
            gained -= self.squares(group);
            turned.push((group, from));
        }
        if gained > 0 {
            return true;
        }
        for (group, from) in turned.into_iter().rev() {
            self.lead(group, from);
        }
        false
    }

    /// Sum of the squares of how often members of `group` follow each other: the more even, the less.
    fn squares(&self, group: usize) -> i64 {
        let members = &self.groups[group];
        let pairs = members.iter().flat_map(|a| members.iter().map(move |b| (*a, *b)));
        pairs.map(|(a, b)| i64::from(self.follows[self.pair_index(a, b)]).pow(2)).sum()
    }

    /// Orders secondaries so that, when a primary dies, those that follow it are as many different ones as can be.
    fn order_secondaries(&mut self) {
        let mut follows: HashMap<(usize, usize), usize> = HashMap::new();
        for group in self.groups.iter_mut().filter(|group| group.len() > 1) {
            let first = group[0];
            let mut times = |at: &usize| follows.get(&(first, *at)).copied().unwrap_or(0);
            group[1..].sort_by_key(&mut times);
            *follows.entry((first, group[1])).or_default() += 1;
        }
    }

    fn finish(self) -> Vec<Vec<TargetId>> {
        let name = |group: Vec<usize>| group.into_iter().map(|at| self.places[at].target).collect();
        self.groups.into_iter().map(name).collect()
    }
}
