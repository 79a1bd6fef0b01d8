//! Names of devices, as users type them: `sim`, `host`, `cuda`, `cuda:1`. They are read, written and opened here only.
//!
//! A new kind of device gets a variant of [`Kind`] with its word, and a place in [`KINDS`]. The functions below say of
//! each kind whether it is a GPU, how many there are, and how one is opened.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::host::{HostDevice, HostOptions};
use super::sim::{SimDevice, SimOptions};
use super::{Device, DeviceError, DeviceResult, Kind, Properties};

/// The kinds, in the order in which help and errors list them.
const KINDS: [Kind; 3] = [Kind::Cuda, Kind::Host, Kind::Sim];

/// A device by its name: `cuda` (the first GPU), `cuda:1`, `host` (the CPU) or `sim` (simulated).
///
/// ```
/// use millpond::Context;
/// use millpond::device::DeviceName;
///
/// let name: DeviceName = "host".parse()?;
/// let context = Context::new(name.open()?);
/// assert_eq!(DeviceName::of(context.device().properties()), name);
/// assert_eq!("cuda".parse(), Ok(DeviceName::cuda(0)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeviceName {
    kind: Kind,
    ordinal: usize,
}

/// A text that names no device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no device is called '{found}': expected {expected}")]
pub struct UnknownDevice {
    found: String,
    expected: String,
}

impl DeviceName {
    /// The CPU, with real memory.
    pub const HOST: Self = Self { kind: Kind::Host, ordinal: 0 };
    /// A simulated device.
    pub const SIM: Self = Self { kind: Kind::Sim, ordinal: 0 };

    /// The NVIDIA GPU with this ordinal.
    #[must_use]
    pub const fn cuda(ordinal: usize) -> Self {
        Self { kind: Kind::Cuda, ordinal }
    }

    /// The name of the device with these properties.
    #[must_use]
    pub fn of(properties: &Properties) -> Self {
        Self { kind: properties.kind, ordinal: properties.ordinal }
    }

    /// Which kind of device.
    #[must_use]
    pub fn kind(self) -> Kind {
        self.kind
    }

    /// The device's number among its kind.
    #[must_use]
    pub fn ordinal(self) -> usize {
        self.ordinal
    }

    /// Whether it is a GPU. Others are made anew by each [`open`](Self::open), with the capacity asked for.
    #[must_use]
    pub fn is_gpu(self) -> bool {
        is_gpu(self.kind)
    }

    /// Opens the device: a device object of its own. Programs that want to share one make a
    /// [`Context`](crate::Context) of it and clone that.
    ///
    /// # Errors
    /// [`DeviceError::Unavailable`] where there is no such device, no driver for it, or where it was not compiled in.
    pub fn open(self) -> DeviceResult<Arc<dyn Device>> {
        self.open_with_capacity(None)
    }

    /// Opens the device with so many bytes of memory; by default with those that [`HostOptions`] and [`SimOptions`] say.
    ///
    /// # Errors
    /// As for [`open`](Self::open), and [`DeviceError::Unsupported`] for the capacity of a GPU, which has what it has.
    pub fn open_with_capacity(self, capacity: Option<u64>) -> DeviceResult<Arc<dyn Device>> {
        if self.is_gpu() && capacity.is_some() {
            let what = "another capacity than its own; leave the capacity out";
            return Err(DeviceError::Unsupported { device: self.to_string(), what });
        }
        Ok(match self.kind {
            #[cfg(feature = "cuda")]
            Kind::Cuda => super::cuda::CudaDevice::new(self.ordinal)?,
            #[cfg(not(feature = "cuda"))]
            Kind::Cuda => return Err(self.not_compiled_in("cuda")),
            Kind::Other => {
                let text = "this device belongs to another crate: open it with that crate".to_owned();
                return Err(DeviceError::Unavailable(text));
            }
            Kind::Host => HostDevice::with_options(HostOptions { capacity, ..HostOptions::default() })?,
            Kind::Sim => {
                let default = SimOptions::default();
                SimDevice::new(SimOptions { capacity: capacity.unwrap_or(default.capacity), ..default })?
            }
        })
    }

    #[cfg(not(feature = "cuda"))]
    fn not_compiled_in(self, feature: &str) -> DeviceError {
        DeviceError::Unavailable(format!("{self} needs millpond's feature `{feature}`: add it in Cargo.toml"))
    }

    /// The devices that this machine has: GPUs whose driver answers, and the CPU.
    pub fn present() -> impl Iterator<Item = Self> {
        KINDS.into_iter().flat_map(|kind| (0..Self::count(kind)).map(move |ordinal| Self { kind, ordinal }))
    }

    /// How many devices of the kind this machine has.
    fn count(kind: Kind) -> usize {
        match kind {
            #[cfg(feature = "cuda")]
            Kind::Cuda => super::cuda::driver().map_or(0, |driver| driver.devices),
            #[cfg(not(feature = "cuda"))]
            Kind::Cuda => 0,
            Kind::Host => 1,
            Kind::Sim | Kind::Other => 0,
        }
    }

    /// All names, for help and errors: `cuda, cuda:N, host or sim`.
    pub fn listed() -> String {
        let names: Vec<String> = KINDS
            .into_iter()
            .flat_map(|kind| [Some(kind.to_string()), is_gpu(kind).then(|| format!("{kind}:N"))])
            .flatten()
            .collect();
        names
            .split_last()
            .map_or_else(String::new, |(last, others)| format!("{} or {last}", others.join(", ")))
    }
}

