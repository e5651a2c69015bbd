//! Goals of groups, and how partitions move to their targets: a group grows by the new member, the
//! primary brings it up to date, it becomes the primary if it is to be that, and only then the old
//! one goes.
//!
//! The *goal* of a table is where everything should be in the end ([`arrange`]). It changes when nodes come, drain or go, not when one is
//! merely away. [`step`] takes each group one step towards it. Few partitions of a target move at a time, so that it keeps serving.

use std::collections::{HashMap, HashSet};

use samite_placement::{MEMBERS_MAX, PlacementTarget, arrange};
use samite_types::{Epoch, NodeId, PartitionId, Redundancy, TargetId};
use samite_wire::control::{
    ClusterMapData, GroupMember, MemberConsistency, MirrorGroup, NodeReachability,
};

use crate::Coordinator;
use crate::group::{consistency, has_next_term, lead};
use crate::node_states::NodeStates;

/// Members of each group of a table as they should be, the primary first.
pub(crate) type Goal = Vec<Vec<TargetId>>;

/// Members that one target receives, or that one primary brings up to date, because partitions move.
const MOVES_MAX: usize = 4;
/// Groups of one node that get another primary at once, before the node knows it.
const TURNS_MAX: usize = 4;

/// The result of [`step`].
pub(crate) struct StepResult {
    pub has_changed: bool,
    /// There is something to do when a node has said that it knows its place.
    pub waits: bool,
}

impl Coordinator {
    /// Sets the goals of all tables anew, from the earlier ones.
    pub(crate) fn plan(&mut self, data: &ClusterMapData) {
        let places = places(data, |node| is_away(data, node));
        let all: HashSet<TargetId> = data
            .nodes
            .iter()
            .flat_map(|info| info.targets.iter().map(|target| target.target))
            .collect();
        let goals: Vec<Goal> = data
            .tables
            .iter()
            .enumerate()
            .map(|(index, table)| {
                let base: Goal = table
                    .groups
                    .iter()
                    .enumerate()
                    .map(|(partition, group)| {
                        let before = self.goals.get(index).and_then(|goal| goal.get(partition));
                        base(before, group, &all)
                    })
                    .collect();
                // Nowhere to go: everything stays.
                arrange(&base, table.redundancy, &places).unwrap_or(base)
            })
            .collect();
        self.goals = goals;
        self.has_work = true;
        self.is_uneven_for_now = !self.has_all_nodes(data);
    }

    /// Whether every node that is to stay could be given something now.
    pub(crate) fn has_all_nodes(&self, data: &ClusterMapData) -> bool {
        data.nodes.iter().zip(&data.states).all(|(info, state)| {
            state.is_draining
                || (state.reachability == NodeReachability::Online
                    && self.presences.get(&info.node).is_some_and(|presence| presence.is_confirmed))
        })
    }

    /// Wants another target than `bad` in a group; the one with the least load, if there is any.
    pub(crate) fn avoid(
        &mut self,
        data: &ClusterMapData,
        table: usize,
        partition: usize,
        bad: TargetId,
    ) {
        let Some(goal) = self.goals.get_mut(table) else { return };
        let places = places(data, |node| is_away(data, node));
        let mut held: HashMap<TargetId, usize> = HashMap::new();
        for target in goal.iter().flatten() {
            *held.entry(*target).or_default() += 1;
        }
        let of = |target: &TargetId| places.iter().find(|place| place.target == *target);
        let group = &data.tables[table].groups[partition];
        let present = group.members.iter().map(|member| member.target);
        let taken: Vec<&PlacementTarget> = present
            .chain(goal[partition].iter().copied())
            .filter_map(|target| of(&target))
            .collect();
        let best = places
            .iter()
            .filter(|place| place.is_open && place.weight > 0)
            .filter(|place| taken.iter().all(|other| other.node != place.node))
            .min_by_key(|place| {
                let others = || taken.iter().filter(|other| other.target != bad);
                let is_near = others().any(|other| other.host == place.host);
                let is_in_rack =
                    others().any(|other| !place.rack.is_empty() && other.rack == place.rack);
                let held = held.get(&place.target).copied().unwrap_or(0) as u128;
                (is_near, is_in_rack, (held << 64) / u128::from(place.weight), place.target)
            });
        if let Some(best) = best {
            for target in goal[partition].iter_mut().filter(|target| **target == bad) {
                *target = best.target;
            }
        }
    }
}

