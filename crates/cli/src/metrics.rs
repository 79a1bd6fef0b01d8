//! `millpond metrics`: what the pools of running programs hold and do, for Prometheus.

use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use tiny_http::{Header, Method, Request, Response, Server};

use crate::error::{Error, Result};
use crate::live::{Sight, Watch, interval, prometheus};
use crate::outputs::Output;
use crate::terminal::{Interrupt, answer, remark, say};

#[derive(Debug, Args)]
#[command(after_help = "\
Without --listen, one text is printed. Root sees the programs of all users and
containers. With --listen, and with --interval, errors are said on standard
error: who ran out of memory, and what has ended after that.

Examples:
  millpond metrics
  millpond metrics --listen :9464
  millpond metrics --listen :9464 --allow-remote
  millpond metrics --textfile /var/lib/node_exporter/millpond.prom --interval 15s")]
pub(crate) struct MetricsArgs {
    /// Answer GET /metrics at this address until Ctrl-C
    #[arg(long, value_name = "[ADDRESS]:PORT", value_parser = address)]
    listen: Option<Address>,
    /// Listen also where other machines can connect
    #[arg(long, requires = "listen")]
    allow_remote: bool,
    /// Write the text to this file, for node_exporter
    #[arg(long, value_name = "FILE", conflicts_with = "listen")]
    textfile: Option<PathBuf>,
    /// Write the file again and again, until Ctrl-C
    #[arg(long, value_name = "TIME", requires = "textfile", value_parser = interval)]
    interval: Option<Duration>,
}

/// Where to listen: a port of this machine, or addresses of a name.
#[derive(Debug, Clone)]
enum Address {
    Port(u16),
    Named(SocketAddr),
}

fn address(text: &str) -> std::result::Result<Address, String> {
    if let Some(port) = text.strip_prefix(':') {
        let port = port.parse().map(Address::Port);
        return port.map_err(|_| "no port: use a number up to 65535, as :9464".to_owned());
    }
    let found =
        text.to_socket_addrs().map_err(|error| format!("{error}: use :9464 or localhost:9464, say"))?;
    // Of a name with addresses of both kinds, the one that most programs ask.
    let mut found: Vec<_> = found.collect();
    found.sort_by_key(SocketAddr::is_ipv6);
    found.into_iter().next().map(Address::Named).ok_or_else(|| "nothing has this name".to_owned())
}

impl Address {
    fn resolve(&self, allow_remote: bool) -> SocketAddr {
        match self {
            Self::Port(port) if allow_remote => (Ipv4Addr::UNSPECIFIED, *port).into(),
            Self::Port(port) => (Ipv4Addr::LOCALHOST, *port).into(),
            Self::Named(address) => *address,
        }
    }
}

/// How soon a signal is noticed.
const TICK: Duration = Duration::from_millis(100);

/// How often an exporter looks where nobody asks, so that what a short job ran out of is said, and its labels are known.
const EACH: Duration = Duration::from_secs(5);

/// The type of the text (see `live/prometheus.rs`).
const CONTENT_TYPE: &str = "Content-Type: text/plain; version=0.0.4; charset=utf-8";

/// Runs the command.
pub(crate) fn run(args: &MetricsArgs) -> Result<()> {
    if let Some(address) = &args.listen {
        return listen(address.resolve(args.allow_remote), args.allow_remote);
    }
    let (watch, interrupt) = (Watch::new(), args.interval.map(|_| Interrupt::watch()));
    loop {
        let file = args.textfile.as_deref().map(Output::open).transpose()?;
        let sight = watch.look()?;
        let text = prometheus::text(&sight);
        match file {
            Some(file) => file.write(&text)?,
            None => answer(text.trim_end()),
        }
        let Some((interval, interrupt)) = args.interval.zip(interrupt.as_ref()) else { return Ok(()) };
        say_events(&sight);
        if !interrupt.sleep(interval) {
            return Ok(());
        }
    }
}

/// Who ran out of memory since the last look.
fn say_events(sight: &Sight) {
    sight.errors.events.iter().for_each(|event| remark(&format!("millpond: {event}")));
}

fn listen(address: SocketAddr, allow_remote: bool) -> Result<()> {
    if !address.ip().is_loopback() && !allow_remote {
        let why = "other machines could read the names of your programs there; use 127.0.0.1, or add --allow-remote";
        return Err(Error::Usage(format!("--listen {address}: {why}")));
    }
    let failed = |source| Error::Io { path: address.to_string().into(), action: "listen there", source };
    let server = Server::http(address).map_err(|error| failed(std::io::Error::other(error.to_string())))?;
    // A port of 0 becomes one that is free.
    let at = server.server_addr().to_ip().unwrap_or(address);
    say(&format!("listening: http://{at}/metrics"));
    let (watch, interrupt) = (Watch::new(), Interrupt::watch());
    let mut looked = None;
    while interrupt.signal().is_none() {
        // What happens is said also where nobody asks.
        if looked.is_none_or(|at: Instant| at.elapsed() >= EACH) {
            looked = Some(Instant::now());
            if let Ok(sight) = watch.look() {
                say_events(&sight);
            }
        }
        if let Some(request) = server.recv_timeout(TICK).map_err(failed)? {
            // Who asked may be gone.
            let _ = reply(request, &watch);
        }
    }
    Ok(())
}

fn reply(request: Request, watch: &Watch) -> std::io::Result<()> {
    let path = request.url().split('?').next().unwrap_or_default();
    let (status, text) = match (request.method(), path) {
        (Method::Get | Method::Head, "/metrics") => match watch.look() {
            Ok(sight) => {
                say_events(&sight);
                (200, prometheus::text(&sight))
            }
            Err(error) => (503, format!("{error}\n")),
        },
        (Method::Get | Method::Head, "/healthz") => (200, "ok\n".to_owned()),
        (Method::Get | Method::Head, _) => (404, "see /metrics\n".to_owned()),
        _ => (405, "only GET\n".to_owned()),
    };
    let kind: Header = CONTENT_TYPE.parse().map_err(|()| std::io::ErrorKind::InvalidData)?;
    request.respond(Response::from_string(text).with_status_code(status).with_header(kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_people_write_them() {
        let at = |text: &str, remote| address(text).unwrap().resolve(remote).to_string();
        assert_eq!((at(":9464", false), at(":9464", true)), ("127.0.0.1:9464".into(), "0.0.0.0:9464".into()));
        assert_eq!(at("[::1]:80", false), "[::1]:80");
        assert!(at("localhost:9464", false).ends_with("1:9464"));
        for wrong in ["9464", ":", ":x", ":99999", "localhost", ""] {
            assert!(address(wrong).is_err(), "{wrong}");
        }
    }
}
