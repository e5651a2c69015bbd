//! Worker processes: they run modules beside the records, for one user each. The node starts one
//! on demand, passes messages on to it and its answers back, and ends it when nobody asks any more.
//!
//! A worker is an ordinary client of the store, as its user. It listens nowhere: all that it is
//! asked has come by a connection of the node, whose user has been proved. It dies without harm to
//! the node, and with the node.

mod identity;
mod process;
mod table;

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use samite_transport::PeerIdentity;
use samite_types::{ClientId, Error, ErrorKind, NodeId, Result};
use samite_wire::control::ControlReply;
use samite_wire::limits::WORKER_MESSAGE_LEN_MAX;
use samite_wire::worker::{WORKER_READY, WorkerFrameHeader, WorkerKind, WorkerStatus};

use self::identity::WorkerIdentity;
use self::process::{WorkerProcess, read_answer};
use self::table::{PendingCalls, WorkerId, WorkerTable};
use crate::control_reply::{ReplyTo, refused};
use crate::mutex::lock;
use crate::threads::spawn;

/// How workers are started, and what they may take.
#[derive(Clone, Debug)]
pub struct WorkerConfig {
    /// The program, which takes `worker --kind KIND --node N` before the arguments.
    pub program: PathBuf,
    /// What it is told beside that: where the store is.
    pub arguments: Vec<OsString>,
    /// The same for workers of other users than the node's, which only a node of root starts.
    pub guest_arguments: Option<Vec<OsString>>,
    /// What workers print goes to files in this directory.
    pub log_dir: PathBuf,
    /// What one may take.
    pub limits: WorkerLimits,
}

/// What a worker process may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerLimits {
    /// Threads that carry out tasks.
    pub cores: u16,
    /// Bytes of memory of its own; what it maps of the node does not count.
    pub memory_bytes: u64,
    /// Longest time of a task.
    pub task_time: Duration,
    /// How far its priority is below the node's (`nice`).
    pub niceness: i32,
    /// Time without a request after which it ends.
    pub idle: Duration,
    /// Most worker processes of a node.
    pub count: usize,
}

impl Default for WorkerLimits {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            cores: u16::try_from(cores).unwrap_or(u16::MAX),
            memory_bytes: 1 << 30,
            task_time: Duration::from_secs(3600),
            niceness: 10,
            idle: Duration::from_secs(30),
            count: 16,
        }
    }
}

/// How often a worker's thread looks whether it is idle.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// A request to a worker, and where its answer goes.
#[derive(Debug)]
pub(crate) struct WorkerCall {
    pub(crate) to: ReplyTo,
    pub(crate) message: Vec<u8>,
}

/// Sends an answer to where it is waited for.
type AnswerSender = Arc<dyn Fn(ReplyTo, ControlReply) + Send + Sync>;

/// The workers of a node.
pub(crate) struct WorkerProcesses {
    node: NodeId,
    config: Option<WorkerConfig>,
    own_uid: u32,
    table: Arc<Mutex<WorkerTable<WorkerCall>>>,
}

impl WorkerProcesses {
    pub(crate) fn new(node: NodeId, config: Option<WorkerConfig>) -> Self {
        let count = config.as_ref().map_or(0, |config| config.limits.count);
        let table = Arc::new(Mutex::new(WorkerTable::new(count)));
        Self { node, config, own_uid: rustix::process::geteuid().as_raw(), table }
    }

    /// Passes a message on to the worker of this user, which answers `to` later.
    ///
    /// # Errors
    /// `Unsupported`: the node starts no workers; `Denied`: not for this user; `TooLarge`; `Busy`:
    /// too much is under way.
    pub(crate) fn pass_on(
        &self,
        kind: WorkerKind,
        peer: &PeerIdentity,
        call: WorkerCall,
        answer: AnswerSender,
    ) -> Result<()> {
        let Some(config) = &self.config else {
            let words = format!("{} starts no workers", self.node);
            return Err(Error::new(ErrorKind::Unsupported, words));
        };
        if call.message.len() > WORKER_MESSAGE_LEN_MAX {
            let words = format!("a message to a worker has at most {WORKER_MESSAGE_LEN_MAX} bytes");
            return Err(Error::new(ErrorKind::TooLarge, words));
        }
        let has_guests = config.guest_arguments.is_some();
        let identity = WorkerIdentity::of(peer, self.own_uid, has_guests)?;
        let mut table = lock(&self.table);
        let Some((started, calls)) = table.add((kind, identity.uid()), call)? else {
            return Ok(());
        };
        let (node, config, table_of_all) = (self.node, config.clone(), Arc::clone(&self.table));
        let body =
            WorkerThread { node, kind, identity, id: started, config, table: table_of_all, answer };
        // Not `worker`, which is the thread of the node's own control requests.
        match spawn("modules", move || body.run(&calls)) {
            Ok(thread) => table.started(started, thread),
            Err(error) => {
                table.remove(started);
                return Err(error);
            }
        }
        Ok(())
    }

