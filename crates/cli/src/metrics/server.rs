//! A server of HTTP for scrapers: short requests, and one answer for each connection.
//!
//! hyper speaks the protocol, on a thread of its own. So nobody who sends slowly, too much or nothing keeps others waiting. What
//! the answer is, the thread decides that takes requests with [`Server::request`].

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{sleep, timeout};

/// Connections at once; more wait with the system.
const MOST_CONNECTIONS: usize = 64;
/// Of a request's head, in bytes, as other servers have it.
const MOST_HEAD: usize = 8 << 10;
/// For the head of the request.
const WITHIN: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 5 });
/// For all of a connection: who does not take the answer by then goes without.
const LONGEST: Duration = Duration::from_secs(30);
/// Before a connection is taken again, where the process has no descriptor left for one.
const PAUSE: Duration = Duration::from_millis(100);
/// Of the text (see `live/prometheus.rs`).
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

pub(super) struct Server {
    address: SocketAddr,
    requests: Receiver<Request>,
}

/// What a client asks for.
pub(super) struct Request {
    pub(super) method: Method,
    pub(super) path: String,
    answer: oneshot::Sender<(StatusCode, String)>,
}

impl Server {
    pub(super) fn listen(address: SocketAddr) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = runtime.block_on(TcpListener::bind(address))?;
        let address = listener.local_addr()?;
        let (taken, requests) = channel();
        std::thread::Builder::new().spawn(move || runtime.block_on(accept(listener, taken)))?;
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
    pub(super) fn answer(self, status: StatusCode, text: String) {
        self.answer.send((status, text)).ok();
    }
}

/// Takes connections until the process ends.
async fn accept(listener: TcpListener, requests: Sender<Request>) {
    let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    while let Ok(place) = places.clone().acquire_owned().await {
        let Ok((connection, _)) = listener.accept().await else {
            sleep(PAUSE).await;
            continue;
        };
        let requests = requests.clone();
        tokio::spawn(async move {
            timeout(LONGEST, serve(connection, requests)).await.ok();
            drop(place);
        });
    }
}

/// Reads a request, and sends the answer.
async fn serve(connection: TcpStream, requests: Sender<Request>) {
    let service = service_fn(|asked: hyper::Request<Incoming>| {
        let (answer, answered) = oneshot::channel();
        let path = asked.uri().path().to_owned();
        requests.send(Request { method: asked.method().clone(), path, answer }).ok();
        async move {
            // The command ends: nobody answers.
            let (status, text) = answered.await.unwrap_or((StatusCode::SERVICE_UNAVAILABLE, String::new()));
            let mut response = Response::new(Full::new(Bytes::from(text)));
            *response.status_mut() = status;
            response.headers_mut().insert(CONTENT_TYPE, TEXT);
            Ok::<_, Infallible>(response)
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(WITHIN).max_buf_size(MOST_HEAD).keep_alive(false);
    // Who asked may be gone.
    http.serve_connection(TokioIo::new(connection), service).await.ok();
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::time::Instant;

    use super::*;

    /// A server that answers with the path, for as long as the test runs.
    fn server() -> SocketAddr {
        let server = Server::listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = server.address();
        std::thread::spawn(move || {
            loop {
                if let Some(request) = server.request(WITHIN) {
                    let text = format!("{} {}", request.method, request.path);
                    request.answer(StatusCode::OK, text);
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
        assert!(answer.contains("content-length: 7\r\n") && answer.ends_with("\r\n\r\n"), "{answer}");
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
            (b"GET /a HTTP/1.1 x\r\n\r\n", "400"),
            (&endless, "431"),
        ] {
            let answer = asked(at, request);
            // What is sent beyond the answer may have the connection reset, and the answer lost.
            let is_lost = request.len() > MOST_HEAD && answer.is_empty();
            assert!(is_lost || answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
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
        // Their places are free again.
        let more: Vec<_> = (0..8).map(|_| TcpStream::connect(at).unwrap()).collect();
        assert!(asked(at, b"GET /a HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200"));
        drop((idle, more));
    }
}
