//! The secret that the ranks of a world share, and how each side proves that it knows it: by a keyed hash of what both
//! have said. The secret itself is never sent.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Bytes that nobody has sent before.
pub(super) type Nonce = [u8; 16];
/// What only who knows the secret can say.
pub(super) type Proof = [u8; 32];

/// A secret that all ranks have: the variable `MILLPOND_SECRET`. It is empty where strangers cannot come.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(String);

/// Who proves that it knows the secret. Each proves something else, so that none can send back what it was sent.
#[derive(Debug, Clone, Copy)]
pub(super) enum Side {
    Rank0,
    Comer,
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "Secret(none)" } else { "Secret(…)" })
    }
}

impl From<String> for Secret {
    fn from(secret: String) -> Self {
        Self(secret)
    }
}

impl Secret {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What this side says to a hello and a challenge.
    pub(super) fn proof(&self, side: Side, hello: &[u8], challenge: &Nonce) -> Proof {
        self.mac(side, hello, challenge).finalize().into_bytes().into()
    }

    /// Whether the other side knows the secret.
    pub(super) fn is_proved(&self, side: Side, hello: &[u8], challenge: &Nonce, proof: &Proof) -> bool {
        self.mac(side, hello, challenge).verify_slice(proof).is_ok()
    }

    fn mac(&self, side: Side, hello: &[u8], challenge: &Nonce) -> Hmac<Sha256> {
        let mac = Hmac::<Sha256>::new_from_slice(self.0.as_bytes()).expect("a key of any length will do");
        // A hello has a fixed length, so that no two texts are alike.
        mac.chain_update([side as u8]).chain_update(hello).chain_update(challenge)
    }
}
