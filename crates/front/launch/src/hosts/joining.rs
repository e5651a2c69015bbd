//! Nodes on other hosts that join a cluster that is up: new ones, and ones that come back.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use samite_client::Client;
use samite_client::runtime::ClusterSetup;
use samite_placement::ClusterMap;
use samite_types::{Error, ErrorKind, NodeId, Result};
use samite_wire::control::{NodeInfo, NodeReachability};
use samite_wire::membership::AdminRequest;

use super::list::network_name;
use super::session::{HostLauncher, HostSession, end_all, keep_all};
use super::{HostAnswer, HostPlan, JoinKind, NodePlan};
use crate::io_context::failed;

/// Between two looks at the cluster map.
const LOOK: Duration = Duration::from_millis(50);

/// The nodes that are to join, and how they are started.
#[derive(Debug)]
pub struct JoinPlan {
    /// Name of the cluster.
    pub cluster: String,
    /// Its keys, as a key file has them.
    pub keys: Vec<u8>,
    /// The hosts, as the launcher knows them, and the numbers of their nodes.
    pub hosts: Vec<(String, NodeId)>,
    /// How programs are run there.
    pub launcher: HostLauncher,
    /// The `samite` binary there.
    pub program: String,
    /// The port to listen on; `None`: a free one each.
    pub port: Option<u16>,
    /// How they join.
    pub kind: JoinKind,
    /// Names or addresses of some hosts of the cluster.
    pub others: Vec<String>,
    /// Where the coordinators are, as URLs.
    pub coordinators: Vec<String>,
    /// The settings of the nodes.
    pub setup: ClusterSetup,
}

/// A host whose node is to join.
#[derive(Debug)]
struct JoiningPlace {
    session: HostSession,
    node: NodeId,
    /// The host's identity.
    identity: String,
    /// The process that the map had for the node before.
    before: Option<u64>,
}

/// Nodes that are not part of the cluster yet, or not kept. Dropped before they are kept, they are
/// ended, and leave nothing behind on their hosts.
#[derive(Debug)]
pub struct JoiningHosts {
    plan: JoinPlan,
    asked: VecDeque<(HostSession, NodeId)>,
    places: Vec<JoiningPlace>,
}

impl JoiningHosts {
    /// Nothing is done yet.
    #[must_use]
    pub const fn new(plan: JoinPlan) -> Self {
        Self { plan, asked: VecDeque::new(), places: Vec::new() }
    }