/// The start for the planning of a group: its goal so far, or its members when nothing of that is
/// left.
fn base(
    before: Option<&Vec<TargetId>>,
    group: &MirrorGroup,
    all: &HashSet<TargetId>,
) -> Vec<TargetId> {
    let goal: Vec<TargetId> =
        before.into_iter().flatten().copied().filter(|target| all.contains(target)).collect();
    if goal.is_empty() { group.members.iter().map(|member| member.target).collect() } else { goal }
}

fn is_away(data: &ClusterMapData, node: usize) -> bool {
    data.states[node].reachability == NodeReachability::Offline
}

/// The targets that partitions may be on; those of nodes for which `is_away` is true get no more
/// than they have.
pub(crate) fn places(
    data: &ClusterMapData,
    is_away: impl Fn(usize) -> bool,
) -> Vec<PlacementTarget> {
    let mut places = Vec::new();
    for (index, (info, state)) in data.nodes.iter().zip(&data.states).enumerate() {
        if state.is_draining {
            continue;
        }
        places.extend(info.targets.iter().map(|target| PlacementTarget {
            target: target.target,
            node: info.node,
            host: info.host.clone(),
            rack: info.rack.clone(),
            weight: target.capacity_bytes,
            is_open: !is_away(index),
        }));
    }
    places
}

/// Redundancies of which there are datasets. All other tables are empty.
pub(crate) fn used(data: &ClusterMapData) -> HashSet<Redundancy> {
    data.datasets.iter().map(|dataset| dataset.spec.redundancy).collect()
}

/// Takes every group one step towards its goal.
///
/// `changed`: the epoch of each group's last change. A group grows when its primary serves by it as it is: else a member that was dropped and comes again would be,
/// to a primary that has seen neither, the one that was up to date.
pub(crate) fn step(
    goals: &[Goal],
    data: &mut ClusterMapData,
    nodes: &NodeStates<'_>,
    changed: &dyn Fn((Redundancy, PartitionId)) -> Epoch,
) -> StepResult {
    let used = used(data);
    let mut work = MoveBudget::new(data, nodes);
    let mut all = StepResult { has_changed: false, waits: false };
    for (table, goal) in data.tables.iter_mut().zip(goals) {
        let holds_data = used.contains(&table.redundancy);
        for (partition, (group, goal)) in
            (0..).map(PartitionId).zip(table.groups.iter_mut().zip(goal))
        {
            let is_there = group.members.len() == goal.len()
                && group.members.iter().zip(goal).all(|(member, target)| {
                    member.target == *target && member.consistency == MemberConsistency::Good
                });
            if is_there || goal.is_empty() {
                continue;
            }
            let stepped = if holds_data {
                work.step_group(group, goal, changed((table.redundancy, partition)))
            } else {
                StepResult { has_changed: place_anew(group, goal, nodes), waits: false }
            };
            all.has_changed |= stepped.has_changed;
            all.waits |= stepped.waits;
        }
    }
    all
}

/// Gives a group without data the members of its goal. Members that are offline would miss later
/// changes.
fn place_anew(group: &mut MirrorGroup, goal: &[TargetId], nodes: &NodeStates<'_>) -> bool {
    let is_there = |target: &TargetId| nodes.reach(*target) != NodeReachability::Offline;
    let is_any_there = goal.iter().any(is_there);
    let mut members: Vec<GroupMember> = goal
        .iter()
        .map(|target| GroupMember {
            target: *target,
            consistency: if is_there(target) || !is_any_there {
                MemberConsistency::Good
            } else {
                MemberConsistency::NeedsResync
            },
        })
        .collect();
    // Stable: the order of the goal among equals.
    members.sort_by_key(|member| member.consistency != MemberConsistency::Good);
    if members == group.members || !has_next_term(group) {
        return false;
    }
    let was_first = group.members.first().map(|member| member.target);
    group.members = members;
    if was_first != Some(group.members[0].target) {
        lead(group, 0);
    }
    true
}

/// Moves under way, so that not too many are begun at a time.
struct MoveBudget<'a> {
    nodes: &'a NodeStates<'a>,
    incoming: HashMap<TargetId, usize>,
    outgoing: HashMap<TargetId, usize>,
    turned: HashMap<NodeId, usize>,
}

