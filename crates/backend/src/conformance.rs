//! What every backend must do.
/// Runs the suite against the backend that `make` makes.
pub fn run(_make: &dyn Fn() -> Box<dyn crate::Backend>) {
    todo!()
}
