//! Finding and starting the driver, and saying what is wrong with it.

use std::ffi::c_int;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::api::{self, Api, Code, Failure, NoApi};
use crate::device::{DeviceError, DeviceResult};
use crate::system::process::Process;

/// The oldest CUDA version that a driver must support: it brought `cuStreamGetId`, without which a recycled
/// stream handle cannot be told from the old stream.
const OLDEST: DriverVersion = DriverVersion { major: 12, minor: 0 };

/// The CUDA version that a driver supports at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DriverVersion {
    /// As 13 in CUDA 13.2.
    pub major: u32,
    /// As 2 in CUDA 13.2.
    pub minor: u32,
}

impl std::fmt::Display for DriverVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The driver of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DriverInfo {
    /// The newest CUDA version that it supports.
    pub cuda: DriverVersion,
    /// The library that was loaded, where the system tells.
    pub library: Option<PathBuf>,
    /// How many GPUs it shows to this process.
    pub devices: usize,
}

/// Starts the driver if need be and says what it is.
///
/// # Errors
/// [`DeviceError::Unavailable`] where there is no driver, an old one or no GPU, with what to do about it.
pub fn driver() -> DeviceResult<DriverInfo> {
    let api = started()?;
    Ok(DriverInfo { cuda: version(api)?, library: loaded_library("libcuda.so"), devices: device_count(api)? })
}

/// Looks up the driver's functions, which all devices then call. Nothing is started. `false` where there is no driver, or an old one.
#[must_use]
pub fn load_driver() -> bool {
    api::load().is_ok()
}

/// The path of the first library mapped into this process whose file name begins with `prefix`, as in
/// `loaded_library("libcuda.so")`. None where it is not loaded, or the system has no `/proc/self/maps`.
#[must_use]
pub fn loaded_library(prefix: &str) -> Option<PathBuf> {
    library_in(&std::fs::read_to_string("/proc/self/maps").ok()?, prefix)
}

fn library_in(maps: &str, prefix: &str) -> Option<PathBuf> {
    // A line is "address perms offset dev inode path"; only the path has a slash.
    maps.lines()
        .filter_map(|line| line.find('/').map(|at| Path::new(&line[at..])))
        .find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix)))
        .map(Path::to_owned)
}

/// The driver's functions, after a successful `cuInit`.
///
/// A failure is not remembered: a driver service that comes up later is found by the next try.
pub(super) fn started() -> DeviceResult<&'static Api> {
    static STARTED: OnceLock<&'static Api> = OnceLock::new();
    /// The process that started the driver or tries to, and one more; 0 while none does.
    static STARTED_IN: AtomicU64 = AtomicU64::new(0);
    let here = Process::here().number() + 1;
    // Before anything that another thread of the parent may have been inside of at the fork.
    // Relaxed, all: the parent's write came before the fork, and in one process all write the same.
    match STARTED_IN.load(Ordering::Relaxed) {
        0 => STARTED_IN.store(here, Ordering::Relaxed),
        of if of == here => {}
        _ => return Err(DeviceError::Forked),
    }
    if let Some(api) = STARTED.get() {
        return Ok(api);
    }
    match start() {
        Ok(api) => Ok(STARTED.get_or_init(|| api)),
        Err(error) => {
            STARTED_IN.store(0, Ordering::Relaxed);
            Err(error)
        }
    }
}

fn start() -> DeviceResult<&'static Api> {
    let api = api::load().map_err(explain_missing)?;
    let found = version(api)?;
    if found < OLDEST {
        return Err(too_old(found));
    }
    // SAFETY: cuInit may be called at any time, and again.
    unsafe { api.cuInit(0) }.map_err(explain_refused)?;
    Ok(api)
}

/// How many GPUs the driver shows to this process (see `CUDA_VISIBLE_DEVICES`).
pub(super) fn device_count(api: &Api) -> DeviceResult<usize> {
    let mut count: c_int = 0;
    // SAFETY: `count` is writable.
    unsafe { api.cuDeviceGetCount(&mut count) }?;
    Ok(usize::try_from(count).unwrap_or(0))
}

