//! A server of HTTP for scrapers: short requests, and one answer for each connection.
//!
//! A thread listens, and each connection has one of its own, which reads the request and sends the answer. So nobody who sends
//! slowly, too much or nothing keeps others waiting. What the answer is, the thread decides that takes requests with
//! [`Server::request`].

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

/// Connections at once; more wait with the system.
const MOST_CONNECTIONS: usize = 64;
/// Of a request's head, in bytes, as other servers have it.
const MOST_HEAD: usize = 8 << 10;
/// For the request, and for each part of the answer to be taken.
const WITHIN: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 5 });
/// For what a client still sends while it gets its answer.
const LINGER: Duration = Duration::from_millis(500);
/// Before a connection is taken again, where the process has no descriptor left for one.
const PAUSE: Duration = Duration::from_millis(100);

pub(super) struct Server {
    address: SocketAddr,
    requests: Receiver<Request>,
}

/// What a client asks for.
pub(super) struct Request {
    pub(super) method: String,
    /// Without what follows a `?`.
    pub(super) path: String,
    answer: SyncSender<Answer>,
}

/// A status, and a text.
#[derive(Debug)]
struct Answer {
    status: u16,
    text: String,
}

impl Server {
    pub(super) fn listen(address: impl ToSocketAddrs) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let (taken, requests) = channel();
        std::thread::Builder::new().spawn(move || accept(&listener, &taken))?;
        Ok(Self { address, requests })
    }

    /// A port of 0 became one that was free.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next request; `None` where none came in this time.
    pub(super) fn request(&self, within: Duration) -> Option<Request> {
        self.requests.recv_timeout(within).ok()
    }
}

impl Request {
    /// Who asked may be gone.
    pub(super) fn answer(self, status: u16, text: String) {
        self.answer.try_send(Answer { status, text }).ok();
    }
}

/// Takes connections until the process ends.
fn accept(listener: &TcpListener, requests: &Sender<Request>) {
    // Each connection holds a clone.
    let open = Arc::new(());
    loop {
        if Arc::strong_count(&open) > MOST_CONNECTIONS {
            std::thread::sleep(PAUSE);
            continue;
        }
        let Ok((connection, _)) = listener.accept() else {
            std::thread::sleep(PAUSE);
            continue;
        };
        let (requests, open) = (requests.clone(), open.clone());
        // Without a thread for it, it is closed.
        let served = std::thread::Builder::new().spawn(move || {
            serve(connection, &requests).ok();
            drop(open);
        });
        drop(served);
    }
}

/// Reads a request, and sends the answer.
fn serve(mut connection: TcpStream, requests: &Sender<Request>) -> io::Result<()> {
    connection.set_write_timeout(Some(WITHIN))?;
    let head = read_head(&mut connection)?;
    let is_head = head.method == "HEAD";
    let answer = match head.status {
        Some(status) => Answer { status, text: format!("{}\n", reason(status)) },
        None => {
            let (answer, answered) = sync_channel(1);
            let request = Request { method: head.method, path: head.path, answer };
            // The command ends.
            let gone = |_| ErrorKind::BrokenPipe;
            requests.send(request).map_err(|_| ErrorKind::BrokenPipe)?;
            answered.recv().map_err(gone)?
        }
    };
    let Answer { status, text } = answer;
    let begin = format!(
        "{} {status} {}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        head.version,
        reason(status),
        text.len()
    );
    connection.write_all(begin.as_bytes())?;
    if !is_head {
        connection.write_all(text.as_bytes())?;
    }
    linger(&mut connection)
}

/// The type of the text (see `live/prometheus.rs`).
const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        _ => "",
    }
}

/// The first line of a request.
struct Head {
    /// Of what could not be read.
    status: Option<u16>,
    method: String,
    path: String,
    version: &'static str,
}

