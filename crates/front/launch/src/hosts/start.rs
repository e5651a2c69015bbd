//! One host's part in the start of a cluster: `samite host-start`.

use std::io::{BufRead, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs as _, UdpSocket};
use std::process::Child;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use samite_client::ClusterKeys;
use samite_client::runtime::{ClusterDir, RuntimeDir};
use samite_transport::host::host_identity;
use samite_types::{Error, ErrorKind, NodeId, Result};
use serde::Serialize;

use super::{HostAnswer, HostPlan, JoinKind, KEEP, NodePlan, read_line};
use crate::io_context::{SystemContext as _, failed};
use crate::local::{self, ClusterLock, spawn};
use crate::node_command::NetworkPlaces;
use crate::node_life;
use crate::process::NodeProcess;

/// Between two looks at a node that starts.
const LOOK: Duration = Duration::from_millis(10);
/// Between two looks at one that runs.
const WATCH: Duration = Duration::from_millis(200);
/// How long another command that works on the cluster's directory is waited for.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the node may take to describe the cluster, once it serves.
const DESCRIBE_TIMEOUT: Duration = Duration::from_secs(10);
/// A port that nothing needs to listen on: it only chooses a route.
const ROUTE_PORT: u16 = 9;

/// Starts a node as `input` says, and tells on `output` how far it is. With `stays`, does not
/// return before the node has ended, for launchers that end what they have started.
///
/// # Errors
/// Those of the start, which the other side is told, too; the input makes no sense.
pub fn run(
    runtime: &RuntimeDir,
    mut input: impl BufRead + Send + 'static,
    output: &mut impl Write,
    stays: bool,
) -> Result<()> {
    let Some(plan) = read_line::<HostPlan>(&mut input)? else {
        return Err(failed("it is started by `samite up --hosts`, which tells it more".to_owned()));
    };
    let dir = runtime.cluster(&plan.cluster)?;
    let started = start(runtime, &dir, &plan, input, output, stays);
    if let Err(error) = &started {
        // The other side may have gone.
        let _ = say(output, &HostAnswer::Failed(error.message().to_owned()));
    }
    started
}

