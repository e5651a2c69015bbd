//! A cluster on several hosts, from its plan to the moment at which it serves.

use std::collections::VecDeque;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use samite_client::runtime::ClusterSetup;
use samite_client::{Client, ClientOptions, ClusterConfig, ClusterKey, ClusterKeys, Credential};
use samite_fs::{CallerContext, FileSystem};
use samite_placement::ClusterMap;
use samite_types::{Error, ErrorKind, NodeId, Result};

use super::list::network_name;
use super::session::{HostLauncher, HostSession, end_all, keep_all};
use super::{HostAnswer, HostPlan, NodePlan};
use crate::io_context::failed;

/// How long one request may take while the nodes start.
const STEP_TIMEOUT: Duration = Duration::from_secs(2);
/// A host is told the names of so many others, by which it finds its own address.
const OTHERS_MAX: usize = 8;
/// Between two looks at whether the cluster serves.
const LOOK: Duration = Duration::from_millis(20);

/// How a cluster on several hosts is to be.
#[derive(Debug)]
pub struct HostsPlan {
    /// Name of the cluster.
    pub cluster: String,
    /// Its key.
    pub key: [u8; 32],
    /// The hosts, as the launcher knows them; the first ones have coordinators.
    pub hosts: Vec<String>,
    /// So many are enough.
    pub at_least: usize,
    /// How programs are run there.
    pub launcher: HostLauncher,
    /// The `samite` binary there.
    pub program: String,
    /// The port to listen on everywhere; `None`: a free one each.
    pub port: Option<u16>,
    /// The settings of the nodes. What depends on their number is set here.
    pub setup: ClusterSetup,
    /// The dataset of the files: the cluster serves when they can be read.
    pub files_dataset: &'static str,
}

/// A host on which a node can be started, or was.
#[derive(Debug)]
struct HostPlace {
    session: HostSession,
    /// The host's identity.
    identity: String,
    /// `HOST:PORT` at which its node listens.
    listen: String,
    /// The cluster's directory there.
    dir: PathBuf,
}

/// The nodes of a cluster on several hosts that is not up yet. Dropped before they are all
/// [kept](Self::keep), they are ended, and leave nothing behind.
#[derive(Debug)]
pub struct StartingHosts {
    plan: HostsPlan,
    /// Sessions with hosts that have not answered yet.
    asked: VecDeque<HostSession>,
    places: Vec<HostPlace>,
    setup: ClusterSetup,
    /// Hosts that are left out, and why.
    left_out: Vec<Error>,
    /// Sessions with these, which are ending.
    failed: Vec<HostSession>,
}

/// A cluster on several hosts that serves.
#[derive(Debug)]
pub struct ServingHosts {
    /// A client of it.
    pub client: Client,
    /// Its nodes, and where they are.
    pub map: Arc<ClusterMap>,
}

impl StartingHosts {
    /// Nothing is done yet.
    #[must_use]
    pub fn new(plan: HostsPlan) -> Self {
        let setup = plan.setup.clone();
        Self {
            plan,
            asked: VecDeque::new(),
            places: Vec::new(),
            setup,
            left_out: Vec::new(),
            failed: Vec::new(),
        }
    }

    /// Finds out where nodes can be started, on all hosts at once, and starts them there, by
    /// `until`. `progress` is told what is done on how many of how many hosts.
    ///
    /// # Errors
    /// As of [`HostSession::answer`]: a host that fails is named, with the cause.
    pub fn start(
        &mut self,
        until: Instant,
        interrupted: &AtomicBool,
        progress: &mut dyn FnMut(&str, usize, usize),
    ) -> Result<()> {
        self.find_places(until, interrupted, progress)?;
        let count = u32::try_from(self.places.len()).unwrap_or(u32::MAX);
        self.setup.founders = count;
        self.setup.coordinators = coordinators(count);
        let urls = self.urls();
        let coordinators = urls[..self.setup.coordinators as usize].to_vec();
        for (place, number) in self.places.iter_mut().zip(0..) {
            let node = NodePlan {
                node: NodeId(number),
                coordinators: coordinators.clone(),
                setup: self.setup.clone(),
            };
            place.session.tell(&node)?;
        }
        let all = self.places.len();
        for (done, place) in self.places.iter_mut().enumerate() {
            match place.session.answer(until, interrupted)? {
                HostAnswer::Listens => progress("nodes listen", done + 1, all),
                answer => return Err(place.session.unexpected(&answer)),
            }
        }
        Ok(())
    }

