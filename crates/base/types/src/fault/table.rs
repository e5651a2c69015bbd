//! The table as text: parsed, checked, and written again.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::NodeId;

/// Longest table, in bytes.
const TEXT_LEN_MAX: usize = 64 << 10;
/// Most rules of a table.
const RULES_MAX: usize = 1024;
/// Longest delay of a frame or a write.
const DELAY_MAX: Duration = Duration::from_secs(60);
/// Latest start or end of a window.
const TIME_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultParty {
    /// A node.
    Node(NodeId),
    /// A peer that is no node.
    Client,
}

impl fmt::Display for FaultParty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(node) => node.fmt(f),
            Self::Client => f.write_str("c"),
        }
    }
}

/// Which ends a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartyEnd {
    /// `*`: any.
    Any,
    /// A number, or `c`.
    Is(FaultParty),
}

impl PartyEnd {
    pub(super) fn takes(self, party: FaultParty) -> bool {
        self == Self::Any || self == Self::Is(party)
    }
}

impl fmt::Display for PartyEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::Is(FaultParty::Node(node)) => node.get().fmt(f),
            Self::Is(party) => party.fmt(f),
        }
    }
}

/// How many out of a million.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FaultRatio(u32);

impl FaultRatio {
    /// All of them.
    pub const ALL: Self = Self(1_000_000);

    /// Whether an event with this random number is among them.
    #[must_use]
    pub const fn takes(self, random: u64) -> bool {
        (random % Self::ALL.0 as u64) < self.0 as u64
    }
}

impl fmt::Display for FaultRatio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&decimal(u64::from(self.0), 10_000))?;
        f.write_str("%")
    }
}

/// Faults of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkAction {
    /// It does not arrive.
    Drop(FaultRatio),
    /// It arrives later by this time.
    Delay(Duration),
    /// It arrives twice.
    Duplicate(FaultRatio),
    /// It arrives behind some that were sent after it.
    Reorder(FaultRatio),
    /// It arrives with a wrong bit.
    Corrupt(FaultRatio),
    /// It does not arrive, and its connection is reset.
    Reset(FaultRatio),
    /// Nothing arrives, and no new connection is made between nodes.
    Cut,
    /// Nothing of this kind arrives from one node at another. Connections are made.
    CutOf(TrafficClass),
}

/// Classes of frames between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrafficClass {
    /// Members of mirror groups talk to each other.
    Peer,
    /// Nodes talk to coordinators: leases, maps, reports.
    Coordinator,
    /// Something else.
    Other,
}

impl TrafficClass {
    /// The fault that cuts off nothing else.
    pub(super) const fn cut(self) -> &'static str {
        match self {
            Self::Peer => "cut-peer",
            Self::Coordinator => "cut-coordinator",
            Self::Other => "cut-other",
        }
    }
}

/// Faults of a write or a sync of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskAction {
    /// It fails.
    Error(FaultRatio),
    /// It takes longer by this time.
    Slow(Duration),
    /// There is no space.
    Full(FaultRatio),
    /// A part of it is written, then it fails.
    Torn(FaultRatio),
    /// One bit of the written bytes is wrong, and nobody is told.
    Rot(FaultRatio),
}

/// Fault of a rule, and the parties it applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultAction {
    /// To frames from one end to another.
    Link {
        /// The fault.
        action: LinkAction,
        /// The sender.
        from: PartyEnd,
        /// The receiver.
        to: PartyEnd,
    },
    /// To the memory of a node: once, when the table is set.
    Memory {
        /// Records of which a bit is wrong from then on.
        ratio: FaultRatio,
        /// The node.
        node: PartyEnd,
    },
    /// To the log of a node.
    Disk {
        /// The fault.
        action: DiskAction,
        /// The node.
        node: PartyEnd,
    },
}

/// When a rule applies, counted from the start of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultWindow {
    /// From then on.
    pub from: Duration,
    /// Until before then; `None`: for good.
    pub until: Option<Duration>,
}

impl FaultWindow {
    pub(super) fn holds(&self, at: Duration) -> bool {
        at >= self.from && self.until.is_none_or(|until| at < until)
    }
}