    /// The workers as they are.
    pub(crate) fn statuses(&self) -> Vec<WorkerStatus> {
        lock(&self.table).statuses()
    }

    /// Ends all workers; there are no more after that.
    pub(crate) fn end(&self) {
        let threads = lock(&self.table).end();
        for thread in threads {
            let _ = thread.join();
        }
    }
}

/// The thread that started a worker and writes to it. It outlives the process: the kernel ends the
/// process with the thread.
struct WorkerThread {
    node: NodeId,
    kind: WorkerKind,
    identity: WorkerIdentity,
    id: WorkerId,
    config: WorkerConfig,
    table: Arc<Mutex<WorkerTable<WorkerCall>>>,
    answer: AnswerSender,
}

impl WorkerThread {
    fn table(&self) -> MutexGuard<'_, WorkerTable<WorkerCall>> {
        lock(&self.table)
    }

    fn run(self, calls: &Receiver<WorkerCall>) {
        let WorkerThread { node, kind, identity, .. } = &self;
        let started = WorkerProcess::start(*node, *kind, identity, &self.config);
        let process = match started {
            Ok(process) => process,
            Err(error) => return self.fail_all(calls, &error),
        };
        let pid = process.pid();
        self.table().runs(self.id, pid);
        tracing::info!(%node, %kind, uid = identity.uid(), pid, "worker started");
        let pending = Mutex::new(PendingCalls::default());
        let reader = process.socket().try_clone();
        let reader = match reader {
            Ok(reader) => reader,
            Err(error) => {
                let error = Error::new(ErrorKind::Io, format!("worker: {error}"));
                return self.fail_all(calls, &error);
            }
        };
        let words = std::thread::scope(|scope| {
            let answers = std::thread::Builder::new()
                .name("modules-answers".into())
                .spawn_scoped(scope, || self.pass_back(reader, &pending));
            let _ = process.socket().set_write_timeout(Some(LOOK_INTERVAL * 10));
            if answers.is_ok() {
                self.pass_calls(calls, process.socket(), &pending);
            }
            // The worker ends when it reads the end, and so does the reader of its answers.
            let _ = process.socket().shutdown(std::net::Shutdown::Write);
            let ended = process.end();
            let words = format!("the {kind} worker of uid {} on {node} {ended}", identity.uid());
            tracing::info!(pid, "{words}");
            words
        });
        // Where the node ends, others take its place; else something is wrong with the task.
        let is_over = self.table().is_over();
        let kind = if is_over { ErrorKind::Unavailable } else { ErrorKind::Interrupted };
        let error = Error::new(kind, words);
        self.table().remove(self.id);
        let left = lock(&pending).take_all();
        for to in left {
            self.answer(to, refused(&error));
        }
        self.fail_all(calls, &error);
    }

    /// Passes calls on, until there are no more or the worker takes none.
    fn pass_calls(
        &self,
        calls: &Receiver<WorkerCall>,
        mut socket: &UnixStream,
        pending: &Mutex<PendingCalls<ReplyTo>>,
    ) {
        let mut last = Instant::now();
        loop {
            match calls.recv_timeout(LOOK_INTERVAL) {
                Ok(call) => {
                    last = Instant::now();
                    let request = lock(pending).add(call.to);
                    // At most the limit of a message, which was checked.
                    let header = WorkerFrameHeader { len: call.message.len() as u32, request };
                    let sent = socket
                        .write_all(&header.encode())
                        .and_then(|()| socket.write_all(&call.message));
                    if sent.is_err() {
                        return;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    let is_idle = last.elapsed() >= self.config.limits.idle;
                    if is_idle && self.table().remove_idle(self.id) {
                        return;
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Passes answers back, until the worker has ended or says what makes no sense.
    fn pass_back(&self, mut socket: UnixStream, pending: &Mutex<PendingCalls<ReplyTo>>) {
        while let Ok((request, answer)) = read_answer(&mut socket) {
            if let (WORKER_READY, Some(id)) = (request, answer.first_chunk()) {
                self.table().is_client(self.id, ClientId(u64::from_le_bytes(*id)));
                continue;
            }
            let Some(to) = lock(pending).take(request) else { break };
            self.answer(to, ControlReply::Worker(answer));
        }
        // From now on, calls go to the next one.
        self.table().remove(self.id);
    }

    fn answer(&self, to: ReplyTo, reply: ControlReply) {
        self.table().answered(self.id);
        (self.answer)(to, reply);
    }

    /// Refuses the calls that wait, and those that come before the table knows that the worker is
    /// no more.
    fn fail_all(&self, calls: &Receiver<WorkerCall>, error: &Error) {
        self.table().remove(self.id);
        while let Ok(call) = calls.recv() {
            (self.answer)(call.to, refused(error));
        }
    }
}
