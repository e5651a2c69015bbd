//! A node: what its shard does with threads and sockets, in the simplest form that has one thread and no socket.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use samite_backend::Backend;
use samite_partition::{Context as OpContext, NoGrants, Outcome, Partition};
use samite_placement::ClusterMap;
use samite_types::{ClientId, DatasetId, ErrorKind, NodeId, PartitionId};
use samite_wire::control::{self, ControlReply, ControlRequest};
use samite_wire::op::{Operation, Request, RequestHeader};

use crate::message::Message;
use crate::net::Place;
use crate::process::{Context, Process};
use crate::reply;
use crate::rules::{Rules, Wrong};
use crate::store::HeapBackend;

/// Name of the simulated dataset.
pub const DATASET: &str = "sim";

/// A node process.
pub struct SimNode {
    node: NodeId,
    rules: Rules,
    map: Arc<ClusterMap>,
    partitions: BTreeMap<(DatasetId, PartitionId), Partition>,
}

impl SimNode {
    /// A node with nothing in memory.
    #[must_use]
    pub const fn new(node: NodeId, rules: Rules, map: Arc<ClusterMap>) -> Self {
        Self { node, rules, map, partitions: BTreeMap::new() }
    }

    fn serve(
        &mut self,
        client: ClientId,
        body: &[u8],
        payload: &[u8],
        context: &mut Context<'_>,
    ) -> reply::Encoded {
        let epoch = self.map.epoch();
        let Ok(request) = Request::decode(body, payload) else {
            context.audit.violate("requests decode", format!("at {}", self.node));
            return reply::refusal(ErrorKind::Corrupt, epoch);
        };
        if let Err(kind) = self.admit(&request) {
            return reply::refusal(kind, epoch);
        }
        let outcomes: Vec<Outcome> = request
            .operations
            .iter()
            .map(|operation| self.apply(client, &request.header, operation, context))
            .collect();
        reply::encode(&outcomes, epoch)
    }

    fn admit(&self, request: &Request<'_>) -> Result<(), ErrorKind> {
        let dataset = self.map.dataset_by_id(request.header.dataset).ok_or(ErrorKind::NotFound)?;
        for operation in &request.operations {
            match self.map.node_of(dataset.spec.redundancy, operation.partition) {
                Some(node) if node == self.node => {}
                Some(_) => return Err(ErrorKind::StaleMap),
                None => return Err(ErrorKind::Invalid),
            }
        }
        Ok(())
    }

    fn apply(
        &mut self,
        client: ClientId,
        header: &RequestHeader,
        operation: &Operation<'_>,
        context: &mut Context<'_>,
    ) -> Outcome {
        let id = (header.dataset, operation.partition);
        let partition = self.partitions.entry(id).or_insert_with(|| {
            let store = HeapBackend.open(id.0, id.1).expect("the heap opens everything");
            Partition::new(store)
        });
        let op_context = OpContext {
            answered_below: header.answered_below,
            is_retry: header.is_retry,
            lease_epoch: header.lease_epoch,
            body_len_max: 64 << 10,
            now: context.now,
            lease_term_max: Duration::ZERO,
        };
        // The wrong rule: every operation comes from a session that nobody has heard of.
        let client =
            if self.rules.breaks(Wrong::NoDedupe) { ClientId(context.rng.next()) } else { client };
        partition.apply(client, &op_context, operation, &mut NoGrants)
    }

    fn control(&self, request: &ControlRequest) -> ControlReply {
        match request {
            ControlRequest::Map { known } => {
                let is_newer = self.map.epoch() > *known;
                ControlReply::Map(is_newer.then(|| self.map.data().clone()))
            }
            _ => ControlReply::failed(ErrorKind::Unsupported, "not simulated"),
        }
    }
}

impl Process for SimNode {
    fn start(&mut self, _: &mut Context<'_>) {}

    fn receive(&mut self, from: Place, message: Message, context: &mut Context<'_>) {
        match message {
            Message::Request { id, client, body, payload } => {
                let (body, payload) = self.serve(client, &body, &payload, context);
                context.send(from, Message::Reply { id, body, payload });
            }
            Message::Control { id, body } => {
                let reply = match control::decode(&body) {
                    Ok(request) => self.control(&request),
                    Err(_) => ControlReply::failed(ErrorKind::Corrupt, "control request"),
                };
                context.send(from, Message::control_reply(id, &reply));
            }
            Message::Reply { .. } | Message::ControlReply { .. } => {}
        }
    }

    fn broken(&mut self, _: Place, _: &mut Context<'_>) {}

    fn wake(&mut self, _: &mut Context<'_>) {}
}
