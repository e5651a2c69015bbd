//! `samite ticket`: tickets, by which users who do not own a store reach it.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Subcommand;
use samite_client::runtime::{ClusterDir, TicketFile, key_bytes};
use samite_client::{TicketOrder, make_ticket_key};
use samite_types::{ErrorKind, NodeId};
use samite_wire::ticket::{TICKET_GROUPS_MAX, TicketClaims};

use crate::cluster::ClusterTarget;
use crate::failure::{CommandFailure, ExitCode, IoContext};
use crate::output::CommandOutput;

/// Time that a node has to give out a ticket, unless the command line gives another.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Make tickets for other users, and use one
///
/// The cluster key is for the nodes and the owner of a store, and nobody else. Another user gets a ticket: it says who he is, and
/// is worth nothing without its private key. Clients renew it while it counts.
#[derive(clap::Args)]
pub struct TicketArgs {
    #[command(subcommand)]
    command: TicketCommand,
}

#[derive(Subcommand)]
enum TicketCommand {
    /// Make a ticket for a user (for the owner of the store, who has its key)
    ///
    /// The file has the ticket and its private key: hand it over so that nobody else can read it. With --public-key, the private key
    /// stays where it is.
    #[command(after_help = "\
Examples:
  samite ticket issue --user alice --out alice.ticket
  samite ticket issue --user 1002 --hours 2 --days 0 --out job.ticket
  samite ticket issue --user alice --public-key alice.pub --out alice.ticket")]
    Issue {
        /// The user, by name or number
        #[arg(long, value_name = "USER")]
        user: String,
        /// Hours for which it counts
        #[arg(long, value_name = "N", default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..))]
        hours: u32,
        /// Days for which it can be renewed
        #[arg(long, value_name = "N", default_value_t = 7)]
        days: u32,
        /// For the private key of this public key, which `samite ticket key` has printed
        #[arg(long, value_name = "FILE")]
        public_key: Option<PathBuf>,
        /// Where the ticket is written (mode 0600)
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
    /// Make a key pair for a ticket, and print the public key
    ///
    /// The private key is written to FILE (mode 0600) and stays with the user.
    #[command(after_help = "\
Examples:
  samite ticket key ~/samite.key > alice.pub")]
    Key {
        /// Where the private key is written
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Ask a node of this host for a ticket for oneself, and use it
    ///
    /// The node must have been told to give out tickets (--shared PATH). It learns from the kernel who asks. PATH has to be one that only the
    /// owner of the store can make: who can make another socket there can lead to another store.
    #[command(after_help = "\
Examples:
  samite ticket get /run/samite/tickets
  samite ticket get /run/samite/tickets --out mine.ticket")]
    Get {
        /// The socket of the node
        #[arg(value_name = "PATH")]
        socket: PathBuf,
        /// Write it to this file only (mode 0600), and do not use it
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Use a ticket: reach its store by the name of its cluster
    #[command(after_help = "\
Examples:
  samite ticket use alice.ticket
  samite ticket use alice.ticket --key ~/samite.key")]
    Use {
        /// The ticket
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Its private key, if that is not in the file
        #[arg(long, value_name = "FILE")]
        key: Option<PathBuf>,
    },
    /// Show what a ticket says
    #[command(after_help = "\
Examples:
  samite ticket show alice.ticket
  samite ticket show --json")]
    Show {
        /// The ticket; the one in use for the cluster unless given
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
}

/// Does it.
pub fn run(args: &TicketArgs, target: &ClusterTarget) -> Result<(), CommandFailure> {
    match &args.command {
        TicketCommand::Issue { user, hours, days, public_key, out } => {
            let (uid, gids) = user_and_groups(user)?;
            let order = TicketOrder {
                uid,
                gids,
                life: Duration::from_secs(u64::from(*hours) * 3600),
                renewable: Duration::from_secs(u64::from(*days) * 24 * 3600),
                public_key: public_key.as_deref().map(read_key).transpose()?,
            };
            issue(&order, target, out)
        }
        TicketCommand::Key { file } => {
            let public = make_ticket_key(file)?;
            let mut out = CommandOutput::new();
            out.line(public)?;
            out.finish()
        }
        TicketCommand::Get { socket, out } => {
            let timeout = target.timeout().unwrap_or(REQUEST_TIMEOUT);
            let file = TicketFile::request(socket, timeout)?;
            match out {
                Some(path) => Ok(file.write(path)?),
                None => take(&file, target),
            }
        }
        TicketCommand::Use { file, key } => {
            let mut ticket = TicketFile::read(file)?;
            if let Some(key) = key {
                ticket.private_key = Some(read(key)?.trim().to_owned());
            }
            take(&ticket, target)
        }
        TicketCommand::Show { file, json } => {
            let path = file.clone().unwrap_or_else(|| target.dir.ticket_path());
            show(&TicketFile::read(&path)?, *json)
        }
    }
}

fn read(path: &Path) -> Result<String, CommandFailure> {
    std::fs::read_to_string(path).doing(format_args!("read {}", path.display()))
}

fn read_key(path: &Path) -> Result<[u8; 32], CommandFailure> {
    Ok(key_bytes(&read(path)?, "public key")?)
}

/// The number of a user, and of his groups. A number that no user of this host has is in no group.
fn user_and_groups(user: &str) -> Result<(u32, Vec<u32>), CommandFailure> {
    let known = match user.parse() {
        Ok(uid) => uzers::get_user_by_uid(uid),
        Err(_) => uzers::get_user_by_name(user),
    };
    match known {
        Some(known) => {
            let primary = known.primary_group_id();
            let groups = known.groups().unwrap_or_default();
            let more = groups.iter().map(uzers::Group::gid).filter(|gid| *gid != primary);
            let gids = std::iter::once(primary).chain(more).take(TICKET_GROUPS_MAX);
            Ok((known.uid(), gids.collect()))
        }
        None => match user.parse() {
            Ok(uid) => Ok((uid, Vec::new())),
            Err(_) => {
                Err(CommandFailure::new(ExitCode::NotFound, format!("user {user}: none such")))
            }
        },
    }
}

/// Where other hosts reach the nodes.
fn network_addresses(target: &ClusterTarget) -> Result<Vec<(NodeId, String)>, CommandFailure> {
    let nodes = target.cluster_file()?.nodes;
    let known = nodes.iter().filter_map(|node| Some((node.node, node.network_address()?)));
    let nodes: Vec<(NodeId, String)> = known.collect();
    if nodes.is_empty() {
        let words = "no node listens on tcp, by which other users reach it";
        return Err(CommandFailure::failed(words));
    }
    Ok(nodes)
}

fn issue(order: &TicketOrder, target: &ClusterTarget, out: &Path) -> Result<(), CommandFailure> {
    let file = order.issue(&target.dir, network_addresses(target)?).map_err(|error| {
        let dir: &ClusterDir = &target.dir;
        match error.kind() {
            ErrorKind::NotFound => CommandFailure::new(
                ExitCode::NotFound,
                format!("{}: not here; the owner of store {} has it", error, dir.name()),
            ),
            _ => error.into(),
        }
    })?;
    Ok(file.write(out)?)
}

fn take(file: &TicketFile, target: &ClusterTarget) -> Result<(), CommandFailure> {
    let dir = target.runtime.use_ticket(file)?;
    let mut out = CommandOutput::new();
    out.line(format!("store {}: {}", dir.name(), words(&file.claims()?)))?;
    out.finish()
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs())
}

fn words(claims: &TicketClaims) -> String {
    let uid = claims.uid;
    match claims.expires_s.checked_sub(now_s()).filter(|left| *left > 0) {
        Some(left) => format!("ticket of uid {uid}, which counts for {}", span(left)),
        None => format!("ticket of uid {uid}, which has ended"),
    }
}

fn span(seconds: u64) -> String {
    match (seconds / 3600, seconds / 60) {
        (0, 0) => format!("{seconds} s"),
        (0, minutes) => format!("{minutes} min"),
        (hours, _) => format!("{hours} h {} min", seconds / 60 % 60),
    }
}

fn show(file: &TicketFile, json: bool) -> Result<(), CommandFailure> {
    let claims = file.claims()?;
    let mut out = CommandOutput::new();
    if json {
        out.json(&serde_json::json!({
            "cluster": claims.cluster,
            "uid": claims.uid,
            "gids": claims.gids,
            "key": claims.key_number,
            "issued_s": claims.issued_s,
            "expires_s": claims.expires_s,
            "renewable_until_s": claims.renewable_until_s,
            "has_private_key": file.private_key.is_some(),
            "nodes": file.nodes.iter().map(|(_, url)| url).collect::<Vec<_>>(),
        }))?;
        return out.finish();
    }
    out.line(format!("store {}: {}", claims.cluster, words(&claims)))?;
    let gids: Vec<String> = claims.gids.iter().map(u32::to_string).collect();
    out.line(format!("groups: {}", gids.join(" ")))?;
    out.line(format!("signed by cluster key {}", claims.key_number))?;
    match claims.renewable_until_s.checked_sub(now_s()) {
        Some(left) => out.line(format!("can be renewed for {}", span(left)))?,
        None => out.line("cannot be renewed")?,
    }
    for (node, url) in &file.nodes {
        out.line(format!("{node}: {url}"))?;
    }
    if file.private_key.is_none() {
        out.line("its private key is not in this file")?;
    }
    out.finish()
}
