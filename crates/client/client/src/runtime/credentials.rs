//! The files of a cluster's directory by which a user proves who he is.

use std::path::{Path, PathBuf};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use samite_transport::ticket::UserTicket;
use samite_transport::{ClusterKeys, Credential, SigningPair, TlsAuthorities};
use samite_types::{Deadline, Error, ErrorKind, NodeId, Result};
use samite_wire::ticket::{IssuedTicket, SignedTicket};
use serde::{Deserialize, Serialize};

use super::{ClusterDir, DirectoryLock, NodeEntry, open_private_dir, read_file, write_file};

const AUTHORITIES_LEN_MAX: usize = 1 << 20;
const TICKET_FILE_LEN_MAX: usize = 2 << 20;

impl ClusterDir {
    /// Path of the cluster key.
    #[must_use]
    pub fn key_path(&self) -> PathBuf {
        self.path.join("key")
    }

    /// Path of this user's ticket.
    #[must_use]
    pub fn ticket_path(&self) -> PathBuf {
        self.path.join("ticket")
    }

    /// Writes the first key of a cluster (mode 0600).
    ///
    /// # Errors
    /// The error of the system.
    pub fn write_key(&self, key: &[u8; 32]) -> Result<()> {
        write_file(&self.key_path(), key)
    }

    /// Writes the keys of the cluster (mode 0600), atomically.
    ///
    /// # Errors
    /// The error of the system.
    pub fn write_keys(&self, keys: &ClusterKeys) -> Result<()> {
        write_file(&self.key_path(), &keys.to_bytes())
    }

    /// Reads the keys of the cluster.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] when they are none; [`ErrorKind::Denied`] when others may read them;
    /// otherwise as [`ClusterDir::check`], or the error of the system.
    pub fn read_keys(&self) -> Result<ClusterKeys> {
        self.check()?;
        read_key_file(&self.key_path())
    }

    /// Bytes that tell the cluster from all others, earlier ones of its name included. They are
    /// the same for its owner and all other users, and stay when the cluster key is changed.
    ///
    /// # Errors
    /// As [`ClusterDir::read_credential`].
    pub fn read_id(&self) -> Result<Vec<u8>> {
        match self.read_keys() {
            Err(missing) if missing.kind() == ErrorKind::NotFound => match self.read_ticket() {
                Err(error) if error.kind() == ErrorKind::NotFound => Err(missing),
                file => file?.id(),
            },
            keys => Ok(keys?.id().to_vec()),
        }
    }

    /// What this user proves to the nodes: the cluster key if it is here, else the ticket.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]: neither is here; else as [`ClusterDir::read_keys`] and
    /// [`TicketFile::read`].
    pub fn read_credential(&self) -> Result<Credential> {
        match self.read_keys() {
            Ok(keys) => {
                let credential = Credential::from(keys.current());
                Ok(match self.read_authorities()? {
                    Some(authorities) => credential.with_authorities(authorities),
                    None => credential,
                })
            }
            Err(missing) if missing.kind() == ErrorKind::NotFound => match self.read_ticket() {
                Err(error) if error.kind() == ErrorKind::NotFound => Err(missing),
                file => file?.credential(),
            },
            Err(error) => Err(error),
        }
    }

    /// Reads the ticket that is in use here.
    ///
    /// # Errors
    /// As [`TicketFile::read`].
    pub fn read_ticket(&self) -> Result<TicketFile> {
        TicketFile::read(&self.ticket_path()).map_err(|error| match error.kind() {
            ErrorKind::Corrupt => {
                let words = format!("{error}; remove this file and use a new ticket");
                Error::new(ErrorKind::Corrupt, words)
            }
            _ => error,
        })
    }

