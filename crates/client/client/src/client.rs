//! The client: cluster map, links to nodes, control requests.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Duration;

use samite_placement::{ClusterMap, check_dataset_spec};
use samite_transport::client::NodeLink;
use samite_transport::{Address, Credential};
use samite_types::{
    ClientId, DatasetId, Deadline, Epoch, Error, ErrorKind, NodeId, PartitionId, Result,
};
use samite_wire::control::{ControlReply, ControlRequest, DatasetSpec, LostRecords, PartitionCopy};
use samite_wire::events::{LogPart, NodeEvents};
use samite_wire::limits::SETUP_LEN_MAX;
use samite_wire::membership::AdminRequest;
use samite_wire::status::{ClockDifference, NodeMetrics, NodeStatus};
use samite_wire::worker::{WorkerKind, WorkerStatus};

use crate::config::transport_from_env;
use crate::credential_slot::CredentialSlot;
use crate::peer::{ClientCredentials, NodePeer, prefer};
use crate::runtime::{ClusterDir, NodeEntry, RuntimeDir};
use crate::session::ClientSession;
use crate::stats::{Counters, Stats, count};
use crate::{ClientOptions, ClusterConfig, Dataset};

/// Longest pause between two looks for something that other nodes have to learn first.
const SPREAD_PAUSE_MAX: Duration = Duration::from_millis(50);

/// Silence after which a control request is asked again. Doubles with each.
const ASK_PATIENCE: Duration = Duration::from_secs(1);

/// Second and longest pause before a request is asked again that was lost with its connection. The first time there is none.
const LOST_PAUSE_MIN: Duration = Duration::from_millis(1);
const LOST_PAUSE_MAX: Duration = Duration::from_millis(100);

/// A client of one cluster. Cheap to clone; all clones share connections and one session.
#[derive(Clone)]
pub struct Client {
    shared: Arc<ClientShared>,
}

struct ClientShared {
    cluster: String,
    credential: Credential,
    home: Option<ClusterDir>,
    addresses: Vec<Address>,
    options: ClientOptions,
    counters: Counters,
    /// The session of this process, from [`Box::into_raw`]; null until it is needed. A forked child
    /// sets it to null and leaks the old one: other threads of the parent may have held its locks.
    session: AtomicPtr<ClientSession>,
}

impl Drop for ClientShared {
    fn drop(&mut self) {
        let session = *self.session.get_mut();
        if !session.is_null() {
            // SAFETY: it came from Box::into_raw, and only this owner, who is the last, frees it.
            drop(unsafe { Box::from_raw(session) });
        }
    }
}

impl Client {
    /// Connects to the first of the configured addresses that answers, and gets the cluster map.
    ///
    /// # Errors
    /// `Invalid` for an address that is none; `Unavailable`, `WrongKey`, `Timeout` when no node can be used.
    pub fn connect(config: &ClusterConfig, options: ClientOptions) -> Result<Self> {
        let mut addresses =
            config.addresses.iter().map(|url| url.parse()).collect::<Result<Vec<Address>>>()?;
        prefer(&mut addresses, options.transport);
        let shared = ClientShared {
            cluster: config.cluster.clone(),
            credential: config.credential.clone(),
            home: config.home.clone(),
            addresses,
            options,
            counters: Counters::default(),
            session: AtomicPtr::default(),
        };
        let client = Self { shared: Arc::new(shared) };
        client.view(client.deadline())?;
        Ok(client)
    }

    /// Connects to the local cluster `name` of this user, as its runtime directory describes it. The transport is the one
    /// that [`transport_from_env`] forces, or the best.
    ///
    /// # Errors
    /// `NotFound`: there is no such cluster; else as [`Self::connect`].
    pub fn from_runtime(name: &str) -> Result<Self> {
        let options =
            ClientOptions { transport: transport_from_env()?, ..ClientOptions::default() };
        Self::from_cluster_dir(&RuntimeDir::for_user()?.cluster(name)?, options)
    }

