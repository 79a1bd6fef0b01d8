//! The tool's library: found by the environment, loaded once in a process, and asked for the functions to call.
//!
//! A client of NVTX has a table of function pointers. The tool's library has one function for each module of NVTX, which is
//! given the table and fills it in. A pointer that stays null is a function that the tool does not want to hear.

use std::env;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::{ManuallyDrop, transmute};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use libloading::os::unix::{Library, RTLD_LAZY};

use crate::log::log;
use crate::system::process::PerProcess;

/// Where the tool says its library is.
const PATH: &str = "NVTX_INJECTION64_PATH";

/// `off` here leaves the tool alone.
const SWITCH: &str = "MILLPOND_NVTX";

/// The domain's name, as a profiler shows it and filters by it.
const DOMAIN: &CStr = c"millpond";

/// The version of NVTX that we speak.
pub(super) const VERSION: u16 = 3;

/// A function that the tool fills in.
pub(super) type Slot = AtomicPtr<c_void>;

const fn slots<const N: usize>() -> [Slot; N] {
    [const { Slot::new(ptr::null_mut()) }; N]
}

/// The functions with domains (`NVTX_CB_MODULE_CORE2`).
static DOMAINS: [Slot; 16] = slots();

/// Those of them that we call, as NVTX numbers them.
#[derive(Debug, Clone, Copy)]
#[repr(usize)]
pub(super) enum DomainFunction {
    Mark = 1,
    Push = 4,
    Pop = 5,
    Create = 12,
}

impl DomainFunction {
    /// What the tool filled in; `None` where it does not want to hear it.
    pub(super) fn get(self) -> Option<ptr::NonNull<c_void>> {
        function(&DOMAINS[self as usize])
    }
}

/// Functions of other modules, which we never call.
static OTHERS: [Slot; 16] = slots();

/// The pointers to both. The first of each stands for no function.
static TABLES: PerProcess<[[Option<&Slot>; 16]; 2]> = PerProcess::new(|| {
    [&DOMAINS, &OTHERS].map(|slots| std::array::from_fn(|at| (at > 0).then(|| &slots[at])))
});

/// The functions about memory, numbered as in NVTX.
pub(super) static MEMORY: [Slot; 63] = slots();

/// What a slot holds; `None` where the tool does not want to hear it.
pub(super) fn function(slot: &Slot) -> Option<ptr::NonNull<c_void>> {
    // Acquire: the tool may have made what its function needs just before.
    ptr::NonNull::new(slot.load(Ordering::Acquire))
}

/// The tool that watches this process. In a forked child it is asked again.
pub(super) struct Tool {
    /// Never closed: the tool may have taken notice of us.
    library: ManuallyDrop<Library>,
    /// Its handle of our domain; null where it has none.
    pub(super) domain: *mut c_void,
}

// SAFETY: handles of the dynamic linker and of the tool, whose functions any thread may call.
unsafe impl Send for Tool {}
// SAFETY: likewise.
unsafe impl Sync for Tool {}

static TOOL: PerProcess<Option<Tool>> = PerProcess::new(load);

/// The tool, if there is one. It has heard of us then, and filled in [`DOMAINS`].
#[inline]
pub(super) fn tool() -> Option<&'static Tool> {
    TOOL.get().as_ref()
}

fn load() -> Option<Tool> {
    let path = env::var_os(PATH).filter(|path| !path.is_empty())?;
    if env::var_os(SWITCH).is_some_and(|switch| switch == "off") {
        return None;
    }
    // SAFETY: the tool that set the variable answers for what its library does when it is loaded.
    let library = unsafe { Library::open(Some(&path), RTLD_LAZY) };
    let library = library.inspect_err(|error| {
        log!(
            WARN,
            "the library that {PATH} names cannot be loaded; no tool hears of pools",
            path = format_args!("{path:?}"),
            error
        );
    });
    let library = ManuallyDrop::new(library.ok()?);
    type Initialize = unsafe extern "C" fn(extern "C" fn(u32) -> *const c_void) -> c_int;
    // SAFETY: a function of this name has this type by NVTX's version 3.
    let initialize = unsafe { library.get::<Initialize>("InitializeInjectionNvtx2") }.ok()?;
    // SAFETY: the tables that `export_table` returns live as long as the process.
    if unsafe { initialize(export_table) } == 0 {
        return None;
    }
    type Create = unsafe extern "C" fn(*const c_char) -> *mut c_void;
    let domain = DomainFunction::Create.get().map_or(ptr::null_mut(), |create| {
        // SAFETY: the function of this number has this type by NVTX, and the name ends in a zero.
        unsafe { transmute::<ptr::NonNull<c_void>, Create>(create)(DOMAIN.as_ptr()) }
    });
    Some(Tool { library, domain })
}

