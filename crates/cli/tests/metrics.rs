//! `millpond metrics --listen`, whatever clients send.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::shared::command;

/// Waits until it is so, for at most 20 seconds.
fn until(mut it_is: impl FnMut() -> bool) {
    let began = Instant::now();
    while !it_is() {
        assert!(began.elapsed() < Duration::from_secs(20), "it took too long");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Until the server closes the connection, or there is none.
fn asked(address: &str, request: &str) -> String {
    let mut answer = Vec::new();
    let ask = |answer: &mut Vec<u8>| {
        let mut connection = TcpStream::connect(address)?;
        connection.set_read_timeout(Some(Duration::from_secs(20)))?;
        connection.write_all(request.as_bytes())?;
        connection.read_to_end(answer)
    };
    ask(&mut answer).ok();
    String::from_utf8(answer).unwrap()
}

#[test]
fn a_client_ends_no_server_and_keeps_it_from_nobody() {
    let mut server = command();
    server.args(["metrics", "--listen", "127.0.0.1:0"]).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut server = server.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("listening: http://").unwrap().strip_suffix("/metrics").unwrap();
    // Bodies that claim more than there is memory, and that never come.
    for claimed in [99_999_999_999_999_u64, 2_000] {
        let request = format!("POST /metrics HTTP/1.1\r\nContent-Length: {claimed}\r\n\r\n");
        let mut waits = TcpStream::connect(address).unwrap();
        waits.write_all(request.as_bytes()).unwrap();
        let answer = asked(address, "GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n");
        assert!(
            answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nok\n"),
            "{claimed}: {answer}"
        );
    }
    assert_eq!(server.try_wait().unwrap(), None);
    server.kill().unwrap();
    server.wait().unwrap();
}

#[test]
fn a_file_that_cannot_be_written_for_a_while_is_written_later() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("collected");
    let file = folder.join("millpond.prom");
    let mut exporter = command();
    exporter.args(["metrics", "--interval", "50ms", "--textfile"]).arg(&file).stderr(Stdio::piped());
    std::fs::create_dir(&folder).unwrap();
    let mut exporter = exporter.spawn().unwrap();
    until(|| file.exists());
    let mut said = BufReader::new(exporter.stderr.take().unwrap()).lines();
    // It may be written between.
    until(|| std::fs::remove_dir_all(&folder).is_ok());
    let line = said.next().unwrap().unwrap();
    assert!(line.contains("cannot write it: ") && line.ends_with("; it is tried again and again"), "{line}");
    std::fs::create_dir(&folder).unwrap();
    until(|| file.exists());
    exporter.kill().unwrap();
    exporter.wait().unwrap();
}
