//! What other crates can name of this one is listed in `public-interface.txt`: a change of it is seen in review, and no
//! change is made unawares. After one that is meant:
//!
//! ```sh
//! MILLPOND_UPDATE=1 cargo test -p millpond --test public_interface
//! ```

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use public_api::{Builder, Error};

const LISTING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/public-interface.txt");

#[test]
fn the_public_interface_is_the_one_that_is_listed() {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("rustdoc");
    let built = Command::new(env!("CARGO"))
        .args(["rustdoc", "--lib", "--all-features", "--locked", "--quiet", "--manifest-path"])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
        .arg("--target-dir")
        .arg(&target)
        .args(["--", "-Zunstable-options", "--output-format=json", "--cap-lints=allow"])
        // rustdoc's JSON is unstable: this lets a stable compiler write it.
        .env("RUSTC_BOOTSTRAP", "1")
        // Those of the compiler that runs this, which may be another in a run with a sanitizer.
        .env_remove("RUSTFLAGS")
        .status();
    assert!(built.expect("cargo runs").success(), "rustdoc failed");
    let listing = Builder::from_rustdoc_json(target.join("doc/millpond.json"))
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
         If that is meant, write the listing anew: MILLPOND_UPDATE=1 cargo test -p millpond --test public_interface\n\
         What is gone or changed breaks programs: CHANGELOG.md has to say so."
    );
}
