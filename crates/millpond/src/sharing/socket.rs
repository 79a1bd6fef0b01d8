//! Tokens and descriptors over Unix sockets.
//!
//! First come eight bytes: the length of the token, and how many descriptors there are. The descriptors travel with them and
//! with single bytes behind them, a few at a time: the system takes at most 253 at once. The token comes last.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::SharedToken;
use crate::{Error, Result};

/// Descriptors that travel at once.
const AT_ONCE: usize = 64;

/// A longer token cannot be.
const LONGEST_TOKEN: usize = 32 << 20;

/// What another process shared: a token and its descriptors, to be [opened](crate::Context::open_shared).
///
/// Dropped, it closes them, and the memory is its owner's alone. [`Shared`](crate::Shared) has an example.
#[derive(Debug)]
pub struct Received {
    token: SharedToken,
    descriptors: Vec<OwnedFd>,
}

impl Received {
    /// Waits for what [`Shared::send`](crate::Shared::send) sent to the other end of the socket. Set a timeout of the socket
    /// where the sender may not come.
    ///
    /// # Errors
    /// [`Error::Socket`] where nothing can be received. [`Error::BadToken`] for what is no token.
    pub fn receive(socket: &UnixStream) -> Result<Self> {
        let mut descriptors = Vec::new();
        let mut header = [0; 8];
        let mut filled = 0;
        while filled < header.len() {
            filled += receive(socket, &mut header[filled..], &mut descriptors)?;
        }
        let [length, count] = [&header[..4], &header[4..]]
            .map(|field| u32::from_le_bytes(field.try_into().expect("four bytes")) as usize);
        if length > LONGEST_TOKEN || count > SharedToken::most_descriptors(length) {
            return Err(Error::BadToken { why: "what came over the socket is no token".to_owned() });
        }
        while descriptors.len() < count {
            let before = descriptors.len();
            receive(socket, &mut [0], &mut descriptors)?;
            if descriptors.len() == before {
                return Err(Error::BadToken { why: "descriptors are missing".to_owned() });
            }
        }
        let mut token = vec![0; length];
        (&*socket).read_exact(&mut token).map_err(|error| failed("receive", &error))?;
        Self::new(SharedToken::from_bytes(&token)?, descriptors)
    }

    /// What came by other means: a token, and its [descriptors](crate::Shared::descriptors) in their order.
    ///
    /// # Errors
    /// [`Error::BadToken`] where their number is not the token's.
    pub fn new(token: SharedToken, descriptors: Vec<OwnedFd>) -> Result<Self> {
        let (found, expected) = (descriptors.len(), token.descriptors());
        if found != expected {
            let why = format!("{found} descriptors came with it, not {expected}");
            return Err(Error::BadToken { why });
        }
        Ok(Self { token, descriptors })
    }

    /// What the memory is.
    pub fn token(&self) -> &SharedToken {
        &self.token
    }

    /// The descriptors, in the order of [`Shared::descriptors`](crate::Shared::descriptors).
    pub fn into_descriptors(self) -> Vec<OwnedFd> {
        self.descriptors
    }

    pub(crate) fn into_parts(self) -> (SharedToken, Vec<OwnedFd>) {
        (self.token, self.descriptors)
    }
}

/// Sends a token and its descriptors.
pub(crate) fn send(socket: &UnixStream, token: &SharedToken, descriptors: &[BorrowedFd<'_>]) -> Result<()> {
    let token = token.to_bytes();
    let numbers = [token.len(), descriptors.len()].map(|number| (number as u32).to_le_bytes());
    let mut with_them = numbers.concat();
    for some in descriptors.chunks(AT_ONCE) {
        send_some(socket, &with_them, some)?;
        with_them = vec![0];
    }
    (&*socket).write_all(&token).map_err(|error| failed("send", &error))
}

fn send_some(socket: &UnixStream, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_ONCE))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let has_room = control.push(SendAncillaryMessage::ScmRights(descriptors));
    debug_assert!(has_room, "there is room for as many");
    let sent = loop {
        match sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            sent => break sent.map_err(|error| failed("send", &error.into()))?,
        }
    };
    // The descriptors went with the first byte.
    (&*socket).write_all(&bytes[sent..]).map_err(|error| failed("send", &error))
}

/// Receives at least one byte, and the descriptors that came with it.
fn receive(socket: &UnixStream, bytes: &mut [u8], descriptors: &mut Vec<OwnedFd>) -> Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_ONCE))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            received => break received.map_err(|error| failed("receive", &error.into()))?,
        }
    };
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if received.flags.contains(ReturnFlags::CTRUNC) {
        let error = io::Error::other("descriptors were lost: raise the limit of open files (ulimit -n)");
        return Err(failed("receive", &error));
    }
    match received.bytes {
        0 => Err(failed("receive", &io::ErrorKind::UnexpectedEof.into())),
        some => Ok(some),
    }
}

fn failed(what: &'static str, error: &io::Error) -> Error {
    Error::Socket { what, why: error.to_string() }
}