    fn find_places(
        &mut self,
        until: Instant,
        interrupted: &AtomicBool,
        progress: &mut dyn FnMut(&str, usize, usize),
    ) -> Result<()> {
        let hosts = std::mem::take(&mut self.plan.hosts);
        let names = || hosts.iter().map(|host| network_name(host).to_owned());
        for host in &hosts {
            let own = network_name(host);
            let plan = HostPlan {
                cluster: self.plan.cluster.clone(),
                keys: self.plan.key.to_vec(),
                host: own.to_owned(),
                others: names().filter(|name| name != own).take(OTHERS_MAX).collect(),
                port: self.plan.port,
                joins: None,
            };
            let (launcher, program) = (&self.plan.launcher, &self.plan.program);
            self.asked.push_back(HostSession::start(launcher, host, program, &plan)?);
        }
        // Where fewer are enough, the others leave time for the start.
        let now = Instant::now();
        let is_short = self.plan.at_least < hosts.len();
        let half = now + until.saturating_duration_since(now) / 2;
        let until = if is_short { half } else { until };
        while let Some(mut session) = self.asked.pop_front() {
            match session.answer(until, interrupted) {
                Ok(HostAnswer::Place { identity, listen, dir }) => {
                    self.places.push(HostPlace { session, identity, listen, dir });
                    progress("hosts answer", self.places.len(), hosts.len());
                }
                Ok(answer) => self.leave_out(session.unexpected(&answer), session),
                Err(error) => self.leave_out(error, session),
            }
        }
        if interrupted.load(Ordering::Relaxed) {
            return Err(failed("interrupted".to_owned()));
        }
        if self.places.len() >= self.plan.at_least.min(hosts.len()) {
            return Ok(());
        }
        let words: Vec<&str> = self.left_out.iter().map(Error::message).collect();
        Err(Error::new(ErrorKind::Unavailable, words.join("; ")))
    }

    fn leave_out(&mut self, why: Error, mut session: HostSession) {
        session.begin_end();
        self.left_out.push(why);
        self.failed.push(session);
    }

    /// Where the nodes listen, as URLs.
    fn urls(&self) -> Vec<String> {
        let scheme = if self.setup.tls { "tls" } else { "tcp" };
        self.places.iter().map(|place| format!("{scheme}://{}", place.listen)).collect()
    }

    /// Waits until the cluster serves, by `until`, or `interrupted` is set.
    ///
    /// # Errors
    /// `Unavailable`: it does not in time, or a node has ended; `Io`: interrupted.
    pub fn wait_until_serving(
        &mut self,
        until: Instant,
        interrupted: &AtomicBool,
    ) -> Result<ServingHosts> {
        loop {
            if interrupted.load(Ordering::Relaxed) {
                return Err(failed("interrupted".to_owned()));
            }
            self.places.iter_mut().try_for_each(|place| place.session.check())?;
            match self.try_serving() {
                Ok(serving) => return Ok(serving),
                Err(error) if Instant::now() >= until => {
                    let words = format!("it does not serve in time: {error}");
                    return Err(Error::new(ErrorKind::Unavailable, words));
                }
                Err(_) => std::thread::sleep(LOOK),
            }
        }
    }

