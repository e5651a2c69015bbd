//! Jobs and the workers that carry out their tasks, with the real binary.

#![expect(clippy::unwrap_used, reason = "a test ends at what it does not expect")]

mod common;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use common::{Samite, kill, list};
use samite_client::runtime::{RuntimeDir, TicketFile};
use samite_client::{Client, ClientOptions};
use samite_fs::{CallerContext, FileSystem};
use samite_tools::WcModule;
use samite_types::{Deadline, ErrorKind, NodeId, PartitionId};
use samite_wire::worker::WorkerKind;
use samite_worker::Module as _;
use samite_worker::messages::{
    FilePiece, JobLimits, OrderedFile, TaskAttempt, TaskEnd, TaskInputOrder, TaskOrder, TaskPoll,
    WorkerAnswer, WorkerRequest, decode, encode,
};

/// Longer than anything here may take.
const PATIENCE: Duration = Duration::from_secs(90);
/// A user of every machine, who is not root: `daemon`.
const DAEMON: u32 = 1;

/// Text with words and lines that cross all chunks, `len` bytes.
fn text(len: usize) -> Vec<u8> {
    let line = b"the quick\tbrown fox  jumps\nover-the-lazy dog\n\n";
    line.iter().copied().cycle().take(len).collect()
}

fn counts(text: &[u8]) -> (usize, usize, usize) {
    let string = std::str::from_utf8(text).unwrap();
    (string.matches('\n').count(), string.split_whitespace().count(), text.len())
}

/// The lines of `wc`, by name.
fn parsed(out: &str) -> BTreeMap<String, (usize, usize, usize)> {
    let line = |line: &str| {
        let mut fields = line.split_whitespace();
        let mut number = || fields.next().unwrap().parse().unwrap();
        let found = (number(), number(), number());
        (fields.next().unwrap().to_owned(), found)
    };
    out.lines().map(line).collect()
}

fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The worker processes, by node.
fn workers(samite: &Samite) -> BTreeMap<String, u32> {
    let mut command = samite.command(["status", "--json"]);
    let status: serde_json::Value =
        serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
    let mut found = BTreeMap::new();
    for node in status["nodes"].as_array().unwrap() {
        for worker in node["workers"].as_array().into_iter().flatten() {
            let pid = u32::try_from(worker["pid"].as_u64().unwrap()).unwrap();
            found.insert(format!("n{}", node["node"]), pid);
        }
    }
    found
}

fn signal(name: &str, pid: u32) {
    assert!(Command::new("kill").args([name, &pid.to_string()]).status().unwrap().success());
}

fn job(samite: &Samite, id: &str) -> serde_json::Value {
    serde_json::from_str(&samite.ok(["job", "show", "--json", id])).unwrap()
}

/// Puts a file of so many bytes into the store, and has workers on all nodes.
fn prepare(samite: &Samite, len: usize) -> Vec<u8> {
    let text = text(len);
    samite.ok_with(["put", "-", "/big"], &text);
    samite.ok(["job", "run", "wc", "/big"]);
    text
}

