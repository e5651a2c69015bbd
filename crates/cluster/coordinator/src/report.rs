//! Reports of primaries about the members of their groups.

use std::sync::Arc;

use samite_placement::ClusterMap;
use samite_types::{Error, ErrorKind, NodeId, Result};
use samite_wire::control::{ClusterMapData, MemberConsistency, MirrorGroup, NodeReachability};
use samite_wire::membership::{MemberChanges, MemberReport, REPORTS_MAX};

use crate::Coordinator;
use crate::group::{consistency, member_mut};
use crate::node_states::NodeStates;

/// The effect of one report.
enum ReportVerdict {
    /// The member has this now.
    Becomes(MemberConsistency),
    /// Nothing new, but earlier reports of the member count for nothing any more.
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
        let takes = reports.iter().any(|report| report.change == MemberChanges::Missed);
        let now = self.last_tick.unwrap_or_default();
        if takes && self.is_in_doubt(2 * self.timing.heartbeat, now) {
            let message = format!(
                "cluster {}: most nodes are silent, or the coordinator that leads is cut off from them; {node} cannot go on without members yet",
                self.cluster
            );
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        let nodes = NodeStates::new(map.data(), &self.presences);
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
                ReportVerdict::Becomes(new) => {
                    // Up to date and not any more, in one message: the first may be under way a second time.
                    if consistency(before, report.target) == Some(new) {
                        fences.push(place);
                    }
                    let data = data.get_or_insert_with(|| map.data().clone());
                    let group = &mut data.tables[table].groups[partition];
                    if let Some(member) = member_mut(group, report.target) {
                        member.consistency = new;
                    }
                    if new == MemberConsistency::Bad {
                        broken.push((table, partition, report.target));
                    }
                }
                ReportVerdict::Fence => fences.push(place),
                ReportVerdict::Nothing => {}
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

fn verdict(
    group: &MirrorGroup,
    report: &MemberReport,
    reporter: NodeId,
    nodes: &NodeStates<'_>,
) -> ReportVerdict {
    let primary = &group.members[0];
    let Some(present) = consistency(group, report.target) else { return ReportVerdict::Nothing };
    if group.term != report.term
        || primary.consistency != MemberConsistency::Good
        || nodes.node_of(primary.target) != Some(reporter)
    {
        return ReportVerdict::Nothing;
    }
    let worse = match report.change {
        MemberChanges::Synced => {
            let counts = present == MemberConsistency::NeedsResync;
            return if counts {
                ReportVerdict::Becomes(MemberConsistency::Good)
            } else {
                ReportVerdict::Nothing
            };
        }
        MemberChanges::Missed => MemberConsistency::NeedsResync,
        MemberChanges::Broken => MemberConsistency::Bad,
    };
    match present {
        MemberConsistency::Good | MemberConsistency::Restarted => {
            let has_other = group.members.iter().any(|member| {
                member.target != report.target
                    && member.consistency == MemberConsistency::Good
                    && nodes.reach(member.target) == NodeReachability::Online
            });
            // A primary may say it of itself when another can take over. A member that led the group, and may not know yet that it
            // does not, still answers readers: nobody may go on without it.
            let may_go = if report.target == primary.target {
                has_other
            } else {
                nodes.knows_its_place(report.target)
            };
            if may_go { ReportVerdict::Becomes(worse) } else { ReportVerdict::Nothing }
        }
        MemberConsistency::NeedsResync if worse == MemberConsistency::Bad => {
            ReportVerdict::Becomes(worse)
        }
        // A report that it is up to date may be under way still.
        MemberConsistency::NeedsResync | MemberConsistency::Bad => ReportVerdict::Fence,
    }
}