    /// Connects to the local cluster that `dir` describes, with the redundancy and the way of reading that it was started with.
    ///
    /// # Errors
    /// As [`Self::from_runtime`].
    pub fn from_cluster_dir(dir: &ClusterDir, options: ClientOptions) -> Result<Self> {
        let file = dir.read_cluster_file()?;
        let addresses = file.nodes.iter().flat_map(NodeEntry::addresses).collect();
        let (credential, home) = (dir.read_credential()?, Some(dir.clone()));
        let config = ClusterConfig { cluster: file.cluster, addresses, credential, home };
        let (redundancy, reads) = (file.setup.redundancy, file.setup.reads);
        Self::connect(&config, ClientOptions { redundancy, reads, ..options })
    }

    /// The session of this process.
    pub(crate) fn session(&self) -> &ClientSession {
        let slot = &self.shared.session;
        let mut session = slot.load(Ordering::Acquire);
        if session.is_null() {
            let ClientShared { credential, home, options, .. } = &*self.shared;
            let credential = CredentialSlot::new(credential.clone(), home.clone());
            let fresh = ClientSession::new(options.transport, credential);
            let fresh = Box::into_raw(Box::new(fresh));
            let raced = slot.compare_exchange(session, fresh, Ordering::AcqRel, Ordering::Acquire);
            session = match raced {
                Ok(_) => fresh,
                Err(other) => {
                    // SAFETY: nobody else has seen this one.
                    drop(unsafe { Box::from_raw(fresh) });
                    other
                }
            };
        }
        // SAFETY: it came from Box::into_raw and is freed only with `ClientShared`, which outlives this borrow of the client; a
        // fork in between replaces the pointer but leaks what it pointed to.
        unsafe { &*session }
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    pub(crate) fn cluster(&self) -> &str {
        &self.shared.cluster
    }

    /// Where to begin.
    pub(crate) fn addresses(&self) -> &[Address] {
        &self.shared.addresses
    }

    pub(crate) fn credentials(&self) -> ClientCredentials<'_> {
        ClientCredentials {
            credential: &self.session().credential,
            client: self.session().id,
            counters: &self.shared.counters,
        }
    }

    /// The cluster map as known here.
    ///
    /// # Errors
    /// As [`Self::connect`], when there is none yet (after a fork).
    pub fn map(&self) -> Result<Arc<ClusterMap>> {
        Ok(Arc::clone(&self.view(self.deadline())?.map))
    }

    /// Asks the nodes for a newer cluster map, and returns the newest known.
    ///
    /// # Errors
    /// No node answers.
    pub fn refresh_map(&self) -> Result<Arc<ClusterMap>> {
        self.refresh(self.deadline())?;
        self.map()
    }

    /// The dataset of this name.
    ///
    /// # Errors
    /// `NotFound`; else as [`Self::connect`].
    pub fn dataset(&self, name: &str) -> Result<Dataset> {
        let deadline = self.deadline();
        let view = self.view(deadline)?;
        if let Some(data) = view.map.dataset(name) {
            return Ok(Dataset::new(self.clone(), data, &view.map));
        }
        self.refresh(deadline)?;
        let map = self.map()?;
        match map.dataset(name) {
            Some(data) => Ok(Dataset::new(self.clone(), data, &map)),
            None => Err(Error::new(ErrorKind::NotFound, format!("dataset {name:?}: none such"))),
        }
    }