    /// Serving means: the map is whole, every node answers, and a file system stands.
    fn try_serving(&self) -> Result<ServingHosts> {
        let config = ClusterConfig {
            cluster: self.plan.cluster.clone(),
            addresses: self.urls(),
            credential: Credential::from(self.keys().current()),
            home: None,
        };
        let (redundancy, reads) = (self.setup.redundancy, self.setup.reads);
        let options =
            ClientOptions { timeout: STEP_TIMEOUT, redundancy, reads, ..ClientOptions::default() };
        let client = Client::connect(&config, options)?;
        let map = client.refresh_map()?;
        for number in 0..self.setup.founders {
            let node = NodeId(number);
            let absent = || Error::new(ErrorKind::Unavailable, format!("{node} has not joined"));
            let info = map.node(node).ok_or_else(absent)?;
            if client.node_status(node)?.incarnation != info.incarnation {
                return Err(absent());
            }
        }
        let fs = FileSystem::open(&client, self.plan.files_dataset)?;
        fs.stat(&CallerContext::of_process(0), b"/", true)?;
        Ok(ServingHosts { client, map })
    }

    /// How the cluster was set up.
    #[must_use]
    pub const fn setup(&self) -> &ClusterSetup {
        &self.setup
    }

    /// The cluster's key.
    #[must_use]
    pub fn keys(&self) -> ClusterKeys {
        ClusterKeys::new(ClusterKey::new(self.plan.key))
    }

    /// Hosts that are left out, and why, in words.
    pub fn left_out(&self) -> impl Iterator<Item = &str> {
        self.left_out.iter().map(Error::message)
    }

    /// Whether a node on the host with this identity has the cluster's directory at `dir`, which it
    /// describes there.
    #[must_use]
    pub fn describes(&self, identity: &str, dir: &Path) -> bool {
        let is_there = |place: &HostPlace| place.identity == identity && is_same(&place.dir, dir);
        self.places.iter().any(is_there)
    }

    /// Has all hosts leave their nodes running, once these have described the cluster there.
    ///
    /// # Errors
    /// As of [`HostSession::answer`], of all hosts that do not.
    pub fn keep(&mut self, interrupted: &AtomicBool) -> Result<()> {
        keep_all(self.places.iter_mut().map(|place| &mut place.session), interrupted)
    }

    /// Asks the nodes of hosts that have [kept](Self::keep) them to end after all: the sessions
    /// cannot. The names of hosts that do not hear it.
    pub fn end_kept(&self, client: &Client) -> Vec<String> {
        let numbered: Vec<(&HostPlace, u32)> = self.places.iter().zip(0..).collect();
        // The node with the cluster map last: the others may still need it.
        let kept = numbered.into_iter().rev().filter(|(place, _)| place.session.is_kept());
        let silent = kept.filter(|(_, number)| client.shutdown_node(NodeId(*number)).is_err());
        silent.map(|(place, _)| place.session.host().to_owned()).collect()
    }

    /// Ends what was started. The names of hosts that have not ended it in time.
    pub fn give_up(&mut self) -> Vec<String> {
        let places = std::mem::take(&mut self.places).into_iter().map(|place| place.session);
        let others = std::mem::take(&mut self.asked).into_iter();
        let others = others.chain(std::mem::take(&mut self.failed));
        end_all(places.chain(others).collect())
    }
}

impl Drop for StartingHosts {
    fn drop(&mut self) {
        // Who wants to know has called it.
        let _ = self.give_up();
    }
}

/// Equal as text, or the same directory by another path.
fn is_same(a: &Path, b: &Path) -> bool {
    let id = |path: &Path| std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
    a == b || id(a).is_some_and(|found| Some(found) == id(b))
}

/// Nodes with a coordinator, of so many: most have to live, and two are no better than one.
const fn coordinators(nodes: u32) -> u32 {
    match nodes {
        0..3 => 1,
        3..5 => 3,
        5.. => 5,
    }
}