/// Whether a machine may have several devices of the kind, told apart by numbers.
fn is_gpu(kind: Kind) -> bool {
    matches!(kind, Kind::Cuda)
}

impl FromStr for DeviceName {
    type Err = UnknownDevice;

    fn from_str(text: &str) -> Result<Self, UnknownDevice> {
        let (word, number) = text.split_once(':').map_or((text, None), |(word, number)| (word, Some(number)));
        let kind = KINDS.into_iter().find(|kind| kind.to_string() == word);
        let ordinal = match number {
            None => Some(0),
            Some(number) => number.parse().ok().filter(|_| kind.is_some_and(is_gpu)),
        };
        let name = kind.zip(ordinal).map(|(kind, ordinal)| Self { kind, ordinal });
        name.ok_or_else(|| UnknownDevice { found: text.to_owned(), expected: Self::listed() })
    }
}

/// As [`FromStr`] reads it; of a GPU with its number: `cuda:0`.
impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, ordinal } = self;
        if is_gpu(*kind) { write!(f, "{kind}:{ordinal}") } else { write!(f, "{kind}") }
    }
}

/// What a program's `--device` may say: a device by its name, or `auto`.
///
/// ```
/// use millpond::device::DeviceChoice;
///
/// let choice: DeviceChoice = "auto".parse()?;
/// let (name, why_no_gpu) = choice.find();
/// if let Some(error) = why_no_gpu {
///     eprintln!("using {name}: {error}");
/// }
/// # Ok::<(), millpond::device::UnknownDevice>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceChoice {
    /// The first GPU where there is one, else the CPU.
    #[default]
    Auto,
    /// This one.
    Named(DeviceName),
}

impl DeviceChoice {
    /// The device that is meant. For [`Auto`](Self::Auto) without a GPU, also why it is the CPU. A device that was
    /// named may turn out not to be there when it is opened.
    #[must_use]
    pub fn find(self) -> (DeviceName, Option<DeviceError>) {
        match self {
            Self::Named(name) => (name, None),
            Self::Auto => {
                let gpu = DeviceName::cuda(0);
                match gpu.open() {
                    Ok(_) => (gpu, None),
                    Err(why) => (DeviceName::HOST, Some(why)),
                }
            }
        }
    }

    /// All that it may be, for help and errors: `auto, cuda, cuda:N, host or sim`.
    #[must_use]
    pub fn listed() -> String {
        format!("{AUTO}, {}", DeviceName::listed())
    }
}

impl From<DeviceName> for DeviceChoice {
    fn from(name: DeviceName) -> Self {
        Self::Named(name)
    }
}

const AUTO: &str = "auto";

impl FromStr for DeviceChoice {
    type Err = UnknownDevice;

    fn from_str(text: &str) -> Result<Self, UnknownDevice> {
        match text {
            AUTO => Ok(Self::Auto),
            _ => {
                let unknown = |error| UnknownDevice { expected: Self::listed(), ..error };
                text.parse().map(Self::Named).map_err(unknown)
            }
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str(AUTO),
            Self::Named(name) => name.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_written() {
        for (text, name) in [
            ("cuda:0", DeviceName::cuda(0)),
            ("cuda:17", DeviceName::cuda(17)),
            ("host", DeviceName::HOST),
            ("sim", DeviceName::SIM),
        ] {
            assert_eq!((text.parse(), name.to_string().as_str()), (Ok(name), text));
            assert_eq!(text.parse(), Ok(DeviceChoice::Named(name)));
        }
        assert_eq!("cuda".parse(), Ok(DeviceName::cuda(0)));
        assert_eq!(
            ("auto".parse(), DeviceChoice::Auto.to_string().as_str()),
            (Ok(DeviceChoice::Auto), "auto")
        );
    }

    #[test]
    fn other_texts_are_refused_with_the_names_that_there_are() {
        for text in ["", "gpu", "Host", "host:0", "sim:1", "cuda:", "cuda:x", "cuda:-1", "cuda:0:0", "auto"] {
            let error = text.parse::<DeviceName>().unwrap_err().to_string();
            assert_eq!(error, format!("no device is called '{text}': expected cuda, cuda:N, host or sim"));
        }
        let error = "gpu".parse::<DeviceChoice>().unwrap_err().to_string();
        assert_eq!(error, "no device is called 'gpu': expected auto, cuda, cuda:N, host or sim");
    }

    #[test]
    fn an_opened_device_has_the_name_and_the_capacity() {
        for name in [DeviceName::HOST, DeviceName::SIM] {
            let device = name.open_with_capacity(Some(64 << 20)).unwrap();
            assert_eq!(DeviceName::of(device.properties()), name);
            assert_eq!(device.properties().total_memory, 64 << 20);
        }
        assert_eq!(DeviceName::SIM.open().unwrap().properties().total_memory, SimOptions::default().capacity);
    }

    #[test]
    fn a_gpu_that_is_not_there_cannot_be_opened() {
        let error = DeviceName::cuda(999).open().unwrap_err();
        assert!(matches!(error, DeviceError::Unavailable(_)), "{error:?}");
    }

    #[test]
    fn the_cpu_is_always_present_and_a_simulation_never() {
        let present: Vec<_> = DeviceName::present().collect();
        assert!(present.contains(&DeviceName::HOST) && !present.contains(&DeviceName::SIM), "{present:?}");
    }
}
