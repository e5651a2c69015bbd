//! Control requests, on the shard that received them. A request that may take time goes to the
//! worker.

use std::collections::HashMap;
use std::sync::Arc;

use samite_metrics::registry::{self, RequestKind};
use samite_placement::ClusterMap;
use samite_transport::PeerRole;
use samite_transport::server::{ConnId, ConnectionPeer, ReplySink};
use samite_types::{Clock as _, Epoch, Error, ErrorKind, NodeId, RequestId, Result, SystemClock};
use samite_wire::control::{self, ControlReply, ControlRequest, FaultRequest};
use samite_wire::events::NodeEvents;
use samite_wire::frame::FrameKind;
use samite_wire::limits::CLIENTS_TOLD_MAX;
use samite_wire::membership::VOTE_MESSAGES_MAX;
use samite_wire::worker::WorkerKind;

use super::ShardService;
use crate::access::{denied, is_trusted, membership_permitted, permitted};
use crate::control_reply::{ReplyTo, refused};
use crate::inbox::InboxMessage;
use crate::map_watchers::MapWatch;
use crate::membership::AnswerRoute;
use crate::mutex::lock;
use crate::shared::{NodeNotice, WorkerJob};
use crate::targets::is_remembered;
use crate::worker_processes::WorkerCall;

/// The request in a frame of `peer`.
fn decoded(peer: &ConnectionPeer, body: &[u8]) -> Result<ControlRequest> {
    let asked = control::decode::<ControlRequest>(body)
        .map_err(|error| Error::new(ErrorKind::Corrupt, format!("request: {error}")))?;
    let is_for_ticket = matches!(asked, ControlRequest::IssueTicket { .. });
    if peer.identity.role == PeerRole::Guest && !is_for_ticket {
        let words = "this socket gives out tickets and nothing else";
        return Err(Error::new(ErrorKind::Denied, words));
    }
    Ok(asked)
}

impl ShardService {
    pub(super) fn control(
        &mut self,
        conn: ConnId,
        peer: &ConnectionPeer,
        request: RequestId,
        body: &[u8],
        out: &mut ReplySink,
    ) {
        let to = ReplyTo { shard: self.id, conn, request };
        let asked = match decoded(peer, body) {
            Ok(asked) => asked,
            Err(error) => return out.close(conn, error.kind(), error.message()),
        };
        self.count_control(&asked);
        let reply = match asked {
            ControlRequest::Map { known } => self.map_after(known),
            ControlRequest::Copy { dataset, partition } => {
                Ok(self.copy_asked(to, (dataset, partition)))
            }
            ControlRequest::Status
            | ControlRequest::Metrics
            | ControlRequest::Events { .. }
            | ControlRequest::Clients
            | ControlRequest::Setup => self.tell(&asked).map(Some),
            request @ (ControlRequest::ReadLog { .. } | ControlRequest::SetLogFilter { .. }) => {
                self.log_asked(peer, to, request).map(|()| None)
            }
            ControlRequest::Scrub { .. } if !is_trusted(peer) => {
                Err(denied(peer, format_args!("have {} scrubbed", self.shared.node)))
            }
            ControlRequest::Scrub { dataset } => Ok(Some(self.scrub_asked(dataset))),
            ControlRequest::Grant { count } => Ok(Some(self.grant(conn, count, out))),
            ControlRequest::Shutdown if !is_trusted(peer) => {
                Err(denied(peer, format_args!("stop {}", self.shared.node)))
            }
            ControlRequest::Shutdown => Ok(Some(self.shutdown_asked())),
            ControlRequest::Watch { node, known } => {
                membership_permitted(peer, &asked).and_then(|()| self.watch(to, node, known, out))
            }
            ControlRequest::Revocations { done } => {
                Ok(self.revocations(to, peer.client, done, out))
            }
            ControlRequest::Lock(asked) => self.lock_request(to, peer.client, &asked, out),
            ControlRequest::CancelLock { wait } => Ok(self.cancel_lock(conn, wait, out)),
            ControlRequest::LockWaits(owner) => Ok(self.lock_waits(owner)),
            ControlRequest::KnownLocks { node, epoch, after } => {
                self.known_locks(peer, (node, epoch), after.as_ref()).map(Some)
            }
            ControlRequest::LockClients(asked) => self.lock_clients(peer, asked).map(Some),
            change @ (ControlRequest::CreateDataset(_)
            | ControlRequest::DropDataset { .. }
            | ControlRequest::SetAccess { .. }) => permitted(self.map.as_deref(), peer, change)
                .and_then(|change| self.coordinate(to, change)),
            ControlRequest::Faults(asked) => self.faults_asked(conn, peer, asked, out),
            asked @ (ControlRequest::IssueTicket { .. }
            | ControlRequest::RenewTicket
            | ControlRequest::ChangeKey(_)) => self.credential_request(to, peer, asked, out),
            ControlRequest::Worker(kind, text) => self.worker_asked(peer, (kind, text), to),
            vote @ ControlRequest::Vote { .. } => {
                membership_permitted(peer, &vote).and_then(|()| self.vote(vote))
            }
            // Joins, heartbeats, reports, admin requests, losses.
            asked => membership_permitted(peer, &asked).and_then(|()| self.coordinate(to, asked)),
        };
        match reply {
            Ok(Some(reply)) => self.send_control(to, &reply, out),
            Ok(None) => {}
            Err(error) => self.send_control(to, &refused(&error), out),
        }
    }