fn start(
    runtime: &RuntimeDir,
    dir: &ClusterDir,
    plan: &HostPlan,
    mut input: impl BufRead + Send + 'static,
    output: &mut impl Write,
    stays: bool,
) -> Result<()> {
    let keys = ClusterKeys::parse(&plan.keys)?;
    runtime.create()?;
    let (lock, mut made) = HostDirectory::take(dir, plan, &keys)?;
    let (identity, listen) = (host_identity()?, place(plan)?);
    let place = HostAnswer::Place { identity, listen: listen.clone(), dir: dir.path().to_owned() };
    say(output, &place)?;
    let Some(node) = read_line::<NodePlan>(&mut input)? else { return Ok(()) };
    made.note(&node, plan.joins)?;
    // The node writes the cluster's description.
    drop(lock);
    let lines = lines(input)?;
    let mut running = RunningNode::spawn(dir, &node, (&listen, plan.joins.is_some()))?;
    let socket = dir.socket_path(node.node)?;
    while std::os::unix::net::UnixStream::connect(&socket).is_err() {
        running.check(dir, &node)?;
        if !matches!(lines.recv_timeout(LOOK), Err(RecvTimeoutError::Timeout)) {
            return Ok(());
        }
    }
    say(output, &HostAnswer::Listens)?;
    loop {
        running.check(dir, &node)?;
        match lines.recv_timeout(WATCH) {
            Ok(line) if line == KEEP => break,
            Err(RecvTimeoutError::Timeout) => {}
            Ok(_) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
    let until = Instant::now() + DESCRIBE_TIMEOUT;
    while plan.joins != Some(JoinKind::Restarted) && !running.is_described(dir, node.node) {
        running.check(dir, &node)?;
        if Instant::now() >= until {
            let words =
                format!("{} has not described the cluster in {DESCRIBE_TIMEOUT:?}", node.node);
            return Err(failed(words));
        }
        if !matches!(lines.recv_timeout(LOOK), Err(RecvTimeoutError::Timeout)) {
            return Ok(());
        }
    }
    say(output, &HostAnswer::Kept)?;
    made.keep();
    running.keep(stays)
}

/// Lines of the input, without their ends, until there are no more.
fn lines(input: impl BufRead + Send + 'static) -> Result<Receiver<String>> {
    let (send, lines) = sync_channel(1);
    let body = move || {
        let mut input = input;
        while let Ok(Some(line)) = read_line::<serde_json::Value>(&mut input) {
            if send.send(line.to_string()).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("input".into()).spawn(body).doing("start a thread")?;
    Ok(lines)
}

/// The cluster's directory, from which goes what was made there unless the node is to be kept.
struct HostDirectory<'a> {
    dir: &'a ClusterDir,
    remains: DirectoryRemains,
}

/// What a node leaves that is not kept.
enum DirectoryRemains {
    /// Not even the directory: it was made for this node.
    Nothing,
    /// What others had there, without the files of this node.
    Others(NodeId),
    /// All that was there.
    All,
}

impl<'a> HostDirectory<'a> {
    /// Makes it. One that belongs to the cluster that the node joins is taken as it is: other nodes
    /// may live there, mounts of the cluster, or what this node had before.
    fn take(
        dir: &'a ClusterDir,
        plan: &HostPlan,
        keys: &ClusterKeys,
    ) -> Result<(ClusterLock, Self)> {
        let is_known =
            plan.joins.is_some() && dir.read_keys().is_ok_and(|known| known.id() == keys.id());
        if is_known && let Some(lock) = local::lock(dir, LOCK_TIMEOUT)? {
            return Ok((lock, Self { dir, remains: DirectoryRemains::All }));
        }
        let lock = local::claim(dir)?;
        let made = Self { dir, remains: DirectoryRemains::Nothing };
        local::note_made(dir)?;
        dir.write_keys(keys)?;
        Ok((lock, made))
    }

    /// Notes that this node is started there.
    ///
    /// # Errors
    /// `Conflict`: it lives there, or is one that somebody has started by hand.
    fn note(&mut self, node: &NodePlan, joins: Option<JoinKind>) -> Result<()> {
        if let Some(process) = node_life::process(self.dir, node.node) {
            let words = format!("{} runs here already (pid {})", node.node, process.pid);
            return Err(Error::new(ErrorKind::Conflict, words));
        }
        let is_restart = joins == Some(JoinKind::Restarted);
        let was_here = node_life::path(self.dir, node.node).exists();
        if is_restart && was_here && !local::was_made(self.dir) {
            let words = format!("{} was started by hand: start it as before", node.node);
            return Err(Error::new(ErrorKind::Conflict, words));
        }
        if !is_restart && matches!(self.remains, DirectoryRemains::All) {
            // What a node of this number has left, which was removed.
            local::remove_node_files(self.dir, node.node)?;
            self.remains = DirectoryRemains::Others(node.node);
        }
        Ok(())
    }

    fn keep(mut self) {
        self.remains = DirectoryRemains::All;
    }
}

impl Drop for HostDirectory<'_> {
    fn drop(&mut self) {
        // What cannot be removed is somebody else's.
        let _ = match self.remains {
            DirectoryRemains::Nothing => local::sweep(self.dir),
            DirectoryRemains::Others(node) => local::remove_node_files(self.dir, node),
            DirectoryRemains::All => Ok(()),
        };
    }
}

/// The process of the node, which is ended unless it is to be kept.
struct RunningNode(Child, bool);

impl RunningNode {
    fn spawn(
        dir: &ClusterDir,
        node: &NodePlan,
        (listen, is_founded): (&str, bool),
    ) -> Result<Self> {
        let places = NetworkPlaces {
            listen: vec![listen.to_owned()],
            coordinators: node.coordinators.clone(),
            is_founded,
        };
        Ok(Self(spawn::far_node(dir, &node.setup, node.node, &places)?, false))
    }

    /// Whether the cluster is described there, with this process.
    fn is_described(&self, dir: &ClusterDir, node: NodeId) -> bool {
        let file = dir.read_cluster_file();
        file.is_ok_and(|file| {
            let mut entries = file.nodes.iter();
            entries.any(|entry| entry.node == node && entry.pid() == Some(self.0.id()))
        })
    }

    /// Fails when it has ended.
    fn check(&mut self, dir: &ClusterDir, node: &NodePlan) -> Result<()> {
        let Some(status) = self.0.try_wait().doing("wait for the node")? else { return Ok(()) };
        let said = spawn::last_words(&dir.log_path(node.node)).unwrap_or_default();
        Err(failed(format!("{} ended with {status}: {said}", node.node)))
    }

    fn keep(mut self, stays: bool) -> Result<()> {
        self.1 = true;
        if stays {
            self.0.wait().doing("wait for the node")?;
        }
        Ok(())
    }
}

impl Drop for RunningNode {
    fn drop(&mut self) {
        if self.1 {
            return;
        }
        let process = NodeProcess::open(self.0.id(), |_| true);
        // One that has ended needs no end.
        let _ = local::stop_all(process.as_slice());
        let _ = self.0.wait();
    }
}

fn say(output: &mut impl Write, answer: &HostAnswer) -> Result<()> {
    write_line(output, answer).doing("answer")
}

pub(super) fn write_line(output: &mut impl Write, value: &impl Serialize) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    output.write_all(&line)?;
    output.flush()
}

/// `HOST:PORT` at which the node is to listen: the address by which others reach the host, and a
/// port that is free now.
fn place(plan: &HostPlan) -> Result<String> {
    let ip = address(&plan.host, &plan.others)?;
    let wanted = SocketAddr::new(ip, plan.port.unwrap_or(0));
    let listener = TcpListener::bind(wanted).map_err(|error| {
        Error::new(ErrorKind::Conflict, format!("listen on tcp://{wanted}: {error}"))
    })?;
    let free = listener.local_addr().doing("the address of a socket")?;
    Ok(free.to_string())
}

/// The address of this host that its name means. Many hosts have a name for themselves that means
/// the loopback; then the address by which the first of the others that can be told is reached.
fn address(host: &str, others: &[String]) -> Result<IpAddr> {
    let found = (host, ROUTE_PORT).to_socket_addrs().map(Iterator::collect::<Vec<_>>);
    let found = found.unwrap_or_default();
    let is_far = |address: &&SocketAddr| !address.ip().is_loopback();
    if let Some(address) = found.iter().find(is_far) {
        return Ok(address.ip());
    }
    let routes = others.iter().filter_map(|other| route_to(other)).find(|ip| !ip.is_loopback());
    let own = routes.or_else(|| found.first().map(SocketAddr::ip));
    own.ok_or_else(|| failed(format!("{host}: nothing tells the address of this host")))
}

fn route_to(other: &str) -> Option<IpAddr> {
    let target = (other, ROUTE_PORT).to_socket_addrs().ok()?.next()?;
    let any: IpAddr = if target.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    // Sends nothing.
    socket.connect(target).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    #[test]
    fn a_session_that_says_no_more_leaves_nothing() {
        let scratch = tempfile::tempdir().unwrap();
        let runtime = RuntimeDir::at(scratch.path().join("run")).unwrap();
        let plan = HostPlan {
            cluster: "c".into(),
            keys: vec![7; 32],
            host: "localhost".into(),
            others: Vec::new(),
            port: None,
            joins: None,
        };
        let mut input = serde_json::to_vec(&plan).unwrap();
        input.push(b'\n');
        let mut output = Vec::new();
        run(&runtime, Cursor::new(input), &mut output, false).unwrap();
        let answer = read_line::<HostAnswer>(&mut &output[..]).unwrap().unwrap();
        let HostAnswer::Place { listen, .. } = answer else { panic!("{answer:?}") };
        assert!(listen.parse::<SocketAddr>().unwrap().ip().is_loopback(), "{listen}");
        assert!(!runtime.path().exists());
    }

    #[test]
    fn a_port_in_use_is_an_answer() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let scratch = tempfile::tempdir().unwrap();
        let runtime = RuntimeDir::at(scratch.path().join("run")).unwrap();
        let plan = HostPlan {
            cluster: "c".into(),
            keys: vec![7; 32],
            host: "127.0.0.1".into(),
            others: Vec::new(),
            port: Some(taken.local_addr().unwrap().port()),
            joins: None,
        };
        let input = serde_json::to_vec(&plan).unwrap();
        let mut output = Vec::new();
        run(&runtime, Cursor::new(input), &mut output, false).unwrap_err();
        let answer = read_line::<HostAnswer>(&mut &output[..]).unwrap().unwrap();
        let HostAnswer::Failed(words) = answer else { panic!("{answer:?}") };
        assert!(words.contains("in use"), "{words}");
        assert!(!runtime.path().exists());
    }

    #[test]
    fn a_node_that_joins_takes_the_directory_of_its_cluster_as_it_is() {
        let scratch = tempfile::tempdir().unwrap();
        let runtime = RuntimeDir::at(scratch.path().join("run")).unwrap();
        runtime.create().unwrap();
        let dir = runtime.cluster("c").unwrap();
        local::make_directory(&dir).unwrap();
        let keys = ClusterKeys::parse(&[7; 32]).unwrap();
        dir.write_keys(&keys).unwrap();
        let plan = |joins, key| HostPlan {
            cluster: "c".into(),
            keys: vec![key; 32],
            host: "localhost".into(),
            others: Vec::new(),
            port: None,
            joins,
        };
        let node = NodePlan {
            node: NodeId(3),
            coordinators: Vec::new(),
            setup: samite_client::runtime::ClusterSetup::default(),
        };
        for name in ["mount-7.json", "n3.voter", "n1.log"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        let left = |joins| {
            let (_lock, mut taken) = HostDirectory::take(&dir, &plan(joins, 7), &keys).unwrap();
            let noted = taken.note(&node, joins);
            drop(taken);
            noted.map(|()| dir.path().join("n3.voter").exists())
        };
        assert!(left(Some(JoinKind::Restarted)).unwrap(), "what it had before");
        std::fs::write(node_life::path(&dir, NodeId(3)), "").unwrap();
        let refused = left(Some(JoinKind::Restarted)).unwrap_err();
        assert!(refused.message().contains("by hand"), "{refused}");
        assert!(!left(Some(JoinKind::Added)).unwrap(), "what another of its number had");
        assert!(dir.path().join("mount-7.json").exists() && dir.path().join("n1.log").exists());
        // Remains of another cluster of this name, of which no node lives.
        let other = ClusterKeys::parse(&[8; 32]).unwrap();
        let (lock, taken) =
            HostDirectory::take(&dir, &plan(Some(JoinKind::Added), 8), &other).unwrap();
        assert!(!dir.path().join("n1.log").exists());
        drop((lock, taken));
        assert!(!dir.path().exists());
    }

    #[test]
    fn the_address_of_a_host_is_found() {
        assert_eq!(address("10.1.2.3", &[]).unwrap(), IpAddr::from([10, 1, 2, 3]));
        assert!(address("localhost", &[]).unwrap().is_loopback());
        assert!(address("no.such.host.invalid", &[]).is_err());
    }
}