    /// Makes a dataset, or finds it made with the same policy.
    ///
    /// # Errors
    /// `Invalid` for a policy that makes no sense; `Exists` when there is one of this name with another policy.
    pub fn create_dataset(&self, spec: &DatasetSpec) -> Result<Dataset> {
        check_dataset_spec(spec)?;
        let deadline = self.deadline();
        let view = self.view(deadline)?;
        if let Some(data) =
            view.map.dataset(&spec.name).filter(|data| data.spec.is_same_policy(spec))
        {
            return Ok(Dataset::new(self.clone(), data, &view.map));
        }
        self.change_map(&ControlRequest::CreateDataset(spec.clone()), None, deadline)?;
        let mut pause = Duration::from_millis(1);
        loop {
            let map = self.map()?;
            if let Some(data) = map.dataset(&spec.name) {
                return Ok(Dataset::new(self.clone(), data, &map));
            }
            if deadline.remaining().is_none() {
                return Err(Error::new(
                    ErrorKind::Timeout,
                    format!("create dataset {:?}: it does not show in the cluster map", spec.name),
                ));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(SPREAD_PAUSE_MAX);
            self.refresh(deadline)?;
        }
    }

    /// Gives a dataset another owner or mode.
    ///
    /// # Errors
    /// `Denied`: it is another user's, or only root gives datasets away; `NotFound`; else as [`Self::connect`].
    pub fn set_access(&self, name: &str, owner: Option<u32>, mode: Option<u16>) -> Result<()> {
        let request = ControlRequest::SetAccess { name: name.to_owned(), owner, mode };
        self.change_map(&request, None, self.deadline())
    }

    /// Removes a dataset and all of its records.
    ///
    /// # Errors
    /// `NotFound`; else as [`Self::connect`].
    pub fn drop_dataset(&self, name: &str) -> Result<()> {
        let deadline = self.deadline();
        let request = ControlRequest::DropDataset { name: name.to_owned() };
        self.change_map(&request, Some(ErrorKind::NotFound), deadline)
    }

    /// An admin request for a node. Answered when it is decided; the moves that follow take their
    /// time.
    ///
    /// # Errors
    /// `NotFound`: no such node. `Invalid`, `InUse`: it cannot be, in words. `Denied`: to users
    /// that do not run the cluster.
    pub fn admin_request(&self, node: NodeId, request: AdminRequest) -> Result<()> {
        self.change_map(&ControlRequest::Wish { node, request }, None, self.deadline())
    }

    /// Acknowledges losses, as [`ClusterMap::data`] of the map of epoch `by` has them: they are
    /// told no more, and lost records are said to be missing. Losses after that map stay told; the
    /// newest map names them.
    ///
    /// # Errors
    /// `Denied`: to users that do not run the cluster; else as [`Self::connect`].
    pub fn acknowledge_loss(&self, by: Epoch, seen: Vec<LostRecords>) -> Result<()> {
        self.change_map(&ControlRequest::AcknowledgeLoss { by, seen }, None, self.deadline())
    }

    /// A dataset called `name`, with the redundancy and the way of reading that this client was told.
    #[must_use]
    pub fn spec(&self, name: &str) -> DatasetSpec {
        let (redundancy, reads) = (self.options().redundancy, self.options().reads);
        DatasetSpec { redundancy, reads, ..DatasetSpec::new(name) }
    }

    /// How one node is.
    ///
    /// # Errors
    /// `NotFound`: the map has no such node; `Unavailable`, `Timeout`.
    pub fn node_status(&self, node: NodeId) -> Result<NodeStatus> {
        self.node_status_by(node, self.deadline())
    }

    /// The same, not later than `deadline`.
    ///
    /// # Errors
    /// As [`Self::node_status`].
    pub fn node_status_by(&self, node: NodeId, deadline: Deadline) -> Result<NodeStatus> {
        match self.ask_node(node, &ControlRequest::Status, deadline)? {
            (_, ControlReply::Status(status)) => Ok(status),
            (link, _) => Err(unexpected(&link, "its status")),
        }
    }

    /// By how much the wall clock of one node differs from those of coordinators' nodes at most;
    /// `None`: it was not compared yet.
    ///
    /// # Errors
    /// As [`Self::node_status`]. `Unsupported`: a node of an older version.
    pub fn clock_difference(&self, node: NodeId) -> Result<Option<ClockDifference>> {
        match self.ask_node(node, &ControlRequest::ClockDifference, self.deadline())? {
            (_, ControlReply::ClockDifference(clock)) => Ok(clock),
            (link, _) => Err(unexpected(&link, "its clock")),
        }
    }

    /// All metrics of one node.
    ///
    /// # Errors
    /// As [`Self::node_status`].
    pub fn node_metrics(&self, node: NodeId) -> Result<NodeMetrics> {
        match self.ask_node(node, &ControlRequest::Metrics, self.deadline())? {
            (_, ControlReply::Metrics(metrics)) => Ok(metrics),
            (link, _) => Err(unexpected(&link, "its metrics")),
        }
    }

    /// The events that a node has noticed, of higher numbers than `after`.
    ///
    /// # Errors
    /// As [`Self::node_status`].
    pub fn node_events(&self, node: NodeId, after: u64) -> Result<NodeEvents> {
        match self.ask_node(node, &ControlRequest::Events { after }, self.deadline())? {
            (_, ControlReply::Events(events)) => Ok(events),
            (link, _) => Err(unexpected(&link, "its events")),
        }
    }

    /// A part of a node's log, from the byte `from` on; `None`: its end.
    ///
    /// # Errors
    /// As [`Self::node_status`]; `Denied`; `Unsupported`: its log is in no file.
    pub fn node_log(&self, node: NodeId, from: Option<u64>) -> Result<LogPart> {
        match self.ask_node(node, &ControlRequest::ReadLog { from }, self.deadline())? {
            (_, ControlReply::Log(part)) => Ok(part),
            (link, _) => Err(unexpected(&link, "its log")),
        }
    }

    /// Has a node log what `filter` names from now on.
    ///
    /// # Errors
    /// As [`Self::node_status`]; `Denied`; `Invalid`: it is no filter.
    pub fn set_node_log(&self, node: NodeId, filter: &str) -> Result<()> {
        let request = ControlRequest::SetLogFilter { filter: filter.to_owned() };
        match self.ask_node(node, &request, self.deadline())? {
            (_, ControlReply::Ok) => Ok(()),
            (link, _) => Err(unexpected(&link, "whether it logs so")),
        }
    }

    /// The cluster map as a node has it, not later than `deadline`; others may have a newer one.
    ///
    /// # Errors
    /// As [`Self::node_status`]; the node may have none yet.
    pub fn map_at(&self, node: NodeId, deadline: Deadline) -> Result<ClusterMap> {
        match self.ask_node(node, &ControlRequest::Map { known: Epoch(0) }, deadline)? {
            (_, ControlReply::Map(Some(data))) => ClusterMap::new(data),
            (link, _) => Err(unexpected(&link, "its cluster map")),
        }
    }

    /// Has a node look for damage in all its records of a dataset, or of all. When its
    /// [`NodeStatus::scrub`] says that the walk with the returned number is done, it has.
    ///
    /// # Errors
    /// As [`Self::node_status`]; `Denied`: not this user's node.
    pub fn scrub(&self, node: NodeId, dataset: Option<DatasetId>) -> Result<u64> {
        match self.ask_node(node, &ControlRequest::Scrub { dataset }, self.deadline())? {
            (_, ControlReply::Scrubbing { number }) => Ok(number),
            (link, _) => Err(unexpected(&link, "that it scrubs")),
        }
    }

    /// The digest of a node's copy of a partition, for comparison with those of others; `None`: it
    /// has nothing.
    ///
    /// # Errors
    /// As [`Self::node_status`].
    pub fn partition_copy(
        &self,
        node: NodeId,
        dataset: DatasetId,
        partition: PartitionId,
    ) -> Result<Option<PartitionCopy>> {
        let request = ControlRequest::Copy { dataset, partition };
        match self.ask_node(node, &request, self.deadline())? {
            (_, ControlReply::Copy(copy)) => Ok(copy),
            (link, _) => Err(unexpected(&link, "its copy of a partition")),
        }
    }

    /// Tells a node to stop after the requests that it has accepted are done.
    ///
    /// # Errors
    /// As [`Self::node_status`].
    pub fn shutdown_node(&self, node: NodeId) -> Result<()> {
        match self.ask_node(node, &ControlRequest::Shutdown, self.deadline())? {
            (_, ControlReply::Ok) => Ok(()),
            (link, _) => Err(unexpected(&link, "a shutdown")),
        }
    }

    /// Has the memory target of a node hold so many bytes from now on.
    ///
    /// # Errors
    /// As [`Self::node_status`]; `Invalid`: it cannot be so large, or so small; `Conflict`: more is
    /// in use; `Denied`: to users that do not run the node.
    pub fn resize_node(&self, node: NodeId, memory_bytes: u64) -> Result<()> {
        let request = ControlRequest::Resize { memory_bytes };
        match self.ask_node(node, &request, self.deadline())? {
            (_, ControlReply::Ok) => Ok(()),
            (link, _) => Err(unexpected(&link, "another size")),
        }
    }

    /// The worker processes of one node.
    ///
    /// # Errors
    /// As [`Self::node_status`]. `Unsupported`: a node of an older version.
    pub fn node_workers(&self, node: NodeId) -> Result<Vec<WorkerStatus>> {
        match self.ask_node(node, &ControlRequest::Workers, self.deadline())? {
            (_, ControlReply::Workers(workers)) => Ok(workers),
            (link, _) => Err(unexpected(&link, "its workers")),
        }
    }

    /// Passes a message on to this user's worker at a node, which is started if there is none, and
    /// returns its answer. The message may reach it twice.
    ///
    /// # Errors
    /// As [`Self::node_status`]; `Unsupported`: the node starts no workers; `Denied`: not for this
    /// user; `Busy`; `Interrupted`: the worker has ended before it answered.
    pub fn ask_worker(
        &self,
        node: NodeId,
        kind: WorkerKind,
        message: Vec<u8>,
        deadline: Deadline,
    ) -> Result<Vec<u8>> {
        match self.ask_node(node, &ControlRequest::Worker(kind, message), deadline)? {
            (_, ControlReply::Worker(answer)) => Ok(answer),
            (link, _) => Err(unexpected(&link, "a message to a worker")),
        }
    }

    /// How the cluster was set up, as the node was told at its start; empty: it was told nothing.
    ///
    /// # Errors
    /// As [`Self::node_status`].
    pub fn setup_at(&self, node: NodeId) -> Result<Vec<u8>> {
        match self.ask_node(node, &ControlRequest::Setup, self.deadline())? {
            (_, ControlReply::Setup(setup)) if setup.len() <= SETUP_LEN_MAX => Ok(setup),
            (link, _) => Err(unexpected(&link, "how the cluster was set up")),
        }
    }

    /// The clients that are connected to a node, this one included, as far as it names them.
    ///
    /// # Errors
    /// As [`Self::node_status`].
    pub fn clients_at(&self, node: NodeId) -> Result<Vec<ClientId>> {
        match self.ask_node(node, &ControlRequest::Clients, self.deadline())? {
            (_, ControlReply::Clients(clients)) => Ok(clients),
            (link, _) => Err(unexpected(&link, "which clients are connected")),
        }
    }

    /// By which nodes know this client, in this process.
    #[must_use]
    pub fn id(&self) -> ClientId {
        self.session().id
    }

    pub(crate) fn ask_node(
        &self,
        node: NodeId,
        request: &ControlRequest,
        deadline: Deadline,
    ) -> Result<(Arc<NodeLink>, ControlReply)> {
        let view = self.view(deadline)?;
        self.ask(view.peer(node)?, request, deadline)
    }

    /// A control request that may come twice, by whichever connection: when one ends under it, the next one asks again; and so does the same one
    /// when the answer takes long, as the request may be lost.
    pub(crate) fn ask(
        &self,
        peer: &NodePeer,
        request: &ControlRequest,
        deadline: Deadline,
    ) -> Result<(Arc<NodeLink>, ControlReply)> {
        let mut again = RetryBudget::default();
        let mut patience = ASK_PATIENCE;
        loop {
            let link = peer.link(&self.credentials(), deadline)?;
            match self.control(&link, request, deadline.min(Deadline::after(patience))) {
                Err(error) if again.is_lost(&link, &error, deadline) => {}
                Err(error)
                    if error.kind() == ErrorKind::Timeout && deadline.remaining().is_some() =>
                {
                    patience *= 2;
                }
                answer => return answer.map(|reply| (link, reply)),
            }
        }
    }

    /// One control request and its answer; a refusal becomes an error of its kind.
    pub(crate) fn control(
        &self,
        link: &NodeLink,
        request: &ControlRequest,
        deadline: Deadline,
    ) -> Result<ControlReply> {
        count(&self.shared.counters.controls, 1);
        link.control(request, deadline)?.checked().map_err(|error| error.context(link.node()))
    }

    /// Counts of messages that this client has sent and received, all clones together.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared.counters.read()
    }