    /// Finds out whether the nodes can be started, on all hosts at once.
    ///
    /// # Errors
    /// As of [`HostSession::answer`]: a host that fails is named, with the cause.
    pub fn ask(
        &mut self,
        map: &ClusterMap,
        until: Instant,
        interrupted: &AtomicBool,
    ) -> Result<()> {
        let plan = &self.plan;
        for (host, node) in &plan.hosts {
            let told = HostPlan {
                cluster: plan.cluster.clone(),
                keys: plan.keys.clone(),
                host: network_name(host).to_owned(),
                others: plan.others.clone(),
                port: plan.port,
                joins: Some(plan.kind),
            };
            let session = HostSession::start(&plan.launcher, host, &plan.program, &told)?;
            self.asked.push_back((session, *node));
        }
        while let Some((mut session, node)) = self.asked.pop_front() {
            match session.answer(until, interrupted) {
                Ok(HostAnswer::Place { identity, .. }) => {
                    let before = map.node(node).map(|info| info.incarnation);
                    self.places.push(JoiningPlace { session, node, identity, before });
                }
                other => {
                    let error =
                        other.map_or_else(|error| error, |answer| session.unexpected(&answer));
                    self.asked.push_back((session, node));
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Starts the nodes, and waits until they listen.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub fn start(&mut self, until: Instant, interrupted: &AtomicBool) -> Result<()> {
        for place in &mut self.places {
            place.session.tell(&NodePlan {
                node: place.node,
                coordinators: self.plan.coordinators.clone(),
                setup: self.plan.setup.clone(),
            })?;
        }
        for place in &mut self.places {
            match place.session.answer(until, interrupted)? {
                HostAnswer::Listens => {}
                answer => return Err(place.session.unexpected(&answer)),
            }
        }
        Ok(())
    }

    /// Waits until the cluster counts all of them in, by `until`, or `interrupted` is set; they, as
    /// the map has them.
    ///
    /// # Errors
    /// `Unavailable`: it does not in time, or a node has ended; `Conflict`: another host has a node
    /// of the same number; `Io`: interrupted.
    pub fn wait_joined(
        &mut self,
        client: &Client,
        until: Instant,
        interrupted: &AtomicBool,
    ) -> Result<Vec<NodeInfo>> {
        loop {
            if interrupted.load(Ordering::Relaxed) {
                return Err(failed("interrupted".to_owned()));
            }
            if let Ok(map) = client.refresh_map()
                && let Some(all) = self.joined(&map)?
            {
                return Ok(all);
            }
            for place in self.places.iter_mut().filter(|place| !place.session.is_kept()) {
                place.session.check()?;
            }
            if Instant::now() >= until {
                let names: Vec<String> =
                    self.places.iter().map(|place| place.node.to_string()).collect();
                let words = format!("{}: not part of the cluster in time", names.join(", "));
                return Err(Error::new(ErrorKind::Unavailable, words));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// The nodes, if the map has all of them, as these processes.
    fn joined(&self, map: &ClusterMap) -> Result<Option<Vec<NodeInfo>>> {
        let mut all = Vec::new();
        for place in &self.places {
            let info = map.node(place.node);
            let is_new = |info: &&NodeInfo| Some(info.incarnation) != place.before;
            let Some(info) = info.filter(is_new) else { return Ok(None) };
            if info.host != place.identity {
                let words = format!("{}: a node of another host has taken this number", place.node);
                return Err(Error::new(ErrorKind::Conflict, words));
            }
            let state = map.state(place.node);
            if !state.is_some_and(|state| state.reachability == NodeReachability::Online) {
                return Ok(None);
            }
            all.push(info.clone());
        }
        Ok(Some(all))
    }

    /// Has all hosts leave their nodes running.
    ///
    /// # Errors
    /// As of [`HostSession::answer`], of all hosts that do not.
    pub fn keep(&mut self, interrupted: &AtomicBool) -> Result<()> {
        keep_all(self.places.iter_mut().map(|place| &mut place.session), interrupted)
    }

    /// Ends the nodes, which hold nothing yet, and has the cluster forget those of them that are
    /// new. The names of hosts that have not ended theirs in time.
    pub fn undo(&mut self, client: &Client) -> Vec<String> {
        let map = client.refresh_map().ok();
        let mut late = Vec::new();
        for place in &self.places {
            let is_ended = !place.session.is_kept() || client.shutdown_node(place.node).is_ok();
            if !is_ended {
                late.push(place.session.host().to_owned());
            }
        }
        let new: Vec<NodeId> = self.places.iter().map(|place| place.node).collect();
        let is_other = |place: &JoiningPlace| {
            let info = map.as_ref().and_then(|map| map.node(place.node));
            info.is_some_and(|info| info.host != place.identity)
        };
        let others: Vec<NodeId> =
            self.places.iter().filter(|place| is_other(place)).map(|place| place.node).collect();
        late.extend(self.give_up());
        if self.plan.kind == JoinKind::Added {
            for node in new.into_iter().filter(|node| !others.contains(node)) {
                // It joined perhaps, or was invited alone, or not even that.
                let _ = client.admin_request(node, AdminRequest::Remove { force: false });
            }
        }
        late
    }

    /// Ends the nodes that are not kept. The names of hosts that have not ended theirs in time.
    pub fn give_up(&mut self) -> Vec<String> {
        let places = std::mem::take(&mut self.places).into_iter().map(|place| place.session);
        let asked = std::mem::take(&mut self.asked).into_iter().map(|(session, _)| session);
        end_all(places.chain(asked).collect())
    }
}

impl Drop for JoiningHosts {
    fn drop(&mut self) {
        // Who wants to know has called it.
        let _ = self.give_up();
    }
}

/// The coordinators' URLs for a node that joins now, of those that the cluster was told at its
/// start: in the place of a node that was removed stands another one, by which those that lead now
/// are found.
///
/// # Errors
/// `Conflict`: none was ever told, as all nodes are on one machine.
pub fn coordinators(setup: &ClusterSetup, map: &ClusterMap) -> Result<Vec<String>> {
    if setup.coordinator_urls.is_empty() {
        let words = "its nodes cannot be reached from other hosts: it was started on one machine";
        return Err(Error::new(ErrorKind::Conflict, words));
    }
    let founders = u32::try_from(setup.coordinator_urls.len()).unwrap_or(u32::MAX);
    let network = |info: &NodeInfo| {
        let is_network = |url: &&String| url.starts_with("tcp://") || url.starts_with("tls://");
        info.addresses.iter().find(is_network).cloned()
    };
    let mut others =
        map.nodes().iter().filter(|info| info.node.get() >= founders).filter_map(network);
    let of = |(url, number): (&String, u32)| match map.node(NodeId(number)) {
        Some(_) => url.clone(),
        None => others.next().unwrap_or_else(|| url.clone()),
    };
    Ok(setup.coordinator_urls.iter().zip(0..).map(of).collect())
}
