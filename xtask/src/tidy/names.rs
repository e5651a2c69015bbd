//! Names of types, functions and modules: each name once, and the field's words.

use std::collections::BTreeSet;

use syn::visit::{self, Visit};

use super::config::TidyConfig;
use super::sources::SourceFile;
use crate::measure::{TypeNames, circles, counts, is_for_tests};

/// Most modules of an import circle where `tidy.toml` says nothing.
const CIRCLE_MAX: usize = 6;

/// All of it.
pub fn check(config: &TidyConfig, files: &[SourceFile]) -> Vec<String> {
    let names = TypeNames::of(files);
    let mut problems = measured(config, &names, files);
    problems.extend(repeated(config, &names));
    problems.extend(private(config, files));
    problems
}

/// The figures of `cargo xtask measure`.
fn measured(config: &TidyConfig, names: &TypeNames, files: &[SourceFile]) -> Vec<String> {
    let mut problems = Vec::new();
    let mut hold = |what: &str, percent: f64, max: f64| {
        if percent > max {
            problems.push(format!("{what}: {percent:.1} %, over {max} (cargo xtask measure)"));
        }
    };
    hold("types of one word", names.one_word_percent(), config.names.one_word_percent_max);
    hold("names of several types", names.repeated_percent(), config.names.repeated_percent_max);
    for (krate, circle) in circles(files) {
        let max = config.circles.0.get(&krate).copied().unwrap_or(CIRCLE_MAX);
        let len = circle.modules.len();
        if len > max {
            problems.push(format!("{krate}: an import circle of {len} modules, over {max}"));
        }
    }
    problems
}

/// Names that several types have without a reason.
fn repeated(config: &TidyConfig, names: &TypeNames) -> Vec<String> {
    let allowed: BTreeSet<&str> =
        config.same_names.iter().map(|entry| entry.name.as_str()).collect();
    let repeated: BTreeSet<&str> = names.repeated().map(|(name, _)| name).collect();
    let told = names.repeated().filter(|(name, _)| !allowed.contains(name));
    let told = told.map(|(name, places)| {
        format!(
            "{}: {name} is the name of another type, too: {}",
            places[0],
            places[1..].join(", ")
        )
    });
    let stale = allowed.difference(&repeated);
    let stale = stale.map(|name| format!("tidy.toml: same_name {name} allows nothing (any more)"));
    told.chain(stale).collect()
}

/// Private words in names.
fn private(config: &TidyConfig, files: &[SourceFile]) -> Vec<String> {
    let mut problems = Vec::new();
    let mut used = vec![false; config.word_uses.len()];
    for file in files.iter().filter(|file| counts(file)) {
        let Ok(parsed) = syn::parse_file(&file.text) else { continue };
        let mut finder = Finder { found: Vec::new() };
        finder.visit_file(&parsed);
        for (line, name) in finder.found {
            let words = words(&name);
            let Some(word) = config.private_words.iter().find(|one| words.contains(&one.word))
            else {
                continue;
            };
            match config.word_uses.iter().position(|entry| entry.name == name) {
                Some(index) => used[index] = true,
                None => problems.push(format!(
                    "{}:{line}: {name}: {} is said for {}",
                    file.path, word.instead, word.word
                )),
            }
        }
    }
    for (entry, _) in config.word_uses.iter().zip(&used).filter(|(_, used)| !**used) {
        problems.push(format!("tidy.toml: word_use {} allows nothing (any more)", entry.name));
    }
    problems
}

/// The words of a name, small: of `OpenReferences` and `open_references` the same.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut after_small = false;
    for letter in name.chars() {
        if letter == '_' || (letter.is_uppercase() && after_small) {
            words.push(String::new());
        }
        after_small = letter.is_lowercase() || letter.is_ascii_digit();
        if letter != '_'
            && let Some(last) = words.last_mut()
        {
            last.extend(letter.to_lowercase());
        }
    }
    words
}

/// Types, modules and public functions that are defined.
struct Finder {
    found: Vec<(usize, String)>,
}

impl Finder {
    fn note(&mut self, name: &syn::Ident) {
        self.found.push((name.span().start().line, name.to_string()));
    }

    fn function(&mut self, visibility: &syn::Visibility, name: &syn::Ident) {
        if matches!(visibility, syn::Visibility::Public(_)) {
            self.note(name);
        }
    }
}

impl<'ast> Visit<'ast> for Finder {
    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.note(&item.ident);
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.note(&item.ident);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.note(&item.ident);
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.vis, &item.sig.ident);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.function(&item.vis, &item.sig.ident);
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_for_tests(&item.attrs) {
            self.note(&item.ident);
            visit::visit_item_mod(self, item);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::tests::sample as config;
    use super::super::sources::sample;
    use super::*;

    #[test]
    fn a_name_is_had_once_or_for_a_reason() {
        let files = [
            sample("crates/a/src/a.rs", "struct Slot;"),
            sample("crates/b/src/b.rs", "enum Slot {}"),
        ];
        let problems = check(&config(""), &files);
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].contains("crates/a/src/a.rs:1: Slot"), "{problems:?}");
        let allow = "[[same_name]]\nname = 'Slot'\nreason = 'both are slots'";
        assert_eq!(check(&config(allow), &files), Vec::<String>::new());
        assert!(check(&config(allow), &files[..1])[0].contains("allows nothing"));
    }

    #[test]
    fn private_words_are_told() {
        let word = "[[private_word]]\nword = 'heir'\ninstead = 'lock recovery'\n";
        let text = "mod heir; struct HeirTable; pub fn of_heir() {} fn heir() {} struct Their;";
        let files = [sample("crates/a/src/a.rs", text)];
        let problems = check(&config(word), &files);
        assert_eq!(problems.len(), 3, "{problems:?}");
        let allow = format!("{word}[[word_use]]\nname = 'of_heir'\nreason = 'it is a person here'");
        assert_eq!(check(&config(&allow), &files).len(), 2);
        assert!(check(&config(&allow), &[])[0].contains("allows nothing"));
    }

    #[test]
    fn figures_are_held() {
        let most = "[names]\none_word_percent_max = 40\nrepeated_percent_max = 5";
        let files = [sample("crates/a/src/a.rs", "struct Slot; struct OpenSlot;")];
        assert!(check(&config(most), &files)[0].contains("50.0 %, over 40"));
    }
}