/// One line of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultRule {
    /// Its fault.
    pub what: FaultAction,
    /// When.
    pub window: FaultWindow,
}

/// Table of faults to inject.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultTable {
    /// Wall-clock time from which windows count; `None`: from when the table is set.
    pub start: Option<Duration>,
    /// Seed of what is random.
    pub seed: u64,
    /// The rules; each is asked.
    pub rules: Vec<FaultRule>,
}

/// Error in a table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct TableError {
    /// Line, from 1.
    pub line: usize,
    /// Why it means nothing.
    pub reason: String,
}

const USAGE: &str = "expected drop, delay, duplicate, reorder, corrupt, reset, cut, cut-peer, cut-coordinator, disk, memory, start or seed";
const LINK_KINDS: [&str; 6] = ["drop", "delay", "duplicate", "reorder", "corrupt", "reset"];
const LINK_USAGE: &str =
    "expected `FAULT AMOUNT FROM TO [START [END]]`, as `drop 15% 2 3 100ms 200ms`";
const CUT_USAGE: &str = "expected `cut FROM TO [START [END]]`, as `cut 1 2 1s 3s`";
const DISK_USAGE: &str =
    "expected `disk error|slow|full|torn|rot AMOUNT NODE [START [END]]`, as `disk error 1% 2 0 1s`";

const MEMORY_USAGE: &str = "expected `memory rot SHARE NODE`, as `memory rot 1% 2`";

impl FromStr for FaultTable {
    type Err = TableError;

    fn from_str(text: &str) -> Result<Self, TableError> {
        let mut table = Self::default();
        if text.len() > TEXT_LEN_MAX {
            let reason = format!("the table is longer than {TEXT_LEN_MAX} bytes");
            return Err(TableError { line: 1, reason });
        }
        for (line, index) in text.lines().zip(1..) {
            let words = line.split('#').next().unwrap_or_default();
            let words: Vec<&str> = words.split_whitespace().collect();
            if !words.is_empty() {
                table.line(&words).map_err(|reason| TableError { line: index, reason })?;
            }
        }
        Ok(table)
    }
}

impl FaultTable {
    fn line(&mut self, words: &[&str]) -> Result<(), String> {
        match words {
            ["start", rest @ ..] => {
                let [time] = rest else { return Err("expected `start SECONDS`".to_owned()) };
                if self.start.is_some() || !self.rules.is_empty() {
                    return Err("`start` stands once, before the faults".to_owned());
                }
                self.start = Some(since_epoch(time)?);
            }
            ["seed", rest @ ..] => {
                let [seed] = rest else { return Err("expected `seed NUMBER`".to_owned()) };
                self.seed = seed.parse().map_err(|_| format!("{seed:?} is no seed (a number)"))?;
            }
            _ => {
                if self.rules.len() == RULES_MAX {
                    return Err(format!("a table has at most {RULES_MAX} faults"));
                }
                self.rules.push(rule(words)?);
            }
        }
        Ok(())
    }

    /// When the last rule ends, counted from the start; `None`: never.
    #[must_use]
    pub fn end(&self) -> Option<Duration> {
        self.rules.iter().try_fold(Duration::ZERO, |end, rule| Some(end.max(rule.window.until?)))
    }
}

