//! The worker process: reads requests, carries out tasks in threads, answers.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use samite_types::{Error, ErrorKind, Result};
use samite_wire::worker::{WORKER_HEADER_LEN, WORKER_READY, WorkerFrameHeader};

use crate::input::{TaskInput, WorkerPlace};
use crate::messages::{
    self, OUTPUT_LEN_MAX, POLLED_MAX, TaskAttempt, TaskEnd, TaskOrder, TaskPoll, WorkerAnswer,
    WorkerRequest,
};
use crate::module::{ModuleRegistry, TaskOutput};
use crate::tasks::{TaskQueue, TaskRun, TaskState};

/// Longest time for which a question waits for news; well below that after which clients ask again.
pub const POLL_WAIT_MAX: Duration = Duration::from_millis(400);
/// How often a question that waits looks.
const POLL_LOOK: Duration = Duration::from_millis(2);
/// Time that a task has to end when it is cancelled or has run too long. After that the process
/// ends, and with it all tasks of its user on this node.
const STUCK_PATIENCE: Duration = Duration::from_secs(10);
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Exit code of a worker that ends because a task does not.
const EXIT_STUCK: i32 = 97;

/// How a worker works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerSettings {
    /// Threads that carry out tasks.
    pub cores: u16,
    /// Longest time of a task.
    pub task_time: Duration,
}

/// Serves the node at the other end of `socket` until that closes it.
///
/// # Errors
/// `Io`: threads cannot be had; `Corrupt`: what comes makes no sense.
pub fn serve(
    socket: UnixStream,
    place: &WorkerPlace,
    modules: ModuleRegistry,
    settings: WorkerSettings,
) -> Result<()> {
    let io =
        |what: &'static str| move |error| Error::new(ErrorKind::Io, format!("{what}: {error}"));
    let queue = Arc::new(TaskQueue::default());
    for index in 0..settings.cores.max(1) {
        let (queue, place) = (Arc::clone(&queue), place.clone());
        let body = move || {
            loop {
                carry_out(&queue, &place, modules);
            }
        };
        let thread = thread::Builder::new().name(format!("task-{index}"));
        thread.spawn(body).map_err(io("start a thread for tasks"))?;
    }
    let watched = Arc::clone(&queue);
    let watch = move || {
        loop {
            thread::sleep(LOOK_INTERVAL);
            if watched.look(STUCK_PATIENCE) {
                eprintln!("a task does not end; the worker ends");
                std::process::exit(EXIT_STUCK);
            }
        }
    };
    let thread = thread::Builder::new().name("watch".into());
    thread.spawn(watch).map_err(io("start a thread"))?;
    let mut requests = socket.try_clone().map_err(io("worker's socket"))?;
    let answers = Arc::new(Mutex::new(socket));
    let own = place.client.id().get().to_le_bytes();
    write_answer(&answers, WORKER_READY, &own).map_err(io("worker's socket"))?;
    while let Some((number, body)) = read_request(&mut requests).map_err(io("read a request"))? {
        let (queue, answers) = (Arc::clone(&queue), Arc::clone(&answers));
        let answer = move || {
            let answer = messages::encode(&answer(&queue, &body, settings));
            // The node is gone when this fails: then this process ends, too.
            let _ = write_answer(&answers, number, &answer);
        };
        // Few wait at a time: the node passes on so many. A question waits in a thread of its own.
        let thread = thread::Builder::new().name("answer".into());
        thread.spawn(answer).map_err(io("start a thread for an answer"))?;
    }
    Ok(())
}

/// `None`: the node has closed the socket.
fn read_request(socket: &mut UnixStream) -> io::Result<Option<(u64, Vec<u8>)>> {
    let mut header = [0; WORKER_HEADER_LEN];
    match socket.read_exact(&mut header) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let header = WorkerFrameHeader::decode(&header).map_err(io::Error::other)?;
    let mut body = vec![0; header.len as usize];
    socket.read_exact(&mut body)?;
    Ok(Some((header.request, body)))
}

