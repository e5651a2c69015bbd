//! Which jobs there are and were: records in a dataset of the store, written by the commands that
//! drive the jobs.

use std::time::Duration;

use samite_client::{Client, Dataset};
use samite_kv::KvView;
use samite_types::{Clock, Error, ErrorKind, NodeId, Result, SystemClock};
use samite_wire::control::SemanticsKind;
use serde::{Deserialize, Serialize};

/// The dataset with the records of jobs. Users who may not write to it have one of their own, with
/// their number behind the name.
pub const JOBS_DATASET: &str = "jobs";

/// Time after which a job whose driver has said nothing is lost.
const LOST_AFTER: Duration = Duration::from_secs(15);
/// Records that are asked for at a time.
const PAGE_LEN: usize = 1024;
const RECORD_PREFIX: &str = "job/";
const CANCEL_PREFIX: &str = "cancel/";

/// How a job stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobState {
    /// It runs.
    Running,
    /// It is done.
    Done,
    /// It has failed.
    Failed,
    /// Somebody has cancelled it.
    Cancelled,
    /// Its driver has said nothing for a while.
    Lost,
}

impl JobState {
    /// As it is told.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Lost => "lost",
        }
    }
}

/// A job, as it is written down.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobRecord {
    /// Its number, in hexadecimal.
    pub id: String,
    /// How it stands.
    pub state: JobState,
    /// Why it has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Its words.
    pub words: Vec<String>,
    /// Whose it is.
    pub uid: u32,
    /// Host and process that drive it.
    pub host: String,
    /// See `host`.
    pub pid: u32,
    /// Seconds since 1970.
    pub started_s: u64,
    /// When its driver has said something last, or it has ended.
    pub heard_s: u64,
    /// Seconds that it has taken.
    pub seconds: f64,
    /// Exit code of the module, once it is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<u8>,
    /// All tasks.
    pub tasks: usize,
    /// Those that are done.
    pub tasks_done: usize,
    /// Bytes of the input, as far as they are known.
    pub bytes: u64,
    /// Records or files that were read.
    pub records: u64,
    /// Bytes that were read where they lie.
    pub bytes_local: u64,
    /// Bytes that were read from other nodes.
    pub bytes_moved: u64,
    /// Bytes of output.
    pub bytes_returned: u64,
    /// Tasks of a job that is over.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub per_task: Vec<TaskRecord>,
}

/// A task, as it is written down.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskRecord {
    /// Where it ran.
    pub node: NodeId,
    /// Runs before that, at nodes that were lost.
    pub again: u32,
    /// Records or files.
    pub records: u64,
    /// As of [`JobRecord`].
    pub bytes_local: u64,
    /// As of [`JobRecord`].
    pub bytes_moved: u64,
    /// As of [`JobRecord`].
    pub bytes_returned: u64,
    /// Seconds.
    pub seconds: f64,
}

/// The records of jobs.
#[derive(Clone, Debug)]
pub struct JobRecords {
    client: Client,
}

impl JobRecords {
    /// Those in the store of this client.
    #[must_use]
    pub fn new(client: &Client) -> Self {
        Self { client: client.clone() }
    }

