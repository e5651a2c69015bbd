//! The way of a data request through the shard.
//!
//! ```text
//!  decode ─ admit (map, dataset, ownership) ─┬─ all mine ─── apply each, encode as it goes ─── send
//!                                            └─ some elsewhere ─ tasks to their shards ─┐
//!                                                apply mine ─── join the answers ───────┴───── send
//! ```

use std::time::Duration;

use samite_metrics::registry;
use samite_mirror::ApplyTime;
use samite_partition::{BlockGrants, NoGrants, RequestContext};
use samite_placement::shard_of;
use samite_transport::server::{ConnId, ConnectionPeer, ReplySink};
use samite_types::{Clock, ErrorKind, RequestId, SystemClock};
use samite_wire::frame::CheckedHeader;
use samite_wire::limits::PAYLOAD_LEN_MAX;
use samite_wire::op::{OperationRequest, RequestHeader};

use super::ShardService;
use crate::access;
use crate::admission::AdmissionControl;
use crate::budget::ReplyBudget;
use crate::deferred_replies::DeferredReply;
use crate::delegation_waiters::{DelegationTurn, WaitingWork};
use crate::grants::NamedBlocks;
use crate::partitions::{ApplyContext, DatasetIndex};
use crate::reply::ReplyBuilder;
use crate::request_account::RequestAccount;
use crate::submissions::EXPECTED_AHEAD;

impl ShardService {
    pub(super) fn data(
        &mut self,
        conn: ConnId,
        peer: &ConnectionPeer,
        header: &CheckedHeader,
        body: &[u8],
        payload: &[u8],
        out: &mut ReplySink,
    ) {
        let id = header.request_id;
        if let Some(until) = self.serve(conn, peer, id, (body, payload), None, out) {
            let (body, payload) = (body.to_vec(), payload.to_vec());
            let since = SystemClock.monotonic();
            self.park(
                WaitingWork::Request { conn, peer: peer.clone(), id, body, payload, since },
                until,
            );
        }
    }

    /// Carries out a request; `came`: it has waited since. `Some`: it has to wait, at most until
    /// then, and nothing was done.
    pub(super) fn serve(
        &mut self,
        conn: ConnId,
        peer: &ConnectionPeer,
        id: RequestId,
        (body, payload): (&[u8], &[u8]),
        came: Option<Duration>,
        out: &mut ReplySink,
    ) -> Option<Duration> {
        self.apply_submissions();
        let request = match OperationRequest::decode(body, payload) {
            Ok(request) => request,
            Err(error) => {
                out.close(conn, ErrorKind::Corrupt, &format!("request: {error}"));
                return None;
            }
        };
        if let Some(first) = request.operations.first() {
            self.submissions.expect(request.header.dataset, first);
        }
        let admitted = self
            .admit(&request.header, &request)
            .and_then(|slot| Ok((slot, ReplyBudget::of(&request, PAYLOAD_LEN_MAX)?)));
        let (slot, budget) = match admitted {
            Ok(admitted) => admitted,
            Err(kind) => {
                self.refuse(conn, id, &request, kind, out);
                return None;
            }
        };
        let since = self.clock_in(&budget, came);
        let len = body.len() + payload.len();
        let at = match self.moment_for(slot, peer, &request, len, out) {
            Ok(at) => at,
            Err(kind) => {
                self.refuse(conn, id, &request, kind, out);
                return None;
            }
        };
        if came.is_none()
            && let Some(cold) = self.cold_reads_of(slot, &request, len)
        {
            let (body, payload, since) = (body.to_vec(), payload.to_vec(), SystemClock.monotonic());
            let work = WaitingWork::Request { conn, peer: peer.clone(), id, body, payload, since };
            self.await_reads(work, cold);
            return None;
        }
        self.lock_records(peer.client, &request, &budget);
        let now = self.time_for(&budget);
        match self.may_run(slot, peer.client, &request, (now, at), Some(len)) {
            DelegationTurn::Now => {}
            DelegationTurn::Later(until) => return Some(until),
            DelegationTurn::Never => {
                self.refuse(conn, id, &request, ErrorKind::Busy, out);
                return None;
            }
        }
        self.metrics().add(registry::OPERATIONS, request.operations.len() as u64);
        let account = self.begin_account(peer, slot, &budget, (since, came.is_some()));
        let shards = self.shared.shards();
        let mine = |partition| shards == 1 || shard_of(partition, shards) == self.id;
        if request.operations.iter().all(|operation| mine(operation.partition)) {
            let times = (now, at, len);
            self.apply_all(conn, peer, id, &request, slot, &budget, account, times, out);
        } else {
            let whole = (body, payload);
            self.scatter(conn, peer, id, whole, &request, &budget, account, (now, at), out);
        }
        None
    }

