//! What other crates can name of this one is listed in `public-interface.txt`, so that a review sees each change of it.
//! After a change that is meant:
//!
//! ```sh
//! MILLPOND_UPDATE=1 cargo test -p millpond --test integration public_interface:: -- --ignored
//! ```
//!
//! What a program builds or holds has an example in its documentation.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use public_api::{Builder, Error};

const LISTING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/public-interface.txt");

/// Public types without an example: plain values that a call returns.
const PLAIN: [&str; 20] = [
    "AsyncUsage",
    "BlockId",
    "CaptureId",
    "CudaFacts",
    "DriverInfo",
    "DriverVersion",
    "EventHandle",
    "Freeing",
    "Graph",
    "Level",
    "MemoryInfo",
    "ObserverId",
    "PageHandle",
    "PerCall",
    "Report",
    "StackFrame",
    "StreamHandle",
    "StreamId",
    "UnknownDevice",
    "Violation",
];

/// The documentation as JSON, written once.
static DOCUMENTED: LazyLock<PathBuf> = LazyLock::new(|| {
    // Where what it depends on was built for the documentation of all features.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("cargo's folder of what it builds");
    let built = Command::new(env!("CARGO"))
        .args(["rustdoc", "--lib", "--all-features", "--locked", "--quiet", "--manifest-path"])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
        .arg("--target-dir")
        .arg(target)
        .args(["--", "-Zunstable-options", "--output-format=json", "--cap-lints=allow"])
        .env("RUSTDOC", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/rustdoc"))
        // Those of the compiler that runs this, which may be another in a run with a sanitizer.
        .env_remove("RUSTFLAGS")
        .status();
    assert!(built.expect("cargo runs").success(), "rustdoc failed");
    target.join("doc/millpond.json")
});

#[test]
#[ignore = "builds the documentation as JSON: .ci/run does, after the documentation itself"]
fn what_a_program_holds_has_an_example() {
    let text = fs::read_to_string(&*DOCUMENTED).expect("the documentation can be read");
    let crate_: serde_json::Value = serde_json::from_str(&text).expect("rustdoc writes JSON");
    let items = crate_["index"].as_object().expect("an index").values();
    let of_ours = items.filter(|item| {
        let file = item["span"]["filename"].as_str().unwrap_or_default();
        // Not what the hidden module `bindings` has for the C library.
        item["visibility"] == "public"
            && !["src/system/lock.rs", "src/system/process.rs", "src/record/called_from.rs"]
                .iter()
                .any(|at| file.ends_with(at))
    });
    let types = of_ours.filter(|item| item["inner"].get("struct").is_some());
    let has_example = |item: &serde_json::Value| {
        let docs = item["docs"].as_str().unwrap_or_default();
        docs.contains("```") || docs.contains("has an example")
    };
    let mut seen = 0;
    let without: BTreeSet<_> = types
        .inspect(|_| seen += 1)
        .filter(|item| !has_example(item))
        .map(|item| item["name"].as_str().expect("types have names"))
        .collect();
    assert!(seen > 40, "the format of rustdoc's JSON is another: {seen} types");
    assert_eq!(without, BTreeSet::from(PLAIN), "an example is missing, or is there now");
}

#[test]
#[ignore = "builds the documentation as JSON: .ci/run does, after the documentation itself"]
fn the_public_interface_is_the_one_that_is_listed() {
    let listing = Builder::from_rustdoc_json(&*DOCUMENTED)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true)
        .build();
    let listing = match listing {
        Ok(listing) => listing,
        Err(Error::SerdeJsonError(error)) if std::env::var_os("MILLPOND_REQUIRE_TOOLS").is_none() => {
            eprintln!(
                "skipped: this compiler's rustdoc writes another format than public-api reads: {error}"
            );
            return;
        }
        Err(error) => {
            panic!("Cargo.toml needs the version of public-api that reads this compiler's format: {error}")
        }
    };
    // What a type has by a trait is listed both at the type and at the trait: once will do.
    let mut seen = BTreeSet::new();
    let items = listing.items().map(|item| format!("{item}\n")).filter(|line| seen.insert(line.clone()));
    let text: String = items.collect();
    if std::env::var_os("MILLPOND_UPDATE").is_some() {
        fs::write(LISTING, text).expect("the listing can be written");
        return;
    }
    let listed = fs::read_to_string(LISTING).expect("the listing can be read");
    let (old, new): (BTreeSet<_>, BTreeSet<_>) = (listed.lines().collect(), text.lines().collect());
    let gone: String = old.difference(&new).map(|line| format!("- {line}\n")).collect();
    let come: String = new.difference(&old).map(|line| format!("+ {line}\n")).collect();
    assert!(
        gone.is_empty() && come.is_empty(),
        "the public interface is another than {LISTING} lists:\n{gone}{come}\
         If that is meant, write the listing anew: MILLPOND_UPDATE=1 cargo test -p millpond --test integration public_interface:: -- --ignored\n\
         What is gone or changed breaks programs: CHANGELOG.md has to say so."
    );
}
