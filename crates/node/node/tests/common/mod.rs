//! A client that knows nothing but frames: it sees exactly what the node does.

#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test ends at what it does not expect")]

use std::cell::Cell;
use std::time::Duration;

use samite_arena::{BlockGrant, GrantPool};
use samite_placement::ClusterMap;
use samite_testkit::{LocalCluster, LocalOptions};
use samite_transport::client::{NodeLink, OutgoingRequest};
use samite_transport::ticket::{self, UserTicket};
use samite_transport::{Address, ClusterKey, Credential, SigningPair};
use samite_types::{
    ClientId, Clock, DatasetId, Deadline, Entropy, Epoch, ErrorKind, NodeId, PartitionId,
    Redundancy, Result, Seq, SystemClock, SystemEntropy,
};
use samite_wire::control::{
    self, BackendSpec, ControlReply, ControlRequest, DatasetSpec, MEMORY_BACKEND, ReadsKind,
};
use samite_wire::frame::FrameKind;
use samite_wire::op::{
    ActionResult, BlockRef, Operation, OperationOutcome, OperationReply, RequestEncoder,
    RequestHeader, ValueData,
};
use samite_wire::status::NodeStatus;
use samite_wire::ticket::{TICKET_VERSION, TicketClaims};

/// Position of a transport in a node's list of addresses.
pub const SHM: usize = 0;
pub const UNIX: usize = 1;
pub const TCP: usize = 2;

pub fn cluster(nodes: usize, shards: u16) -> LocalCluster {
    LocalCluster::start(nodes, LocalOptions { shards, ..LocalOptions::default() }).unwrap()
}

pub fn deadline() -> Deadline {
    Deadline::after(Duration::from_secs(10))
}

pub fn spec(name: &str, backend: &str) -> DatasetSpec {
    DatasetSpec { backend: BackendSpec::named(backend), ..DatasetSpec::new(name) }
}

/// One connection, and the map it was given.
pub struct Raw {
    pub link: NodeLink,
    pub map: ClusterMap,
    pub node: NodeId,
    client: ClientId,
    seq: Cell<u64>,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Got {
    Value { total_len: u32, bytes: Vec<u8> },
    Written { offset: u32, total_len: u32, created: bool },
    Deleted(bool),
    Number(u64),
    Listing { keys: Vec<Vec<u8>>, complete: bool },
}

#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    Done(Vec<Got>),
    Failed { kind: ErrorKind, index: u16, current: Option<Vec<u8>> },
}

impl Ended {
    /// The one result of an operation that took effect.
    pub fn only(self) -> Got {
        match self {
            Self::Done(mut results) if results.len() == 1 => results.remove(0),
            other => panic!("{other:?}"),
        }
    }

    pub fn value(self) -> Vec<u8> {
        match self.only() {
            Got::Value { bytes, .. } => bytes,
            other => panic!("{other:?}"),
        }
    }

    pub fn failure(&self) -> ErrorKind {
        match self {
            Self::Failed { kind, .. } => *kind,
            Self::Done(_) => panic!("{self:?}"),
        }
    }
}

#[derive(Debug)]
pub struct Answer {
    pub refused: Option<ErrorKind>,
    pub map_epoch: Epoch,
    pub name_space_generation: Epoch,
    pub outcomes: Vec<Ended>,
    pub grants: Vec<BlockRef>,
    /// Some value came by reference into the arena.
    pub by_reference: bool,
}

impl Answer {
    pub fn only(mut self) -> Ended {
        assert_eq!(self.refused, None);
        assert_eq!(self.outcomes.len(), 1);
        self.outcomes.remove(0)
    }
}

/// The cluster's key.
pub fn key(cluster: &LocalCluster) -> ClusterKey {
    ClusterKey::new(*cluster.key())
}

/// A ticket of the cluster for this user, which ends in so many seconds.
pub fn ticket_for(cluster: &LocalCluster, uid: u32, life_s: u64) -> UserTicket {
    let key = key(cluster);
    let pair = SigningPair::generate(&SystemEntropy);
    let issued_s = SystemClock.realtime().as_secs();
    let expires_s = issued_s + life_s;
    let claims = TicketClaims {
        version: TICKET_VERSION,
        cluster: "tests".into(),
        key_number: 0,
        uid,
        gids: vec![uid],
        issued_s,
        expires_s,
        renewable_until_s: expires_s,
        public_key: pair.public_key(),
    };
    let bytes = ticket::issue(&key, claims).unwrap();
    UserTicket::new(bytes, pair, key.node_public_key()).unwrap()
}

