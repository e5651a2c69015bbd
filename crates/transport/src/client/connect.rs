//! Making a link: connect, prove, and take what the node shares.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};

use rustix::event::PollFlags;
use samite_types::fault::Faults;
use samite_types::{ClientId, Deadline, Entropy, Error, ErrorKind, NodeId, Result, SystemEntropy};
use samite_wire::frame::{FrameKind, HEADER_LEN, Header};
use samite_wire::hello::{RingLayout, Welcome};

use super::reader::Reader;
use super::rings::RingSender;
use super::sender::Sender;
use super::shared::{Descriptor, Shared};
use super::table::Table;
use crate::handshake::{ClientSide, check_header};
use crate::key::ClusterKey;
use crate::shm::mapping::file_len;
use crate::shm::ring::{Consumer, Ring, RingMemory, memory_len};
use crate::shm::{ArenaView, GrantPool};
use crate::socket::{self, Descriptors, poll_for, receive_with_descriptors, send_now};
use crate::{Address, Transport};

/// Who connects.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Session.
    pub client: ClientId,
    /// For a node: its number and its faults, which meet what is sent by the connection.
    pub faults: Option<Arc<Faults>>,
}

impl Identity {
    /// A client.
    #[must_use]
    pub const fn client(client: ClientId) -> Self {
        Self { client, faults: None }
    }

    /// A node, in a session of its own.
    #[must_use]
    pub fn node(faults: &Arc<Faults>) -> Self {
        let client = ClientId(SystemEntropy.next_u64());
        Self { client, faults: Some(Arc::clone(faults)) }
    }

    fn node_id(&self) -> Option<NodeId> {
        self.faults.as_ref().map(|faults| faults.node())
    }
}

/// Connects and proves the cluster key, both ways.
pub(super) fn connect(
    address: &Address,
    key: &ClusterKey,
    who: &Identity,
    deadline: Deadline,
) -> Result<Shared> {
    let fd = socket::connect(address, deadline)?;
    let wants_rings = address.transport() == Transport::Shm;
    handshake(&fd, (wants_rings, key), who, deadline)
        .and_then(|(node, welcome, descriptors)| {
            let mut shared = open(fd, address.clone(), node, &welcome, descriptors)?;
            shared.faults = who.faults.clone();
            Ok(shared)
        })
        .map_err(|error| error.context(format_args!("connect {address}")))
}

/// Connects one node to another: a socket, and who is at the other end.
pub(crate) fn connect_node(
    address: &Address,
    key: &ClusterKey,
    who: &Identity,
    deadline: Deadline,
) -> Result<(OwnedFd, NodeId)> {
    let fd = socket::connect(address, deadline)?;
    let made = handshake(&fd, (false, key), who, deadline);
    match made {
        Ok((peer, ..)) => Ok((fd, peer)),
        Err(error) => Err(error.context(format_args!("connect {address}"))),
    }
}

fn handshake(
    fd: &OwnedFd,
    (wants_rings, key): (bool, &ClusterKey),
    who: &Identity,
    deadline: Deadline,
) -> Result<(NodeId, Welcome, Descriptors)> {
    let mut descriptors = Descriptors::new();
    let (side, hello) = ClientSide::start(who.client, who.node_id(), wants_rings, &SystemEntropy);
    send(fd, &hello)?;
    let (kind, body) = receive(fd, deadline, &mut descriptors)?;
    let (node, proof) = side.challenged(kind, &body, key)?;
    // A node that is cut off from the other one waits in vain.
    if !who.faults.as_ref().is_some_and(|faults| faults.is_cut(node)) {
        send(fd, &proof)?;
    }
    let (kind, body) = receive(fd, deadline, &mut descriptors)?;
    Ok((node, ClientSide::welcomed(kind, &body)?, descriptors))
}

