//! Limits from outside: what the environment, or a file of the machine, lets the pools of a process hold on each device.
//!
//! A builder asks [`budget_for`] once. The budget that it gives is the pool's own where the program set none, and stands beside the
//! program's otherwise.

use std::sync::OnceLock;
use std::{env, io};

use super::{Amount, Budget};
use crate::device::{Device, DeviceName};
use crate::error::{Error, Result};
use crate::system::short_file::read_short_text;

/// The most that all pools of a process hold on a device.
const LIMIT: &str = "MILLPOND_LIMIT";

/// The name by which processes share that.
const BUDGET: &str = "MILLPOND_BUDGET";

/// Where the file is that has what the environment does not say.
const FILE: &str = "MILLPOND_CONFIG";

/// The file by default.
const USUAL_FILE: &str = "/etc/millpond.conf";

/// In the name of a budget, what stands for the GPU.
const GPU: &str = "%g";

/// Letters of a GPU's identity that stand for it.
const LETTERS: usize = 8;

/// What was set for this process by itself, as on the command line.
static SET: OnceLock<String> = OnceLock::new();

impl Budget {
    /// Limits all pools that this process builds from now on, as `MILLPOND_LIMIT` in the environment does, and in its place: `20GiB`,
    /// `50%` of each device, or `0=20GiB,1=50%` by the numbers of GPUs. All pools of a device together hold at most so much, also
    /// those under a budget of their own. Once for a process.
    ///
    /// ```
    /// use millpond::{Budget, Context, Pool};
    ///
    /// Budget::impose("64MiB")?;
    /// let device = Context::host()?; // or Context::cuda(0)?
    /// let pool = Pool::builder(&device).build()?;
    /// assert!(pool.alloc(80 << 20, &device.create_stream()?).is_err());
    /// # Ok::<(), millpond::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::BadOption`] for a text that says no amount, and for a second call.
    pub fn impose(limit: &str) -> Result<()> {
        Asked::parse(LIMIT, limit)?;
        SET.set(limit.to_owned()).map_err(|_| refused(LIMIT, "it is set already: set it once"))
    }
}

/// The budget of all pools of this process on a device; `None` where nothing limits them.
pub(crate) fn budget_for(device: &dyn Device) -> Result<Option<Budget>> {
    let about = device.properties();
    let limit = match SET.get() {
        Some(text) => Some(text.clone()),
        None => setting(LIMIT)?,
    };
    let limit = limit.map(|text| Asked::parse(LIMIT, &text)).transpose()?;
    let bytes = limit.and_then(|asked| asked.of(DeviceName::of(about))).map(|is| is.of(about.total_memory));
    if let Some(name) = setting(BUDGET)? {
        let name = name.replace(GPU, &letters_of(device));
        // Who comes first sets the limit, unless it was set for all. What the device has is no limit.
        return Budget::named(&name, bytes.unwrap_or(about.total_memory)).map(Some);
    }
    let Some(bytes) = bytes else { return Ok(None) };
    Budget::of_device(&DeviceName::of(about).to_string(), bytes).map(Some)
}

/// What stands for the device in a name.
fn letters_of(device: &dyn Device) -> String {
    let identity = device.identity().map(|identity| identity.to_string());
    let letters = identity.unwrap_or_else(|_| DeviceName::of(device.properties()).to_string());
    letters.chars().filter(char::is_ascii_alphanumeric).take(LETTERS).collect()
}

/// A limit for all devices, and those of some GPUs.
#[derive(Debug, Default, PartialEq)]
struct Asked {
    all: Option<Amount>,
    gpus: Vec<(usize, Amount)>,
}

impl Asked {
    fn parse(option: &'static str, text: &str) -> Result<Self> {
        let mut asked = Self::default();
        for part in text.split(',') {
            let (gpu, amount) =
                part.split_once('=').map_or((None, part), |(gpu, amount)| (Some(gpu), amount));
            let amount: Amount = amount.parse().map_err(|why: String| refused(option, &why))?;
            match gpu.map(|gpu| gpu.trim().trim_start_matches("cuda:").parse()) {
                None => asked.all = Some(amount),
                Some(Ok(gpu)) => asked.gpus.push((gpu, amount)),
                Some(Err(_)) => {
                    let why = format!("'{part}' begins with no number of a GPU: use 0=20GiB,1=50%, say");
                    return Err(refused(option, &why));
                }
            }
        }
        Ok(asked)
    }