    /// Answers about the node itself.
    fn tell(&self, asked: &ControlRequest) -> Result<ControlReply> {
        let shared = &self.shared;
        Ok(match asked {
            ControlRequest::Status => ControlReply::Status(shared.status()),
            ControlRequest::Metrics => ControlReply::Metrics(shared.node_metrics()),
            ControlRequest::Setup => ControlReply::Setup(shared.setup.clone()),
            ControlRequest::Events { after } => {
                let (incarnation, events) = (shared.incarnation, shared.events.since(*after));
                ControlReply::Events(NodeEvents { incarnation, events })
            }
            ControlRequest::Clients => {
                ControlReply::Clients(lock(&shared.presence).some(CLIENTS_TOLD_MAX))
            }
            _ => return Err(ErrorKind::Internal.into()),
        })
    }

    /// The log of this process, for those who may have it: the worker reads it.
    fn log_asked(&self, peer: &ConnectionPeer, to: ReplyTo, request: ControlRequest) -> Result<()> {
        if !is_trusted(peer) {
            return Err(denied(peer, format_args!("have the log of {}", self.shared.node)));
        }
        self.shared.work(WorkerJob::Log { request, to })
    }

    /// A message to a worker process, which answers later.
    fn worker_asked(
        &self,
        peer: &ConnectionPeer,
        (kind, message): (WorkerKind, Vec<u8>),
        to: ReplyTo,
    ) -> Result<Option<ControlReply>> {
        let shared = Arc::clone(&self.shared);
        let answer = move |to: ReplyTo, reply| {
            shared.inboxes[usize::from(to.shard.get())].send(InboxMessage::Control(to, reply));
        };
        let call = WorkerCall { to, message };
        self.shared.workers.pass_on(kind, &peer.identity, call, Arc::new(answer)).map(|()| None)
    }

    fn shutdown_asked(&self) -> ControlReply {
        tracing::info!("asked to shut down");
        self.shared.notice(NodeNotice::ShutdownAsked);
        ControlReply::Ok
    }

    fn count_control(&self, asked: &ControlRequest) {
        let kind = match asked {
            ControlRequest::Lock(_) | ControlRequest::CancelLock { .. } => RequestKind::Lock,
            _ => RequestKind::Control,
        };
        self.metrics().add_at(registry::REQUESTS, kind.index(), 1);
    }

    pub(super) fn send_control(&self, to: ReplyTo, reply: &ControlReply, out: &mut ReplySink) {
        out.send(to.conn, FrameKind::ControlReply, to.request, &control::encode(reply), []);
    }

    fn map_after(&self, known: Epoch) -> Result<Option<ControlReply>> {
        let Some(map) = &self.map else {
            let words = self.shared.membership.missing();
            let words =
                words.unwrap_or_else(|| format!("{} has no cluster map yet", self.shared.node));
            return Err(Error::new(ErrorKind::Unavailable, words));
        };
        Ok(Some(self.shared.map_since(map, known)))
    }

    fn faults_asked(
        &mut self,
        conn: ConnId,
        peer: &ConnectionPeer,
        asked: FaultRequest,
        out: &mut ReplySink,
    ) -> Result<Option<ControlReply>> {
        out.spare(conn);
        let is_set = matches!(asked, FaultRequest::Set(_));
        let answer = self.shared.faults(peer, asked);
        if is_set && answer.is_ok() {
            self.rot_asked();
        }
        answer.map(Some)
    }

