//! What primaries say about the members of their groups.

use std::sync::Arc;

use samite_placement::ClusterMap;
use samite_types::{Error, ErrorKind, NodeId, Result};
use samite_wire::control::{ClusterMapData, Consistency, Group, Reachability};
use samite_wire::membership::{MemberNews, MemberReport, REPORTS_MAX};

use crate::Coordinator;
use crate::change::Nodes;
use crate::group::{consistency, member_mut};

/// What one report amounts to.
enum Verdict {
    /// The member has this now.
    Becomes(Consistency),
    /// Nothing new, but what was said of the member before counts for nothing any more.
    Fence,
    Nothing,
}

impl Coordinator {
    /// A node's primaries report. The map that follows; reports that do not fit it have no effect (see
    /// [`ControlRequest::Report`](samite_wire::control::ControlRequest::Report)). The same report twice is as good as once.
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`]: over [`REPORTS_MAX`]. [`ErrorKind::Unavailable`]: there is no map yet; or a member has missed something while most
    /// nodes are silent, and it may be this instance and its node that are cut off: none of the reports counts then.
    pub fn report(&mut self, node: NodeId, reports: &[MemberReport]) -> Result<Arc<ClusterMap>> {
        if reports.len() > REPORTS_MAX {
            let message = format!("{} reports; {REPORTS_MAX} are possible", reports.len());
            return Err(Error::new(ErrorKind::TooLarge, message));
        }
        let map = self.ready_map()?.clone();
        let takes = reports.iter().any(|report| report.news == MemberNews::Missed);
        let now = self.last_tick.unwrap_or_default();
        if takes && self.is_in_doubt(2 * self.timing.heartbeat, now) {
            let message = format!(
                "cluster {}: most nodes are silent, or the coordinator that leads is cut off from them; {node} cannot go on without members yet",
                self.cluster
            );
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        let nodes = Nodes::new(map.data(), &self.presences);
        let mut data: Option<ClusterMapData> = None;
        let mut fences = Vec::new();
        let mut broken = Vec::new();
        for report in reports {
            let place = (report.redundancy, report.partition);
            let Some(table) = map.table_index(report.redundancy) else { continue };
            let Some(before) = map.group(report.redundancy, report.partition) else { continue };
            let changed = self.changed.get(&place).copied().unwrap_or(self.since);
            if report.epoch < changed {
                continue;
            }
            let partition = report.partition.get() as usize;
            let tables = data.as_ref().map_or(&map.data().tables, |data| &data.tables);
            match verdict(&tables[table].groups[partition], report, node, &nodes) {
                Verdict::Becomes(new) => {
                    // Up to date and not any more, in one message: the first may be under way a second time.
                    if consistency(before, report.target) == Some(new) {
                        fences.push(place);
                    }
                    let data = data.get_or_insert_with(|| map.data().clone());
                    let group = &mut data.tables[table].groups[partition];
                    if let Some(member) = member_mut(group, report.target) {
                        member.consistency = new;
                    }
                    if new == Consistency::Bad {
                        broken.push((table, partition, report.target));
                    }
                }
                Verdict::Fence => fences.push(place),
                Verdict::Nothing => {}
            }
        }
        if data.is_none() && fences.is_empty() {
            return Ok(map);
        }
        let data = data.unwrap_or_else(|| map.data().clone());
        for (table, partition, target) in broken {
            self.avoid(&data, table, partition, target);
        }
        let map = self.conclude(data, !fences.is_empty())?;
        self.changed.extend(fences.into_iter().map(|place| (place, map.epoch())));
        Ok(map)
    }
}

fn verdict(group: &Group, report: &MemberReport, reporter: NodeId, nodes: &Nodes<'_>) -> Verdict {
    let primary = &group.members[0];
    let Some(present) = consistency(group, report.target) else { return Verdict::Nothing };
    if group.term != report.term
        || primary.consistency != Consistency::Good
        || nodes.node_of(primary.target) != Some(reporter)
    {
        return Verdict::Nothing;
    }
    let worse = match report.news {
        MemberNews::Synced => {
            let counts = present == Consistency::NeedsResync;
            return if counts { Verdict::Becomes(Consistency::Good) } else { Verdict::Nothing };
        }
        MemberNews::Missed => Consistency::NeedsResync,
        MemberNews::Broken => Consistency::Bad,
    };
    match present {
        Consistency::Good | Consistency::Restarted => {
            let has_other = group.members.iter().any(|member| {
                member.target != report.target
                    && member.consistency == Consistency::Good
                    && nodes.reach(member.target) == Reachability::Online
            });
            // A primary may say it of itself when another can take over. A member that led the group, and may not know yet that it
            // does not, still answers readers: nobody may go on without it.
            let may_go = if report.target == primary.target {
                has_other
            } else {
                nodes.knows_its_place(report.target)
            };
            if may_go { Verdict::Becomes(worse) } else { Verdict::Nothing }
        }
        Consistency::NeedsResync if worse == Consistency::Bad => Verdict::Becomes(worse),
        // A report that it is up to date may be under way still.
        Consistency::NeedsResync | Consistency::Bad => Verdict::Fence,
    }
}