    /// Puts a renewed ticket in the place of the one that is here, if it
    /// [follows](samite_wire::ticket::TicketClaims::follows) that one, and takes over what came with it: the nodes, and
    /// who signs their TLS certificates.
    ///
    /// # Errors
    /// As [`TicketFile::read`], [`TicketFile::write`]; [`ErrorKind::Timeout`]: others write here;
    /// [`ErrorKind::Invalid`]: authorities came with it that are none.
    pub fn keep_renewed(&self, issued: &IssuedTicket, deadline: Deadline) -> Result<()> {
        let _one = self.lock(deadline)?;
        let mut file = self.read_ticket()?;
        let (_, new) = SignedTicket::parse(&issued.ticket)?;
        if new.follows(&file.claims()?) {
            (file.ticket, file.node_key) = (to_base64(&issued.ticket), to_base64(&issued.node_key));
            if let Some(pem) = &issued.authorities {
                TlsAuthorities::from_pem(pem.clone().into_bytes())?;
                file.authorities = Some(pem.clone());
            }
            if !issued.nodes.is_empty() {
                file.nodes.clone_from(&issued.nodes);
            }
            file.write(&self.ticket_path())?;
            self.keep_nodes(&file.nodes)?;
        }
        Ok(())
    }

    /// Describes the store by the nodes that it has now, where the description came with a ticket.
    fn keep_nodes(&self, nodes: &[(NodeId, String)]) -> Result<()> {
        let mut cluster = match self.read_cluster_file() {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            cluster => cluster?,
        };
        let nodes = NodeEntry::on_network(nodes);
        if cluster.is_attached && cluster.nodes != nodes {
            cluster.nodes = nodes;
            self.write_cluster_file(&cluster)?;
        }
        Ok(())
    }

    /// Keeps others from changing the files here that are read, compared and written.
    pub(crate) fn lock(&self, deadline: Deadline) -> Result<DirectoryLock> {
        DirectoryLock::take(open_private_dir(&self.path)?, &self.path, deadline)
    }

    /// Writes the authority that signs the TLS certificates of the cluster's nodes.
    ///
    /// # Errors
    /// The error of the system.
    pub fn write_authorities(&self, pem: &[u8]) -> Result<()> {
        write_file(&self.authorities_path(), pem)
    }

    /// The authority that signs the TLS certificates of the cluster's nodes; `None`: there is none,
    /// their key pairs come of the cluster key.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] when the file has no certificates; otherwise the error of the system.
    pub fn read_authorities(&self) -> Result<Option<TlsAuthorities>> {
        match read_file(&self.authorities_path(), AUTHORITIES_LEN_MAX) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            pem => TlsAuthorities::from_pem(pem?).map(Some),
        }
    }

    /// The same, as PEM.
    ///
    /// # Errors
    /// As [`ClusterDir::read_authorities`].
    pub fn read_authorities_pem(&self) -> Result<Option<String>> {
        let Some(authorities) = self.read_authorities()? else { return Ok(None) };
        String::from_utf8(authorities.pem().to_vec())
            .map(Some)
            .map_err(|_| Error::new(ErrorKind::Invalid, "TLS authorities: not text, as PEM is"))
    }

    fn authorities_path(&self) -> PathBuf {
        self.path.join("ca.pem")
    }
}

/// A ticket with all that its holder needs, as a file (mode 0600, JSON): the ticket and its private
/// key, and how to know and to reach the nodes.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TicketFile {
    /// Name of the cluster.
    pub cluster: String,
    /// The signed ticket, in base64.
    pub ticket: String,
    /// Its private key, in base64; none when that has not left the one who asked for the ticket.
    pub private_key: Option<String>,
    /// Public key of the nodes, in base64; another one when the cluster key is changed.
    pub node_key: String,
    /// Tells the cluster from others of its name, in base64.
    pub cluster_id: String,
    /// Nodes, and where other hosts reach them, as URLs.
    pub nodes: Vec<(NodeId, String)>,
    /// The authorities that sign the nodes' TLS certificates, as PEM, where they have their own.
    pub authorities: Option<String>,
}

impl TicketFile {
    /// Reads a file.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`] when others may read it; [`ErrorKind::Corrupt`]: it is none; the error
    /// of the system.
    pub fn read(path: &Path) -> Result<Self> {
        check_private(path)?;
        let bytes = read_file(path, TICKET_FILE_LEN_MAX)?;
        serde_json::from_slice(&bytes).map_err(|error| {
            Error::new(ErrorKind::Corrupt, format!("ticket {}: {error}", path.display()))
        })
    }

