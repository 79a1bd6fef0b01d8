//! The token: what is said of shared memory, beside its descriptors.

use bytemuck::{Pod, Zeroable};

use crate::device::DeviceIdentity;
use crate::error::{Error, Result};
use crate::policy::options::ALIGNMENTS;
use crate::system::close_on_fork::MOST_DESCRIPTORS;

/// What comes before the pages. Numbers begin with their least byte, as on all CPUs that CUDA
/// is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Header {
    pub(super) magic: [u8; 8],
    pub(super) device: [u8; 16],
    pub(super) event: [u8; 64],
    pub(super) flags: u32,
    /// Bytes of an element.
    pub(super) element: u32,
    /// Where on the first page the memory begins.
    pub(crate) offset: u64,
    pub(super) bytes: u64,
}

impl Header {
    pub(super) const MAGIC: [u8; 8] = *b"mpshare3";
}

/// What else there is a descriptor for.
#[derive(Debug, Clone, Copy)]
#[repr(u32)]
pub(super) enum Flag {
    /// The event.
    Event = 1,
    /// A named budget. Its descriptor is the last, and is to be kept as long as it is open.
    Budget = 2,
}

/// Where shared memory lies, for the process that [opens](crate::Context::open_shared) it. It means nothing without the
/// [descriptors](crate::Shared::descriptors).
///
/// ```
/// use millpond::{Buffer, Context, Pool, SharedToken};
///
/// let device = Context::host()?;
/// let pool = Pool::builder(&device).build()?;
/// let stream = device.create_stream()?;
/// let shared = Buffer::<f32>::zeroed(&pool, 1024, &stream)?.share()?;
/// let bytes = shared.token().to_bytes(); // for a transport of your own
/// assert_eq!(&SharedToken::from_bytes(&bytes)?, shared.token());
/// assert_eq!(shared.token().byte_len(), 4096);
/// # Ok::<(), millpond::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedToken {
    pub(crate) header: Header,
    /// Where each page begins in what its descriptor stands for, and its length, in bytes.
    pub(super) pages: Vec<[u64; 2]>,
}

impl SharedToken {
    /// Bytes of the memory that is shared.
    #[must_use]
    pub fn byte_len(&self) -> u64 {
        self.header.bytes
    }

    /// Bytes of each element.
    #[must_use]
    pub fn element_size(&self) -> usize {
        self.header.element as usize
    }

    /// Bytes of the pages that the memory lies on. Other processes can reach all of them.
    #[must_use]
    pub fn exposed_bytes(&self) -> u64 {
        self.pages.iter().map(|[_, bytes]| bytes).sum()
    }

    /// Where the memory begins on its page, and the bytes of the page; `None` where it lies on several.
    pub(crate) fn only_page(&self) -> Option<(u64, u64)> {
        match self.pages[..] {
            [[_, bytes]] => Some((self.header.offset, bytes)),
            _ => None,
        }
    }

    /// The device that the memory is of.
    #[must_use]
    pub fn device(&self) -> DeviceIdentity {
        DeviceIdentity(self.header.device)
    }

    /// How many descriptors belong to it: two of the lease, and one each of what it has besides.
    #[must_use]
    pub fn descriptors(&self) -> usize {
        2 + self.header.flags.count_ones() as usize + self.pages.len()
    }

    pub(super) fn has(&self, flag: Flag) -> bool {
        self.header.flags & flag as u32 != 0
    }

    /// Bytes of the longest: of more pages, no process could have the descriptors.
    pub(super) fn longest() -> usize {
        size_of::<Header>() + MOST_DESCRIPTORS * 2 * size_of::<u64>()
    }