impl Raw {
    pub fn connect(cluster: &LocalCluster, node: u32, transport: usize) -> Self {
        Self::connect_by(&key(cluster).into(), cluster, node, transport)
    }

    pub fn connect_by(
        credential: &Credential,
        cluster: &LocalCluster,
        node: u32,
        transport: usize,
    ) -> Self {
        let node = NodeId(node);
        let address: Address = cluster.addresses(node)[transport].parse().unwrap();
        let client = ClientId(SystemEntropy.next_u64());
        let link = NodeLink::connect(&address, credential, client, deadline()).unwrap();
        assert_eq!(link.node(), node);
        let map = match ask(&link, &ControlRequest::Map { known: Epoch(0) }).unwrap() {
            ControlReply::Map(Some(data)) => ClusterMap::new(data).unwrap(),
            other => panic!("{other:?}"),
        };
        Self { link, map, node, client, seq: Cell::new(0) }
    }

    /// One more connection of the same client.
    pub fn another(&self, cluster: &LocalCluster, node: u32, transport: usize) -> NodeLink {
        let address: Address = cluster.addresses(NodeId(node))[transport].parse().unwrap();
        NodeLink::connect(&address, key(cluster), self.client, deadline()).unwrap()
    }

    pub fn control(&self, request: &ControlRequest) -> ControlReply {
        ask(&self.link, request).unwrap()
    }

    pub fn status(&self) -> NodeStatus {
        match self.control(&ControlRequest::Status) {
            ControlReply::Status(status) => status,
            other => panic!("{other:?}"),
        }
    }

    /// Makes a dataset and takes up the map that has it.
    pub fn create(&mut self, name: &str, backend: &str) -> DatasetId {
        match self.control(&ControlRequest::CreateDataset(spec(name, backend))) {
            ControlReply::Map(Some(data)) => self.map = ClusterMap::new(data).unwrap(),
            other => panic!("{other:?}"),
        }
        self.map.dataset(name).unwrap().id
    }

    /// Makes a dataset of which so many nodes have each record.
    pub fn create_mirrored(&mut self, name: &str, copies: u8) -> DatasetId {
        self.create_read_by(name, copies, ReadsKind::Primary)
    }

    /// The same, with the members that answer reads.
    pub fn create_read_by(&mut self, name: &str, copies: u8, reads: ReadsKind) -> DatasetId {
        let redundancy = Redundancy(copies);
        let spec = DatasetSpec { redundancy, reads, ..spec(name, MEMORY_BACKEND) };
        match self.control(&ControlRequest::CreateDataset(spec)) {
            ControlReply::Map(Some(data)) => self.map = ClusterMap::new(data).unwrap(),
            other => panic!("{other:?}"),
        }
        self.map.dataset(name).unwrap().id
    }

