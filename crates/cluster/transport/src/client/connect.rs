//! Making a link: connect, prove, and take the memory that the node shares.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use samite_arena::{ArenaView, GrantPool, file_len};
use samite_cpu::timespec;
use samite_types::fault::{FaultParty, FaultSwitch};
use samite_types::{
    ClientId, Deadline, Entropy, Error, ErrorKind, NodeId, RequestId, Result, SystemEntropy,
};
use samite_wire::frame::{FrameKind, HEADER_LEN};
use samite_wire::hello::{RingLayout, VERSION, Welcome, version_3};

use super::channel::HandshakeChannel;
use super::descriptor::LinkDescriptor;
use super::reader::LinkReader;
use super::rings::RingSender;
use super::sender::SocketSender;
use super::shared::LinkShared;
use super::table::RequestTable;
use crate::address::socket_flags;
use crate::credential::Credential;
use crate::fault::{bend, reset, words};
use crate::handshake::ClientSide;
use crate::key::ClusterKey;
use crate::shm::ring::{RingConsumer, RingKind, RingMemory, memory_len};
use crate::socket::{self, Descriptors};
use crate::tls::TlsSession;
use crate::{Address, TransportKind};

/// First and longest pause before a connection is tried again that was lost while it was made.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// How often in a row a refusal has to come for which nothing vouches.
const REFUSALS_MIN: u32 = 3;

/// The client or node that connects.
#[derive(Clone, Debug)]
pub struct ConnectIdentity {
    /// Session.
    pub client: ClientId,
    /// For a node: its number and its faults, which apply to the frames that are sent by the
    /// connection.
    pub faults: Option<Arc<FaultSwitch>>,
}

impl ConnectIdentity {
    /// A client.
    #[must_use]
    pub const fn client(client: ClientId) -> Self {
        Self { client, faults: None }
    }

    /// A node, in a session of its own.
    #[must_use]
    pub fn node(faults: &Arc<FaultSwitch>) -> Self {
        let client = ClientId(SystemEntropy.next_u64());
        Self { client, faults: Some(Arc::clone(faults)) }
    }

    fn node_id(&self) -> Option<NodeId> {
        self.faults.as_ref().map(|faults| faults.node())
    }
}

/// Connects; both sides prove who they are.
pub(super) fn connect(
    address: &Address,
    credential: &Credential,
    who: &ConnectIdentity,
    deadline: Deadline,
) -> Result<LinkShared> {
    let wants_rings = address.transport() == TransportKind::Shm;
    insist(address, credential, deadline, |mut channel, form| {
        let (node, welcome) = handshake(&mut channel, form, (wants_rings, credential), who)?;
        let mut shared = open(channel, address.clone(), (node, form.version()), &welcome)?;
        shared.faults = who.faults.clone();
        Ok(shared)
    })
}

/// Connects one node to another: a socket, TLS if it has that, and the peer at the other end.
pub(crate) fn connect_node(
    address: &Address,
    credential: &Credential,
    who: &ConnectIdentity,
    deadline: Deadline,
) -> Result<(OwnedFd, Option<TlsSession>, NodeId)> {
    insist(address, credential, deadline, |mut channel, form| {
        let (node, _) = handshake(&mut channel, form, (false, credential), who)?;
        Ok((channel.fd, channel.tls, node))
    })
}

/// Connects, makes the TLS handshake if there is one, and then the other one by `make`: again and
/// again until the deadline, as long as only messages are lost.
///
/// Where nobody listens, that is an answer. A node that listens answers too when it refuses:
/// another key, another version, another user. All else that ends a connection before it is made
/// (it closes, is reset, or bytes of it are damaged) says nothing about the node: the words are
/// lost, and are said again by a new connection: in the words of an older version, too, if the
/// node has not understood the newest.
fn insist<T>(
    address: &Address,
    credential: &Credential,
    deadline: Deadline,
    mut make: impl FnMut(HandshakeChannel, HelloForm) -> Result<T>,
) -> Result<T> {
    let mut pause = PAUSE_MIN;
    let mut refusals = 0;
    let mut form = HelloForm::Newest;
    // Why a node did not take an earlier connection, if it has said so.
    let mut said: Option<Error> = None;
    let late = |error: &Error| {
        Error::new(ErrorKind::Timeout, format!("no connection in time: {}", error.message()))
    };
    loop {
        let mut channel =
            HandshakeChannel::open(address, deadline).map_err(|error| named(error, address))?;
        let (error, by_tls) = match channel.begin(address, credential) {
            Err(error) => (named(error, address), true),
            Ok(()) => match make(channel, form) {
                Ok(made) => return Ok(made),
                Err(error) => (named(error, address), false),
            },
        };
        match ConnectFailure::of(error.kind(), by_tls) {
            ConnectFailure::Answer if error.kind() == ErrorKind::Timeout => {
                return Err(said.as_ref().map_or(error, late));
            }
            ConnectFailure::Answer => return Err(error),
            ConnectFailure::Doubtful => {
                refusals += 1;
                if refusals == REFUSALS_MIN {
                    return Err(error);
                }
            }
            ConnectFailure::Lost => refusals = 0,
        }
        form = form.after(error.kind(), credential);
        if error.kind() == ErrorKind::Busy {
            said = Some(error.clone());
        }
        let Some(left) = deadline.remaining().filter(|left| *left > pause) else {
            return Err(late(said.as_ref().unwrap_or(&error)));
        };
        let _ = rustix::thread::nanosleep(&timespec(pause.min(left)));
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// The words in which a client greets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HelloForm {
    /// Those of the newest version.
    Newest,
    /// Those of version 3.
    Version3,
}

impl HelloForm {
    /// The version that is spoken after it: there is one for each form, so far.
    const fn version(self) -> u8 {
        match self {
            Self::Newest => VERSION,
            Self::Version3 => version_3::VERSION,
        }
    }

    /// Those of the next try. A node that does not know the newest words says that they are
    /// damaged, or of another version; so does one that knows them of the older ones.
    fn after(self, failure: ErrorKind, credential: &Credential) -> Self {
        let is_misunderstood = matches!(failure, ErrorKind::Corrupt | ErrorKind::WrongVersion);
        let has_first_key = credential.key().is_some_and(|key| key.number() == ClusterKey::FIRST);
        match self {
            Self::Newest if is_misunderstood && has_first_key => Self::Version3,
            Self::Version3 if is_misunderstood => Self::Newest,
            form => form,
        }
    }
}

/// Meaning of a connection that could not be made after the peer had accepted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectFailure {
    /// The other end, or this one, will say the same the next time.
    Answer,
    /// That would be an answer, but damaged bytes may look like it.
    Doubtful,
    /// Nobody has said anything that counts.
    Lost,
}

