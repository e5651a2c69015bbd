//! The session with one host, seen from `samite up --hosts`.

use std::io::{BufReader, Read};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use samite_types::{Error, ErrorKind, Result};
use serde::Serialize;

use super::start::write_line;
use super::{HostAnswer, HostPlan, read_line};
use crate::io_context::{SystemContext as _, failed};
use crate::process;

/// The command that a launcher runs on each host, after the program.
pub const START_COMMAND: &str = "host-start";
/// Its option for launchers that end what they have started when it returns.
pub const STAY_OPTION: &str = "--stay";
/// Between two looks at whether the start was interrupted.
const LOOK: Duration = Duration::from_millis(50);
/// How long a session may take to end its node and to remove what it made.
pub const END_TIMEOUT: Duration = Duration::from_secs(15);
/// How long hosts may take to say that they keep their nodes: longer than one waits for the
/// description there.
const KEEP_TIMEOUT: Duration = Duration::from_secs(15);
/// How long a host that listens no more may take to say why.
const WORDS_TIMEOUT: Duration = Duration::from_secs(1);
/// How much of the standard error of a launcher is kept, in bytes.
const ERRORS_LEN_MAX: usize = 4096;

/// How a program is run on a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostLauncher {
    /// By these words, the host's name, and the program with its arguments.
    Words(Vec<String>),
    /// By `srun`, inside an allocation of Slurm.
    Srun,
}

impl HostLauncher {
    fn command(&self, host: &str, program: &str) -> Command {
        match self {
            Self::Words(words) => {
                let mut words = words.iter();
                let mut command = Command::new(words.next().map_or("ssh", String::as_str));
                command.args(words).args([host, program, START_COMMAND]);
                command
            }
            Self::Srun => {
                let mut command = Command::new("srun");
                command.args(["--overlap", "--quiet", "--nodes=1", "--ntasks=1"]);
                command.arg(format!("--nodelist={host}"));
                command.args([program, START_COMMAND, STAY_OPTION]);
                command
            }
        }
    }
}

/// A session with a host. Dropped before it was [kept](Self::wait_kept), it ends the node there.
#[derive(Debug)]
pub struct HostSession {
    host: String,
    child: Child,
    /// Closed to end the session.
    input: Option<ChildStdin>,
    answers: Receiver<HostAnswer>,
    /// The last of what the launcher has said on its standard error.
    errors: Arc<Mutex<Vec<u8>>>,
    is_kept: bool,
}

impl HostSession {
    /// Begins one with `host`.
    ///
    /// # Errors
    /// `Io`: the launcher cannot be started.
    pub fn start(
        launcher: &HostLauncher,
        host: &str,
        program: &str,
        plan: &HostPlan,
    ) -> Result<Self> {
        let mut command = launcher.command(host, program);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // SAFETY: between fork and exec only system calls are made, and nothing is allocated.
        unsafe { command.pre_exec(process::detach) };
        let name = command.get_program().to_string_lossy().into_owned();
        let mut child = command.spawn().doing(format_args!("host {host}: start {name}"))?;
        let errors = Arc::new(Mutex::new(Vec::new()));
        if let Some(from) = child.stderr.take() {
            let to = Arc::clone(&errors);
            thread("errors", move || keep_tail(from, &to))?;
        }
        let (send, answers) = sync_channel(4);
        if let Some(from) = child.stdout.take() {
            thread("answers", move || {
                let mut from = BufReader::new(from);
                loop {
                    let answer = match read_line(&mut from) {
                        Ok(Some(answer)) => answer,
                        Ok(None) => return,
                        Err(error) => HostAnswer::Failed(error.message().to_owned()),
                    };
                    let is_last = matches!(answer, HostAnswer::Failed(_));
                    if send.send(answer).is_err() || is_last {
                        return;
                    }
                }
            })?;
        }
        let input = child.stdin.take();
        let host = host.to_owned();
        let mut session = Self { host, child, input, answers, errors, is_kept: false };
        // The first answer says why a launcher that has ended already did.
        let _ = session.input.as_mut().map(|input| write_line(input, plan));
        Ok(session)
    }

    /// The host's name.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Tells the host something.
    ///
    /// # Errors
    /// `Unavailable`: the session has ended, and why, as far as the host or the launcher says it.
    pub fn tell(&mut self, what: &impl Serialize) -> Result<()> {
        let Some(input) = &mut self.input else {
            return Err(self.unavailable("the session has ended"));
        };
        let Err(error) = write_line(input, what) else { return Ok(()) };
        let until = Instant::now() + WORDS_TIMEOUT;
        match self.answer(until, &AtomicBool::new(false)) {
            Ok(_) => Err(self.unavailable(&format!("it takes no more words: {error}"))),
            Err(said) => Err(said),
        }
    }