    /// How the client behaves.
    #[must_use]
    pub fn options(&self) -> &ClientOptions {
        &self.shared.options
    }

    /// A deadline as far off as the options say.
    #[must_use]
    pub fn deadline(&self) -> Deadline {
        Deadline::after(self.shared.options.timeout)
    }

    /// Descriptors that the connections of this process hold open, as far as they can be told now:
    /// a preloaded library must keep its program off these.
    #[must_use]
    pub fn descriptors(&self) -> Vec<i32> {
        // Not `session`, which makes one: asked in the child of a fork, this must not allocate.
        let session = self.shared.session.load(Ordering::Acquire);
        // SAFETY: see `session`.
        let Some(session) = (unsafe { session.as_ref() }) else { return Vec::new() };
        let view = session.view();
        view.iter().flat_map(|view| view.peers()).flat_map(|peer| peer.descriptors()).collect()
    }

    /// To be called in the child after a fork, before it uses the client: forgets the parent's session, and closes its inherited
    /// descriptors without a word to the nodes. The next call connects anew, under a new identity. Takes no lock
    /// that another thread may have held at the fork, and neither allocates nor frees.
    pub fn after_fork_child(&self) {
        let inherited = self.shared.session.swap(std::ptr::null_mut(), Ordering::AcqRel);
        if !inherited.is_null() {
            // SAFETY: it came from Box::into_raw and is leaked from here on, so it lives for ever.
            unsafe { &*inherited }.abandon();
        }
    }
}