fn rule(words: &[&str]) -> Result<FaultRule, String> {
    let (what, times) = match words {
        ["cut", from, to, times @ ..] => {
            (FaultAction::Link { action: LinkAction::Cut, from: end(from)?, to: end(to)? }, times)
        }
        [kind @ ("cut-peer" | "cut-coordinator"), from, to, times @ ..] => {
            let of =
                if *kind == "cut-peer" { TrafficClass::Peer } else { TrafficClass::Coordinator };
            let (from, to) = (end(from)?, end(to)?);
            if [from, to].contains(&PartyEnd::Is(FaultParty::Client)) {
                return Err(format!("{kind} is between nodes; name two of them"));
            }
            (FaultAction::Link { action: LinkAction::CutOf(of), from, to }, times)
        }
        ["cut" | "cut-peer" | "cut-coordinator", ..] => return Err(CUT_USAGE.to_owned()),
        ["disk", kind, amount, node, times @ ..] => {
            let node = end(node)?;
            if node == PartyEnd::Is(FaultParty::Client) {
                return Err("clients have no log; name a node".to_owned());
            }
            (FaultAction::Disk { action: disk_action(kind, amount)?, node }, times)
        }
        ["disk", ..] => return Err(DISK_USAGE.to_owned()),
        ["memory", "rot", share, node] => {
            let node = end(node)?;
            if node == PartyEnd::Is(FaultParty::Client) {
                return Err("clients hold no records; name a node".to_owned());
            }
            // It happens when the table is set, and is over then.
            let window = FaultWindow { from: Duration::ZERO, until: Some(Duration::ZERO) };
            return Ok(FaultRule {
                what: FaultAction::Memory { ratio: ratio(share)?, node },
                window,
            });
        }
        ["memory", ..] => return Err(MEMORY_USAGE.to_owned()),
        [kind, ..] if !LINK_KINDS.contains(kind) => {
            return Err(format!("{kind:?} is no fault: {USAGE}"));
        }
        [kind, amount, from, to, times @ ..] => {
            let action = link_action(kind, amount)?;
            (FaultAction::Link { action, from: end(from)?, to: end(to)? }, times)
        }
        _ => return Err(LINK_USAGE.to_owned()),
    };
    Ok(FaultRule { what, window: window(times)? })
}

fn link_action(kind: &str, amount: &str) -> Result<LinkAction, String> {
    Ok(match kind {
        "drop" => LinkAction::Drop(ratio(amount)?),
        "delay" => LinkAction::Delay(delay(amount)?),
        "duplicate" => LinkAction::Duplicate(ratio(amount)?),
        "reorder" => LinkAction::Reorder(ratio(amount)?),
        "reset" => LinkAction::Reset(ratio(amount)?),
        _ => LinkAction::Corrupt(ratio(amount)?),
    })
}

fn disk_action(kind: &str, amount: &str) -> Result<DiskAction, String> {
    Ok(match kind {
        "error" => DiskAction::Error(ratio(amount)?),
        "slow" => DiskAction::Slow(delay(amount)?),
        "full" => DiskAction::Full(ratio(amount)?),
        "torn" => DiskAction::Torn(ratio(amount)?),
        "rot" => DiskAction::Rot(ratio(amount)?),
        _ => return Err(format!("{kind:?} is no fault of a disk: {DISK_USAGE}")),
    })
}

fn end(word: &str) -> Result<PartyEnd, String> {
    match word {
        "*" => Ok(PartyEnd::Any),
        "c" => Ok(PartyEnd::Is(FaultParty::Client)),
        _ => {
            let number = word.strip_prefix('n').unwrap_or(word);
            let number = number.bytes().all(|byte| byte.is_ascii_digit()).then_some(number);
            number
                .and_then(|number| number.parse().ok())
                .map(|number| PartyEnd::Is(FaultParty::Node(NodeId(number))))
                .ok_or_else(|| format!("{word:?} is neither a node's number nor `c` nor `*`"))
        }
    }
}

fn window(times: &[&str]) -> Result<FaultWindow, String> {
    let (from, until) = match times {
        [] => (Duration::ZERO, None),
        [from] => (parse_time(from)?, None),
        [from, until] => (parse_time(from)?, Some(parse_time(until)?)),
        [_, _, more, ..] => return Err(format!("{more:?} is one word too many")),
    };
    if until.is_some_and(|until| until <= from) {
        return Err("it ends before it begins".to_owned());
    }
    Ok(FaultWindow { from, until })
}

fn ratio(word: &str) -> Result<FaultRatio, String> {
    let wrong = || format!("{word:?} is no share; expected one from 0% to 100%, as `15%`");
    let parts = word.strip_suffix('%').and_then(|number| scaled(number, 10_000));
    let parts = parts.and_then(|parts| u32::try_from(parts).ok()).map(FaultRatio);
    parts.filter(|ratio| *ratio <= FaultRatio::ALL).ok_or_else(wrong)
}

