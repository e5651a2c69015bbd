//! Lengths: one file, one idea; one function, one step.

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use super::config::TidyConfig;
use super::sources::SourceFile;

/// Files and functions over their limits.
pub fn check(config: &TidyConfig, files: &[SourceFile]) -> Vec<String> {
    let mut problems = Vec::new();
    let mut used_files = vec![false; config.long_files.len()];
    let mut used_functions = vec![false; config.long_functions.len()];
    for file in files.iter().filter(|file| file.is_rust()) {
        let lines = file.text.lines().count();
        if lines > config.limits.file_lines {
            let allowed = config
                .long_files
                .iter()
                .position(|entry| entry.path == file.path && lines <= entry.lines_max);
            match allowed {
                Some(index) => used_files[index] = true,
                None => problems.push(format!(
                    "{}: {lines} lines, over {}: does it hold two ideas?",
                    file.path, config.limits.file_lines
                )),
            }
        }
        match functions(&file.text) {
            Err(error) => problems.push(format!("{}: does not parse: {error}", file.path)),
            Ok(functions) => {
                for long in functions.iter().filter(|one| one.lines > config.limits.function_lines)
                {
                    let allowed = config.long_functions.iter().position(|entry| {
                        entry.path == file.path
                            && entry.name == long.name
                            && long.lines <= entry.lines_max
                    });
                    match allowed {
                        Some(index) => used_functions[index] = true,
                        None => problems.push(format!(
                            "{}:{}: function {} has {} lines, over {}",
                            file.path, long.at, long.name, long.lines, config.limits.function_lines
                        )),
                    }
                }
            }
        }
    }
    for (entry, _) in config.long_files.iter().zip(&used_files).filter(|(_, used)| !**used) {
        problems.push(format!("tidy.toml: long_file {} allows nothing (any more)", entry.path));
    }
    for (entry, _) in config.long_functions.iter().zip(&used_functions).filter(|(_, used)| !**used)
    {
        problems.push(format!(
            "tidy.toml: long_function {} {} allows nothing (any more)",
            entry.path, entry.name
        ));
    }
    problems
}

/// One function and its length from signature to closing brace.
#[derive(Debug, PartialEq, Eq)]
struct FunctionLength {
    name: String,
    at: usize,
    lines: usize,
}

fn functions(text: &str) -> syn::Result<Vec<FunctionLength>> {
    let file = syn::parse_file(text)?;
    let mut finder = FunctionFinder { found: Vec::new() };
    finder.visit_file(&file);
    Ok(finder.found)
}

struct FunctionFinder {
    found: Vec<FunctionLength>,
}

impl FunctionFinder {
    fn note(&mut self, signature: &syn::Signature, end: Span) {
        let at = signature.span().start().line;
        let lines = end.end().line + 1 - at;
        self.found.push(FunctionLength { name: signature.ident.to_string(), at, lines });
    }
}

impl<'ast> Visit<'ast> for FunctionFinder {
    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.note(&function.sig, function.block.span());
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.note(&function.sig, function.block.span());
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        if let Some(block) = &function.default {
            self.note(&function.sig, block.span());
        }
        visit::visit_trait_item_fn(self, function);
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::tests::sample as config;
    use super::super::sources::sample;
    use super::*;

    const LONG: &str = "struct A;\nimpl A {\n    fn long(&self) {\n        a();\n        b();\n        \"}\";\n    }\n}\n";

    #[test]
    fn functions_are_measured_from_signature_to_brace() {
        let found = functions(LONG).expect("parses");
        assert_eq!(found, [FunctionLength { name: "long".into(), at: 3, lines: 5 }]);
    }

    #[test]
    fn long_functions_and_files_are_told() {
        let files = [sample("a.rs", LONG), sample("b.rs", &"// x\n".repeat(11))];
        let problems = check(&config(""), &files);
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(problems[0].contains("a.rs:3: function long has 5 lines"));
        assert!(problems[1].contains("b.rs: 11 lines"));
    }

    #[test]
    fn a_reason_allows_up_to_a_length_and_goes_stale() {
        let allow = |lines: usize| {
            config(&format!(
                "[[long_function]]\npath = 'a.rs'\nname = 'long'\nlines_max = {lines}\nreason = 'one table of all cases'"
            ))
        };
        let files = [sample("a.rs", LONG)];
        assert_eq!(check(&allow(5), &files), Vec::<String>::new());
        assert_eq!(check(&allow(4), &files).len(), 2);
        assert!(check(&allow(5), &[])[0].contains("allows nothing"));
    }
}
