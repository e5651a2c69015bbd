//! Asks the loader to start this library before all others: the C++ library takes the standard streams as it finds them when it
//! starts, and they must be ours by then where they lead into the store.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,initfirst");
}
