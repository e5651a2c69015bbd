//! Patterns compiled by regex-automata, within bounds.

use regex_automata::meta;
use regex_automata::nfa::thompson::{self, NFA, WhichCaptures};
use regex_syntax::hir::Hir;

use super::options::PatternError;

/// Memory that one compiled form of the patterns may take, in bytes.
const COMPILED_MAX: usize = 64 << 20;
/// Memory for states made while searching, in bytes.
const CACHE_LEN: usize = 16 << 20;
pub(super) const TOO_LARGE: PatternError =
    PatternError::NeedsRealGrep("patterns that are so large");

/// `pattern`, to be found anywhere.
pub(super) fn regex(pattern: &Hir) -> Result<meta::Regex, PatternError> {
    let config = meta::Config::new()
        .utf8_empty(false)
        .which_captures(WhichCaptures::Implicit)
        .nfa_size_limit(Some(COMPILED_MAX))
        .hybrid_cache_capacity(CACHE_LEN)
        .onepass(false)
        .backtrack(false);
    meta::Builder::new().configure(config).build_from_hir(pattern).map_err(|_| TOO_LARGE)
}

/// `pattern` as a program for automata.
pub(super) fn program(pattern: &Hir) -> Result<NFA, PatternError> {
    let config = thompson::Config::new()
        .utf8(false)
        .which_captures(WhichCaptures::None)
        .nfa_size_limit(Some(COMPILED_MAX));
    let mut compiler = thompson::Compiler::new();
    compiler.configure(config).build_from_hir(pattern).map_err(|_| TOO_LARGE)
}