    /// Whether `peer` may ask for this, and members of mirror groups may try it; the time by which
    /// these judge.
    fn moment_for(
        &mut self,
        slot: DatasetIndex,
        peer: &ConnectionPeer,
        request: &OperationRequest<'_>,
        len: usize,
        out: &ReplySink,
    ) -> Result<ApplyTime, ErrorKind> {
        access::check(&self.partitions.access(slot), peer, request)?;
        if !self.partitions.is_grouped(slot) {
            return Ok(ApplyTime::default());
        }
        let at = self.apply_time();
        self.check_members(slot, request, (at, len), out)?;
        Ok(at)
    }

    /// Checks that this node may carry out the request, by the newest map it has.
    fn admit(
        &mut self,
        header: &RequestHeader,
        request: &OperationRequest<'_>,
    ) -> Result<DatasetIndex, ErrorKind> {
        let map = self.map.as_ref().ok_or(ErrorKind::Busy)?;
        let control = AdmissionControl::new(map, self.shared.node, header.map_epoch);
        let slot = self.partitions.dataset(map, header.dataset);
        let slot = slot.ok_or_else(|| control.unknown_dataset())?;
        control.check(self.partitions.policy(slot), &request.operations)?;
        Ok(slot)
    }

    /// Says why nothing was tried. The blocks that the request names stay with the client.
    pub(super) fn refuse(
        &mut self,
        conn: ConnId,
        id: RequestId,
        request: &OperationRequest<'_>,
        kind: ErrorKind,
        out: &mut ReplySink,
    ) {
        self.metrics().add(registry::REQUESTS_REFUSED, 1);
        let header = self.reply_header(Some(kind));
        let back = self.grants.still_held(conn, &request.operations);
        let buffers = self.take_buffers().refusal(&header, &back);
        self.send(conn, id, buffers, out);
    }

    /// Every operation is on a partition of this shard: applies them in order, encoding as it goes.
    #[allow(clippy::too_many_arguments, reason = "one call, of what arrived with the request")]
    fn apply_all(
        &mut self,
        conn: ConnId,
        peer: &ConnectionPeer,
        id: RequestId,
        request: &OperationRequest<'_>,
        slot: DatasetIndex,
        budget: &ReplyBudget,
        account: RequestAccount,
        (now, at, len): (Duration, ApplyTime, usize),
        out: &mut ReplySink,
    ) {
        let header = self.reply_header(None);
        let mut builder =
            ReplyBuilder::new(self.take_buffers(), &header, budget, out.shares_arena(conn));
        let blocks = self.named_blocks(conn, request, budget);
        let term_max = self.shared.revocations.term_max(peer.client, budget.lease_term);
        let reads_in_place = out.shares_arena(conn);
        let context = context(&request.header, budget, now, term_max);
        let context = RequestContext { reads_in_place, ..context };
        let Some(map) = &self.map else { return };
        let grants: &mut dyn BlockGrants = match self.grants.of(conn) {
            Some(grants) if budget.has_blocks => grants,
            _ => &mut NoGrants,
        };
        let mut apply_context = ApplyContext::new(peer.client, &context, grants, at);
        for (index, operation) in request.operations.iter().enumerate() {
            if let Some(later) = request.operations.get(index + EXPECTED_AHEAD) {
                self.submissions.expect(request.header.dataset, later);
            }
            let known = (slot, &**map);
            let partitions = &mut self.partitions;
            let outcome =
                self.submissions.apply_alone(partitions, known, operation, &mut apply_context);
            builder.outcome(outcome, operation.is_mutation());
        }
        let ApplyContext { name_space_generation, seen, .. } = apply_context;
        let grants = self.grants.regrant(conn, &blocks);
        self.unlock_exclusive(Some(peer.client));
        self.note_metrics();
        self.account_reply(&account, &builder);
        let buffers = builder.finish(name_space_generation, &grants);
        if seen.is_empty() {
            self.send(conn, id, buffers, out);
            self.close_account(&account);
        } else {
            let account = account.waiting(|| at.now);
            let reply = DeferredReply::Client { conn, id, buffers, grants, account };
            self.defer_reply(seen, reply, len);
        }
    }

    /// The blocks of `conn` that the request names.
    pub(super) fn named_blocks(
        &self,
        conn: ConnId,
        request: &OperationRequest<'_>,
        budget: &ReplyBudget,
    ) -> NamedBlocks {
        if !budget.has_blocks {
            return NamedBlocks::default();
        }
        self.grants.named(conn, &request.operations)
    }
}

pub(super) const fn context(
    header: &RequestHeader,
    budget: &ReplyBudget,
    now: Duration,
    delegation_term_max: Duration,
) -> RequestContext {
    RequestContext {
        answered_below: header.answered_below,
        is_retry: header.is_retry,
        name_space_generation: header.name_space_generation,
        body_len_max: budget.share,
        now,
        delegation_term_max,
        reads_in_place: false,
        grants_all_delegations: false,
    }
}
