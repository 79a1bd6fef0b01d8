//! Reads of much memory by the whole GPU: in a row, with strides, and of records.

use std::sync::Arc;

use cudarc::driver::PushKernelArg;
use millpond::device::Device;

use super::kernels::Gpu;
use crate::Result;
use crate::owned::{OwnedStream, Segment};
use crate::run::{Run, Scale};

/// Fields of a record.
const FIELDS: u64 = 8;
const WORD: u64 = 4;
/// Times the largest copy: with a stride of 64, a 64th is read, and must take much longer than a launch.
const TIMES: u64 = 4;

pub(crate) fn measure(gpu: &Gpu, device: &Arc<dyn Device>, run: &mut Run<'_>) -> Result<()> {
    let free = device.memory_info()?.free;
    // A power of two, so that every stride divides it.
    let bytes = 1 << (run.effort.most_bytes * TIMES).min(free / 2).max(1 << 20).ilog2();
    let memory = Segment::new(device, bytes)?;
    let stream = OwnedStream::new(device)?;
    // SAFETY: the segment has so many bytes, lives until after the wait, and nothing else uses it.
    unsafe { device.memset(memory.at(), 0, bytes, stream.handle()) }?;
    stream.wait()?;
    run.figure("in a row, 16 bytes a thread", None, Scale::Bytes(bytes), || {
        // SAFETY: the segment has so many bytes, and nothing else uses it.
        unsafe { gpu.read(memory.at(), bytes) }
    });
    let (at, words) = (memory.at().raw(), bytes / WORD);
    for shift in 0..=6 {
        let stride = 1_u64 << shift;
        let count = words / stride;
        let what =
            if stride == 1 { "in a row, 4 bytes a thread".to_owned() } else { format!("stride {stride}") };
        run.figure(&what, None, Scale::Bytes(count * WORD), || {
            // SAFETY: the kernel's arguments; the last element is in the segment, which nothing else uses.
            unsafe {
                gpu.timed(gpu.whole(), &gpu.kernels.read_strided, |launch| {
                    launch.arg(&at).arg(&count).arg(&stride);
                })
            }
        });
    }
    let records = words / FIELDS;
    for (used, kernel) in [(2, &gpu.kernels.read_2_fields), (FIELDS, &gpu.kernels.read_8_fields)] {
        let layouts = [("array of structures", [FIELDS, 1]), ("structure of arrays", [1, records])];
        for (layout, [record, field]) in layouts {
            let what = format!("{used} of {FIELDS} fields, {layout}");
            run.figure(&what, None, Scale::Bytes(records * used * WORD), || {
                // SAFETY: as above; both layouts take as much as the segment has.
                unsafe {
                    gpu.timed(gpu.whole(), kernel, |launch| {
                        launch.arg(&at).arg(&records).arg(&record).arg(&field);
                    })
                }
            });
        }
    }
    Ok(())
}
