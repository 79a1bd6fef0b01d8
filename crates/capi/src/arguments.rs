//! Arguments from C: outputs, texts, and structs that carry their size.

use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};

use crate::failure::Failure;

/// Where a result goes.
#[derive(Debug)]
pub(crate) struct Out<T>(NonNull<T>);

impl<T> Out<T> {
    /// A place for a result, which holds `unless_done` until then.
    ///
    /// # Safety
    /// `at` is null, or valid for writes until the call returns.
    #[inline]
    pub(crate) unsafe fn new(at: *mut T, name: &'static str, unless_done: T) -> Result<Self, Failure> {
        let at = NonNull::new(at).ok_or(Failure::Null(name))?;
        let out = Self(at);
        out.set_ref(unless_done);
        Ok(out)
    }

    #[inline]
    fn set_ref(&self, value: T) {
        // SAFETY: valid for writes, as `new` was promised. What is there may be uninitialised, so it is not dropped.
        unsafe { self.0.write(value) }
    }

    #[inline]
    pub(crate) fn set(self, value: T) {
        self.set_ref(value);
    }
}

impl<H> Out<*mut H> {
    /// A place for a handle or a pointer, null until then.
    ///
    /// # Safety
    /// As for [`new`](Self::new).
    #[inline]
    pub(crate) unsafe fn pointer(at: *mut *mut H, name: &'static str) -> Result<Self, Failure> {
        // SAFETY: as promised to this function.
        unsafe { Self::new(at, name, ptr::null_mut()) }
    }
}

/// A text, or nothing for null.
///
/// # Safety
/// `text` is null, or ends with a zero byte and stays as it is until the call returns.
pub(crate) unsafe fn text<'a>(text: *const c_char, name: &'static str) -> Result<Option<&'a str>, Failure> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: not null, and ended, as promised.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(Some).map_err(|_| Failure::BadText(name))
}

/// Writes a text for C, ended with a zero byte and cut to `capacity` bytes, and its whole length.
///
/// # Safety
/// `at` is valid for writes of `capacity` bytes, or null. `length` is valid for a write, or null.
pub(crate) unsafe fn write_text(
    text: &str,
    name: &'static str,
    at: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> Result<(), Failure> {
    if capacity > 0 {
        if at.is_null() {
            return Err(Failure::Null(name));
        }
        let fits = text.len().min(capacity - 1);
        // SAFETY: room for `capacity` bytes, as promised, and `fits` and the zero are no more.
        unsafe {
            ptr::copy_nonoverlapping(text.as_ptr(), at.cast::<u8>(), fits);
            at.cast::<u8>().add(fits).write(0);
        }
    }
    if !length.is_null() {
        // SAFETY: not null, and as promised.
        unsafe { length.write(text.len()) };
    }
    Ok(())
}

/// A struct of the header whose first field is its size in bytes, so that older programs may pass shorter ones and
/// newer programs longer ones.
///
/// # Safety
/// The type is `repr(C)`, begins with a `usize` for the size, and any bytes are a value of it.
pub(crate) unsafe trait SizedStruct: Copy {
    /// Its name in the header.
    const NAME: &'static str;
}

/// Longer than any struct of the header will be: a size beyond it is garbage.
const LARGEST_STRUCT: usize = 4096;

/// The size of some version of the struct: all begin with a `usize`, so that none ends within a pointer.
fn check_size<T: SizedStruct>(size: usize) -> Result<usize, Failure> {
    let is_possible = (size_of::<usize>()..=LARGEST_STRUCT).contains(&size);
    if is_possible && size.is_multiple_of(align_of::<usize>()) {
        return Ok(size);
    }
    Err(Failure::BadStruct { what: T::NAME, found: size })
}

/// What the struct's first field says.
///
/// # Safety
/// `at` is valid for reads of a `usize`.
unsafe fn size_of_struct<T: SizedStruct>(at: *const T) -> Result<usize, Failure> {
    // SAFETY: as promised to this function; alignment is not asked of the caller.
    let size = unsafe { at.cast::<usize>().read_unaligned() };
    check_size::<T>(size)
}

/// Reads a struct that may be shorter or longer than ours. Fields that the caller's does not have are as in
/// `defaults`; fields that ours does not have must be zero.
///
/// # Safety
/// `at` is null, or valid for reads of as many bytes as its first field says.
pub(crate) unsafe fn read_struct<T: SizedStruct>(at: *const T, defaults: T) -> Result<T, Failure> {
    if at.is_null() {
        return Ok(defaults);
    }
    // SAFETY: a struct of the caller's, not null, begins with its size.
    let size = unsafe { size_of_struct(at) }?;
    let ours = size_of::<T>();
    if size > ours {
        // SAFETY: the caller's struct is valid for reads up to its size.
        let rest = unsafe { std::slice::from_raw_parts(at.cast::<u8>().add(ours), size - ours) };
        if rest.iter().any(|byte| *byte != 0) {
            return Err(Failure::UnknownFields { what: T::NAME });
        }
    }
    let mut value = MaybeUninit::new(defaults);
    // SAFETY: the shorter of both sizes is read and written; any bytes are a `T`, says its trait.
    unsafe {
        ptr::copy_nonoverlapping(at.cast::<u8>(), value.as_mut_ptr().cast::<u8>(), size.min(ours));
        Ok(value.assume_init())
    }
}

/// Writes a struct that may be shorter or longer than ours. Its size stays the caller's; fields that ours does not
/// have stay as they are.
///
/// # Safety
/// `at` is null, or valid for reads and writes of as many bytes as its first field says.
pub(crate) unsafe fn write_struct<T: SizedStruct>(
    at: *mut T,
    name: &'static str,
    value: &T,
) -> Result<(), Failure> {
    if at.is_null() {
        return Err(Failure::Null(name));
    }
    // SAFETY: a struct of the caller's, not null, begins with its size.
    let size = unsafe { size_of_struct(at.cast_const()) }?;
    let skip = size_of::<usize>();
    let bytes = size.min(size_of::<T>()) - skip;
    // SAFETY: the shorter of both sizes is read and written, behind the size field, which both have.
    unsafe {
        let from = ptr::from_ref(value).cast::<u8>().add(skip);
        ptr::copy_nonoverlapping(from, at.cast::<u8>().add(skip), bytes);
    }
    Ok(())
}

/// Fills a struct that is `size` bytes long with defaults, and its size.
///
/// # Safety
/// `at` is null, or valid for writes of `size` bytes.
pub(crate) unsafe fn init_struct<T: SizedStruct>(
    at: *mut T,
    size: usize,
    defaults: &T,
) -> Result<(), Failure> {
    if at.is_null() {
        return Err(Failure::Null("options"));
    }
    let size = check_size::<T>(size)?;
    // SAFETY: valid for `size` bytes; the shorter of both sizes is copied, and what is beyond ours is set to zero.
    unsafe {
        at.cast::<u8>().write_bytes(0, size);
        ptr::copy_nonoverlapping(
            ptr::from_ref(defaults).cast::<u8>(),
            at.cast::<u8>(),
            size.min(size_of::<T>()),
        );
    }
    Ok(())
}

/// A text in a field of fixed length, cut where it is longer, and ended with a zero.
pub(crate) fn fixed_text<const N: usize>(text: &str) -> [c_char; N] {
    let mut field = [0; N];
    for (to, from) in field.iter_mut().zip(text.bytes()).take(N - 1) {
        *to = from as c_char;
    }
    field
}
