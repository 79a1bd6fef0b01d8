//! Gives the shared library its name, which holds the version of its interface.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let part = |name| env::var(format!("CARGO_PKG_VERSION_{name}")).expect("cargo says so");
    // As install/millpond-config-version.cmake.in has it: before 1.0, a minor version may change the interface.
    let interface = match part("MAJOR").as_str() {
        "0" => format!("0.{}", part("MINOR")),
        major => major.to_owned(),
    };
    if env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux") {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libmillpond.so.{interface}");
    }
}