    /// Its next answer, by `until`.
    ///
    /// # Errors
    /// It says that it failed, or ends without a word, or is silent: `Unavailable`; all name the
    /// host. `Io`: `interrupted` is set.
    pub fn answer(&mut self, until: Instant, interrupted: &AtomicBool) -> Result<HostAnswer> {
        loop {
            if interrupted.load(Ordering::Relaxed) {
                return Err(failed("interrupted".to_owned()));
            }
            match self.answers.recv_timeout(LOOK) {
                Ok(HostAnswer::Failed(words)) => return Err(self.unavailable(&words)),
                Ok(answer) => return Ok(answer),
                Err(RecvTimeoutError::Disconnected) => return Err(self.ended(until)),
                Err(RecvTimeoutError::Timeout) if Instant::now() >= until => {
                    return Err(self.unavailable("no answer in time"));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Fails when the node there has ended, or the session has.
    ///
    /// # Errors
    /// As [`Self::answer`].
    pub fn check(&mut self) -> Result<()> {
        match self.answers.try_recv() {
            Ok(HostAnswer::Failed(words)) => Err(self.unavailable(&words)),
            Ok(_) | Err(TryRecvError::Empty) => Ok(()),
            Err(TryRecvError::Disconnected) => Err(self.ended(Instant::now() + LOOK)),
        }
    }

    fn unavailable(&self, words: &str) -> Error {
        Error::new(ErrorKind::Unavailable, format!("host {}: {words}", self.host))
    }

    /// The launcher has ended, or is about to: why, by what it said.
    fn ended(&mut self, until: Instant) -> Error {
        let mut status = None;
        while status.is_none() && Instant::now() < until {
            status = self.child.try_wait().ok().flatten();
            std::thread::sleep(LOOK / 5);
        }
        let said = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        let said = String::from_utf8_lossy(&said);
        let said: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let status = status.map_or_else(String::new, |status| format!(" ({status})"));
        match said.last() {
            Some(last) => self.unavailable(&format!("{last}{status}")),
            None => self.unavailable(&format!("the launcher has ended without a word{status}")),
        }
    }

    /// Asks the host to leave the node running when the session ends.
    ///
    /// # Errors
    /// As [`Self::tell`].
    pub fn begin_keep(&mut self) -> Result<()> {
        // It is `KEEP` as JSON.
        self.tell(&"keep")
    }

    /// Waits, by `until`, for the word that it does.
    ///
    /// # Errors
    /// As [`Self::answer`].
    pub fn wait_kept(&mut self, until: Instant, interrupted: &AtomicBool) -> Result<()> {
        match self.answer(until, interrupted)? {
            HostAnswer::Kept => self.is_kept = true,
            answer => return Err(self.unexpected(&answer)),
        }
        Ok(())
    }

    /// What an answer that does not fit here is to be called.
    pub fn unexpected(&self, answer: &HostAnswer) -> Error {
        self.unavailable(&format!("an unexpected answer: {answer:?}"))
    }

    /// Whether the node there stays when the session ends.
    pub const fn is_kept(&self) -> bool {
        self.is_kept
    }

    /// Begins to end the session: the host ends its node and removes what was made for it.
    pub fn begin_end(&mut self) {
        drop(self.input.take());
    }

    /// Waits until it has ended, by `until`, and ends the launcher if it has not; whether it has.
    pub fn wait_end(&mut self, until: Instant) -> bool {
        self.begin_end();
        loop {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return true;
            }
            if Instant::now() >= until {
                // A launcher may be a script with children, all in the group that `detach` makes.
                let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
                let _ = self.child.wait();
                return false;
            }
            std::thread::sleep(LOOK / 5);
        }
    }
}

/// Has all these hosts leave their nodes running, once these have described the cluster there.
///
/// # Errors
/// As of [`HostSession::answer`], of all hosts that do not.
pub fn keep_all<'a>(
    sessions: impl Iterator<Item = &'a mut HostSession>,
    interrupted: &AtomicBool,
) -> Result<()> {
    let mut failures: Vec<Error> = Vec::new();
    let mut begun = Vec::new();
    for session in sessions {
        match session.begin_keep() {
            Ok(()) => begun.push(session),
            Err(error) => failures.push(error),
        }
    }
    // One deadline for all.
    let until = Instant::now() + KEEP_TIMEOUT;
    let waited = begun.into_iter().map(|session| session.wait_kept(until, interrupted));
    failures.extend(waited.filter_map(Result::err));
    if failures.is_empty() {
        return Ok(());
    }
    let mut words: Vec<&str> = failures.iter().map(Error::message).collect();
    words.dedup();
    Err(Error::new(ErrorKind::Unavailable, words.join("; ")))
}

/// Ends those of these sessions that were not kept. The names of hosts that have not ended theirs in
/// time.
pub fn end_all(mut sessions: Vec<HostSession>) -> Vec<String> {
    sessions.retain(|session| !session.is_kept());
    sessions.iter_mut().for_each(HostSession::begin_end);
    // One deadline for all.
    let until = Instant::now() + END_TIMEOUT;
    let late = sessions.iter_mut().filter_map(|session| {
        let host = session.host().to_owned();
        (!session.wait_end(until)).then_some(host)
    });
    late.collect()
}

impl Drop for HostSession {
    fn drop(&mut self) {
        if !self.is_kept {
            self.wait_end(Instant::now() + END_TIMEOUT);
        }
    }
}

fn thread(name: &str, body: impl FnOnce() + Send + 'static) -> Result<()> {
    let made = std::thread::Builder::new().name(name.into()).spawn(body);
    made.map(drop).doing("start a thread")
}

/// Reads to the end, and keeps the last bytes.
fn keep_tail(mut from: impl Read, to: &Mutex<Vec<u8>>) {
    let mut piece = [0; 1024];
    while let Ok(len @ 1..) = from.read(&mut piece) {
        let mut kept = to.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend_from_slice(&piece[..len]);
        let over = kept.len().saturating_sub(ERRORS_LEN_MAX);
        kept.drain(..over);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(script: &str) -> HostSession {
        // The host and the program are arguments of the script.
        let words = ["sh", "-c", script].map(str::to_owned);
        let plan = HostPlan {
            cluster: "c".into(),
            keys: vec![7; 32],
            host: "h".into(),
            others: Vec::new(),
            port: None,
            joins: None,
        };
        HostSession::start(&HostLauncher::Words(words.to_vec()), "h", "samite", &plan).unwrap()
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    #[test]
    fn failures_name_the_host_and_the_cause() {
        let never = AtomicBool::new(false);
        let said = |script: &str, until| {
            let error = session(script).answer(until, &never).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            error.message().to_owned()
        };
        let refused = said("echo noise >&2; echo 'no route' >&2; exit 255", soon());
        assert_eq!(refused, "host h: no route (exit status: 255)");
        let silent = said("exit 0", soon());
        assert_eq!(silent, "host h: the launcher has ended without a word (exit status: 0)");
        assert!(said("echo welcome", soon()).starts_with("host h: \"welcome\": "));
        let failed = said(r#"read x; echo '{"Failed":"no room"}'; read y"#, soon());
        assert_eq!(failed, "host h: no room");
        assert_eq!(said("read x; read y", Instant::now()), "host h: no answer in time");
        let mut lives = session("read x; read y");
        let error = lives.answer(soon(), &AtomicBool::new(true)).unwrap_err();
        assert_eq!(error.message(), "interrupted");
    }

    #[test]
    fn a_session_ends_when_its_input_does_and_not_when_it_is_kept() {
        let mut one = session("cat > /dev/null");
        assert!(one.wait_end(soon()));
        let mut hangs = session("exec sleep 1000 < /dev/null");
        assert!(!hangs.wait_end(Instant::now()), "it is ended");
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("told");
        let script = "read x; read y; echo '\"Kept\"'; cat > /dev/null; echo ended > {}";
        let mut kept = session(&script.replace("{}", &path.display().to_string()));
        kept.begin_keep().unwrap();
        kept.wait_kept(soon(), &AtomicBool::new(false)).unwrap();
        assert!(kept.is_kept());
        drop(kept);
        let until = soon();
        while !std::fs::read_to_string(&path).is_ok_and(|told| told == "ended\n") {
            assert!(Instant::now() < until);
            std::thread::sleep(LOOK);
        }
    }

    #[test]
    fn a_host_that_does_not_say_that_it_keeps_its_node_keeps_none() {
        let never = AtomicBool::new(false);
        let mut gone = session("read x; echo 'link lost' >&2; exit 255");
        gone.ended(soon());
        let error = gone.begin_keep().unwrap_err();
        assert_eq!(error.message(), "host h: link lost (exit status: 255)");
        let mut full = session(r#"read x; read y; echo '{"Failed":"no room"}'"#);
        full.begin_keep().unwrap();
        let error = full.wait_kept(soon(), &never).unwrap_err();
        assert_eq!(error.message(), "host h: no room");
        let mut odd = session(r#"read x; read y; echo '"Listens"'; cat > /dev/null"#);
        odd.begin_keep().unwrap();
        let error = odd.wait_kept(soon(), &never).unwrap_err();
        assert_eq!(error.message(), "host h: an unexpected answer: Listens");
        assert!(!gone.is_kept() && !full.is_kept() && !odd.is_kept());
    }

    #[test]
    fn children_of_a_launcher_end_with_it() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("pid");
        let script = "sleep 1000 < /dev/null & echo $! > {}; read x; wait";
        let mut hangs = session(&script.replace("{}", &path.display().to_string()));
        let until = soon();
        let pid = loop {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            if let Ok(pid) = text.trim().parse::<u32>() {
                break pid;
            }
            assert!(Instant::now() < until);
            std::thread::sleep(LOOK);
        };
        let child = process::NodeProcess::open(pid, |_| true).unwrap();
        assert!(!hangs.wait_end(Instant::now()), "it is ended");
        assert!(child.wait(Duration::from_secs(20)));
    }

    #[test]
    fn launchers_are_given_the_host_and_the_program() {
        let words = HostLauncher::Words(vec!["ssh".into(), "-x".into()]);
        let line = |launcher: &HostLauncher| format!("{:?}", launcher.command("h", "/bin/samite"));
        assert_eq!(line(&words), r#""ssh" "-x" "h" "/bin/samite" "host-start""#);
        assert!(
            line(&HostLauncher::Srun)
                .ends_with(r#""--nodelist=h" "/bin/samite" "host-start" "--stay""#)
        );
    }
}
