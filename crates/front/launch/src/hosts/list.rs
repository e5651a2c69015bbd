//! The hosts of a cluster that is to be started: as they are named, or those of a job.

use std::path::Path;
use std::process::Command;

use samite_types::{Error, ErrorKind, Result};

use super::session::HostLauncher;
use crate::io_context::{SystemContext as _, failed};

/// Most hosts.
pub const HOSTS_MAX: usize = 256;
/// Longest list of hosts in a file, in bytes.
const LIST_LEN_MAX: u64 = 1 << 20;
/// The launcher where nobody names another one.
const SSH: [&str; 3] = ["ssh", "-o", "BatchMode=yes"];

/// The usual launcher: `ssh` that asks for no password.
#[must_use]
pub fn ssh() -> HostLauncher {
    HostLauncher::Words(SSH.map(str::to_owned).to_vec())
}

/// Hosts of a list with one on each line. What follows the first word of a line does not count, nor
/// does what follows `#`, nor a host that was named before.
///
/// # Errors
/// `Io`; `Invalid`: it has none, or too many, or something that is no name of a host.
pub fn from_file(path: &Path) -> Result<Vec<String>> {
    let len = std::fs::metadata(path).doing(format_args!("read {}", path.display()))?.len();
    if len > LIST_LEN_MAX {
        return Err(failed(format!("{}: over {LIST_LEN_MAX} bytes", path.display())));
    }
    let text = std::fs::read(path).doing(format_args!("read {}", path.display()))?;
    let text = String::from_utf8_lossy(&text);
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    check(lines.filter_map(|line| line.split_whitespace().next()))
        .map_err(|error| error.context(path.display()))
}

/// The hosts with these names, each once.
///
/// # Errors
/// `Invalid`: there are none, or too many, or something is no name of a host.
pub fn check<'a>(names: impl Iterator<Item = &'a str>) -> Result<Vec<String>> {
    let invalid = |words: String| Error::new(ErrorKind::Invalid, words);
    let mut hosts: Vec<String> = Vec::new();
    for name in names {
        if !is_host(name) {
            return Err(invalid(format!("{name:?} is no name of a host")));
        }
        if !hosts.iter().any(|host| host == name) {
            hosts.push(name.to_owned());
        }
        if hosts.len() > HOSTS_MAX {
            return Err(invalid(format!("more than {HOSTS_MAX} hosts")));
        }
    }
    if hosts.is_empty() { Err(invalid("no hosts".to_owned())) } else { Ok(hosts) }
}

/// Whether it can be a host's name or address: it is an argument of a launcher.
fn is_host(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:@%".contains(&byte);
    !name.is_empty() && name.len() <= 255 && !name.starts_with('-') && name.bytes().all(fits)
}

/// The name by which other hosts reach the host that a launcher knows as `host`: without a user.
#[must_use]
pub fn network_name(host: &str) -> &str {
    host.rsplit_once('@').map_or(host, |(_, name)| name)
}

/// The launcher where nobody names one: `srun` in a job of Slurm, else `ssh`.
#[must_use]
pub fn usual_launcher(env: impl Fn(&str) -> Option<String>) -> HostLauncher {
    if env("SLURM_JOB_NODELIST").is_some() { HostLauncher::Srun } else { ssh() }
}

/// The hosts of the job that this process belongs to, and its launcher; `None`: it is in no job of
/// several hosts' kind.
///
/// # Errors
/// The list of hosts cannot be had.
pub fn of_job(env: impl Fn(&str) -> Option<String>) -> Result<Option<(Vec<String>, HostLauncher)>> {
    if let Some(list) = env("SLURM_JOB_NODELIST") {
        let output = Command::new("scontrol").args(["show", "hostnames", &list]).output();
        let output = output.doing("run scontrol, for the hosts of this job")?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(failed(format!("scontrol show hostnames {list}: {}", said.trim())));
        }
        let names = String::from_utf8_lossy(&output.stdout);
        let hosts = check(names.split_whitespace());
        let hosts = hosts.map_err(|error| error.context("scontrol show hostnames"))?;
        return Ok(Some((hosts, HostLauncher::Srun)));
    }
    match env("PBS_NODEFILE") {
        Some(path) => Ok(Some((from_file(Path::new(&path))?, ssh()))),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lists_have_each_host_once() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("nodes");
        std::fs::write(&path, "a\na\n  b slots=4\n# none\n\nme@c # last\n").unwrap();
        assert_eq!(from_file(&path).unwrap(), ["a", "b", "me@c"]);
        assert_eq!(network_name("me@c"), "c");
        let env = |name: &str| (name == "PBS_NODEFILE").then(|| path.display().to_string());
        assert_eq!(of_job(env).unwrap().unwrap().0, ["a", "b", "me@c"]);
        assert!(of_job(|_| None).unwrap().is_none());
        assert_eq!(usual_launcher(|_| None), ssh());
        let slurm = |name: &str| (name == "SLURM_JOB_NODELIST").then(|| "a".to_owned());
        assert_eq!(usual_launcher(slurm), HostLauncher::Srun);
        std::fs::write(&path, "# nobody\n").unwrap();
        assert!(from_file(&path).unwrap_err().message().ends_with("no hosts"));
        for bad in ["-oProxyCommand=x", "a;b", "a b", "", "$(x)"] {
            assert!(check([bad].into_iter()).is_err(), "{bad:?}");
        }
        let many: Vec<String> = (0..=HOSTS_MAX).map(|number| format!("h{number}")).collect();
        assert!(check(many.iter().map(String::as_str)).is_err());
    }

    proptest! {
        #[test]
        fn whatever_a_file_holds_a_host_is_a_plain_word(
            bytes in prop::collection::vec(any::<u8>(), 0..2000),
        ) {
            let scratch = tempfile::tempdir().unwrap();
            let path = scratch.path().join("nodes");
            std::fs::write(&path, &bytes).unwrap();
            for host in from_file(&path).unwrap_or_default() {
                prop_assert!(is_host(&host));
            }
        }
    }
}