    fn of(&self, device: DeviceName) -> Option<Amount> {
        let own = self.gpus.iter().find(|(gpu, _)| device == DeviceName::cuda(*gpu));
        own.map(|(_, amount)| *amount).or(self.all)
    }
}

/// A setting of the environment; else of the file.
fn setting(name: &'static str) -> Result<Option<String>> {
    let is_set = |text: &String| !text.trim().is_empty();
    if let Some(text) = env::var_os(name) {
        let text = text.into_string().map_err(|_| refused(name, "it is no text"))?;
        return Ok(Some(text).filter(is_set));
    }
    Ok(file()?.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.clone()).filter(is_set))
}

/// What the file says. It is read once: a process has one limit from its beginning to its end.
fn file() -> Result<&'static [(String, String)]> {
    static FILE_SAYS: OnceLock<std::result::Result<Vec<(String, String)>, String>> = OnceLock::new();
    let read = || {
        let named = env::var_os(FILE).filter(|path| !path.is_empty());
        let path = named.clone().unwrap_or_else(|| USUAL_FILE.into());
        match read_short_text(path.as_ref(), 1) {
            Ok(text) => lines(&text).map_err(|why| format!("{}: {why}", path.display())),
            Err(error) if error.kind() == io::ErrorKind::NotFound && named.is_none() => Ok(Vec::new()),
            Err(error) => Err(format!("{}: it cannot be read: {error}", path.display())),
        }
    };
    FILE_SAYS.get_or_init(read).as_deref().map_err(|why| refused(FILE, why))
}

/// Lines of the form `NAME=value`, as systemd's `EnvironmentFile` has them.
fn lines(text: &str) -> std::result::Result<Vec<(String, String)>, String> {
    let lines = text.lines().map(str::trim).enumerate();
    let said = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let setting = |(at, line): (usize, &str)| match line.split_once('=') {
        Some((name, value)) if [LIMIT, BUDGET].contains(&name.trim()) => {
            Ok((name.trim().to_owned(), value.trim().trim_matches('"').to_owned()))
        }
        _ => Err(format!("line {}: '{line}': it may say {LIMIT}=SIZE and {BUDGET}=NAME", at + 1)),
    };
    said.map(setting).collect()
}

fn refused(option: &'static str, why: &str) -> Error {
    Error::BadOption { option, why: why.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str, device: DeviceName) -> Option<u64> {
        Asked::parse(LIMIT, text).unwrap().of(device).map(|amount| amount.of(100 << 30))
    }

    #[test]
    fn a_gpu_has_its_own_limit_or_that_of_all() {
        let gpus = [0, 1, 2].map(DeviceName::cuda);
        assert_eq!(gpus.map(|gpu| of("20GiB", gpu)), [Some(20 << 30); 3]);
        assert_eq!(gpus.map(|gpu| of("0=20Gi,cuda:1=50%", gpu)), [Some(20 << 30), Some(50 << 30), None]);
        assert_eq!(gpus.map(|gpu| of("1GiB, 2=2GiB", gpu)), [Some(1 << 30), Some(1 << 30), Some(2 << 30)]);
        assert_eq!(of("10%", DeviceName::HOST), Some(10 << 30));
        for wrong in ["", "x", "0=", "a=1GiB", "1GiB,", "120%"] {
            assert!(Asked::parse(LIMIT, wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_file_has_lines_of_names_and_values() {
        let read = lines("# of this machine\n\nMILLPOND_LIMIT = 50%\nMILLPOND_BUDGET=\"gpu-%g\"\n").unwrap();
        let pair = |(name, value): &(String, String)| format!("{name}:{value}");
        assert_eq!(
            read.iter().map(pair).collect::<Vec<_>>(),
            ["MILLPOND_LIMIT:50%", "MILLPOND_BUDGET:gpu-%g"]
        );
        let wrong = lines("MILLPOND_LIMIT=1GiB\nMILLPOND_LIMITS=2GiB\n").unwrap_err();
        assert!(wrong.starts_with("line 2: 'MILLPOND_LIMITS=2GiB'"), "{wrong}");
    }
}
