//! The evidence of a failed run, kept for the search for its cause.
//!
//! ```text
//!  wrong.txt      the plan, and what was wrong
//!  timeline.txt   what was killed, cut and started when, and by which map the cluster was taken for whole
//!  n0.json …      figures of each node, and the cluster map as it has it
//!  copies.json    what the members of each group hold of each dataset: version, records, digest
//!  etcd.json      all keys of etcd, with their revisions
//!  run/           logs of nodes and of etcd, the cluster's file
//!  clients/       what each process said, with the calls that it made last
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use std::{fs, io};

use samite_client::Client;
use samite_testkit::ProcessCluster;
use samite_types::{Deadline, NodeId};
use serde_json::{Value, json};

use super::members;
use crate::timeline::Timeline;

/// How long a node may take over a question: it may be dead.
const ASK_MAX: Duration = Duration::from_secs(2);
/// Longest file that is copied.
const FILE_LEN_MAX: u64 = 256 << 20;

/// A run that was wrong, with its cluster as it is.
pub(super) struct ChaosEvidence<'a> {
    pub cluster: &'a ProcessCluster,
    pub client: &'a Client,
    pub nodes: usize,
    pub datasets: &'a [&'a str],
    pub timeline: &'a Timeline,
    /// The plan of the run, and the errors.
    pub words: String,
}

impl ChaosEvidence<'_> {
    /// Keeps everything in a directory of its own in `parent`, and says where.
    pub(super) fn keep(&self, parent: &Path, name: &str) -> io::Result<PathBuf> {
        let dir = parent.join(name);
        fs::create_dir_all(&dir)?;
        fs::write(dir.join("wrong.txt"), &self.words)?;
        fs::write(dir.join("timeline.txt"), self.timeline.to_string())?;
        for number in 0..self.nodes {
            // At most a few.
            let node = NodeId(number as u32);
            write_json(&dir.join(format!("n{number}.json")), &self.node(node))?;
        }
        write_json(&dir.join("copies.json"), &self.copies())?;
        self.keep_etcd(&dir.join("etcd.json"))?;
        copy_files(&self.cluster.runtime_path().join("default"), &dir.join("run"))?;
        copy_files(&self.cluster.scratch().join("clients"), &dir.join("clients"))?;
        Ok(dir)
    }

    fn node(&self, node: NodeId) -> Value {
        let status = self.client.node_status_by(node, Deadline::after(ASK_MAX));
        let map = self.client.map_at(node, Deadline::after(ASK_MAX));
        let map = map.map_or_else(|error| json!(error.to_string()), |map| json!(map.data()));
        let status = status.map_or_else(|error| json!(error.to_string()), |status| json!(status));
        json!({ "status": status, "map": map })
    }

    fn copies(&self) -> Value {
        let mut all: BTreeMap<&str, Value> = BTreeMap::new();
        for name in self.datasets {
            let mut partitions: BTreeMap<u32, Value> = BTreeMap::new();
            let dataset = self.client.dataset(name).map_err(|error| error.to_string());
            let visited = dataset.and_then(|dataset| {
                members::each(self.client, &dataset, &mut |partition, copies| {
                    let copies = copies.into_iter().map(|(node, copy)| {
                        let copy = copy.map_or_else(|error| json!(error), |copy| json!(copy));
                        (node.to_string(), copy)
                    });
                    partitions.insert(
                        partition,
                        copies.collect::<BTreeMap<_, _>>().into_iter().collect(),
                    );
                    Ok(())
                })
            });
            let why = visited.err();
            all.insert(name, json!({ "partitions": partitions, "error": why }));
        }
        json!(all)
    }

    /// Where its program is on the machine.
    fn keep_etcd(&self, path: &Path) -> io::Result<()> {
        let Ok(file) = self.cluster.file() else { return Ok(()) };
        let members = file.setup.etcd_members.iter();
        let endpoints: Vec<String> =
            members.map(|member| format!("http://127.0.0.1:{}", member.client_port)).collect();
        if endpoints.is_empty() {
            return Ok(());
        }
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").args(["--endpoints", &endpoints.join(",")]);
        command.args(["--command-timeout", "5s", "get", "", "--prefix", "--write-out", "json"]);
        match command.output() {
            Ok(said) => {
                fs::write(path, if said.status.success() { said.stdout } else { said.stderr })
            }
            Err(error) => fs::write(path, error.to_string()),
        }
    }
}

fn write_json(path: &Path, value: &Value) -> io::Result<()> {
    fs::write(path, format!("{value:#}\n"))
}

/// Copies the logs and other texts of a directory, if there is one.
fn copy_files(from: &Path, to: &Path) -> io::Result<()> {
    let Ok(entries) = fs::read_dir(from) else { return Ok(()) };
    fs::create_dir_all(to)?;
    for entry in entries {
        let entry = entry?;
        let (path, facts) = (entry.path(), entry.metadata()?);
        let is_text =
            path.extension().is_some_and(|end| end == "log" || end == "json" || end == "txt");
        if is_text && facts.is_file() && facts.len() <= FILE_LEN_MAX {
            fs::copy(path, to.join(entry.file_name()))?;
        }
    }
    Ok(())
}
