//! The header in the repository is the one that the crate generates.

use std::path::Path;

#[test]
fn the_header_is_what_the_crate_generates() -> Result<(), Box<dyn std::error::Error>> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(here.join("cbindgen.toml"))?;
    let mut generated = Vec::new();
    cbindgen::Builder::new().with_crate(here).with_config(config).generate()?.write(&mut generated);
    let generated = String::from_utf8(generated)?;
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