/// Tries of a request that may come twice, when connections end under it.
#[derive(Debug, Default)]
pub(crate) struct RetryBudget {
    pause: Duration,
}

impl RetryBudget {
    /// Whether the request, or its answer, was lost with its connection, and there is time to ask
    /// again; then a short time has passed.
    pub(crate) fn is_lost(&mut self, link: &NodeLink, error: &Error, deadline: Deadline) -> bool {
        if !is_lost(link, error) {
            return false;
        }
        let Some(left) = deadline.remaining() else { return false };
        std::thread::sleep(self.pause.min(left));
        self.pause = (self.pause * 2).clamp(LOST_PAUSE_MIN, LOST_PAUSE_MAX);
        true
    }
}

/// Whether the request by `link` has failed because the link ended. A forked child has no links:
/// there nothing is lost.
pub(crate) fn is_lost(link: &NodeLink, error: &Error) -> bool {
    error.kind() == ErrorKind::Unavailable && link.is_dead() && link.socket().is_some()
}

pub(crate) fn unexpected(link: &NodeLink, to: &str) -> Error {
    Error::new(
        ErrorKind::Corrupt,
        format!("{} at {}: unexpected answer to {to}", link.node(), link.address()),
    )
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("cluster", &self.shared.cluster).finish_non_exhaustive()
    }
}