// ---- what the tool asks us -----------------------------------------------------------------------

#[repr(C)]
struct Callbacks {
    size: usize,
    module_table: unsafe extern "C" fn(c_int, *mut *const Option<&'static Slot>, *mut c_uint) -> c_int,
}

static CALLBACKS: Callbacks = Callbacks { size: size_of::<Callbacks>(), module_table };

#[repr(C)]
struct OurVersion {
    size: usize,
    version: u32,
    reserved: u32,
    set_version_of_tool: extern "C" fn(u32),
}

static OUR_VERSION: OurVersion =
    OurVersion { size: size_of::<OurVersion>(), version: VERSION as u32, reserved: 0, set_version_of_tool };

extern "C" fn export_table(table: u32) -> *const c_void {
    match table {
        1 => ptr::from_ref(&CALLBACKS).cast(),
        3 => ptr::from_ref(&OUR_VERSION).cast(),
        _ => ptr::null(),
    }
}

extern "C" fn set_version_of_tool(_: u32) {}

/// Returns 0 for a module that NVTX does not have.
unsafe extern "C" fn module_table(
    module: c_int,
    table: *mut *const Option<&'static Slot>,
    length: *mut c_uint,
) -> c_int {
    let [domains, others] = TABLES.get();
    let (found, functions) = match module {
        5 => (domains, 16),
        1 => (others, 16),
        2 => (others, 9),
        3 => (others, 15),
        4 | 6 => (others, 7),
        _ => return 0,
    };
    // SAFETY: by NVTX, each is null or writable.
    unsafe {
        if let Some(table) = table.as_mut() {
            *table = found.as_ptr();
        }
        if let Some(length) = length.as_mut() {
            *length = functions;
        }
    }
    1
}

// ---- the module of memory ------------------------------------------------------------------------

#[repr(C)]
struct SlotList {
    id: usize,
    slots: usize,
    functions: *const Slot,
}

#[repr(C)]
struct MemoryModule {
    version: u16,
    size: u16,
    id: u16,
    compatibility: u16,
    lists: usize,
    first_list: *mut SlotList,
    export: *const c_void,
    info: *const c_void,
}

/// What structures of the module of memory say that they are: 1.2.
pub(super) const MEMORY_COMPATIBILITY: u16 = 0x0102;
const MEMORY_ID: u16 = 1;

/// Lets the tool fill in [`MEMORY`]. compute-sanitizer wants CUDA to be initialized before. `false` where it hears
/// nothing of memory.
pub(super) fn asks_of_memory() -> bool {
    let Some(Tool { library, .. }) = tool() else { return false };
    type Initialize = unsafe extern "C" fn(*mut MemoryModule) -> c_int;
    // SAFETY: a function of this name has this type by NVTX's version 3.
    let initialize = unsafe { library.get::<Initialize>("InitializeInjectionNvtxExtension") };
    let Ok(initialize) = initialize else { return false };
    let mut slots = SlotList { id: 1, slots: MEMORY.len(), functions: MEMORY.as_ptr() };
    let mut module = MemoryModule {
        version: VERSION,
        size: size_of::<MemoryModule>() as u16,
        id: MEMORY_ID,
        compatibility: MEMORY_COMPATIBILITY,
        lists: 1,
        first_list: &mut slots,
        export: ptr::null(),
        info: ptr::null(),
    };
    // SAFETY: both structures are read during the call only. The slots live as long as the process, and may be written: they
    // are atomic.
    (unsafe { initialize(&mut module) }) != 0
}