fn delay(word: &str) -> Result<Duration, String> {
    let delay = parse_time(word)?;
    if delay > DELAY_MAX {
        return Err(format!("{word} is longer than the most that is possible, a minute"));
    }
    Ok(delay)
}

/// A time as tables have it: `120us`, `5ms`, `1.5s`, `0`.
///
/// # Errors
/// Words for the person.
pub fn parse_time(word: &str) -> Result<Duration, String> {
    let wrong = || format!("{word:?} is no time; expected one as `120us`, `5ms`, `1.5s` or `0`");
    if word == "0" {
        return Ok(Duration::ZERO);
    }
    let unit_at = word.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(wrong)?;
    let (number, unit) = word.split_at(unit_at);
    let unit_ns = match unit {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return Err(wrong()),
    };
    let time = scaled(number, unit_ns).map(Duration::from_nanos).ok_or_else(wrong)?;
    if time > TIME_MAX { Err(format!("{word} is more than a year")) } else { Ok(time) }
}

fn since_epoch(word: &str) -> Result<Duration, String> {
    scaled(word, 1_000_000_000)
        .map(Duration::from_nanos)
        .ok_or_else(|| format!("{word:?} is no wall-clock time (seconds since 1970)"))
}

/// A decimal number of units as a whole number of parts of which `unit` make one. Anything smaller
/// than a part is cut off.
fn scaled(number: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(fraction) {
        return None;
    }
    let mut parts = whole.parse::<u64>().ok()?.checked_mul(unit)?;
    let mut place = unit;
    for digit in fraction.bytes().take(18) {
        // A unit of 60 s does not divide into tenths for ever; the remainder is below a nanosecond.
        let tenth = u128::from(place) * u128::from(digit - b'0') / 10;
        parts = parts.checked_add(u64::try_from(tenth).ok()?)?;
        place /= 10;
    }
    Some(parts)
}

/// `parts` of which `unit` (a power of ten) make one, as a decimal number.
fn decimal(parts: u64, unit: u64) -> String {
    let (whole, fraction) = (parts / unit, parts % unit);
    if fraction == 0 {
        return whole.to_string();
    }
    let digits = unit.ilog10() as usize;
    let text = format!("{whole}.{fraction:0digits$}");
    text.trim_end_matches('0').to_owned()
}

/// A time as the parser takes it.
fn time_text(time: Duration) -> String {
    let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    match ns {
        0 => "0".to_owned(),
        _ if ns.is_multiple_of(1_000_000_000) => format!("{}s", ns / 1_000_000_000),
        _ if ns.is_multiple_of(1_000_000) => format!("{}ms", ns / 1_000_000),
        _ if ns.is_multiple_of(1_000) => format!("{}us", ns / 1_000),
        _ => format!("{ns}ns"),
    }
}

impl fmt::Display for FaultRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.what {
            FaultAction::Link { action, from, to } => {
                match action {
                    LinkAction::Drop(ratio) => write!(f, "drop {ratio}")?,
                    LinkAction::Delay(time) => write!(f, "delay {}", time_text(time))?,
                    LinkAction::Duplicate(ratio) => write!(f, "duplicate {ratio}")?,
                    LinkAction::Reorder(ratio) => write!(f, "reorder {ratio}")?,
                    LinkAction::Corrupt(ratio) => write!(f, "corrupt {ratio}")?,
                    LinkAction::Reset(ratio) => write!(f, "reset {ratio}")?,
                    LinkAction::Cut => f.write_str("cut")?,
                    LinkAction::CutOf(traffic) => f.write_str(traffic.cut())?,
                }
                write!(f, " {from} {to}")?;
            }
            FaultAction::Memory { ratio, node } => return write!(f, "memory rot {ratio} {node}"),
            FaultAction::Disk { action, node } => {
                match action {
                    DiskAction::Error(ratio) => write!(f, "disk error {ratio}")?,
                    DiskAction::Slow(time) => write!(f, "disk slow {}", time_text(time))?,
                    DiskAction::Full(ratio) => write!(f, "disk full {ratio}")?,
                    DiskAction::Torn(ratio) => write!(f, "disk torn {ratio}")?,
                    DiskAction::Rot(ratio) => write!(f, "disk rot {ratio}")?,
                }
                write!(f, " {node}")?;
            }
        }
        match self.window {
            FaultWindow { from: Duration::ZERO, until: None } => Ok(()),
            FaultWindow { from, until: None } => write!(f, " {}", time_text(from)),
            FaultWindow { from, until: Some(until) } => {
                write!(f, " {} {}", time_text(from), time_text(until))
            }
        }
    }
}

