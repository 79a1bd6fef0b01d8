//! Tokens and descriptors over Unix sockets.
//!
//! First comes the length of the token, in four bytes. Then the token, which says how many descriptors there are. They follow,
//! with single bytes, as many at a time as the system takes.

use std::io::{self, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::SharedToken;
use crate::error::{Error, Result};
use crate::system::socket_peer::send_all;

/// Descriptors that travel at once at most, as Linux has it (include/net/scm.h).
const SCM_MAX_FD: usize = 253;

/// What another process shared: a token and its descriptors, to be [opened](crate::Context::open_shared).
///
/// Dropped, it closes them, and the memory is its owner's alone. [`Shared`](crate::Shared) has an example.
#[derive(Debug)]
pub struct Received {
    pub(super) token: SharedToken,
    pub(super) descriptors: Vec<OwnedFd>,
}

impl Received {
    /// Waits for what [`Shared::send`](crate::Shared::send) sent to the other end of the socket. Set a timeout of the socket
    /// where the sender may not come.
    ///
    /// # Errors
    /// [`Error::Socket`] where nothing can be received. [`Error::BadToken`] for what is no token.
    pub fn receive(socket: &UnixStream) -> Result<Self> {
        let read = |bytes: &mut [u8]| (&*socket).read_exact(bytes).map_err(|error| failed("receive", &error));
        let mut length = [0; 4];
        read(&mut length)?;
        let length = u32::from_le_bytes(length) as usize;
        if length > SharedToken::longest() {
            return Err(Error::BadToken { why: "what came over the socket is no token".to_owned() });
        }
        let mut token = vec![0; length];
        read(&mut token)?;
        let token = SharedToken::from_bytes(&token)?;
        let mut descriptors = Vec::new();
        while descriptors.len() < token.descriptors() {
            receive_some(socket, &mut descriptors)?;
        }
        Self::new(token, descriptors)
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
    #[must_use]
    pub fn token(&self) -> &SharedToken {
        &self.token
    }

    /// The descriptors, in the order of [`Shared::descriptors`](crate::Shared::descriptors).
    #[must_use]
    pub fn into_descriptors(self) -> Vec<OwnedFd> {
        self.descriptors
    }
}

/// Sends a token and its descriptors.
pub(crate) fn send(socket: &UnixStream, token: &SharedToken, descriptors: &[BorrowedFd<'_>]) -> Result<()> {
    let token = token.to_bytes();
    let length = (token.len() as u32).to_le_bytes();
    [&length[..], &token]
        .into_iter()
        .try_for_each(|bytes| send_all(socket, bytes))
        .map_err(|error| failed("send", &error))?;
    descriptors.chunks(SCM_MAX_FD).try_for_each(|some| send_some(socket, some))
}

fn send_some(socket: &UnixStream, descriptors: &[BorrowedFd<'_>]) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SCM_MAX_FD))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let has_room = control.push(SendAncillaryMessage::ScmRights(descriptors));
    debug_assert!(has_room, "there is room for as many");
    retry_on_intr(|| sendmsg(socket, &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL))
        .map(drop)
        .map_err(|error| failed("send", &error.into()))
}

/// Receives a byte, and the descriptors that came with it.
fn receive_some(socket: &UnixStream, descriptors: &mut Vec<OwnedFd>) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SCM_MAX_FD))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = retry_on_intr(|| {
        recvmsg(socket, &mut [IoSliceMut::new(&mut [0])], &mut control, RecvFlags::CMSG_CLOEXEC)
    })
    .map_err(|error| failed("receive", &error.into()))?;
    let before = descriptors.len();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if received.flags.contains(ReturnFlags::CTRUNC) {
        let error = io::Error::other("descriptors were lost: raise the limit of open files (ulimit -n)");
        return Err(failed("receive", &error));
    }
    match descriptors.len() - before {
        0 => Err(Error::BadToken { why: "descriptors are missing".to_owned() }),
        _ => Ok(()),
    }
}

fn failed(what: &'static str, error: &io::Error) -> Error {
    Error::Socket { what, why: error.to_string() }
}
