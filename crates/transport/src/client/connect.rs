//! Making a link: connect, prove, and take what the node shares.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};

use samite_types::fault::Faults;
use samite_types::{ClientId, Deadline, Entropy, Error, ErrorKind, NodeId, Result, SystemEntropy};
use samite_wire::hello::{RingLayout, Welcome};

use super::channel::Channel;
use super::reader::Reader;
use super::rings::RingSender;
use super::sender::Sender;
use super::shared::{Descriptor, Shared};
use super::table::Table;
use crate::address::socket_flags;
use crate::handshake::ClientSide;
use crate::key::ClusterKey;
use crate::shm::mapping::file_len;
use crate::shm::ring::{Consumer, Ring, RingMemory, memory_len};
use crate::shm::{ArenaView, GrantPool};
use crate::socket::{self, Descriptors};
use crate::tls::Session;
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
    let wants_rings = address.transport() == Transport::Shm;
    let made = Channel::open(address, key, deadline).and_then(|mut channel| {
        let (node, welcome) = handshake(&mut channel, (wants_rings, key), who)?;
        let mut shared = open(channel, address.clone(), node, &welcome)?;
        shared.faults = who.faults.clone();
        Ok(shared)
    });
    made.map_err(|error| named(error, address))
}

/// Connects one node to another: a socket, TLS if it has that, and who is at the other end.
pub(crate) fn connect_node(
    address: &Address,
    key: &ClusterKey,
    who: &Identity,
    deadline: Deadline,
) -> Result<(OwnedFd, Option<Session>, NodeId)> {
    let made = Channel::open(address, key, deadline).and_then(|mut channel| {
        let (node, _) = handshake(&mut channel, (false, key), who)?;
        Ok((channel.fd, channel.tls, node))
    });
    made.map_err(|error| named(error, address))
}

fn named(error: Error, address: &Address) -> Error {
    let words = format!("connect {address}");
    // The system's errors name it already.
    if error.message().starts_with(&words) { error } else { error.context(words) }
}

fn handshake(
    channel: &mut Channel,
    (wants_rings, key): (bool, &ClusterKey),
    who: &Identity,
) -> Result<(NodeId, Welcome)> {
    let binding = channel.tls.as_ref().map(|tls| tls.binding);
    let (side, hello) = ClientSide::start(who.client, who.node_id(), wants_rings, &SystemEntropy);
    if let Err(unsent) = channel.send(&hello) {
        // A node that refuses whoever comes says so before it is asked.
        let (kind, body) = channel.receive().map_err(|_| unsent.clone())?;
        return Err(side.challenged(kind, &body, key, None).err().unwrap_or(unsent));
    }
    let (kind, body) = channel.receive()?;
    let (node, proof) = side.challenged(kind, &body, key, binding.as_ref())?;
    // A node that is cut off from the other one waits in vain.
    if !who.faults.as_ref().is_some_and(|faults| faults.is_cut(node)) {
        channel.send(&proof)?;
    }
    let (kind, body) = channel.receive()?;
    Ok((node, ClientSide::welcomed(kind, &body)?))
}

fn open(channel: Channel, address: Address, node: NodeId, welcome: &Welcome) -> Result<Shared> {
    let Channel { fd, descriptors, tls, .. } = channel;
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
    let (sender, opener) = match tls {
        Some(tls) => (Sender::sealed(tls.sealer), Some(Mutex::new(tls.opener))),
        None => (Sender::default(), None),
    };
    let reader = Reader::new(replies, socket_flags(address.is_tcp()));
    Ok(Shared {
        address,
        node,
        map_epoch: welcome.map_epoch,
        socket: Descriptor::new(fd),
        table: Table::new(),
        sender,
        opener,
        ring,
        reader: Mutex::new(reader),
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