fn version(api: &Api) -> DeviceResult<DriverVersion> {
    let mut number: c_int = 0;
    // SAFETY: `number` is writable; the function needs no initialised driver.
    unsafe { api.cuDriverGetVersion(&mut number) }?;
    Ok(decode_version(number))
}

/// The driver counts 1000 a major and 10 a minor version.
fn decode_version(number: c_int) -> DriverVersion {
    let number = u32::try_from(number).unwrap_or(0);
    DriverVersion { major: number / 1000, minor: number % 1000 / 10 }
}

fn explain_missing(missing: NoApi) -> DeviceError {
    DeviceError::Unavailable(match missing {
        NoApi::NoLibrary => format!(
            "no CUDA driver found (libcuda.so.1). Install NVIDIA's, for CUDA {OLDEST} or later, or use the host device; \
             a container needs the GPU passed in (docker run --gpus all)"
        ),
        NoApi::NoFunction(name) => format!(
            "the CUDA driver {} has no function {name}. Install NVIDIA's driver for CUDA {OLDEST} or later",
            library_name()
        ),
    })
}

fn too_old(found: DriverVersion) -> DeviceError {
    DeviceError::Unavailable(format!(
        "the CUDA driver {} supports CUDA {found}, but {OLDEST} is needed. Install a newer driver",
        library_name()
    ))
}

fn explain_refused(failure: Failure) -> DeviceError {
    DeviceError::Unavailable(if failure.code == Code::NO_DEVICE {
        no_gpu()
    } else {
        format!(
            "the CUDA driver {} did not start: {}. Check that nvidia-smi works; after an update of the driver, restart \
             the machine",
            library_name(),
            failure.described()
        )
    })
}

/// The error for an ordinal that the driver does not have.
pub(super) fn no_such_device(ordinal: usize, count: usize) -> DeviceError {
    DeviceError::Unavailable(match count {
        0 => no_gpu(),
        1 => format!("there is no GPU {ordinal}: this process sees one, number 0"),
        _ => format!("there is no GPU {ordinal}: this process sees {count}, numbers 0 to {}", count - 1),
    })
}

fn no_gpu() -> String {
    let hidden = match std::env::var("CUDA_VISIBLE_DEVICES") {
        Ok(list) => format!("CUDA_VISIBLE_DEVICES is \"{list}\": check that it does not hide them"),
        Err(_) => String::from("Check that nvidia-smi lists one"),
    };
    format!("the CUDA driver {} shows no GPU to this process. {hidden}", library_name())
}

fn library_name() -> String {
    loaded_library("libcuda.so").map_or_else(|| String::from("libcuda.so"), |path| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_found_in_a_process_map() {
        let maps = "7f00-7f01 r--p 00000000 08:01 12    /usr/lib/libc.so.6\n\
                    7f02-7f03 rw-p 00000000 00:00 0 \n\
                    7f04-7f05 r-xp 00000000 08:01 13    /opt/my driver/libcuda.so.580.1\n";
        assert_eq!(library_in(maps, "libcuda.so"), Some(PathBuf::from("/opt/my driver/libcuda.so.580.1")));
        assert_eq!(library_in(maps, "libnvrtc.so"), None);
    }

    #[test]
    fn versions_are_decoded_and_ordered() {
        let v = decode_version(13020);
        assert_eq!((v.major, v.minor), (13, 2));
        assert!(decode_version(11080) < OLDEST);
        assert!(decode_version(12000) >= OLDEST);
        assert_eq!(v.to_string(), "13.2");
    }

    #[test]
    fn errors_say_which_gpus_there_are() {
        assert!(no_such_device(5, 2).to_string().contains("numbers 0 to 1"));
        assert!(no_such_device(1, 1).to_string().contains("number 0"));
        assert!(no_such_device(0, 0).to_string().contains("shows no GPU"));
    }

    #[test]
    fn a_missing_driver_is_named_with_what_to_do() {
        let text = explain_missing(NoApi::NoLibrary).to_string();
        assert!(text.starts_with("no CUDA driver found (libcuda.so.1). Install NVIDIA's"), "{text}");
        assert!(text.contains("use the host device"), "{text}");
        let text = explain_missing(NoApi::NoFunction("cuStreamGetId")).to_string();
        assert!(text.contains("cuStreamGetId") && text.contains("or later"), "{text}");
    }
}