fn send(fd: &OwnedFd, bytes: &[u8]) -> Result<()> {
    // A fresh socket has room for a handshake message, or something is very wrong.
    match send_now(fd.as_fd(), &[std::io::IoSlice::new(bytes)]) {
        Ok(len) if len == bytes.len() => Ok(()),
        Ok(_) => Err(Error::new(ErrorKind::Io, "handshake was cut short")),
        Err(errno) => Err(Error::io("handshake", errno)),
    }
}

/// Receives one handshake frame, and not a byte more.
fn receive(
    fd: &OwnedFd,
    deadline: Deadline,
    descriptors: &mut Descriptors,
) -> Result<(FrameKind, Vec<u8>)> {
    let mut raw = [0; HEADER_LEN];
    fill(fd, &mut raw, deadline, descriptors)?;
    let header = Header::parse(&raw)?;
    check_header(&header)?;
    let mut body = vec![0; header.body_len];
    fill(fd, &mut body, deadline, descriptors)?;
    header.verify(&body, &[])?;
    Ok((header.kind, body))
}

fn fill(
    fd: &OwnedFd,
    mut buffer: &mut [u8],
    deadline: Deadline,
    descriptors: &mut Descriptors,
) -> Result<()> {
    let failed = |errno| Error::io("handshake", errno);
    while !buffer.is_empty() {
        let remaining = deadline
            .remaining()
            .ok_or_else(|| Error::new(ErrorKind::Timeout, "no answer in the handshake"))?;
        if poll_for(fd.as_fd(), PollFlags::IN, remaining).map_err(failed)?.is_empty() {
            continue;
        }
        let (len, more) = receive_with_descriptors(fd.as_fd(), buffer).map_err(failed)?;
        if len == 0 {
            return Err(Error::new(ErrorKind::Unavailable, "closed by the node in the handshake"));
        }
        descriptors.extend(more);
        buffer = &mut buffer[len..];
    }
    Ok(())
}

fn open(
    fd: OwnedFd,
    address: Address,
    node: NodeId,
    welcome: &Welcome,
    descriptors: Descriptors,
) -> Result<Shared> {
    let (rings, arena) = match &welcome.rings {
        Some(layout) => {
            let (sender, replies, arena) = take_shared_memory(layout, descriptors)?;
            (Some((sender, replies)), arena)
        }
        None if address.transport() == Transport::Shm => {
            return Err(Error::new(ErrorKind::Unsupported, "node shares no memory"));
        }
        None => (None, None),
    };
    let (ring, replies) = rings.unzip();
    Ok(Shared {
        address,
        node,
        map_epoch: welcome.map_epoch,
        socket: Descriptor::new(fd),
        table: Table::new(),
        sender: Sender::default(),
        ring,
        reader: Mutex::new(Reader::new(replies)),
        arena,
        grants: GrantPool::default(),
        faults: None,
    })
}

fn take_shared_memory(
    layout: &RingLayout,
    descriptors: Descriptors,
) -> Result<(RingSender, Consumer, Option<ArenaView>)> {
    let corrupt = |what: &'static str| Error::new(ErrorKind::Corrupt, what);
    let mut descriptors = descriptors.into_iter();
    let (Some(file), Some(doorbell)) = (descriptors.next(), descriptors.next()) else {
        return Err(corrupt("welcome came without its descriptors"));
    };
    let failed = |errno| Error::io("map rings", errno);
    let len = memory_len(layout).ok_or_else(|| corrupt("ring layout is not valid"))?;
    if file_len(file.as_fd()).map_err(failed)? < len as u64 {
        return Err(corrupt("ring memory is shorter than its layout"));
    }
    let memory: Arc<RingMemory> = RingMemory::map(&file, layout).map_err(failed)?;
    let arena = descriptors.next().map(|file| ArenaView::map(&file)).transpose()?;
    let doorbell = Descriptor::new(socket::move_up(doorbell));
    let replies = Consumer::new(memory.clone(), Ring::Replies);
    Ok((RingSender::new(memory, doorbell), replies, arena))
}
