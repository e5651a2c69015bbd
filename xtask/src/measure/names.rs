//! Names of types: how many are of one word, and how many mean several types.

use std::collections::BTreeMap;
use std::fmt;

use syn::visit::{self, Visit};

use super::counts;
use crate::tidy::SourceFile;

/// Names that are printed.
const SHOWN_MAX: usize = 40;

/// Names of types, and where each is defined.
#[derive(Debug, Default)]
pub struct TypeNames(BTreeMap<String, Vec<String>>);

impl TypeNames {
    /// Of `struct`, `enum` and `trait` definitions outside tests.
    pub fn of(files: &[SourceFile]) -> Self {
        let mut names = Self::default();
        for file in files.iter().filter(|file| counts(file)) {
            // The length check of tidy tells of files that do not parse.
            let Ok(parsed) = syn::parse_file(&file.text) else { continue };
            let mut finder = NameFinder { path: &file.path, names: &mut names.0 };
            finder.visit_file(&parsed);
        }
        names
    }

    /// How many definitions there are.
    pub fn definitions(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }

    /// Definitions whose name is one word, in percent of all.
    pub fn one_word_percent(&self) -> f64 {
        let one_word = self.0.iter().filter(|(name, _)| is_one_word(name));
        percent(one_word.map(|(_, places)| places.len()).sum(), self.definitions())
    }

    /// Names that are defined more than once, in percent of all names.
    pub fn repeated_percent(&self) -> f64 {
        percent(self.repeated().count(), self.0.len())
    }

    /// Names that are defined more than once, and where.
    pub fn repeated(&self) -> impl Iterator<Item = (&str, &[String])> {
        let several = self.0.iter().filter(|(_, places)| places.len() > 1);
        several.map(|(name, places)| (name.as_str(), places.as_slice()))
    }
}

impl fmt::Display for TypeNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "names of one word:          {:5.1} % of definitions",
            self.one_word_percent()
        )?;
        writeln!(f, "names defined several times: {:4.1} % of names", self.repeated_percent())?;
        let mut repeated: Vec<_> = self.repeated().collect();
        repeated.sort_by_key(|(_, places)| std::cmp::Reverse(places.len()));
        let shown = repeated.iter().take(SHOWN_MAX);
        let shown: Vec<_> = shown.map(|(name, at)| format!("{name} {}", at.len())).collect();
        write!(f, "most often: {}", shown.join(", "))
    }
}

/// A word is one run of capital and small letters: `Voter` and `TLS` are one, `VoterFile` is two.
fn is_one_word(name: &str) -> bool {
    let bytes = name.as_bytes();
    let begins = |pair: &[u8]| !pair[0].is_ascii_uppercase() && pair[1].is_ascii_uppercase();
    !bytes.windows(2).any(begins)
}

fn percent(part: usize, whole: usize) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}

struct NameFinder<'a> {
    path: &'a str,
    names: &'a mut BTreeMap<String, Vec<String>>,
}

impl NameFinder<'_> {
    fn note(&mut self, name: &syn::Ident) {
        let at = format!("{}:{}", self.path, name.span().start().line);
        self.names.entry(name.to_string()).or_default().push(at);
    }
}

impl<'ast> Visit<'ast> for NameFinder<'_> {
    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.note(&item.ident);
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.note(&item.ident);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.note(&item.ident);
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }
}

/// Whether something is there in tests only.
pub fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Ident>().is_ok_and(|what| what == "test")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::sample;

    #[test]
    fn words_and_repeats_are_counted() {
        let files = [
            sample("crates/a/src/lib.rs", "struct Slot; enum OpenSlot { A } trait TLS {}"),
            sample("crates/b/src/lib.rs", "struct Slot;\n#[cfg(test)] mod tests { struct Slot; }"),
            sample("crates/b/tests/b.rs", "struct Slot;"),
        ];
        let names = TypeNames::of(&files);
        assert_eq!(names.definitions(), 4);
        assert!((names.one_word_percent() - 75.0).abs() < 0.1);
        assert!((names.repeated_percent() - 33.3).abs() < 0.1);
        let (name, places) = names.repeated().next().expect("one name");
        assert_eq!(
            (name, places),
            (
                "Slot",
                ["crates/a/src/lib.rs:1", "crates/b/src/lib.rs:1"].map(String::from).as_slice()
            )
        );
    }
}