impl<'a> MoveBudget<'a> {
    fn new(data: &ClusterMapData, nodes: &'a NodeStates<'a>) -> Self {
        let used = used(data);
        let mut work = Self {
            nodes,
            incoming: HashMap::new(),
            outgoing: HashMap::new(),
            turned: HashMap::new(),
        };
        let tables = data.tables.iter().filter(|table| used.contains(&table.redundancy));
        for group in tables.flat_map(|table| &table.groups) {
            for member in &group.members {
                if member.consistency == MemberConsistency::NeedsResync
                    && nodes.reach(member.target) == NodeReachability::Online
                {
                    *work.incoming.entry(member.target).or_default() += 1;
                    *work.outgoing.entry(group.members[0].target).or_default() += 1;
                }
            }
        }
        work
    }

    fn is_online(&self, target: TargetId) -> bool {
        self.nodes.reach(target) == NodeReachability::Online
    }

    fn step_group(
        &mut self,
        group: &mut MirrorGroup,
        goal: &[TargetId],
        changed: Epoch,
    ) -> StepResult {
        let primary = group.members[0];
        let nothing = |waits| StepResult { has_changed: false, waits };
        let done = StepResult { has_changed: true, waits: true };
        if primary.consistency != MemberConsistency::Good || !self.is_online(primary.target) {
            return nothing(false);
        }
        if let Some(new) = goal.iter().find(|target| consistency(group, **target).is_none()) {
            if !self.nodes.serves_by(primary.target, changed) {
                return nothing(true);
            }
            if group.members.len() >= MEMBERS_MAX {
                return self.make_room(group, goal);
            }
            return if self.grow(group, *new) { done } else { nothing(false) };
        }
        if goal.iter().any(|target| consistency(group, *target) != Some(MemberConsistency::Good)) {
            return nothing(false);
        }
        if primary.target != goal[0] {
            if !self.is_online(goal[0]) {
                return nothing(false);
            }
            return if self.turn(group, goal[0]) { done } else { nothing(true) };
        }
        let old = group.members.iter().position(|member| !goal.contains(&member.target));
        if let Some(old) = old {
            let member = group.members[old];
            // A former primary that does not know it yet would answer readers from its own records.
            if !self.nodes.knows_its_place(member.target) {
                return nothing(true);
            }
            group.members.remove(old);
            return done;
        }
        let place = |member: &GroupMember| goal.iter().position(|target| *target == member.target);
        group.members.sort_by_key(place);
        done
    }

    /// Begins to bring `group` to a new target, unless that, or the primary, is busy with others.
    fn grow(&mut self, group: &mut MirrorGroup, new: TargetId) -> bool {
        let primary = group.members[0].target;
        let count =
            |busy: &HashMap<TargetId, usize>, target| busy.get(&target).copied().unwrap_or(0);
        if !self.is_online(new)
            || count(&self.incoming, new) >= MOVES_MAX
            || count(&self.outgoing, primary) >= MOVES_MAX
        {
            return false;
        }
        *self.incoming.entry(new).or_default() += 1;
        *self.outgoing.entry(primary).or_default() += 1;
        group
            .members
            .push(GroupMember { target: new, consistency: MemberConsistency::NeedsResync });
        true
    }

    /// Takes a member from a group that is full because its goal has changed before it was reached, several times: one that the goal does not name,
    /// and that is not up to date or one more than are wanted.
    fn make_room(&self, group: &mut MirrorGroup, goal: &[TargetId]) -> StepResult {
        let is_good = |member: &GroupMember| member.consistency == MemberConsistency::Good;
        let has_more = group.members.iter().filter(|member| is_good(member)).count() > goal.len();
        let spare: Vec<usize> = (1..group.members.len())
            .filter(|index| {
                let member = &group.members[*index];
                !goal.contains(&member.target) && (has_more || !is_good(member))
            })
            .collect();
        let known = spare
            .iter()
            .copied()
            .filter(|index| self.nodes.knows_its_place(group.members[*index].target))
            .min_by_key(|index| is_good(&group.members[*index]));
        match known {
            Some(index) => {
                group.members.remove(index);
                StepResult { has_changed: true, waits: true }
            }
            None => StepResult { has_changed: false, waits: !spare.is_empty() },
        }
    }

    /// Makes `next` the primary. The old one stays a member: nothing is acknowledged before it knows the new term.
    fn turn(&mut self, group: &mut MirrorGroup, next: TargetId) -> bool {
        let old = group.members[0].target;
        let Some(node) = self.nodes.node_of(old) else { return false };
        let turned = self.turned.entry(node).or_default();
        if !self.nodes.knows_its_place(old) || *turned >= TURNS_MAX || !has_next_term(group) {
            return false;
        }
        *turned += 1;
        if let Some(index) = group.members.iter().position(|member| member.target == next) {
            lead(group, index);
        }
        true
    }
}