    /// Copies `value` into granted blocks.
    pub fn fill(&self, granted: &[(u64, u32)], value: &[u8]) -> ValueData<'static> {
        let arena = self.link.arena().unwrap();
        let pool = GrantPool::default();
        pool.add(granted.iter().map(|block| BlockGrant::from(*block)));
        let blocks = pool.take(arena, granted.len()).unwrap();
        ValueData::Blocks(arena.fill(&blocks, value).unwrap().into_iter().collect())
    }

    /// A partition of this node whose shard is `shard` of `shards`.
    pub fn partition(&self, shard: u32, shards: u32) -> PartitionId {
        (0..self.map.partitions())
            .map(PartitionId)
            .find(|p| {
                self.map.node_of(Redundancy(1), *p) == Some(self.node) && p.get() % shards == shard
            })
            .unwrap()
    }

    /// All partitions of this node.
    pub fn partitions(&self) -> Vec<PartitionId> {
        (0..self.map.partitions())
            .map(PartitionId)
            .filter(|p| self.map.node_of(Redundancy(1), *p) == Some(self.node))
            .collect()
    }

    pub fn header(&self, dataset: DatasetId) -> RequestHeader {
        RequestHeader {
            dataset,
            map_epoch: self.map.epoch(),
            name_space_generation: Epoch(u64::MAX),
            answered_below: Seq(0),
            is_retry: false,
        }
    }

    /// Sends `operations` in one request; mutations get the next sequence numbers. It is sent again while one of them cannot be done now.
    pub fn send(&self, dataset: DatasetId, mut operations: Vec<Operation<'_>>) -> Answer {
        for operation in operations.iter_mut().filter(|operation| operation.is_mutation()) {
            self.seq.set(self.seq.get() + 1);
            operation.seq = Seq(self.seq.get());
        }
        let (deadline, mut header) = (deadline(), self.header(dataset));
        loop {
            let answer = self.try_send(&header, &operations).unwrap();
            let waits =
                |ended: &Ended| matches!(ended, Ended::Failed { kind: ErrorKind::Unavailable, .. });
            if !answer.outcomes.iter().any(waits) || deadline.remaining().is_none() {
                return answer;
            }
            header.is_retry = true;
        }
    }

    pub fn one(&self, dataset: DatasetId, operation: Operation<'_>) -> Ended {
        self.send(dataset, vec![operation]).only()
    }

    pub fn try_send(&self, header: &RequestHeader, operations: &[Operation<'_>]) -> Result<Answer> {
        let mut encoder = RequestEncoder::new(Vec::new(), header);
        for operation in operations {
            encoder.operation(operation);
        }
        let (body, payload) = encoder.finish();
        let outgoing = OutgoingRequest { kind: FrameKind::Request, body: &body, payload: &payload };
        self.link.call(outgoing, deadline(), |reply| {
            assert_eq!(reply.kind(), FrameKind::Reply);
            let payload = match reply.payload_in_place() {
                Some(payload) => payload.to_vec(),
                None => {
                    let mut payload = vec![0; reply.payload_left()];
                    reply.read_payload(&mut payload).unwrap();
                    payload
                }
            };
            self.answer(&OperationReply::decode(reply.body(), &payload).unwrap())
        })
    }

    fn answer(&self, reply: &OperationReply<'_>) -> Answer {
        let by_reference = std::cell::Cell::new(false);
        let fetch = |pieces: &[ValueData<'_>]| {
            let mut bytes = Vec::new();
            for piece in pieces {
                match piece {
                    ValueData::Inline(inline) => bytes.extend_from_slice(inline),
                    ValueData::Zeros(len) => bytes.resize(bytes.len() + *len as usize, 0),
                    ValueData::Blocks(blocks) => {
                        by_reference.set(true);
                        for block in blocks {
                            let mut part = vec![0; block.len as usize];
                            assert!(self.link.arena().unwrap().copy_out(block, &mut part));
                            bytes.extend_from_slice(&part);
                        }
                    }
                }
            }
            bytes
        };
        let outcomes = reply.outcomes.iter().map(|outcome| ended(outcome, &fetch)).collect();
        Answer {
            refused: reply.header.refused,
            map_epoch: reply.header.map_epoch,
            name_space_generation: reply.header.name_space_generation,
            outcomes,
            grants: reply.grants.to_vec(),
            by_reference: by_reference.get(),
        }
    }
}

fn ended(outcome: &OperationOutcome<'_>, fetch: &dyn Fn(&[ValueData<'_>]) -> Vec<u8>) -> Ended {
    match outcome {
        OperationOutcome::Done(results) => Ended::Done(
            results
                .iter()
                .map(|result| match result {
                    ActionResult::Value { total_len, data, .. } => {
                        Got::Value { total_len: *total_len, bytes: fetch(data) }
                    }
                    ActionResult::Written { offset, total_len, created, .. } => {
                        Got::Written { offset: *offset, total_len: *total_len, created: *created }
                    }
                    ActionResult::Deleted { existed } => Got::Deleted(*existed),
                    ActionResult::Number(number) => Got::Number(*number),
                    ActionResult::Listing(listing) => Got::Listing {
                        keys: listing.entries().map(|entry| entry.key.to_vec()).collect(),
                        complete: listing.complete,
                    },
                })
                .collect(),
        ),
        OperationOutcome::Failed(failure) => Ended::Failed {
            kind: failure.kind,
            index: failure.index,
            current: failure.current.map(|(_, _, bytes)| bytes.to_vec()),
        },
    }
}

pub fn ask(link: &NodeLink, request: &ControlRequest) -> Result<ControlReply> {
    let body = control::encode(request);
    let outgoing = OutgoingRequest { kind: FrameKind::Control, body: &body, payload: &[] };
    link.call(outgoing, deadline(), |reply| control::decode(reply.body()).unwrap())
}

/// Bytes that differ from place to place and from seed to seed.
pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at as u8).wrapping_mul(31) ^ (at >> 8) as u8 ^ seed).collect()
}
