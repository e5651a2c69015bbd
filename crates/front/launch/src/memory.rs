//! Memory that there is for nodes: the machine's, less the use and by the limits of control groups.
//!
//! A batch job or a container is a control group with a limit. A node that writes to more memory
//! than that gets a SIGKILL of the kernel. So the limits of the group and of all groups above it
//! count, less the memory that is used there already. Both versions of control groups are
//! understood, also side by side.

use std::fmt;
use std::path::{Path, PathBuf};

use samite_types::{Error, ErrorKind, Result, human_bytes};

/// Memory of a node when nothing is said.
const DEFAULT: u64 = 1 << 30;
/// The least that a node can work with.
const MIN: u64 = 16 << 20;
/// A node takes a part of its memory beside it, one in so many: the memory that it shares with
/// programs of its host lies there.
const BESIDE: u64 = 14;
/// Most groups above each other that are looked at.
const DEPTH_MAX: usize = 64;

/// Memory that new processes may take, and who says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryRoom {
    bytes: u64,
    group: Option<ControlGroup>,
}

/// A control group with a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ControlGroup {
    /// The file that says the limit.
    file: PathBuf,
    limit: u64,
    used: u64,
}

/// The file names of one version of control groups.
struct GroupFiles {
    limits: &'static [&'static str],
    used: &'static str,
    /// The memory that the kernel takes back before it kills a process, as `memory.stat` names it.
    kept: [&'static str; 2],
}

const V1: GroupFiles = GroupFiles {
    limits: &["memory.limit_in_bytes"],
    used: "memory.usage_in_bytes",
    kept: ["total_inactive_file", "total_active_file"],
};
const V2: GroupFiles = GroupFiles {
    // Beyond `high`, processes stand still rather than die.
    limits: &["memory.max", "memory.high"],
    used: "memory.current",
    kept: ["inactive_file", "active_file"],
};

impl MemoryRoom {
    /// The memory that new processes may take; `None` if it cannot be told.
    pub fn read() -> Option<Self> {
        Self::read_below(Path::new("/"))
    }

    /// The same, of the machine whose `/proc` and `/sys` are below `root`.
    fn read_below(root: &Path) -> Option<Self> {
        let machine = available(root).map(|bytes| Self { bytes, group: None });
        let groups = groups(root).into_iter().map(|group| {
            let bytes = group.limit.saturating_sub(group.used);
            Self { bytes, group: Some(group) }
        });
        machine.into_iter().chain(groups).min_by_key(|room| room.bytes)
    }

    /// The memory if nothing was used; `None` if no control group sets a limit.
    pub fn read_limits() -> Option<Self> {
        let groups = groups(Path::new("/")).into_iter();
        groups.min_by_key(|group| group.limit).map(|group| {
            let group = ControlGroup { used: 0, ..group };
            Self { bytes: group.limit, group: Some(group) }
        })
    }

    /// Bytes that a node can keep, of `nodes` alike.
    const fn for_each(&self, nodes: u64) -> u64 {
        let bytes = self.bytes / nodes;
        match self.group {
            Some(_) => bytes - bytes / (BESIDE + 1),
            None => bytes,
        }
    }
}

impl fmt::Display for MemoryRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(ControlGroup { file, limit, used }) = &self.group else {
            return write!(f, "the {} that this machine has available", human_bytes(self.bytes));
        };
        let (limit, used) = (human_bytes(*limit), human_bytes(*used));
        let room = human_bytes(self.bytes);
        let file = file.display();
        write!(
            f,
            "the {room} that this control group leaves: {file} is {limit}, and {used} are used"
        )
    }
}

/// Memory of each of `nodes` nodes that are started together: the amount `asked` for, or one that
/// suits `room`.
///
/// # Errors
/// `Invalid`: it is too little, or more than there is.
pub fn of_node(asked: Option<u64>, nodes: u64, room: Option<&MemoryRoom>) -> Result<u64> {
    let memory = match (asked, room) {
        (Some(memory), _) => memory,
        (None, Some(room)) => DEFAULT.min(room.for_each(nodes) / 2),
        (None, None) => DEFAULT,
    };
    if memory < MIN {
        let short = room.filter(|_| asked.is_none()).map(|room| format!(" (half of {room})"));
        return Err(unsuitable(format!(
            "--memory: {} for a node is too little{}; give at least {}",
            human_bytes(memory),
            short.unwrap_or_default(),
            human_bytes(MIN)
        )));
    }
    match room {
        Some(room) if memory > room.for_each(nodes) => Err(unsuitable(format!(
            "--memory: {nodes} node{} of {}{} more than {room}",
            if nodes == 1 { "" } else { "s" },
            human_bytes(memory),
            match (&room.group, nodes) {
                (Some(_), _) => format!(", which take a {BESIDE}th of that beside it, need"),
                (None, 1) => " is".to_owned(),
                (None, _) => " are".to_owned(),
            },
        ))),
        _ => Ok(memory),
    }
}

