//! The token: what is said of shared memory, beside its descriptors.

use crate::device::DeviceIdentity;
use crate::{Error, Result};

const MAGIC: &[u8; 8] = b"mpshare2";

/// Bytes before what is said of the pages.
const HEADER: usize = 128;

/// Descriptors of the lease.
const LEASE: usize = 2;

/// More than any device has of either.
const MOST_PAGES: usize = 1 << 20;
const MOST_BYTES: u64 = 1 << 56;

/// What every block's address is a multiple of, at least.
const LEAST_ALIGNMENT: u64 = 256;

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
    pub(crate) device: DeviceIdentity,
    pub(crate) event: [u8; 64],
    /// Whether the event has a descriptor, too.
    pub(crate) event_descriptor: bool,
    /// Whether it is memory under a named budget: the last descriptor is to be kept as long as it is open.
    pub(crate) budget_descriptor: bool,
    /// Bytes of an element.
    pub(crate) element: u32,
    /// Where on the first page the memory begins.
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    /// Where each page begins in what its descriptor stands for, in bytes.
    pub(crate) positions: Vec<u64>,
    /// The length of each page, in bytes.
    pub(crate) pages: Vec<u64>,
}

impl SharedToken {
    /// Bytes of the memory that is shared.
    pub fn byte_len(&self) -> u64 {
        self.bytes
    }

    /// Bytes of each element.
    pub fn element_size(&self) -> usize {
        self.element as usize
    }

    /// Bytes of the pages that the memory lies on. Other processes can reach all of them.
    pub fn exposed_bytes(&self) -> u64 {
        self.pages.iter().sum()
    }

    /// The device that the memory is of.
    pub fn device(&self) -> DeviceIdentity {
        self.device
    }

    /// How many descriptors belong to it.
    pub fn descriptors(&self) -> usize {
        LEASE + usize::from(self.event_descriptor) + usize::from(self.budget_descriptor) + self.pages.len()
    }

    /// The most descriptors that belong to a token of so many bytes.
    pub(super) fn most_descriptors(bytes: usize) -> usize {
        LEASE + 2 + bytes.saturating_sub(HEADER) / 16
    }

    /// The token as bytes, of the same format in each version whose token begins the same.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER + 16 * self.pages.len());
        bytes.extend(MAGIC);
        bytes.extend(self.device.0);
        bytes.extend(self.event);
        let flags = u32::from(self.event_descriptor) | u32::from(self.budget_descriptor) << 1;
        bytes.extend(flags.to_le_bytes());
        bytes.extend(self.element.to_le_bytes());
        bytes.extend(self.offset.to_le_bytes());
        bytes.extend(self.bytes.to_le_bytes());
        bytes.extend((self.pages.len() as u64).to_le_bytes());
        bytes.extend([0; 8]);
        debug_assert_eq!(bytes.len(), HEADER);
        bytes.extend(self.positions.iter().chain(&self.pages).flat_map(|number| number.to_le_bytes()));
        bytes
    }

    /// The token of these bytes. All of them are checked: they may be anybody's.
    ///
    /// # Errors
    /// [`Error::BadToken`], which says what is wrong.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let bad = |why: &str| Error::BadToken { why: why.to_owned() };
        let Some((header, pages)) = bytes.split_at_checked(HEADER) else {
            return Err(bad("it is too short"));
        };
        let mut fields = Fields(header);
        if &fields.take::<8>() != MAGIC {
            return Err(bad("it is no token of this version of millpond: both processes need the same"));
        }
        let (device, event) = (DeviceIdentity(fields.take()), fields.take());
        let (flags, element) = (u32::from_le_bytes(fields.take()), u32::from_le_bytes(fields.take()));
        let [offset, length, count, reserved] = [(); 4].map(|()| u64::from_le_bytes(fields.take()));
        if flags > 3 || reserved != 0 {
            return Err(bad("it has flags that this version of millpond does not know"));
        }
        if !(1..=MOST_PAGES as u64).contains(&count) || pages.len() as u64 != 16 * count {
            return Err(bad("its number of pages is not its length"));
        }
        let numbers = pages.as_chunks::<8>().0.iter().map(|number| u64::from_le_bytes(*number));
        let mut positions: Vec<u64> = numbers.collect();
        let pages = positions.split_off(count as usize);
        let total = pages.iter().try_fold(0_u64, |sum, page| sum.checked_add(*page));
        let Some(total) = total.filter(|total| *total <= MOST_BYTES && !pages.contains(&0)) else {
            return Err(bad("no page can have such a length"));
        };
        let end = offset.checked_add(length).filter(|end| *end <= total);
        if length == 0 || offset >= pages[0] || end.is_none_or(|end| end <= total - pages[pages.len() - 1]) {
            return Err(bad("the memory does not lie on its pages"));
        }
        if !offset.is_multiple_of(LEAST_ALIGNMENT) {
            return Err(bad("the memory begins where no block does"));
        }
        if element == 0 || !length.is_multiple_of(u64::from(element)) {
            return Err(bad("its length is no whole number of elements"));
        }
        let [event_descriptor, budget_descriptor] = [1, 2].map(|flag| flags & flag != 0);
        Ok(Self {
            device,
            event,
            event_descriptor,
            budget_descriptor,
            element,
            offset,
            bytes: length,
            positions,
            pages,
        })
    }
}

/// What is left of the header.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) = self.0.split_first_chunk().expect("the header is as long as its fields");
        self.0 = rest;
        *field
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> SharedToken {
        SharedToken {
            device: DeviceIdentity([7; 16]),
            event: [9; 64],
            event_descriptor: true,
            budget_descriptor: true,
            element: 4,
            offset: 512,
            bytes: 4 << 20,
            positions: vec![6 << 20, 0, 0],
            pages: vec![2 << 20, 2 << 20, 2 << 20],
        }
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
        case("an empty page", |token| token.pages[1] = 0);
        case("pages beyond all memory", |token| token.pages[1] = u64::MAX);
        case("too many bytes", |token| token.bytes = 6 << 20);
        case("a length that overflows", |token| token.bytes = u64::MAX - 3);
        case("no bytes", |token| token.bytes = 0);
        case("a page that is not used", |token| token.bytes = 1 << 20);
        case("an offset beyond the first page", |token| token.offset = 2 << 20);
        case("an offset between blocks", |token| token.offset = 4);
        case("elements of no bytes", |token| token.element = 0);
        case("half an element", |token| token.element = 3);
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
