//! Making tickets with the cluster key, asking a node for them, and taking them into use.

use std::path::Path;
use std::time::Duration;

use samite_transport::client::NodeLink;
use samite_transport::ticket::issue;
use samite_transport::{Address, Credential, SigningPair};
use samite_types::{
    ClientId, Clock, Deadline, Entropy, Error, ErrorKind, NodeId, Result, SystemClock,
    SystemEntropy,
};
use samite_wire::control::{ControlReply, ControlRequest};
use samite_wire::ticket::{TICKET_VERSION, TicketClaims};

use crate::runtime::{
    ClusterDir, ClusterFile, ClusterSetup, NodeEntry, RuntimeDir, TicketFile, is_there, to_base64,
    write_file,
};

/// Time for which another program may keep a ticket from being taken into use.
const LOCK_WAIT: Duration = Duration::from_secs(5);

/// A ticket that the owner of a store makes for a user.
#[derive(Clone, Debug)]
pub struct TicketOrder {
    /// The user.
    pub uid: u32,
    /// His groups; at most [`samite_wire::ticket::TICKET_GROUPS_MAX`] count.
    pub gids: Vec<u32>,
    /// Time for which it counts.
    pub life: Duration,
    /// Time for which it can be renewed, from now on.
    pub renewable: Duration,
    /// The public key of its holder, who keeps the private one; `None`: a new pair comes with the
    /// ticket.
    pub public_key: Option<[u8; 32]>,
}

impl TicketOrder {
    /// Makes the ticket with the key in `dir`. `nodes`: where other hosts reach the nodes.
    ///
    /// # Errors
    /// `NotFound`: the cluster key is not here, as only nodes and the owner have it; `TooLarge`:
    /// too many groups; else as [`ClusterDir::read_keys`].
    pub fn issue(&self, dir: &ClusterDir, nodes: Vec<(NodeId, String)>) -> Result<TicketFile> {
        let keys = dir.read_keys()?;
        let pair = SigningPair::generate(&SystemEntropy);
        let private_key = self.public_key.is_none().then(|| to_base64(pair.seed()));
        let issued_s = SystemClock.realtime().as_secs();
        let expires_s = issued_s.saturating_add(self.life.as_secs());
        let claims = TicketClaims {
            version: TICKET_VERSION,
            cluster: dir.name().to_owned(),
            key_number: keys.current().number(),
            uid: self.uid,
            gids: self.gids.clone(),
            issued_s,
            expires_s,
            renewable_until_s: issued_s.saturating_add(self.renewable.as_secs()).max(expires_s),
            public_key: self.public_key.unwrap_or_else(|| pair.public_key()),
        };
        Ok(TicketFile {
            cluster: dir.name().to_owned(),
            ticket: to_base64(&issue(keys.current(), claims)?),
            private_key,
            node_key: to_base64(&keys.current().node_public_key()),
            cluster_id: to_base64(keys.id()),
            nodes,
            authorities: dir.read_authorities_pem()?,
        })
    }
}

impl TicketFile {
    /// Asks the node that gives out tickets at this unix socket for one for this process's user.
    ///
    /// # Errors
    /// `Unavailable`: nobody is there; `Denied`: it gives out none; `Timeout`.
    pub fn request(socket: &Path, timeout: Duration) -> Result<Self> {
        let deadline = Deadline::after(timeout);
        let address = Address::Unix(socket.to_owned());
        let client = ClientId(SystemEntropy.next_u64());
        let link = NodeLink::connect(&address, &Credential::Nothing, client, deadline)?;
        let pair = SigningPair::generate(&SystemEntropy);
        let request = ControlRequest::IssueTicket { public_key: pair.public_key() };
        let issued = match link.control(&request, deadline)?.checked()? {
            ControlReply::Ticket(issued) => issued,
            _ => return Err(Error::new(ErrorKind::Corrupt, "the node answers another question")),
        };
        let (_, claims) = samite_wire::ticket::SignedTicket::parse(&issued.ticket)?;
        Ok(Self {
            cluster: claims.cluster,
            ticket: to_base64(&issued.ticket),
            private_key: Some(to_base64(pair.seed())),
            node_key: to_base64(&issued.node_key),
            cluster_id: to_base64(&issued.cluster_id),
            nodes: issued.nodes,
            authorities: issued.authorities,
        })
    }

    /// What the ticket says.
    ///
    /// # Errors
    /// `Corrupt`: it is none.
    pub fn claims(&self) -> Result<TicketClaims> {
        Ok(samite_wire::ticket::SignedTicket::parse(&self.ticket_bytes()?)?.1)
    }
}

impl RuntimeDir {
    /// Takes a ticket into use: from now on this user reaches the store by the name of its cluster.
    /// One that is here is replaced by a new one for the same store.
    ///
    /// # Errors
    /// `Invalid`: the ticket has no private key, or another's; `Exists`: the cluster key of a store
    /// of this name is here, or a ticket for another store; `Denied`: the runtime directory is open
    /// to others; `Corrupt`: this file, or the one that is here, is no ticket; `Timeout`: others
    /// write there.
    pub fn use_ticket(&self, file: &TicketFile) -> Result<ClusterDir> {
        file.credential()?;
        file.id()?;
        let dir = self.cluster(&file.cluster)?;
        self.create()?;
        dir.create()?;
        let taken = |what: &str| {
            let shown = dir.path().display();
            Err(Error::new(ErrorKind::Exists, format!("{shown}: {what}")))
        };
        if is_there(&dir.key_path()) {
            return taken("the cluster key of a store of this name is here");
        }
        let _one = dir.lock(Deadline::after(LOCK_WAIT))?;
        match dir.read_ticket() {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Ok(there) if there.cluster_id == file.cluster_id => {}
            Ok(there) if there.claims()?.expires_s <= SystemClock.realtime().as_secs() => {}
            Ok(_) => return taken("a ticket for another store of this name is here"),
            Err(error) => return Err(error),
        }
        file.write(&dir.ticket_path())?;
        dir.write_cluster_file(&described(file))?;
        Ok(dir)
    }
}

/// The store as its clients on this host see it: by the network only.
fn described(file: &TicketFile) -> ClusterFile {
    ClusterFile {
        cluster: file.cluster.clone(),
        nodes: NodeEntry::on_network(&file.nodes),
        created_s: SystemClock.realtime().as_secs(),
        setup: ClusterSetup::default(),
        is_attached: true,
    }
}

/// Makes a key pair for a ticket: the private key goes to the file `path` (mode 0600), which must
/// not be there. Returns the public key, in base64.
///
/// # Errors
/// `Exists`; the error of the system.
pub fn make_ticket_key(path: &Path) -> Result<String> {
    if is_there(path) {
        return Err(Error::new(ErrorKind::Exists, format!("{}: is there", path.display())));
    }
    let pair = SigningPair::generate(&SystemEntropy);
    write_file(path, format!("{}\n", to_base64(pair.seed())).as_bytes())?;
    Ok(to_base64(&pair.public_key()))
}