    /// Writes the file, atomically.
    ///
    /// # Errors
    /// The error of the system.
    pub fn write(&self, path: &Path) -> Result<()> {
        let bytes = serde_json::to_vec_pretty(self)
            .map_err(|error| Error::new(ErrorKind::Internal, format!("write a ticket: {error}")))?;
        write_file(path, &bytes)
    }

    /// The signed ticket.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`]: no base64.
    pub fn ticket_bytes(&self) -> Result<Vec<u8>> {
        from_base64(&self.ticket, "ticket")
    }

    /// Tells the cluster from others of its name.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`]: no base64, or of another length.
    pub fn id(&self) -> Result<Vec<u8>> {
        let id = from_base64(&self.cluster_id, "id of the cluster")?;
        if id.len() != ClusterKeys::ID_LEN {
            let words = format!("id of the cluster: {} bytes", id.len());
            return Err(Error::new(ErrorKind::Corrupt, words));
        }
        Ok(id)
    }

    /// What its holder proves.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`], [`ErrorKind::Invalid`]: no ticket, or its private key is not there
    /// or another's.
    pub fn credential(&self) -> Result<Credential> {
        let Some(private) = &self.private_key else {
            let words =
                "the ticket has no private key beside it: `samite ticket use FILE --key KEY`";
            return Err(Error::new(ErrorKind::Invalid, words));
        };
        let pair = SigningPair::from_seed(key_bytes(private, "private key")?);
        let node_key = key_bytes(&self.node_key, "key of the nodes")?;
        let ticket = UserTicket::new(self.ticket_bytes()?, pair, node_key)?;
        let credential = Credential::from(ticket);
        Ok(match &self.authorities {
            Some(pem) => {
                credential.with_authorities(TlsAuthorities::from_pem(pem.clone().into_bytes())?)
            }
            None => credential,
        })
    }
}

impl std::fmt::Debug for TicketFile {
    /// Leaves the private key out.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TicketFile")
            .field("cluster", &self.cluster)
            .field("nodes", &self.nodes)
            .finish_non_exhaustive()
    }
}

/// Reads a key file.
///
/// # Errors
/// [`ErrorKind::Corrupt`] when it has no keys; [`ErrorKind::Denied`] when others may read it;
/// otherwise the error of the system.
pub fn read_key_file(path: &Path) -> Result<ClusterKeys> {
    check_private(path)?;
    ClusterKeys::parse(&read_file(path, ClusterKeys::LEN_MAX)?)
        .map_err(|error| error.context(path.display()))
}

/// Whether there is a file or anything else of this name.
pub(crate) fn is_there(path: &Path) -> bool {
    rustix::fs::lstat(path).is_ok()
}

/// Bytes as text for [`TicketFile`].
#[must_use]
pub fn to_base64(bytes: &[u8]) -> String {
    BASE64_STANDARD.encode(bytes)
}

fn from_base64(text: &str, what: &str) -> Result<Vec<u8>> {
    BASE64_STANDARD
        .decode(text.trim())
        .map_err(|error| Error::new(ErrorKind::Corrupt, format!("{what}: not base64: {error}")))
}

/// The 32 bytes of a key in base64.
///
/// # Errors
/// [`ErrorKind::Corrupt`]: something else; `what` says what it should be.
pub fn key_bytes(text: &str, what: &str) -> Result<[u8; 32]> {
    from_base64(text, what)?.try_into().map_err(|bytes: Vec<u8>| {
        let len = bytes.len();
        Error::new(ErrorKind::Corrupt, format!("{what}: {len} bytes instead of 32"))
    })
}

/// Checks that nobody but its owner may read or write a file.
fn check_private(path: &Path) -> Result<()> {
    let failed = |errno| Error::io(format_args!("read {}", path.display()), errno);
    let stat = rustix::fs::lstat(path).map_err(failed)?;
    if stat.st_mode & 0o077 == 0 {
        return Ok(());
    }
    let (shown, mode) = (path.display(), stat.st_mode & 0o7777);
    let words = format!("{shown}: mode {mode:04o} lets others read it: `chmod 600 {shown}`");
    Err(Error::new(ErrorKind::Denied, words))
}
