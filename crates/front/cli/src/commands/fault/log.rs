//! The faults that were injected, read from the nodes' logs.

use super::FaultNodes;
use crate::cluster::ClusterTarget;
use crate::failure::{CommandFailure, IoContext};
use crate::output::CommandOutput;

/// Prints the logs as one, in order of time.
pub fn run(target: &ClusterTarget, nodes: &FaultNodes, json: bool) -> Result<(), CommandFailure> {
    let file = target.cluster_file()?;
    let mut lines = Vec::new();
    for entry in nodes.of(&file)? {
        let path = target.dir.fault_log_path(entry.node);
        let text = match std::fs::read_to_string(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            text => text.doing(format_args!("read {}", path.display()))?,
        };
        lines.extend(text.lines().map(str::to_owned));
    }
    // Seconds have as many digits in all of them; nodes write their own in order, nearly.
    lines.sort();
    let mut out = CommandOutput::new();
    for line in &lines {
        if json {
            out.json(&object(line))?;
        } else {
            out.line(line)?;
        }
    }
    out.finish()
}

fn object(line: &str) -> serde_json::Value {
    let words: Vec<&str> = line.split(' ').collect();
    let word = |index: usize| words.get(index).copied().filter(|word| *word != "-");
    serde_json::json!({
        "time_s": word(0).and_then(|time| time.parse::<f64>().ok()),
        "fault": word(1), "from": word(2), "to": word(3), "frame": word(4), "request": word(5),
        "len": word(6).and_then(|len| len.parse::<u64>().ok()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_objects() {
        let drop = object("1763783084.250113 drop n1 c Reply r1025 4160");
        assert_eq!((&drop["fault"], &drop["len"]), (&"drop".into(), &4160.into()));
        let disk = object("1763783084.250113 disk-torn n1 - Write - 512");
        assert_eq!((&disk["to"], &disk["frame"]), (&serde_json::Value::Null, &"Write".into()));
        assert_eq!(object("torn")["time_s"], serde_json::Value::Null);
    }
}