impl fmt::Display for FaultTable {
    /// Text that means the same table.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(start) = self.start {
            let ns = u64::try_from(start.as_nanos()).unwrap_or(u64::MAX);
            writeln!(f, "start {}", decimal(ns, 1_000_000_000))?;
        }
        if self.seed != 0 {
            writeln!(f, "seed {}", self.seed)?;
        }
        self.rules.iter().try_for_each(|rule| writeln!(f, "{rule}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
# two nodes and their clients
start 1763783084.25
seed 42
drop 15% 2 3 100ms 200ms
delay 120us n1 3 0 200ms   # a long cable
duplicate 5% * *
reorder 0.5% c 1 1s
corrupt 12% 1 c 0 300ms
reset 1% * c
cut 1 2 1s 3s
cut-peer 0 1
cut-coordinator * 2 0 1s
disk error 1% 2 0 1s
disk slow 5ms *
disk full 100% 0 1.5s
disk torn 3% 1
";

    #[test]
    fn a_table_is_read_and_written() {
        let table: FaultTable = TABLE.parse().unwrap();
        assert_eq!(table.rules.len(), 13);
        assert_eq!((table.start, table.seed), (Some(Duration::from_millis(1_763_783_084_250)), 42));
        assert_eq!(table.rules[0].window.until, Some(Duration::from_millis(200)));
        assert_eq!(table.to_string().parse::<FaultTable>().unwrap(), table);
        assert_eq!(table.rules[3].to_string(), "reorder 0.5% c 1 1s");
        assert_eq!(table.end(), None);
        assert_eq!(
            "cut * * 0 2s".parse::<FaultTable>().unwrap().end(),
            Some(Duration::from_secs(2))
        );
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        for (text, words) in [
            ("\n\nlose 5% 1 2", "line 3: \"lose\" is no fault"),
            ("drop 5 1 2", "line 1: \"5\" is no share"),
            ("drop 101% 1 2", "no share"),
            ("drop 5% 1", "expected `FAULT AMOUNT FROM TO"),
            ("drop 5% 1 x", "\"x\" is neither a node's number"),
            ("drop 5% 1 2 3", "\"3\" is no time"),
            ("drop 5% 1 2 3s 3s", "ends before it begins"),
            ("drop 5% 1 2 1s 3s 4s", "one word too many"),
            ("delay 2h 1 2", "a minute"),
            ("delay -5ms 1 2", "no time"),
            ("cut 1", "expected `cut FROM TO"),
            ("disk slow 1ms c", "clients have no log"),
            ("disk eaten 1% 1", "no fault of a disk"),
            ("drop 5% 1 2\nstart 5", "line 2: `start` stands once"),
            ("seed x", "no seed"),
            ("delay 99999999999999999999s 1 2", "no time"),
        ] {
            let error = text.parse::<FaultTable>().unwrap_err().to_string();
            assert!(error.contains(words), "{text:?}: {error}");
        }
        assert!("x".repeat(TEXT_LEN_MAX + 1).parse::<FaultTable>().is_err());
        let many = "cut 1 2\n".repeat(RULES_MAX + 1);
        assert!(many.parse::<FaultTable>().unwrap_err().to_string().contains("at most 1024"));
    }

    #[test]
    fn numbers_are_exact() {
        assert_eq!(parse_time("1.5m"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_time("0.25us"), Ok(Duration::from_nanos(250)));
        assert_eq!(ratio("0.0001%"), Ok(FaultRatio(1)));
        assert_eq!(ratio("100%"), Ok(FaultRatio::ALL));
        assert_eq!(scaled("1.", 10), None);
        assert_eq!(decimal(1_050, 1_000), "1.05");
    }
}