    /// The dataset of this user, which is made if it is missing.
    fn own(&self) -> Result<Dataset> {
        let uid = rustix::process::geteuid().as_raw();
        for name in [JOBS_DATASET.to_owned(), format!("{JOBS_DATASET}-{uid}")] {
            match self.client.dataset(&name) {
                Ok(dataset) if dataset.spec().access.allows(uid, true) => return Ok(dataset),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    let mut spec = self.client.spec(&name);
                    // What is lost with a node is no loss.
                    spec.semantics = SemanticsKind::Temporary;
                    return self.client.create_dataset(&spec);
                }
                Err(error) => return Err(error),
            }
        }
        let words = format!("uid {uid} may not write to dataset {JOBS_DATASET}-{uid}");
        Err(Error::new(ErrorKind::Denied, words))
    }

    /// Datasets with records that this user may read.
    fn all(&self) -> Result<Vec<Dataset>> {
        let uid = rustix::process::geteuid().as_raw();
        let map = self.client.refresh_map()?;
        let is_one = |name: &str| {
            let rest = name.strip_prefix(JOBS_DATASET);
            rest.is_some_and(|rest| {
                let number = rest.strip_prefix('-');
                rest.is_empty() || number.is_some_and(|number| number.parse::<u32>().is_ok())
            })
        };
        let found = map.datasets().iter().filter(|data| is_one(&data.spec.name));
        let readable = found.filter(|data| data.spec.access.allows(uid, false));
        readable.map(|data| self.client.dataset(&data.spec.name)).collect()
    }

    /// Writes a job down.
    ///
    /// # Errors
    /// As of the store.
    pub fn write(&self, record: &JobRecord) -> Result<()> {
        let text = serde_json::to_vec(record)
            .map_err(|error| Error::new(ErrorKind::Internal, format!("write a job: {error}")))?;
        let view = KvView::new(self.own()?);
        view.put(format!("{RECORD_PREFIX}{}", record.id).as_bytes(), &text).map(drop)
    }

    /// A job.
    ///
    /// # Errors
    /// `NotFound`; as of the store.
    pub fn read(&self, id: &str) -> Result<JobRecord> {
        let key = format!("{RECORD_PREFIX}{id}");
        for dataset in self.all()? {
            if let Some(value) = KvView::new(dataset).get(key.as_bytes())? {
                return parse(&value.bytes);
            }
        }
        Err(Error::new(ErrorKind::NotFound, format!("job {id}: none such")))
    }

    /// All jobs, the oldest first.
    ///
    /// # Errors
    /// As of the store.
    pub fn list(&self) -> Result<Vec<JobRecord>> {
        let mut records = Vec::new();
        for dataset in self.all()? {
            let view = KvView::new(dataset);
            let mut after = Vec::new();
            loop {
                let page = view.list(RECORD_PREFIX.as_bytes(), &after, PAGE_LEN)?;
                for entry in &page.entries {
                    if let Some(value) = view.get(&entry.key)? {
                        records.push(parse(&value.bytes)?);
                    }
                }
                match page.entries.last() {
                    Some(last) if !page.complete => after.clone_from(&last.key),
                    _ => break,
                }
            }
        }
        records.sort_by(|a, b| (a.started_s, &a.id).cmp(&(b.started_s, &b.id)));
        Ok(records)
    }

    /// Asks for the end of a job.
    ///
    /// # Errors
    /// `NotFound`; `Denied`: another user's; as of the store.
    pub fn cancel(&self, id: &str) -> Result<()> {
        let key = format!("{RECORD_PREFIX}{id}");
        for dataset in self.all()? {
            let view = KvView::new(dataset);
            if view.get(key.as_bytes())?.is_some() {
                return view.put(format!("{CANCEL_PREFIX}{id}").as_bytes(), b"cancel").map(drop);
            }
        }
        Err(Error::new(ErrorKind::NotFound, format!("job {id}: none such")))
    }

    /// Whether somebody has asked for the end of a job of this user.
    ///
    /// # Errors
    /// As of the store.
    pub fn is_cancelled(&self, id: &str) -> Result<bool> {
        let view = KvView::new(self.own()?);
        Ok(view.get(format!("{CANCEL_PREFIX}{id}").as_bytes())?.is_some())
    }

    /// Forgets that somebody has asked for it.
    ///
    /// # Errors
    /// As of the store.
    pub fn clear_cancel(&self, id: &str) -> Result<()> {
        let view = KvView::new(self.own()?);
        view.delete(format!("{CANCEL_PREFIX}{id}").as_bytes()).map(drop)
    }
}

/// A record as it was written; a job that runs and of which nothing was heard is lost.
fn parse(text: &[u8]) -> Result<JobRecord> {
    let mut record: JobRecord = serde_json::from_slice(text)
        .map_err(|error| Error::new(ErrorKind::Corrupt, format!("record of a job: {error}")))?;
    let now = SystemClock.realtime().as_secs();
    let is_silent = record.heard_s.saturating_add(LOST_AFTER.as_secs()) < now;
    if record.state == JobState::Running && is_silent {
        record.state = JobState::Lost;
    }
    Ok(record)
}

/// The number of a job by its name.
///
/// # Errors
/// `Invalid`.
pub fn parse_job_id(text: &str) -> Result<u64> {
    let is_hex = (1..=16).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit());
    let number = is_hex.then(|| u64::from_str_radix(text, 16).ok()).flatten();
    number.ok_or_else(|| Error::new(ErrorKind::Invalid, format!("{text:?} is no number of a job")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_jobs() {
        assert_eq!(parse_job_id("00ff").unwrap(), 255);
        for text in ["", "+1", "xyz", "12345678123456781"] {
            assert_eq!(parse_job_id(text).unwrap_err().kind(), ErrorKind::Invalid, "{text}");
        }
    }
}
