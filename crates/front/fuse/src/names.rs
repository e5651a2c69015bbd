//! All names of a directory, known for as long as nobody else makes another one.
//!
//! The kernel looks each name up before it makes a file of that name. While the delegations on a
//! directory's change stamps last, which are in every partition and change with each entry, only
//! this mount makes names there. So when it has listed them once, and adds its own before it makes
//! them, it can tell without asking that there is no such name. It may know a name that is not
//! there any more: then nodes are asked. It never misses a name: a change that failed, and may take
//! effect later, ends it.

use std::collections::HashSet;
use std::time::Instant;

/// Memory of a name beside its bytes: its place in the table, and the overhead of its own
/// allocation.
const NAME_COST: usize = 64;
/// Own names made before a directory is listed for the first time, and after a listing that has paid.
const PAUSE_MIN: u32 = 2;
/// Most own names made between two attempts.
const PAUSE_MAX: u32 = 512;
/// Answers that make a listing pay.
const USES_MIN: u32 = 16;

/// The names of one directory.
#[derive(Debug)]
pub struct KnownNames {
    names: HashSet<Box<[u8]>>,
    /// Sum of what they take.
    cost: usize,
    /// Until then nobody else makes any.
    until: Instant,
    /// This mount has made some since the last delegations on the change stamps.
    is_used: bool,
    /// Names that it has told to be missing.
    uses: u32,
}

impl KnownNames {
    /// For all names of a directory.
    pub fn new(names: impl IntoIterator<Item = Box<[u8]>>, until: Instant) -> Self {
        let mut known = Self { names: HashSet::new(), cost: 0, until, is_used: true, uses: 0 };
        for name in names {
            known.insert(name);
        }
        known
    }

    fn insert(&mut self, name: Box<[u8]>) {
        let cost = NAME_COST + name.len();
        if self.names.insert(name) {
            self.cost += cost;
        }
    }

    /// Adds a name that is about to be made.
    pub fn add(&mut self, name: &[u8]) {
        self.is_used = true;
        if !self.names.contains(name) {
            self.insert(name.into());
        }
    }

    /// Takes out a name that is gone, and that nobody is making.
    pub fn remove(&mut self, name: &[u8]) {
        if self.names.remove(name) {
            self.cost -= NAME_COST + name.len();
        }
    }

    /// Whether there is no such name for certain.
    pub fn lack(&mut self, name: &[u8]) -> bool {
        let lack = Instant::now() < self.until && !self.names.contains(name);
        self.uses = self.uses.saturating_add(u32::from(lack));
        lack
    }

    /// The delegations were granted anew, while the last ones were valid or not: nobody else makes
    /// names until then.
    pub fn extend(&mut self, until: Instant) {
        // Where nothing is made here, the kernel keeps better by itself what is missing.
        if std::mem::take(&mut self.is_used) && Instant::now() < self.until {
            self.until = self.until.max(until);
        }
    }

    /// Whether it is of any use.
    pub fn stands(&self, now: Instant) -> bool {
        now < self.until
    }

    /// Bytes that it takes, roughly.
    pub const fn cost(&self) -> usize {
        self.cost
    }
}

/// When a directory is listed, if it is: names that are made in it let expect more of them; others who make some, or too many names, make it pay less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListingHabit {
    /// Own names made since the last attempt.
    made: u32,
    /// How many are to be made before the next.
    pause: u32,
}

impl Default for ListingHabit {
    fn default() -> Self {
        Self { made: 0, pause: PAUSE_MIN }
    }
}

impl ListingHabit {
    /// Something was made, and what else is there is not known.
    pub const fn made(&mut self) {
        self.made = self.made.saturating_add(1);
    }

    /// Whether it is time to list the directory. If so, an attempt is made.
    pub fn is_due(&mut self) -> bool {
        let is_due = self.made >= self.pause;
        if is_due {
            // Until it is known whether this one pays.
            *self = Self { made: 0, pause: (self.pause * 4).min(PAUSE_MAX) };
        }
        is_due
    }

    /// The listed names are known no more.
    pub const fn ended(&mut self, known: &KnownNames) {
        if known.uses >= USES_MIN {
            self.pause = PAUSE_MIN;
        }
    }

    /// There are too many names.
    pub const fn too_many(&mut self) {
        *self = Self { made: 0, pause: PAUSE_MAX };
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn known(names: &[&[u8]]) -> KnownNames {
        let until = Instant::now() + Duration::from_secs(600);
        KnownNames::new(names.iter().map(|name| Box::from(*name)), until)
    }

    #[test]
    fn what_is_not_among_all_names_is_missing() {
        let mut known = known(&[b"a", b"b"]);
        assert!(!known.lack(b"a") && known.lack(b"c"));
        known.add(b"c");
        known.remove(b"a");
        assert!(!known.lack(b"c") && known.lack(b"a"));
        let cost = known.cost();
        known.add(b"c");
        known.remove(b"none");
        assert_eq!((known.cost(), cost), (cost, 2 * (NAME_COST + 1)));
        known.remove(b"b");
        known.remove(b"c");
        assert_eq!(known.cost(), 0);
    }

    #[test]
    fn it_is_extended_while_it_stands_and_names_are_made() {
        let mut known = known(&[]);
        let (before, later) = (known.until, known.until + Duration::from_secs(1));
        known.extend(later);
        assert_eq!(known.until, later);
        known.extend(later + Duration::from_secs(1));
        assert_eq!(known.until, later, "nothing was made");
        known.until = Instant::now();
        known.add(b"a");
        known.extend(before);
        assert!(!known.stands(Instant::now()) && !known.lack(b"b"), "others could make names");
    }

    #[test]
    fn listings_that_do_not_pay_become_rare() {
        let mut habit = ListingHabit::default();
        let mut until_due = |of: &dyn Fn(&mut ListingHabit)| {
            of(&mut habit);
            let due = (1..).find(|_| {
                habit.made();
                habit.is_due()
            });
            due.unwrap()
        };
        assert_eq!(until_due(&|_| {}), PAUSE_MIN);
        assert_eq!(until_due(&|habit| habit.ended(&known(&[]))), 4 * PAUSE_MIN);
        for _ in 0..8 {
            until_due(&|_| {});
        }
        assert_eq!(until_due(&|_| {}), PAUSE_MAX);
        let mut paid = known(&[]);
        assert!((0..USES_MIN).all(|_| paid.lack(b"x")));
        assert_eq!(until_due(&|habit| habit.ended(&paid)), PAUSE_MIN);
        assert_eq!(until_due(&ListingHabit::too_many), PAUSE_MAX);
    }
}