    fn grant(&mut self, conn: ConnId, count: u16, out: &mut ReplySink) -> ControlReply {
        if !out.shares_arena(conn) {
            return ControlReply::failed(
                ErrorKind::Unsupported,
                "blocks are granted over shared memory only",
            );
        }
        let blocks = self.grants.grant(conn, usize::from(count));
        ControlReply::Granted(
            blocks.into_iter().map(|block| (block.offset, block.generation)).collect(),
        )
    }

    /// Decisions of the coordinator: asked of the instance in this node if it leads. A client that
    /// wants a change is not sent elsewhere, but served from here.
    fn coordinate(&mut self, to: ReplyTo, request: ControlRequest) -> Result<Option<ControlReply>> {
        if let ControlRequest::Heartbeat(heartbeat) = &request {
            lock(&self.shared.membership.reachability).heard(heartbeat, SystemClock.monotonic());
        }
        // Opening a target takes time.
        let opens =
            matches!(&request, ControlRequest::CreateDataset(spec) if is_remembered(&spec.backend));
        if self.shared.membership.leads() && !opens {
            if let ControlRequest::Join { info, .. } = &request {
                let process = format_args!("{:x}", info.incarnation);
                tracing::info!(node = %info.node, process, addresses = ?info.addresses, "joins");
                // It will watch on this connection: each later change of the map waits for it too.
                self.shared.follower_serves((self.id, to.conn), info.node, Epoch(0));
            }
            self.shared.membership.ask(request, AnswerRoute::Shard(to))?;
            return Ok(None);
        }
        match request {
            ControlRequest::CreateDataset(_)
            | ControlRequest::DropDataset { .. }
            | ControlRequest::SetAccess { .. }
            | ControlRequest::AcknowledgeLoss { .. }
            | ControlRequest::Wish { .. } => {
                self.shared.work(WorkerJob::Forward { request, to })?;
                Ok(None)
            }
            _ => Ok(Some(self.not_leader())),
        }
    }

    /// Messages to the voter in this node.
    fn vote(&self, request: ControlRequest) -> Result<Option<ControlReply>> {
        let ControlRequest::Vote { from, messages } = request else {
            return Err(ErrorKind::Internal.into());
        };
        if messages.len() > VOTE_MESSAGES_MAX {
            return Err(Error::new(ErrorKind::Invalid, "too many messages to a voter"));
        }
        let Some(mailbox) = self.shared.membership.mailbox.get() else {
            return Err(Error::new(ErrorKind::Unavailable, "no voter lives here"));
        };
        messages.into_iter().for_each(|message| mailbox.deliver(from, message));
        Ok(Some(ControlReply::Ok))
    }

    fn not_leader(&self) -> ControlReply {
        ControlReply::NotLeader { leader: self.shared.membership.leader() }
    }

    fn watch(
        &mut self,
        to: ReplyTo,
        node: NodeId,
        known: Epoch,
        out: &mut ReplySink,
    ) -> Result<Option<ControlReply>> {
        if !self.shared.membership.leads() {
            return Ok(Some(self.not_leader()));
        }
        self.shared.follower_serves((self.id, to.conn), node, known);
        if let Some(map) = self.map.as_ref().filter(|map| map.epoch() > known) {
            return Ok(Some(self.shared.map_since(map, known)));
        }
        let watch = MapWatch { request: to.request, known };
        if let Some(before) = self.watchers.begin(to.conn, watch) {
            let ended = ReplyTo { request: before.request, ..to };
            self.send_control(ended, &ControlReply::Map(None), out);
        }
        Ok(None)
    }

    /// Gives `map` to the watches that wait for it.
    pub(super) fn answer_watches(&mut self, map: &ClusterMap, out: &mut ReplySink) {
        // Most know the same.
        let mut answers: HashMap<Epoch, Vec<u8>> = HashMap::new();
        for (conn, watch) in self.watchers.take_older(map.epoch()) {
            let answer = answers
                .entry(watch.known)
                .or_insert_with(|| control::encode(&self.shared.map_since(map, watch.known)));
            out.send(conn, FrameKind::ControlReply, watch.request, answer, []);
        }
    }

    /// Sends those on that wait for maps here, if another instance leads now.
    pub(super) fn send_watches_on(&mut self, out: &mut ReplySink) {
        if self.watchers.is_empty() || self.shared.membership.leads() {
            return;
        }
        for (conn, watch) in self.watchers.take_all() {
            let to = ReplyTo { shard: self.id, conn, request: watch.request };
            self.send_control(to, &self.not_leader(), out);
        }
    }
}