fn unsuitable(message: String) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

/// Bytes that new processes can use without swapping.
fn available(root: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

/// The control groups with a limit that this process is in, as far as they can be seen: a container
/// need not see those above its own.
fn groups(root: &Path) -> Vec<ControlGroup> {
    let proc = root.join("proc/self");
    let text = |name| std::fs::read_to_string(proc.join(name)).unwrap_or_default();
    let (memberships, mounts) = (text("cgroup"), text("mountinfo"));
    let mut found = Vec::new();
    for (names, top, group) in mounts.lines().filter_map(|line| mounted(line, &memberships)) {
        let top = root.join(top.strip_prefix("/").unwrap_or(&top));
        let dir = top.join(group);
        let dirs = dir.ancestors().take_while(|dir| dir.starts_with(&top));
        found.extend(dirs.take(DEPTH_MAX).filter_map(|dir| limited(dir, names)));
    }
    found
}

/// Where a line of `mountinfo` mounts groups that count memory: their names of things, the place,
/// and the group of this process below it.
fn mounted(line: &str, memberships: &str) -> Option<(&'static GroupFiles, PathBuf, PathBuf)> {
    let (mount, kind) = line.split_once(" - ")?;
    let mut mount = mount.split(' ').skip(3);
    let (top, place) = (mount.next()?, mount.next()?);
    let mut kind = kind.split(' ');
    let names = match (kind.next()?, kind.nth(1)?) {
        ("cgroup2", _) => &V2,
        ("cgroup", options) if options.split(',').any(|option| option == "memory") => &V1,
        _ => return None,
    };
    let is_v2 = std::ptr::eq(names, &V2);
    let group = memberships.lines().find_map(|line| {
        let (controllers, group) = line.split_once(':')?.1.split_once(':')?;
        let counts = match is_v2 {
            true => controllers.is_empty(),
            false => controllers.split(',').any(|one| one == "memory"),
        };
        counts.then_some(group)
    })?;
    // A container may be shown its own group as the top of the tree, while its name is the one from
    // outside.
    let below = Path::new(group).strip_prefix(top).unwrap_or_else(|_| Path::new(""));
    // The kernel writes blanks and the like as three octal digits. A path with others of them is
    // not looked at.
    Some((names, PathBuf::from(place.replace("\\040", " ")), below.to_path_buf()))
}

/// The limit of the group in `dir`, if it has one.
fn limited(dir: &Path, names: &GroupFiles) -> Option<ControlGroup> {
    let number = |name: &str| -> Option<u64> {
        std::fs::read_to_string(dir.join(name)).ok()?.trim().parse().ok()
    };
    let limits = names.limits.iter().filter_map(|name| Some((number(name)?, name)));
    let (limit, name) = limits.min_by_key(|(limit, _)| *limit)?;
    let stat = std::fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
    let kept: u64 = stat
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter(|(name, _)| names.kept.contains(name))
        .filter_map(|(_, bytes)| bytes.trim().parse::<u64>().ok())
        .fold(0, u64::saturating_add);
    let used = number(names.used)?.saturating_sub(kept);
    Some(ControlGroup { file: dir.join(name), limit, used })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A made-up machine: files of `/proc` and `/sys`.
    struct Machine(tempfile::TempDir);

    impl Machine {
        fn new(mountinfo: &str, memberships: &str) -> Self {
            let machine = Self(tempfile::tempdir().unwrap());
            machine.write("proc/meminfo", "MemTotal: 9 kB\nMemAvailable:    4194304 kB\n");
            machine.write("proc/self/mountinfo", mountinfo);
            machine.write("proc/self/cgroup", memberships);
            machine
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }

        fn room(&self) -> (u64, Option<String>) {
            let room = MemoryRoom::read_below(self.0.path()).unwrap();
            let file = room.group.map(|group| {
                let file = group.file.strip_prefix(self.0.path()).unwrap().to_owned();
                file.display().to_string()
            });
            (room.bytes / MIB, file)
        }
    }

    const UNIFIED: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n";

    fn v2(machine: &Machine, group: &str, max: &str, used_mib: u64) {
        machine.write(&format!("sys/fs/cgroup/{group}/memory.max"), max);
        let used = (used_mib * MIB).to_string();
        machine.write(&format!("sys/fs/cgroup/{group}/memory.current"), &used);
    }

    #[test]
    fn without_groups_it_is_what_the_machine_has() {
        let machine = Machine::new("22 1 8:1 / / rw - ext4 /dev/sda1 rw\n", "0::/a\n");
        assert_eq!(machine.room(), (4096, None));
        let machine = Machine::new(UNIFIED, "0::/a/b\n");
        v2(&machine, "a/b", "max\n", 10);
        assert_eq!(machine.room(), (4096, None), "no limit");
        v2(&machine, "a/b", "99999999999999\n", 10);
        assert_eq!(machine.room(), (4096, None), "more than the machine has");
    }

    #[test]
    fn of_version_two_the_tightest_group_counts() {
        let machine = Machine::new(UNIFIED, "0::/job/step\n");
        v2(&machine, "job/step", "max\n", 10);
        v2(&machine, "job", &(512 * MIB).to_string(), 112);
        v2(&machine, "job/other", "1\n", 0);
        assert_eq!(machine.room(), (400, Some("sys/fs/cgroup/job/memory.max".to_owned())));
        let stat = format!("anon 5\ninactive_file {}\nactive_file {}\n", 8 * MIB, 4 * MIB);
        machine.write("sys/fs/cgroup/job/memory.stat", &stat);
        assert_eq!(machine.room().0, 412, "what the kernel takes back is free");
        v2(&machine, "job/step", &(64 * MIB).to_string(), 70);
        assert_eq!(machine.room(), (0, Some("sys/fs/cgroup/job/step/memory.max".to_owned())));
        machine.write("sys/fs/cgroup/job/memory.high", "0\n");
        v2(&machine, "job/step", "max\n", 70);
        assert_eq!(machine.room(), (0, Some("sys/fs/cgroup/job/memory.high".to_owned())));
    }

    #[test]
    fn of_version_one_the_memory_controller_counts() {
        let mounts = "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let machine = Machine::new(mounts, "5:cpu:/c\n4:memory:/job/step\n0::/\n");
        let write = |group: &str, limit: u64, used: u64| {
            let dir = format!("sys/fs/cgroup/memory/{group}");
            machine.write(&format!("{dir}/memory.limit_in_bytes"), &format!("{limit}\n"));
            machine.write(&format!("{dir}/memory.usage_in_bytes"), &format!("{used}\n"));
        };
        write("", 9_223_372_036_854_771_712, 500 * MIB);
        write("job", 300 * MIB, 100 * MIB);
        write("job/step", 250 * MIB, 10 * MIB);
        let file = "sys/fs/cgroup/memory/job/memory.limit_in_bytes";
        assert_eq!(machine.room(), (200, Some(file.to_owned())));
        machine.write("sys/fs/cgroup/memory/job/memory.stat", "total_inactive_file 52428800\n");
        let file = "sys/fs/cgroup/memory/job/step/memory.limit_in_bytes";
        assert_eq!(machine.room(), (240, Some(file.to_owned())));
    }

    #[test]
    fn a_container_sees_its_own_group_at_the_top() {
        let mounts = "35 31 0:32 /docker/12 /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        for memberships in ["0::/docker/12\n", "0::/\n"] {
            let machine = Machine::new(mounts, memberships);
            v2(&machine, "", &(128 * MIB).to_string(), 28);
            assert_eq!(machine.room(), (100, Some("sys/fs/cgroup/memory.max".to_owned())));
        }
        let machine = Machine::new(mounts, "0::/docker/12/inner\n");
        v2(&machine, "inner", &(128 * MIB).to_string(), 64);
        assert_eq!(machine.room().0, 64);
    }

    #[test]
    fn nodes_share_what_there_is() {
        let file = PathBuf::from("/sys/fs/cgroup/job/memory.max");
        let group = Some(ControlGroup { file, limit: 512 * MIB, used: 32 * MIB });
        let room = MemoryRoom { bytes: 480 * MIB, group };
        let of =
            |asked, nodes| of_node(asked, nodes, Some(&room)).map_err(|e| e.message().to_owned());
        assert_eq!(of(None, 1), Ok(224 * MIB));
        assert_eq!(of(None, 4), Ok(56 * MIB));
        assert_eq!(of(Some(112 * MIB), 4), Ok(112 * MIB));
        let refused = of(Some(113 * MIB), 4).unwrap_err();
        assert!(refused.contains("4 nodes of 113.0 MiB"), "{refused}");
        let told =
            "480.0 MiB that this control group leaves: /sys/fs/cgroup/job/memory.max is 512.0 MiB";
        assert!(refused.contains(told), "{refused}");
        let refused = of(None, 64).unwrap_err();
        assert!(refused.contains("too little") && refused.contains("memory.max"), "{refused}");
        let room = MemoryRoom { bytes: 100 * MIB, group: None };
        assert_eq!(of_node(None, 1, Some(&room)).unwrap(), 50 * MIB);
        let refused = of_node(Some(101 * MIB), 1, Some(&room)).unwrap_err().message().to_owned();
        assert!(refused.contains("1 node of 101.0 MiB is more than the 100.0 MiB"), "{refused}");
        assert_eq!(of_node(None, 9, None).unwrap(), DEFAULT);
    }
}