fn write_answer(socket: &Mutex<UnixStream>, request: u64, answer: &[u8]) -> io::Result<()> {
    // Answers are bounded by the limits of what goes into them.
    let header = WorkerFrameHeader { len: answer.len() as u32, request }.encode();
    let mut socket = socket.lock().unwrap_or_else(PoisonError::into_inner);
    socket.write_all(&header)?;
    socket.write_all(answer)
}

fn answer(queue: &TaskQueue, body: &[u8], settings: WorkerSettings) -> WorkerAnswer {
    let answer = messages::decode(body).and_then(|request| match request {
        WorkerRequest::Begin(of, order) => {
            let given = settings.task_time;
            let wanted = match order.limits.task_ms {
                0 => given,
                millis => Duration::from_millis(millis).min(given),
            };
            queue.begin(of, order, wanted).map(|()| WorkerAnswer::Done)
        }
        WorkerRequest::Poll { tasks, ended, wait_ms } => {
            queue.forget(|of, _| ended.contains(of));
            poll(queue, &tasks, Duration::from_millis(wait_ms.into()).min(POLL_WAIT_MAX))
        }
        WorkerRequest::Cancel { job } => {
            queue.forget(|of, _| of.job == job);
            Ok(WorkerAnswer::Done)
        }
    });
    answer
        .unwrap_or_else(|error| WorkerAnswer::Refused(error.kind().code(), error.message().into()))
}

fn poll(queue: &TaskQueue, tasks: &[TaskPoll], wait: Duration) -> Result<WorkerAnswer> {
    if tasks.len() > POLLED_MAX {
        let words = format!("at most {POLLED_MAX} tasks are asked for at a time");
        return Err(Error::new(ErrorKind::TooLarge, words));
    }
    let states: Vec<Arc<TaskState>> =
        tasks.iter().map(|poll| queue.find(&poll.of)).collect::<Result<_>>()?;
    let until = Instant::now() + wait;
    while !states.iter().any(|state| state.has_news()) && Instant::now() < until {
        thread::sleep(POLL_LOOK);
    }
    let mut room = OUTPUT_LEN_MAX;
    let progress = tasks.iter().zip(&states);
    let progress = progress.map(|(poll, state)| state.progress(poll.taken, &mut room)).collect();
    Ok(WorkerAnswer::Progress(progress))
}

/// Waits for a task, and carries it out.
fn carry_out(queue: &TaskQueue, place: &WorkerPlace, modules: ModuleRegistry) {
    let TaskRun { of, order, state } = queue.next();
    state.begin();
    let run = AssertUnwindSafe(|| run_module(order, place, modules, &state));
    let end = match std::panic::catch_unwind(run) {
        Ok(Ok(())) => TaskEnd::Done,
        Ok(Err(error)) => TaskEnd::Failed(error.kind().code(), error.message().into()),
        Err(panic) => {
            let words = panic.downcast_ref::<String>().map(String::as_str);
            let words = words.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("?");
            TaskEnd::Failed(ErrorKind::Internal.code(), format!("the module panicked: {words}"))
        }
    };
    log_end(of, &end);
    state.finish(end);
    queue.ran(of);
}

fn log_end(of: TaskAttempt, end: &TaskEnd) {
    if let TaskEnd::Failed(_, words) = end {
        eprintln!("job {:x}, task {}, attempt {}: {words}", of.job, of.task, of.attempt);
    }
}

fn run_module(
    order: TaskOrder,
    place: &WorkerPlace,
    modules: ModuleRegistry,
    state: &Arc<TaskState>,
) -> Result<()> {
    let module = modules.find(&order.module)?;
    let mut input = TaskInput::open(order.input, place, Arc::clone(state))?;
    module.run(&order.arguments, &mut input, &mut WaitingTaskOutput(state))
}

/// Output that waits with its task.
struct WaitingTaskOutput<'a>(&'a TaskState);

impl TaskOutput for WaitingTaskOutput<'_> {
    fn emit(&mut self, bytes: &[u8]) -> Result<()> {
        self.0.emit(bytes)
    }
}
