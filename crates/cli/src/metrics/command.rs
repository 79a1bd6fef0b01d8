//! Looks at the pools, and writes what was seen or answers with it.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use hyper::{Method, StatusCode};

use super::args::MetricsArgs;
use super::server::{Request, Server};
use crate::error::{Error, Result};
use crate::live::{Sight, Watch, prometheus};
use crate::outputs::Output;
use crate::terminal::{Interrupt, answer, remark, say};

/// How soon a signal is noticed.
const TICK: Duration = Duration::from_millis(100);

/// How often an exporter looks where nobody asks, so that what a short job ran out of is said, and its labels are known.
const EACH: Duration = Duration::from_secs(5);

/// Runs the command.
pub(crate) fn run(args: &MetricsArgs) -> Result<()> {
    if let Some(address) = &args.listen {
        return listen(address.resolve(args.allow_remote), args.allow_remote);
    }
    let (watch, interrupt) = (Watch::new(), args.interval.map(|_| Interrupt::watch()));
    let (mut has_written, mut has_failed) = (false, false);
    loop {
        match write(args, &watch) {
            Ok(sight) => {
                (has_written, has_failed) = (true, false);
                if args.interval.is_some() {
                    say_events(&sight);
                }
            }
            // A disk that is full for a while ends no exporter.
            Err(error) if has_written => {
                if !has_failed {
                    remark(&format!("millpond: {}; it is tried again and again", error.worded()));
                }
                has_failed = true;
            }
            Err(error) => return Err(error),
        }
        let Some((interval, interrupt)) = args.interval.zip(interrupt.as_ref()) else { return Ok(()) };
        if !interrupt.sleep(interval) {
            return Ok(());
        }
    }
}

/// Looks, and writes what was seen.
fn write(args: &MetricsArgs, watch: &Watch) -> Result<Sight> {
    let file = args.textfile.as_deref().map(Output::open).transpose()?;
    let sight = watch.look()?;
    let text = prometheus::text(&sight);
    match file {
        Some(file) => file.write(&text)?,
        None => answer(text.trim_end()),
    }
    Ok(sight)
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
    let server = Server::listen(address).map_err(failed)?;
    say(&format!("listening: http://{}/metrics", server.address()));
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
        if let Some(request) = server.request(TICK) {
            let (status, text) = reply(&request, &watch);
            request.answer(status, text);
        }
    }
    Ok(())
}

/// A status, and a text.
fn reply(request: &Request, watch: &Watch) -> (StatusCode, String) {
    if request.method != Method::GET && request.method != Method::HEAD {
        return (StatusCode::METHOD_NOT_ALLOWED, "only GET\n".to_owned());
    }
    match request.path.as_str() {
        "/metrics" => match watch.look() {
            Ok(sight) => {
                say_events(&sight);
                (StatusCode::OK, prometheus::text(&sight))
            }
            Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
        },
        "/healthz" => (StatusCode::OK, "ok\n".to_owned()),
        _ => (StatusCode::NOT_FOUND, "see /metrics\n".to_owned()),
    }
}
