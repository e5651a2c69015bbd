//! What primaries say about the members of their groups.

use std::sync::Arc;

use samite_placement::ClusterMap;
use samite_types::{Epoch, Error, ErrorKind, NodeId, Result};
use samite_wire::control::{ClusterMapData, Consistency, Group, Reachability};
use samite_wire::membership::{MemberNews, MemberReport, REPORTS_MAX};

use crate::Coordinator;
use crate::change::Nodes;
use crate::group::{consistency, member_mut};

/// What one report amounts to.
enum Verdict {
    /// The member has this now.
    Becomes(Consistency),
    /// Nothing, but the reporter needs a newer map to know it.
    NewEpoch,
    Nothing,
}

impl Coordinator {
    /// A node's primaries report. The map that follows; reports that do not fit it have no effect (see
    /// [`ControlRequest::Report`](samite_wire::control::ControlRequest::Report)). The same report twice is as good as once.
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`]: over [`REPORTS_MAX`]. [`ErrorKind::Unavailable`]: there is no map yet.
    pub fn report(&mut self, node: NodeId, reports: &[MemberReport]) -> Result<Arc<ClusterMap>> {
        if reports.len() > REPORTS_MAX {
            let message = format!("{} reports; {REPORTS_MAX} are possible", reports.len());
            return Err(Error::new(ErrorKind::TooLarge, message));
        }
        let map = self.ready_map()?.clone();
        let nodes = Nodes::new(map.data(), &self.presences);
        let mut data: Option<ClusterMapData> = None;
        let mut is_fence = false;
        let mut broken = Vec::new();
        for report in reports {
            let tables = data.as_ref().map_or(&map.data().tables, |data| &data.tables);
            let Some(table) = tables.iter().position(|table| table.redundancy == report.redundancy)
            else {
                continue;
            };
            let partition = report.partition.get() as usize;
            let Some(group) = tables[table].groups.get(partition) else { continue };
            let changed = self.changed.get(&(report.redundancy, report.partition)).copied();
            match verdict(group, report, node, &nodes, map.epoch(), changed.unwrap_or(self.since)) {
                Verdict::Becomes(new) => {
                    let data = data.get_or_insert_with(|| map.data().clone());
                    let group = &mut data.tables[table].groups[partition];
                    if let Some(member) = member_mut(group, report.target) {
                        member.consistency = new;
                    }
                    if new == Consistency::Bad {
                        broken.push((table, partition, report.target));
                    }
                }
                Verdict::NewEpoch => is_fence = true,
                Verdict::Nothing => {}
            }
        }
        if data.is_none() && !is_fence {
            return Ok(map);
        }
        let data = data.unwrap_or_else(|| map.data().clone());
        for (table, partition, target) in broken {
            self.avoid(&data, table, partition, target);
        }
        self.conclude(data, is_fence)
    }
}

fn verdict(
    group: &Group,
    report: &MemberReport,
    reporter: NodeId,
    nodes: &Nodes<'_>,
    epoch: Epoch,
    changed: Epoch,
) -> Verdict {
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
            let counts = present == Consistency::NeedsResync && report.epoch == epoch;
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
            if may_go && report.epoch >= changed {
                Verdict::Becomes(worse)
            } else {
                Verdict::Nothing
            }
        }
        Consistency::NeedsResync if worse == Consistency::Bad => Verdict::Becomes(worse),
        // A report that it is up to date may be under way still; after this it counts for nothing.
        Consistency::NeedsResync | Consistency::Bad if report.epoch == epoch => Verdict::NewEpoch,
        Consistency::NeedsResync | Consistency::Bad => Verdict::Nothing,
    }
}