/// Begins a job in a process of its own, and waits until it runs. Its number.
fn begin(samite: &Samite, words: &[&str]) -> (Child, String) {
    let listed = || -> Vec<serde_json::Value> {
        let jobs = samite.ok(["job", "list", "--json"]);
        jobs.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let known: Vec<_> = listed().into_iter().map(|job| job["id"].clone()).collect();
    let mut command = samite.command(["job", "run"]);
    command.args(words).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let id = until("a job runs", || {
        let job = listed().into_iter().find(|job| !known.contains(&job["id"]))?;
        (job["tasks"].as_u64() > Some(0)).then(|| job["id"].as_str().unwrap().to_owned())
    });
    (child, id)
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn files_trees_and_records_are_counted_where_they_lie() {
    let samite = Samite::up(2);
    let big = text(5_300_000);
    samite.ok_with(["put", "-", "/big"], &big);
    samite.ok(["mkdir", "/tree", "/tree/below"]);
    let mut total = counts(&big);
    for number in 0..40_usize {
        let text = text(number * 700);
        let dir = if number % 2 == 0 { "/tree" } else { "/tree/below" };
        samite.ok_with(["put", "-", &format!("{dir}/f{number}")], &text);
        let (lines, words, bytes) = counts(&text);
        total = (total.0 + lines, total.1 + words, total.2 + bytes);
    }
    let run = |args: &[&str]| {
        let mut command = samite.command(["job", "run", "--json"]);
        let output = command.args(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
        let record: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
        (String::from_utf8(output.stdout).unwrap(), record)
    };
    let (out, record) = run(&["wc", "/big"]);
    assert_eq!(parsed(&out)["/big"], counts(&big));
    assert_eq!(record["bytes_local"].as_u64(), Some(big.len() as u64));
    assert_eq!((record["bytes_moved"].as_u64(), record["state"].as_str()), (Some(0), Some("done")));
    assert!(record["bytes_returned"].as_u64() > Some(0), "{record}");
    assert_eq!(record["records"].as_u64(), Some(1));
    let nodes = |record: &serde_json::Value| {
        let tasks = record["per_task"].as_array().unwrap().iter();
        let mut nodes: Vec<_> = tasks.map(|task| task["node"].as_u64().unwrap()).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    };
    assert_eq!(nodes(&record), [0, 1]);
    let (out, _) = run(&["wc", "-r", "/big", "/tree"]);
    let found = parsed(&out);
    assert_eq!((found.len(), found["total"]), (42, total));
    assert_eq!(found["/tree/below/f39"], counts(&text(39 * 700)));
    assert!(samite.fails(1, ["job", "run", "wc", "/tree"]).contains("it is a directory"));

    for number in 0..200 {
        let (key, value) = (format!("k{number:03}"), "word ".repeat(number));
        samite.ok(["kv", "put", &key, &value]);
    }
    samite.ok_with(["kv", "put", "large", "-"], &big);
    let words = |range: std::ops::Range<usize>| range.sum::<usize>();
    let (out, record) = run(&["--dataset", "kv", "--prefix", "k", "wc"]);
    assert_eq!(parsed(&out)["kv"], (0, words(0..200), words(0..200) * 5));
    assert_eq!(record["records"].as_u64(), Some(200));
    let (out, _) = run(&["--dataset", "kv", "--from", "k050", "--to", "k060", "wc"]);
    assert_eq!(parsed(&out)["kv"].1, words(50..60));
    let (out, _) = run(&["--dataset", "kv", "--prefix", "l", "wc"]);
    assert_eq!(parsed(&out)["kv"], counts(&big));

    let id = samite.ok(["job", "run", "--detach", "--output", "/counts", "wc", "/big"]);
    let waited = samite.ok(["job", "wait", id.trim()]);
    assert!(waited.contains("done"), "{waited}");
    assert_eq!(parsed(&samite.ok(["cat", "/counts"]))["/big"], counts(&big));
    assert_eq!(job(&samite, id.trim())["state"].as_str(), Some("done"));
    assert!(samite.ok(["job", "show", id.trim()]).contains("TASK"), "it has a line for each task");
    let listed = samite.ok(["job", "list"]);
    assert!(listed.contains(id.trim()) && listed.contains("wc -r /big /tree"), "{listed}");
    samite.fails(4, ["job", "show", "0"]);
    samite.fails(2, ["job", "run", "nothing"]);
    samite.ok(["down"]);
    samite.assert_nothing_left();
}

#[test]
fn a_worker_that_dies_ends_its_job_and_the_next_one_works() {
    let samite = Samite::up(2);
    let text = prepare(&samite, 6_000_000);
    let before = workers(&samite);
    assert_eq!(before.len(), 2);
    before.values().for_each(|pid| signal("-STOP", *pid));
    let (child, id) = begin(&samite, &["--output", "/out", "wc", "/big"]);
    kill(before["n0"]);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let words = said(&output);
    assert!(words.contains("job on n0") && words.contains("signal 9"), "{words}");
    assert!(words.contains("worker of uid"), "{words}");
    assert_eq!(job(&samite, &id)["state"].as_str(), Some("failed"));
    // Nothing is to be seen of its output.
    assert_eq!(samite.ok(["ls", "-a", "/"]), "big\n");
    signal("-CONT", before["n1"]);
    let out = samite.ok(["job", "run", "wc", "/big"]);
    assert_eq!(parsed(&out)["/big"], counts(&text));
    assert_ne!(workers(&samite)["n0"], before["n0"]);
}

#[test]
fn a_job_is_cancelled_and_the_worker_goes_on() {
    let samite = Samite::up(1);
    let text = prepare(&samite, 3_000_000);
    let before = workers(&samite)["n0"];
    signal("-STOP", before);
    let (child, id) = begin(&samite, &["wc", "/big"]);
    assert_eq!(job(&samite, &id)["state"].as_str(), Some("running"));
    samite.ok(["job", "cancel", &id]);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(said(&output).contains("cancelled"), "{output:?}");
    assert_eq!(job(&samite, &id)["state"].as_str(), Some("cancelled"));
    samite.fails(5, ["job", "cancel", &id]);
    assert!(samite.fails(1, ["job", "wait", &id]).contains("cancelled"));
    signal("-CONT", before);
    assert_eq!(parsed(&samite.ok(["job", "run", "wc", "/big"]))["/big"], counts(&text));
    assert_eq!(workers(&samite)["n0"], before);
}

#[test]
fn tasks_of_a_mirrored_node_that_dies_run_at_the_next_one() {
    let samite = Samite::new();
    samite.ok(["up", "--local", "3", "--mirror", "2", "--memory", "128M"]);
    let text = prepare(&samite, 12_000_000);
    signal("-STOP", workers(&samite)["n1"]);
    let (child, id) = begin(&samite, &["wc", "/big"]);
    until("tasks of the other nodes are done", || {
        (job(&samite, &id)["tasks_done"].as_u64() > Some(0)).then_some(())
    });
    kill(samite.pids("default")[1]);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let out = String::from_utf8(output.stdout).unwrap();
    assert_eq!(parsed(&out)["/big"], counts(&text));
    let record = job(&samite, &id);
    let tasks = record["per_task"].as_array().unwrap();
    let again = |task: &&serde_json::Value| task["again"].as_u64() > Some(0);
    assert!(tasks.iter().any(|task| again(&task)), "{record}");
    assert!(tasks.iter().all(|task| task["node"] != 1), "{record}");
    // What was done before is not done again.
    let input = record["bytes_local"].as_u64().unwrap() + record["bytes_moved"].as_u64().unwrap();
    assert_eq!(input, text.len() as u64);
}

/// A client of the store as the user of a ticket.
fn client_of(owner: &Samite, uid: u32) -> Client {
    let file = owner.scratch().join(format!("{uid}.ticket"));
    let (user, path) = (uid.to_string(), file.to_str().unwrap());
    owner.ok(["ticket", "issue", "--user", &user, "--out", path]);
    let ticket = TicketFile::read(&file).unwrap();
    let runtime = RuntimeDir::at(owner.scratch().join("user")).unwrap();
    let dir = runtime.use_ticket(&ticket).unwrap();
    Client::from_cluster_dir(&dir, ClientOptions::default()).unwrap()
}

fn ask(client: &Client, request: &WorkerRequest) -> samite_types::Result<WorkerAnswer> {
    let deadline = Deadline::after(PATIENCE);
    decode(&client.ask_worker(NodeId(0), WorkerKind::Native, encode(request), deadline)?)
}

/// Tasks that were begun.
static TASKS: AtomicU32 = AtomicU32::new(0);

/// What becomes of a task that counts the words of a file, at the worker of this client's user.
fn count(client: &Client, path: &str, ino: u64) -> TaskEnd {
    let path = path.as_bytes().to_vec();
    let file = OrderedFile { number: 0, path, ino, size: 5, home: PartitionId(0) };
    let input = TaskInputOrder::Files {
        dataset: "files".into(),
        files: vec![file],
        pieces: vec![FilePiece { number: 0, file: 0, offset: 0, len: 5 }],
    };
    let (module, limits) = ("wc".to_owned(), JobLimits::default());
    let words = [OsString::from("/open")];
    let arguments = WcModule.parse(&words).unwrap().arguments;
    let order = TaskOrder { module, arguments, input, limits };
    let of = TaskAttempt { job: 1, task: TASKS.fetch_add(1, Ordering::Relaxed), attempt: 0 };
    assert_eq!(ask(client, &WorkerRequest::Begin(of, order)).unwrap(), WorkerAnswer::Done);
    until("the task ends", || {
        let tasks = vec![TaskPoll { of, taken: 0 }];
        let poll = WorkerRequest::Poll { tasks, ended: Vec::new(), wait_ms: 100 };
        let WorkerAnswer::Progress(told) = ask(client, &poll).unwrap() else { panic!("no answer") };
        told[0].end.clone()
    })
}

#[test]
fn a_worker_reads_what_its_user_may_read_and_no_more() {
    if !rustix::process::geteuid().is_root() {
        samite_testkit::skip("root");
        return;
    }
    let owner = Samite::new();
    // Others may come to the socket in it, and see no more of it.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o711);
    std::fs::set_permissions(owner.scratch(), open).unwrap();
    let socket = owner.scratch().join("tickets");
    let shared = socket.to_str().unwrap();
    owner.ok(["up", "--local", "1", "--memory", "128M", "--shared", shared]);
    owner.ok_with(["put", "-", "/open"], b"a b c");
    owner.ok_with(["put", "-", "/own"], b"d e f");
    let dir = RuntimeDir::at(owner.runtime()).unwrap().cluster("default").unwrap();
    let root = Client::from_cluster_dir(&dir, ClientOptions::default()).unwrap();
    let fs = FileSystem::open(&root, "files").unwrap();
    fs.chmod(&CallerContext::root(), "/own", 0o600, true).unwrap();
    let ino = |path: &str| -> u64 {
        let stat: serde_json::Value =
            serde_json::from_str(&owner.ok(["stat", "--json", path])).unwrap();
        stat["ino"].as_u64().unwrap()
    };
    let (open, own) = (ino("/open"), ino("/own"));
    let client = client_of(&owner, DAEMON);
    // The dataset is its owner's alone.
    let TaskEnd::Failed(kind, words) = count(&client, "/open", open) else { panic!("not refused") };
    assert_eq!(ErrorKind::from_code(kind), Some(ErrorKind::Denied), "{words}");
    owner.ok(["dataset", "chmod", "704", "files"]);
    assert_eq!(count(&client, "/open", open), TaskEnd::Done);
    assert_eq!(
        count(&client, "/open", open + 1000),
        TaskEnd::Failed(
            ErrorKind::StaleHandle.code(),
            "/open: another file has got this name".to_owned(),
        )
    );
    let TaskEnd::Failed(kind, words) = count(&client, "/own", own) else { panic!("not refused") };
    assert_eq!(ErrorKind::from_code(kind), Some(ErrorKind::Denied), "{words}");
    let pid = workers(&owner)["n0"];
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let uids = format!("Uid:\t{DAEMON}\t{DAEMON}\t{DAEMON}\t{DAEMON}");
    assert!(status.contains(&uids), "{status}");
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let data = limits.lines().find(|line| line.starts_with("Max data size")).unwrap();
    assert!(!data.contains("unlimited"), "{data}");
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let nice: i64 = stat.rsplit(") ").next().unwrap().split(' ').nth(16).unwrap().parse().unwrap();
    let own = std::fs::read_to_string("/proc/self/stat").unwrap();
    let own: i64 = own.rsplit(") ").next().unwrap().split(' ').nth(16).unwrap().parse().unwrap();
    assert!(nice > own || nice == 19, "{nice} {own}");
    // Nothing of the node is open in it but the socket and the log.
    let open: Vec<String> = list(Path::new(&format!("/proc/{pid}/fd")))
        .into_iter()
        .filter_map(|fd| std::fs::read_link(format!("/proc/{pid}/fd/{fd}")).ok())
        .map(|target| target.to_string_lossy().into_owned())
        .filter(|target| !target.starts_with("socket:") && !target.contains(".worker-native-"))
        .filter(|target| !target.starts_with("anon_inode:"))
        .collect();
    assert_eq!(open, [] as [&str; 0]);
}