    /// The token as bytes, of the same format in each version whose token begins the same.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        [bytemuck::bytes_of(&self.header), bytemuck::cast_slice(&self.pages)].concat()
    }

    /// The token of these bytes. All of them are checked: they may be anybody's.
    ///
    /// # Errors
    /// [`Error::BadToken`], which says what is wrong.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let bad = |why: &str| Err(Error::BadToken { why: why.to_owned() });
        let Some((header, rest)) = bytes.split_at_checked(size_of::<Header>()) else {
            return bad("it is too short");
        };
        let header: Header = bytemuck::pod_read_unaligned(header);
        if header.magic != Header::MAGIC {
            return bad("it is no token of this version of millpond: both processes need the same");
        }
        if header.flags > Flag::Event as u32 | Flag::Budget as u32 {
            return bad("it has flags that this version of millpond does not know");
        }
        if rest.is_empty() || !rest.len().is_multiple_of(2 * size_of::<u64>()) {
            return bad("it has no whole number of pages");
        }
        let pages: Vec<[u64; 2]> = bytemuck::pod_collect_to_vec(rest);
        let total =
            pages.iter().try_fold(0_u64, |sum, [_, page]| sum.checked_add(*page).filter(|_| *page > 0));
        // No address range is longer.
        let Some(total) = total.filter(|total| *total <= isize::MAX as u64) else {
            return bad("no page can have such a length");
        };
        let Header { offset, bytes, element, .. } = header;
        let end = offset.checked_add(bytes).filter(|end| *end <= total);
        if bytes == 0
            || offset >= pages[0][1]
            || end.is_none_or(|end| end <= total - pages[pages.len() - 1][1])
        {
            return bad("the memory does not lie on its pages");
        }
        if !offset.is_multiple_of(*ALIGNMENTS.start()) {
            return bad("the memory begins where no block does");
        }
        if element == 0 || !bytes.is_multiple_of(u64::from(element)) {
            return bad("its length is no whole number of elements");
        }
        Ok(Self { header, pages })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> SharedToken {
        let header = Header {
            magic: Header::MAGIC,
            device: [7; 16],
            event: [9; 64],
            flags: Flag::Event as u32 | Flag::Budget as u32,
            element: 4,
            offset: 512,
            bytes: 4 << 20,
        };
        SharedToken { header, pages: vec![[6 << 20, 2 << 20], [0, 2 << 20], [0, 2 << 20]] }
    }

    #[test]
    fn a_token_is_read_as_it_was_written() {
        assert_eq!(SharedToken::from_bytes(&token().to_bytes()).unwrap(), token());
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let mut cases: Vec<(&str, SharedToken)> = Vec::new();
        let mut case = |name, change: fn(&mut SharedToken)| {
            let mut changed = token();
            change(&mut changed);
            cases.push((name, changed));
        };
        case("no pages", |token| token.pages.clear());
        case("an empty page", |token| token.pages[1][1] = 0);
        case("pages beyond all memory", |token| token.pages[1][1] = u64::MAX);
        case("too many bytes", |token| token.header.bytes = 6 << 20);
        case("a length that overflows", |token| token.header.bytes = u64::MAX - 3);
        case("no bytes", |token| token.header.bytes = 0);
        case("a page that is not used", |token| token.header.bytes = 1 << 20);
        case("an offset beyond the first page", |token| token.header.offset = 2 << 20);
        case("an offset between blocks", |token| token.header.offset = 4);
        case("elements of no bytes", |token| token.header.element = 0);
        case("half an element", |token| token.header.element = 3);
        for (name, token) in cases {
            assert!(
                matches!(SharedToken::from_bytes(&token.to_bytes()), Err(Error::BadToken { .. })),
                "{name}"
            );
        }
    }

    #[test]
    fn bytes_of_any_kind_are_refused_or_a_token() {
        let good = token().to_bytes();
        for length in 0..good.len() {
            assert!(SharedToken::from_bytes(&good[..length]).is_err(), "{length} bytes of it");
        }
        // Every byte, changed: an error, or a token that is written as it was read.
        for at in 0..good.len() {
            for change in [1, 0x80, 0xff] {
                let mut bytes = good.clone();
                bytes[at] ^= change;
                if let Ok(token) = SharedToken::from_bytes(&bytes) {
                    assert_eq!(token.to_bytes(), bytes);
                }
            }
        }
    }
}
