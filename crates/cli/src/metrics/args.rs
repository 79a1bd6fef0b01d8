//! The arguments of `millpond metrics`.

use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::live::interval;

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
    pub(super) listen: Option<Address>,
    /// Listen also where other machines can connect
    #[arg(long, requires = "listen")]
    pub(super) allow_remote: bool,
    /// Write the text to this file, for node_exporter
    #[arg(long, value_name = "FILE", conflicts_with = "listen")]
    pub(super) textfile: Option<PathBuf>,
    /// Write the file again and again, until Ctrl-C
    #[arg(long, value_name = "TIME", requires = "textfile", value_parser = interval)]
    pub(super) interval: Option<Duration>,
}

/// Where to listen: a port of this machine, or addresses of a name.
#[derive(Debug, Clone)]
pub(super) enum Address {
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
    pub(super) fn resolve(&self, allow_remote: bool) -> SocketAddr {
        match self {
            Self::Port(port) if allow_remote => (Ipv4Addr::UNSPECIFIED, *port).into(),
            Self::Port(port) => (Ipv4Addr::LOCALHOST, *port).into(),
            Self::Named(address) => *address,
        }
    }
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
