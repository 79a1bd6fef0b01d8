//! Fetches the files of a data set from a mirror, and checks them before they are kept.

use std::path::Path;
use std::time::Duration;

use sha2::{Digest, Sha256};
use ureq::Agent;

use super::args::FetchArgs;
use crate::error::{Error, Result};
use crate::outputs::replace;
use crate::terminal::say;

/// Who serves MNIST's files as its authors published them. Without TLS: the files are known by their SHA-256.
const MIRRORS: [&str; 2] =
    ["http://ossci-datasets.s3.amazonaws.com/mnist", "http://storage.googleapis.com/cvdf-datasets/mnist"];

/// The files and their SHA-256, the same on every mirror.
const FILES: [(&str, &str); 4] = [
    ("train-images-idx3-ubyte.gz", "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
    ("train-labels-idx1-ubyte.gz", "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
    ("t10k-images-idx3-ubyte.gz", "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
    ("t10k-labels-idx1-ubyte.gz", "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
];

/// More than the largest file has (9,912,422 bytes).
const MOST_BYTES: u64 = 16 << 20;
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
const FETCH_WITHIN: Duration = Duration::from_secs(300);

/// Runs the command.
pub(crate) fn run(args: &FetchArgs) -> Result<()> {
    let dir = &args.dir;
    if let Some(mirror) = &args.mirror
        && !mirror.starts_with("http://")
    {
        return Err(Error::Usage(format!(
            "--mirror: {mirror} does not start with http://. Files are fetched without TLS, and checked by their SHA-256"
        )));
    }
    std::fs::create_dir_all(dir).map_err(|source| Error::Io {
        path: dir.clone(),
        action: "create the folder",
        source,
    })?;
    let mirrors = match &args.mirror {
        Some(mirror) => vec![mirror.trim_end_matches('/')],
        None => MIRRORS.to_vec(),
    };
    fetch_all(dir, &mirrors, &FILES)?;
    say(&format!("train on it: millpond train --data {}", dir.display()));
    Ok(())
}

/// Fetches the files that the folder does not have whole.
fn fetch_all(dir: &Path, mirrors: &[&str], files: &[(&'static str, &str)]) -> Result<()> {
    let timeouts = Agent::config_builder()
        .timeout_connect(Some(CONNECT_WITHIN))
        .timeout_global(Some(FETCH_WITHIN))
        .build();
    let agent = Agent::new_with_config(timeouts);
    for &(file, sha256) in files {
        let path = dir.join(file);
        if std::fs::read(&path).is_ok_and(|bytes| digest(&bytes) == sha256) {
            say(&format!("{}: there already", path.display()));
            continue;
        }
        let bytes = from_any(&agent, mirrors, file, sha256)?;
        keep(&path, &bytes)?;
        say(&format!("{}: fetched, {} bytes", path.display(), bytes.len()));
    }
    Ok(())
}

/// The file from the first mirror that has it whole.
fn from_any(agent: &Agent, mirrors: &[&str], file: &'static str, sha256: &str) -> Result<Vec<u8>> {
    let mut tried = Vec::new();
    for mirror in mirrors {
        let url = format!("{mirror}/{file}");
        match fetch(agent, &url) {
            Ok(bytes) if digest(&bytes) == sha256 => return Ok(bytes),
            Ok(bytes) => tried.push(format!(
                "{url}: {} bytes with SHA-256 {}, expected {sha256}",
                bytes.len(),
                digest(&bytes)
            )),
            Err(error) => tried.push(format!("{url}: {error}")),
        }
    }
    Err(Error::Offline { file, tried: tried.join("; ") })
}

fn fetch(agent: &Agent, url: &str) -> std::result::Result<Vec<u8>, ureq::Error> {
    agent.get(url).call()?.into_body().into_with_config().limit(MOST_BYTES).read_to_vec()
}

fn keep(path: &Path, bytes: &[u8]) -> Result<()> {
    let written = replace(path, |out| out.write_all(bytes));
    written.map_err(|source| Error::Io { path: path.to_owned(), action: "write it", source })
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;

    use super::*;

    /// A mirror on this machine that answers this many requests, `body` to each.
    fn mirror(requests: usize, body: &'static str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for connection in listener.incoming().take(requests) {
                let mut connection = connection.unwrap();
                let request = BufReader::new(connection.try_clone().unwrap()).lines();
                request.map_while(|line| line.ok().filter(|line| !line.is_empty())).for_each(drop);
                let length = body.len();
                write!(
                    connection,
                    "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
                )
                .unwrap();
            }
        });
        format!("http://{address}")
    }

    /// An address where nobody listens.
    fn nobody() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    }

    #[test]
    fn a_file_with_its_checksum_is_not_fetched_again() {
        let dir = tempfile::tempdir().unwrap();
        let sha256 = digest(b"digits");
        let files = [("train-labels-idx1-ubyte.gz", sha256.as_str())];
        fetch_all(dir.path(), &[&nobody(), &mirror(1, "digits")], &files).unwrap();
        let path = dir.path().join(files[0].0);
        assert_eq!(std::fs::read(&path).unwrap(), b"digits");
        // There is no mirror any more, and none is needed.
        fetch_all(dir.path(), &[&nobody()], &files).unwrap();
        // A damaged file is fetched anew.
        std::fs::write(&path, "digi").unwrap();
        fetch_all(dir.path(), &[&mirror(1, "digits")], &files).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"digits");
    }

    #[test]
    fn a_file_with_a_wrong_checksum_is_not_kept() {
        let dir = tempfile::tempdir().unwrap();
        let error = fetch_all(dir.path(), &[&mirror(1, "a login page")], &FILES).unwrap_err().to_string();
        assert!(error.contains(&digest(b"a login page")) && error.contains(FILES[0].1), "{error}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn without_a_network_the_error_says_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let error = fetch_all(dir.path(), &[&nobody()], &FILES).unwrap_err().to_string();
        assert!(error.contains("dataset-fashion-mnist") && error.contains("--data DIR"), "{error}");
        assert!(!error.contains('\n'), "{error}");
    }

    #[test]
    fn a_mirror_with_tls_is_refused_before_a_folder_is_made() {
        let dir = tempfile::tempdir().unwrap().path().join("mnist");
        let args =
            FetchArgs { dataset: "mnist".to_owned(), dir: dir.clone(), mirror: Some("https://a".to_owned()) };
        assert!(matches!(run(&args), Err(Error::Usage(said)) if said.contains("http://")));
        assert!(!dir.exists());
    }

    #[test]
    fn a_body_that_never_ends_is_cut_off() {
        let dir = tempfile::tempdir().unwrap();
        let long: &'static str = "x".repeat(MOST_BYTES as usize + 1).leak();
        let error = fetch_all(dir.path(), &[&mirror(1, long)], &FILES).unwrap_err().to_string();
        assert!(error.contains("limit"), "{error}");
    }
}
