//! The header in the repository is the one that the crate generates.

use std::path::Path;

use millpond_capi::stats::{DEVICE_CALLS_TEXT, POOL_STATS_TEXT};

#[test]
fn the_header_is_what_the_crate_generates() -> Result<(), Box<dyn std::error::Error>> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(here.join("cbindgen.toml"))?;
    // What macros make of the lists of figures.
    let figures = Path::new(env!("CARGO_TARGET_TMPDIR")).join("figures.rs");
    std::fs::write(&figures, [DEVICE_CALLS_TEXT, POOL_STATS_TEXT].join("\n"))?;
    let builder = cbindgen::Builder::new().with_crate(here).with_src(figures).with_config(config);
    let mut generated = Vec::new();
    builder.generate()?.write(&mut generated);
    let version = [
        ("@VERSION@", env!("CARGO_PKG_VERSION")),
        ("@MAJOR@", env!("CARGO_PKG_VERSION_MAJOR")),
        ("@MINOR@", env!("CARGO_PKG_VERSION_MINOR")),
        ("@PATCH@", env!("CARGO_PKG_VERSION_PATCH")),
    ];
    let fill = |text: String, (name, value): (&str, &str)| text.replace(name, value);
    let generated = version.into_iter().fold(String::from_utf8(generated)?, fill);
    let file = here.join("include/millpond.h");
    if std::env::var_os("MILLPOND_WRITE_HEADER").is_some() {
        std::fs::write(&file, &generated)?;
    }
    let kept = std::fs::read_to_string(&file)?;
    assert!(
        kept == generated,
        "include/millpond.h is out of date; run MILLPOND_WRITE_HEADER=1 cargo test -p millpond-capi --test header"
    );
    Ok(())
}