impl ConnectFailure {
    /// Handshake frames have a checksum, and a node that refuses a key has read it from a frame
    /// whose checksum was right: such a refusal, in a goodbye whose checksum is right, too, is an
    /// answer at once. A version stands in the header, before the checksum has been compared, and
    /// nothing vouches for a TLS alert before both sides have keys (a damaged hello may bring any
    /// alert): these count when they come [`REFUSALS_MIN`] times in a row, by a new connection
    /// each.
    fn of(kind: ErrorKind, by_tls: bool) -> Self {
        match kind {
            ErrorKind::Corrupt
            | ErrorKind::Unavailable
            | ErrorKind::TooLarge
            | ErrorKind::Busy
            | ErrorKind::Io => Self::Lost,
            ErrorKind::WrongVersion => Self::Doubtful,
            ErrorKind::WrongKey | ErrorKind::Denied if by_tls => Self::Doubtful,
            _ => Self::Answer,
        }
    }
}

fn named(error: Error, address: &Address) -> Error {
    let words = format!("connect {address}");
    // The system's errors name it already.
    if error.message().starts_with(&words) { error } else { error.context(words) }
}

fn handshake(
    channel: &mut HandshakeChannel,
    form: HelloForm,
    (wants_rings, credential): (bool, &Credential),
    who: &ConnectIdentity,
) -> Result<(NodeId, Welcome)> {
    let binding = channel.tls.as_ref().map(|tls| tls.binding);
    let names = (who.client, who.node_id());
    let (side, hello) = match form {
        HelloForm::Newest => ClientSide::start(names, wants_rings, credential, &SystemEntropy),
        HelloForm::Version3 => ClientSide::start_version_3(names, credential, &SystemEntropy),
    };
    if let Err(unsent) = channel.send(&hello) {
        // A node that refuses every client says so before it is asked.
        let (kind, body) = channel.receive().map_err(|_| unsent.clone())?;
        return Err(side.challenged(kind, &body, None).err().unwrap_or(unsent));
    }
    let (kind, body) = channel.receive()?;
    let (node, mut proof) = side.challenged(kind, &body, binding.as_ref())?;
    if let Some(faults) = &who.faults {
        let words = words(FrameKind::Proof, RequestId(0), &[], &[]);
        let verdict = faults.handshake(FaultParty::Node(node), true, words);
        if verdict.is_reset {
            reset(channel.fd.as_fd());
            return Err(Error::new(ErrorKind::Unavailable, "reset on purpose"));
        }
        if let Some(random) = verdict.corrupt {
            let body_len = proof.len() - HEADER_LEN;
            bend(&mut proof, 0, body_len, random);
        }
    }
    // A node that is cut off from the other one waits in vain.
    if !who.faults.as_ref().is_some_and(|faults| faults.is_cut(node)) {
        channel.send(&proof)?;
    }
    let (kind, body) = channel.receive()?;
    Ok((node, side.welcomed(kind, &body)?))
}

fn open(
    channel: HandshakeChannel,
    address: Address,
    (node, version): (NodeId, u8),
    welcome: &Welcome,
) -> Result<LinkShared> {
    let HandshakeChannel { fd, descriptors, tls, .. } = channel;
    let (rings, arena) = match &welcome.rings {
        Some(layout) => {
            let (sender, replies, arena) = take_shared_memory(layout, descriptors)?;
            (Some((sender, replies)), arena)
        }
        None if address.transport() == TransportKind::Shm => {
            return Err(Error::new(ErrorKind::Unsupported, "node shares no memory"));
        }
        None => (None, None),
    };
    let (ring, replies) = rings.unzip();
    let (sender, opener) = match tls {
        Some(tls) => (SocketSender::sealed(tls.sealer), Some(Mutex::new(tls.opener))),
        None => (SocketSender::default(), None),
    };
    let reader = LinkReader::new(replies, socket_flags(address.is_tcp()));
    Ok(LinkShared {
        address,
        node,
        map_epoch: welcome.map_epoch,
        version,
        socket: LinkDescriptor::new(fd),
        table: RequestTable::new(),
        sender,
        opener,
        ring,
        reader: Mutex::new(reader),
        arena: arena.map(Arc::new),
        grants: GrantPool::default(),
        faults: None,
    })
}

fn take_shared_memory(
    layout: &RingLayout,
    descriptors: Descriptors,
) -> Result<(RingSender, RingConsumer, Option<ArenaView>)> {
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
    let arena = descriptors.next().map(|file| ArenaView::map(&file, layout.queue)).transpose()?;
    let doorbell = LinkDescriptor::new(socket::move_up(doorbell));
    let replies = RingConsumer::new(memory.clone(), RingKind::Replies);
    Ok((RingSender::new(memory, doorbell), replies, arena))
}