fn read_head(connection: &mut TcpStream) -> io::Result<Head> {
    let until = Instant::now() + WITHIN;
    let (mut head, mut part) = (Vec::new(), [0; 1024]);
    let refused = |status| Head {
        status: Some(status),
        method: String::new(),
        path: String::new(),
        version: "HTTP/1.1",
    };
    while !is_whole(&head) {
        if head.len() > MOST_HEAD {
            return Ok(refused(431));
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(refused(408));
        }
        connection.set_read_timeout(Some(left))?;
        match connection.read(&mut part) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(read) => head.extend_from_slice(&part[..read]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(parsed(&head).unwrap_or_else(|| refused(400)))
}

/// Whether an empty line is there. Some clients end lines without a carriage return.
fn is_whole(head: &[u8]) -> bool {
    head.windows(4).any(|bytes| bytes == b"\r\n\r\n") || head.windows(2).any(|bytes| bytes == b"\n\n")
}

/// `GET /metrics?x HTTP/1.1`; nothing else of a request decides what is answered.
fn parsed(head: &[u8]) -> Option<Head> {
    let line = std::str::from_utf8(head.split(|byte| *byte == b'\n').next()?).ok()?;
    let words: Vec<_> = line.trim_end_matches('\r').split(' ').collect();
    let [method, path, version] = words[..] else { return None };
    let version = match version {
        "HTTP/1.0" => "HTTP/1.0",
        version if version.starts_with("HTTP/1.") => "HTTP/1.1",
        _ => return None,
    };
    let path = path.split('?').next().unwrap_or_default().to_owned();
    Some(Head { status: None, method: method.to_owned(), path, version })
}

/// Takes what the client still sends: a connection that is closed before is reset, and the answer may be lost.
fn linger(connection: &mut TcpStream) -> io::Result<()> {
    connection.shutdown(Shutdown::Write)?;
    connection.set_read_timeout(Some(LINGER))?;
    let (until, mut part) = (Instant::now() + LINGER, [0; 1024]);
    while Instant::now() < until && connection.read(&mut part)? > 0 {}
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that answers with the path, for as long as the test runs.
    fn server() -> SocketAddr {
        let server = Server::listen("127.0.0.1:0").unwrap();
        let address = server.address();
        std::thread::spawn(move || {
            loop {
                if let Some(request) = server.request(WITHIN) {
                    let text = format!("{} {}", request.method, request.path);
                    request.answer(200, text);
                }
            }
        });
        address
    }

    fn asked(address: SocketAddr, request: &[u8]) -> String {
        let mut connection = TcpStream::connect(address).unwrap();
        connection.set_read_timeout(Some(10 * WITHIN)).unwrap();
        // It may be closed meanwhile.
        connection.write_all(request).ok();
        let mut answer = Vec::new();
        connection.read_to_end(&mut answer).ok();
        String::from_utf8(answer).unwrap()
    }

    #[test]
    fn requests_are_answered_with_their_version() {
        let at = server();
        let answer = asked(at, b"GET /a?b=c HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nGET /a"), "{answer}");
        assert!(asked(at, b"GET /a HTTP/1.0\n\n").starts_with("HTTP/1.0 200 OK\r\n"));
        let answer = asked(at, b"HEAD /a HTTP/1.1\r\n\r\n");
        assert!(answer.contains("Content-Length: 7\r\n") && answer.ends_with("\r\n\r\n"), "{answer}");
    }

    #[test]
    fn whatever_is_sent_the_server_goes_on() {
        let at = server();
        let endless = [b"GET /".as_slice(), &[b'a'; 1 << 20]].concat();
        for (request, status) in [
            (&b"POST /a HTTP/1.1\r\nContent-Length: 99999999999999\r\n\r\nx"[..], "200"),
            (b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n", "200"),
            (b"GET /a HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n", "200"),
            (b"\0\0\0\0\r\n\r\n", "400"),
            (b"\x16\x03\x01\xff\n\n", "400"),
            (b"GET /a HTTP/2\r\n\r\n", "400"),
            (b"\r\n\r\n", "400"),
            (&endless, "431"),
        ] {
            let answer = asked(at, request);
            // What was sent beyond the answer may have the connection reset.
            assert!(
                answer.starts_with(&format!("HTTP/1.1 {status} ")) || request.len() > MOST_HEAD,
                "{answer}"
            );
        }
        assert!(asked(at, b"GET /a HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200"));
    }

    #[test]
    fn clients_that_send_nothing_keep_nobody_waiting() {
        let at = server();
        let idle: Vec<_> = (1..MOST_CONNECTIONS).map(|_| TcpStream::connect(at).unwrap()).collect();
        let began = Instant::now();
        assert!(asked(at, b"GET /a HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200"));
        assert!(began.elapsed() < WITHIN);
        // They are told, and their places are free again.
        let more: Vec<_> = (0..8).map(|_| TcpStream::connect(at).unwrap()).collect();
        assert!(asked(at, b"GET /a HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200"));
        drop((idle, more));
    }
}
