//! Objects that were opened with `RTLD_DEEPBIND`: what they depend on comes before what is preloaded. So they find the driver's own
//! functions by their names, and the C library's `dlsym`. Afterwards, those are put right in the object's table of addresses. So it is
//! with all objects where this code is in a program that does not show them its functions.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use crate::entry_points::{ENTRY_POINTS, behind};
use crate::linker::{self, Address};
use crate::names;

/// Whether an object was opened so since the last look.
static IS_PENDING: AtomicBool = AtomicBool::new(false);

/// An object is opened so next: the linker binds its names then, or at their first calls.
pub(crate) fn expect() {
    // Relaxed, here and below: the thread that opens it looks up what it has.
    IS_PENDING.store(true, Ordering::Relaxed);
}

/// Whether objects do not see this code's functions in any case.
static IS_ALWAYS: AtomicBool = AtomicBool::new(false);

/// So it is with all objects, those that are opened later too: the program has this code, and does not show them its functions.
pub(crate) fn expect_always() {
    IS_ALWAYS.store(true, Ordering::Relaxed);
    expect();
}

/// An object is opened next.
#[inline]
pub(crate) fn expect_another() {
    if IS_ALWAYS.load(Ordering::Relaxed) {
        expect();
    }
}

/// What the functions of the linker are called here.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Replacements {
    pub(crate) dlsym: Address,
    pub(crate) dlopen: Address,
}

/// Puts the addresses right in all objects, if one was opened so. Others have no other functions of these names than those here.
#[inline]
pub(crate) fn rebind(own: Replacements) {
    if IS_PENDING.load(Ordering::Relaxed) {
        rebind_slow(own);
    }
}

#[cold]
fn rebind_slow(own: Replacements) {
    if !IS_PENDING.swap(false, Ordering::Relaxed) {
        return;
    }
    // Before the iteration, during which nothing may be looked up.
    let entry_points = linker::loaded_driver().map_or(Vec::new(), |_| {
        ENTRY_POINTS.iter().map(|entry| (entry.symbol, behind(entry), entry.address())).collect()
    });
    let linkers =
        [(c"dlsym", linker::real_dlsym(), own.dlsym), (c"dlopen", linker::real_dlopen(), own.dlopen)];
    let mut wanted: Vec<Wanted> = entry_points.into_iter().chain(linkers).collect();
    wanted.retain(|(_, found, _)| !found.is_null());
    // SAFETY: the function below keeps the contract of a callback, and gets what it expects.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut wanted).cast()) };
}

