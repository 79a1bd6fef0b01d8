//! Blocks that several processes use, over Unix sockets.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use millpond::bindings::{self, Mutex, Process};
use millpond::device::DevicePtr;
use millpond::{Context, Received, SharedEvent};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::failure::{Failure, Result};
use crate::gil::Detached;
use crate::stream::StreamArgument;

/// A block that several processes use: made by ``Block.share``, and by ``Pool.open_shared`` in the other process.
///
/// It orders the work of all processes on the block. The block's memory is given to nobody else as long as this lives, or
/// another process has it open.
#[pyclass(frozen, module = "millpond", weakref)]
pub(crate) struct Shared {
    /// `None` once it is closed.
    side: Detached<Mutex<Option<Side>>>,
    context: Detached<Context>,
    process: Process,
}

enum Side {
    Own(Box<millpond::Shared>),
    Opened(SharedEvent),
}

impl Side {
    fn event(&self) -> &SharedEvent {
        match self {
            Self::Own(shared) => shared.event(),
            Self::Opened(event) => event,
        }
    }
}

impl Shared {
    fn new(side: Side, context: Context) -> Self {
        Self { side: Mutex::new(Some(side)).into(), context: context.into(), process: Process::here() }
    }

    pub(crate) fn own(shared: millpond::Shared, context: &Context) -> Self {
        Self::new(Side::Own(Box::new(shared)), context.clone())
    }

    fn with<R>(&self, call: impl FnOnce(&Side) -> Result<R>) -> Result<R> {
        // Before the lock, which a thread of the parent may have had.
        self.process.check()?;
        call(self.side.lock().as_ref().ok_or(Failure::ClosedSharing)?)
    }

    fn order(
        &self,
        py: Python<'_>,
        stream: Option<&Bound<'_, PyAny>>,
        call: impl FnOnce(&SharedEvent, &millpond::Stream) -> millpond::Result<()> + Send,
    ) -> PyResult<()> {
        let stream = StreamArgument::read(stream)?;
        Ok(py.detach(move || {
            let stream = stream.find(&self.context)?;
            self.with(|side| Ok(call(side.event(), &stream)?))
        })?)
    }
}

#[pymethods]
impl Shared {
    /// Sends the block to another process, which calls ``Pool.open_shared``. Once for each process.
    ///
    /// Args:
    ///     socket: a connected Unix socket that blocks, or what else has its ``fileno``, as the ends of
    ///         ``multiprocessing.Pipe()`` do.
    ///
    /// Raises:
    ///     Error: where it cannot be sent.
    fn send(&self, py: Python<'_>, socket: &Bound<'_, PyAny>) -> PyResult<()> {
        let socket = read_socket(socket)?;
        Ok(py.detach(|| {
            self.with(|side| match side {
                Side::Own(shared) => Ok(shared.send(&socket)?),
                Side::Opened(_) => Err(Failure::SharedElsewhere),
            })
        })?)
    }

    /// Notes the work given so far to ``stream``, for others to wait for. Tell them then, over the socket for example.
    ///
    /// Raises:
    ///     Error: where the process that shared the block is gone.
    #[pyo3(signature = (stream=None))]
    fn record(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        self.order(py, stream, SharedEvent::record)
    }

    /// Makes later work on ``stream`` wait for the work that was noted last, in whichever process. The host does not wait.
    ///
    /// Raises:
    ///     Error: where the process that shared the block is gone.
    #[pyo3(signature = (stream=None))]
    fn wait(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        self.order(py, stream, SharedEvent::wait)
    }

    /// Bytes of the pages that the block lies on, which other processes can reach. 0 where the block is another process's.
    #[getter]
    fn exposed(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(py.detach(|| {
            self.with(|side| {
                Ok(match side {
                    Side::Own(shared) => shared.token().exposed_bytes(),
                    Side::Opened(_) => 0,
                })
            })
        })?)
    }

    /// Ends this process's part. The block is freed apart from it.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| -> Result<()> {
            self.process.check()?;
            let side = self.side.lock().take();
            drop(side);
            Ok(())
        })?)
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        if self.process.is_here() { self.close(py) } else { Ok(()) }
    }

    fn __repr__(&self, py: Python<'_>) -> &'static str {
        if !self.process.is_here() {
            return "<millpond.Shared of a parent process>";
        }
        py.detach(|| match &*self.side.lock() {
            None => "<millpond.Shared, closed>",
            Some(Side::Own(_)) => "<millpond.Shared of this process>",
            Some(Side::Opened(_)) => "<millpond.Shared of another process>",
        })
    }
}

/// Opens what another process sends: its pool, address and bytes, and what orders the work on it.
pub(crate) fn open(
    context: &Context,
    received: Received,
    stream: &millpond::Stream,
) -> Result<(millpond::Pool, (DevicePtr, u64), Shared)> {
    let (pool, ptr, bytes, event) = bindings::open_shared(context, received, stream)?;
    Ok((pool, (ptr, bytes), Shared::new(Side::Opened(event), context.clone())))
}

/// A descriptor of one's own for the socket of a Python object, which keeps its own.
pub(crate) fn read_socket(socket: &Bound<'_, PyAny>) -> PyResult<UnixStream> {
    let Ok(descriptor) = socket.call_method0("fileno").and_then(|number| number.extract::<i32>()) else {
        let found = socket.get_type();
        let found = found.name()?;
        return Err(PyTypeError::new_err(format!(
            "socket: a connected Unix socket is expected, not {found}"
        )));
    };
    if descriptor < 0 {
        return Err(PyValueError::new_err("socket: it is closed"));
    }
    // SAFETY: not -1. The object has it open, or the next call fails.
    let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
    Ok(borrowed.try_clone_to_owned()?.into())
}

/// Waits until a socket has something to read, or ended. A signal's handler runs meanwhile, and may end the wait.
pub(crate) fn await_sent(py: Python<'_>, socket: &UnixStream) -> PyResult<()> {
    /// How late a signal may be seen that came just before a wait.
    const MILLISECONDS: i32 = 500;
    loop {
        py.check_signals()?;
        let mut asked = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let goes_on = py.detach(|| {
            // SAFETY: one entry, which is writable.
            let found = unsafe { libc::poll(&mut asked, 1, MILLISECONDS) };
            found == 0 || (found < 0 && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted)
        });
        // What else failed is told by who reads.
        if !goes_on {
            return Ok(());
        }
    }
}
