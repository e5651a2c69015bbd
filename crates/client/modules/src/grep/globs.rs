//! Names of files that are searched: `--include` and `--exclude`.

/// Globs of file names, in the order in which they were given.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct FileGlobs {
    globs: Vec<(bool, Vec<u8>)>,
}

impl FileGlobs {
    /// Adds `--include=glob` or `--exclude=glob`.
    pub fn add(&mut self, includes: bool, glob: &[u8]) {
        // Slashes at the end say nothing of a file.
        let len = glob.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
        self.globs.push((includes, glob[..len].to_vec()));
    }

    /// Whether a file is searched. The last glob that matches decides; where none does, the file
    /// is searched unless the first glob includes. `path` is a file as it was named, or the last
    /// component of one that was found in a directory: a glob matches it from its start, or from
    /// behind any of its slashes.
    #[must_use]
    pub fn admits(&self, path: &[u8]) -> bool {
        let deciding = self.globs.iter().rev().find(|(_, glob)| matches_tail(glob, path));
        match (deciding, self.globs.first()) {
            (Some((includes, _)), _) => *includes,
            (None, Some((includes, _))) => !includes,
            (None, None) => true,
        }
    }
}

fn matches_tail(glob: &[u8], path: &[u8]) -> bool {
    let starts = memchr::memchr_iter(b'/', path).map(|slash| slash + 1);
    std::iter::once(0).chain(starts).any(|start| matches(glob, &path[start..]))
}

/// `fnmatch` without flags in the C locale: `*` and `?` match slashes, too.
fn matches(glob: &[u8], name: &[u8]) -> bool {
    let (mut at, mut in_name) = (0, 0);
    // Where to go on when what follows the last `*` does not match.
    let mut again: Option<(usize, usize)> = None;
    loop {
        if glob.get(at) == Some(&b'*') {
            at += 1;
            again = Some((at, in_name));
            continue;
        }
        if at == glob.len() && in_name == name.len() {
            return true;
        }
        let step = name.get(in_name).and_then(|byte| one(&glob[at..], *byte));
        match (step, again) {
            (Some(len), _) => {
                at += len;
                in_name += 1;
            }
            (None, Some((behind, from))) if from < name.len() => {
                again = Some((behind, from + 1));
                (at, in_name) = (behind, from + 1);
            }
            (None, _) => return false,
        }
    }
}

/// Length of the first element of `glob` if it matches `byte`.
fn one(glob: &[u8], byte: u8) -> Option<usize> {
    match *glob.first()? {
        b'?' => Some(1),
        b'\\' if glob.len() > 1 => (glob[1] == byte).then_some(2),
        b'[' => match set(glob) {
            Some((len, contains)) => contains(byte).then_some(len),
            None => (byte == b'[').then_some(1),
        },
        literal => (literal == byte).then_some(1),
    }
}

/// The set that `glob` begins with: its length and what is in it.
fn set(glob: &[u8]) -> Option<(usize, impl Fn(u8) -> bool)> {
    let negated = matches!(glob.get(1), Some(b'!' | b'^'));
    let start = 1 + usize::from(negated);
    let mut at = start;
    let mut ranges = Vec::new();
    loop {
        let mut low = *glob.get(at)?;
        if low == b']' && at > start {
            break;
        }
        if low == b'\\' {
            at += 1;
            low = *glob.get(at)?;
        }
        at += 1;
        match (glob.get(at), glob.get(at + 1)) {
            (Some(b'-'), Some(high)) if *high != b']' => {
                ranges.push((low, *high));
                at += 2;
            }
            _ => ranges.push((low, low)),
        }
    }
    let contains =
        move |byte: u8| ranges.iter().any(|(low, high)| (*low..=*high).contains(&byte)) != negated;
    Some((at + 1, contains))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_match_as_fnmatch_does() {
        let cases: [(&str, &str, bool); 14] = [
            ("*.rs", "a.rs", true),
            ("*.rs", "a/b.rs", true),
            ("b.rs", "a/b.rs", true),
            ("a/*", "a/b.rs", true),
            ("a/*", "x/a/b.rs", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[]x]", "]", true),
            ("[x", "[x", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("*a*b*c", "xaybzc", true),
        ];
        for (glob, path, expected) in cases {
            let mut globs = FileGlobs::default();
            globs.add(true, glob.as_bytes());
            assert_eq!(globs.admits(path.as_bytes()), expected, "{glob} {path}");
        }
    }
}
