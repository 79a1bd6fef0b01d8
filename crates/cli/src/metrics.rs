//! `millpond metrics`: what the pools of running programs hold and do, for Prometheus.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tiny_http::{Header, Method, Request, Response, Server};

use crate::error::{Error, Result};
use crate::live::Watch;
use crate::live::prometheus;
use crate::outputs::Output;
use crate::terminal::{Interrupt, answer, say};

#[derive(Debug, Args)]
#[command(after_help = "\
Without --listen, one text is printed. docs/grafana.json is a dashboard.

Examples:
  millpond metrics
  millpond metrics --listen 127.0.0.1:9464
  millpond metrics --textfile /var/lib/node_exporter/millpond.prom")]
pub(crate) struct MetricsArgs {
    /// Answer GET /metrics at this address until Ctrl-C
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// Listen also where other machines can connect
    #[arg(long, requires = "listen")]
    allow_remote: bool,
    /// Write the text to this file, for node_exporter
    #[arg(long, value_name = "FILE", conflicts_with = "listen")]
    textfile: Option<PathBuf>,
}

/// How soon a signal is noticed.
const TICK: Duration = Duration::from_millis(100);

/// The type of the text (see `live/prometheus.rs`).
const CONTENT_TYPE: &str = "Content-Type: text/plain; version=0.0.4; charset=utf-8";

/// Runs the command.
pub(crate) fn run(args: &MetricsArgs) -> Result<()> {
    if let Some(address) = args.listen {
        return listen(address, args.allow_remote);
    }
    let file = args.textfile.as_deref().map(Output::open).transpose()?;
    let text = prometheus::text(&Watch::new().look()?);
    match file {
        Some(file) => file.write(&text)?,
        None => answer(text.trim_end()),
    }
    Ok(())
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
    while interrupt.signal().is_none() {
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
            Ok(sight) => (200, prometheus::text(&sight)),
            Err(error) => (503, format!("{error}\n")),
        },
        (Method::Get | Method::Head, _) => (404, "see /metrics\n".to_owned()),
        _ => (405, "only GET\n".to_owned()),
    };
    let kind: Header = CONTENT_TYPE.parse().map_err(|()| std::io::ErrorKind::InvalidData)?;
    request.respond(Response::from_string(text).with_status_code(status).with_header(kind))
}