/// A name, what an object with its own scope finds there, and what it is to have.
type Wanted = (&'static CStr, Address, Address);

/// # Safety
/// As the linker calls it: `about` describes a loaded object, and `wanted` is a list of [`Wanted`].
unsafe extern "C" fn visit(about: *mut libc::dl_phdr_info, _bytes: usize, wanted: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    let (about, wanted) = unsafe { (&*about, &*wanted.cast::<Vec<Wanted>>()) };
    // SAFETY: a text of C, or null.
    let path = if about.dlpi_name.is_null() { c"" } else { unsafe { CStr::from_ptr(about.dlpi_name) } };
    let file = path.to_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    // The driver's own, and the C library's. The program itself has no name here, and no scope before ours.
    const LEFT_ALONE: [&[u8]; 6] =
        [b"libcuda.so", b"libnvidia-", b"libc.so", b"libdl.so", b"ld-linux", b"libmillpond_run"];
    if !file.is_empty() && !LEFT_ALONE.iter().any(|name| file.starts_with(name)) {
        // SAFETY: the linker keeps the object while it calls this.
        if let Some(object) = unsafe { Object::of(about) } {
            object.rebind(wanted);
        }
    }
    0
}

// What an ELF file says for the linker: cuda's processors have the same layout (`Elf64_Dyn`, `Elf64_Rela`, `Elf64_Sym`).

#[derive(Clone, Copy)]
#[repr(C)]
struct Entry {
    tag: i64,
    value: usize,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Relocation {
    offset: usize,
    info: u64,
    addend: i64,
}

const PLTRELSZ: i64 = 2;
const STRTAB: i64 = 5;
const SYMTAB: i64 = 6;
const RELA: i64 = 7;
const RELASZ: i64 = 8;
const JMPREL: i64 = 23;
const NEEDED: i64 = 1;

/// Relocations that are the address of a symbol: `ABS64`, `GLOB_DAT`, `JUMP_SLOT`.
const OF_SYMBOLS: [u32; 3] = if cfg!(target_arch = "aarch64") { [257, 1025, 1026] } else { [1, 6, 7] };

/// A loaded object.
struct Object<'a> {
    base: usize,
    parts: &'a [libc::Elf64_Phdr],
    entries: &'a [Entry],
}

impl<'a> Object<'a> {
    /// # Safety
    /// `about` describes a loaded object, which stays so.
    unsafe fn of(about: &'a libc::dl_phdr_info) -> Option<Self> {
        let base = about.dlpi_addr as usize;
        // SAFETY: the caller's promise.
        let parts = unsafe { std::slice::from_raw_parts(about.dlpi_phdr, about.dlpi_phnum.into()) };
        let dynamic = parts.iter().find(|part| part.p_type == libc::PT_DYNAMIC)?;
        let first = (base + dynamic.p_vaddr as usize) as *const Entry;
        // SAFETY: the part is mapped there, and holds such entries.
        let entries =
            unsafe { std::slice::from_raw_parts(first, dynamic.p_memsz as usize / size_of::<Entry>()) };
        Some(Self { base, parts, entries })
    }

    fn value(&self, tag: i64) -> Option<usize> {
        self.entries
            .iter()
            .take_while(|entry| entry.tag != 0)
            .find(|entry| entry.tag == tag)
            .map(|entry| entry.value)
    }

    /// An address: the linker has put most of them right in place.
    fn address(&self, tag: i64) -> Option<usize> {
        self.value(tag).map(|value| if value < self.base { self.base + value } else { value })
    }

    fn relocations(&self, at: i64, bytes: i64) -> &'a [Relocation] {
        let (Some(at), Some(bytes)) = (self.address(at), self.value(bytes)) else { return &[] };
        // SAFETY: the object says so of itself, and the linker has gone by it.
        unsafe { std::slice::from_raw_parts(at as *const Relocation, bytes / size_of::<Relocation>()) }
    }

    /// A text in the object.
    fn text(&self, offset: usize) -> Option<&'a CStr> {
        // SAFETY: as in `relocations`.
        self.address(STRTAB).map(|texts| unsafe { CStr::from_ptr((texts + offset) as *const c_char) })
    }

    fn is_linked_with_the_driver(&self) -> bool {
        let needed =
            self.entries.iter().take_while(|entry| entry.tag != 0).filter(|entry| entry.tag == NEEDED);
        needed
            .filter_map(|entry| self.text(entry.value))
            .any(|name| name.to_bytes().starts_with(b"libcuda.so"))
    }

    /// Whether an address lies in a part of this kind, of which only whole pages count from its end.
    fn holds(&self, kind: u32, address: usize, page: usize) -> bool {
        let mut parts = self.parts.iter().filter(|part| part.p_type == kind);
        parts.any(|part| {
            let start = self.base + part.p_vaddr as usize;
            (start..(start + part.p_memsz as usize) / page * page).contains(&address)
        })
    }

    fn rebind(&self, wanted: &[Wanted]) {
        let Some(symbols) = self.address(SYMTAB) else { return };
        let all = [self.relocations(JMPREL, PLTRELSZ), self.relocations(RELA, RELASZ)];
        for relocation in all.into_iter().flatten() {
            if !OF_SYMBOLS.contains(&(relocation.info as u32)) {
                continue;
            }
            let symbol = symbols + (relocation.info >> 32) as usize * size_of::<libc::Elf64_Sym>();
            // SAFETY: as in `relocations`.
            let symbol = unsafe { *(symbol as *const libc::Elf64_Sym) };
            // What it has itself stays its own.
            let name = if symbol.st_shndx == 0 { self.text(symbol.st_name as usize) } else { None };
            let of_name = name.and_then(|name| wanted.iter().find(|(wanted, ..)| *wanted == name));
            let Some((name, found, own)) = of_name else { continue };
            let slot = self.base + relocation.offset;
            // SAFETY: the linker writes addresses there, one at a time.
            let at = unsafe { AtomicPtr::from_ptr(slot as *mut *mut c_void) };
            let now = at.load(Ordering::Relaxed);
            // What is bound at its first call still leads to the object's own code.
            let is_unbound = self.holds(libc::PT_LOAD, now.addr(), 1);
            let is_linkers = names::by_symbol(ENTRY_POINTS, name).is_none();
            if now == *found || is_unbound && (is_linkers || self.is_linked_with_the_driver()) {
                self.write(at, *own);
            }
        }
    }

    /// Writes to a table that the linker may have protected since.
    fn write(&self, at: &AtomicPtr<c_void>, address: Address) {
        let slot = at.as_ptr().addr();
        // SAFETY: asks for a number.
        let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        // The linker protects whole pages of this part.
        if !self.holds(libc::PT_GNU_RELRO, slot, bytes) {
            return at.store(address, Ordering::Relaxed);
        }
        let page = std::ptr::without_provenance_mut(slot / bytes * bytes);
        // SAFETY: the page is the object's. Nobody relies on its being protected.
        if unsafe { libc::mprotect(page, bytes, libc::PROT_READ | libc::PROT_WRITE) } == 0 {
            at.store(address, Ordering::Relaxed);
            // SAFETY: as it was.
            unsafe { libc::mprotect(page, bytes, libc::PROT_READ) };
        }
    }
}
