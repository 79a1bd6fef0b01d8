//! Writes a PyTorch memory snapshot as large as you like, to see what reading one costs.
//!
//! `cargo run --release -p millpond-replay --example large_snapshot -- TRACE OUT BYTES` repeats the events of a trace until the
//! file has so many bytes. Each event has a call stack of its own, as in PyTorch's snapshots, where `record_memory_history` asks for
//! all stacks: 36 to 84 frames, of Python and of C++, which name the same dict for each frame. So about 350 bytes are an event.
//! Each round keeps 1 MiB more under one call site, which `millpond leaks` is to find.

use std::error::Error;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use millpond_replay::read::{Limits, read};
use millpond_replay::trace::{OpKind, Trace};

/// Layers of the model that the call stacks tell of, and functions of the libraries below each.
const LAYERS: u64 = 48;
const BELOW: u64 = 900;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [trace, out, bytes] = arguments.as_slice() else {
        println!("large_snapshot TRACE OUT BYTES: writes a snapshot of so many bytes, made from that trace");
        return if arguments.is_empty() { Ok(()) } else { Err("expected three arguments".into()) };
    };
    let trace = read(Path::new(trace), Limits::default())?.swap_remove(0);
    let mut pickle = Pickle { out: BufWriter::new(File::create(out)?), written: 0, memoized: 0 };
    let events = snapshot(&mut pickle, &trace, bytes.parse()?)?;
    pickle.out.flush()?;
    println!("{events} events in {} bytes", pickle.written);
    Ok(())
}

fn snapshot(pickle: &mut Pickle, trace: &Trace, most: u64) -> io::Result<u64> {
    pickle.write(b"\x80\x04}")?;
    pickle.memoize()?;
    pickle.write(b"(")?;
    for key in ["segments", "allocator_settings", "external_annotations"] {
        pickle.text(key)?;
        pickle.write(if key == "allocator_settings" { b"}" } else { b"]" })?;
    }
    pickle.text("device_traces")?;
    pickle.write(b"](")?;
    let words = Words::define(pickle)?;
    pickle.write(b"](")?;
    let (mut events, mut round) = (0_u64, 0);
    while pickle.written < most {
        for event in round_of(trace, round) {
            words.event(pickle, &event)?;
            events += 1;
            // Python appends a list's items by the thousand.
            if events % 1000 == 0 {
                pickle.write(b"e(")?;
            }
        }
        round += 1;
    }
    // The events of the device, the devices, the snapshot.
    pickle.write(b"eeu.")?;
    Ok(events)
}

struct Event {
    action: usize,
    address: u64,
    size: u64,
    stream: u64,
    time_us: u64,
    /// Which call stack.
    site: u64,
}

/// The events of one round. What is live at the end of it is freed, but for 1 MiB.
fn round_of(trace: &Trace, round: u64) -> impl Iterator<Item = Event> + '_ {
    let start = round * (trace.wall_us + 1);
    let event = move |block: usize, action, stream: u16, time_us| {
        let it = &trace.blocks[block];
        let (address, size, stream) = (it.address, it.size, trace.streams[usize::from(stream)]);
        Event { action, address, size, stream, time_us: start + time_us, site: block as u64 % 5000 }
    };
    let ops = trace.ops.iter().map(move |op| {
        let action = match op.kind {
            OpKind::Alloc => 0,
            OpKind::FreeRequested => 1,
            OpKind::FreeCompleted => 2,
        };
        event(op.block as usize, action, op.stream, op.time_us)
    });
    let mut live = vec![false; trace.blocks.len()];
    trace.ops.iter().for_each(|op| live[op.block as usize] = op.kind != OpKind::FreeCompleted);
    let left = (0..live.len()).filter(move |&block| live[block]);
    let frees = left.flat_map(move |block| [1, 2].map(|action| event(block, action, 0, trace.wall_us)));
    let leak = Event {
        action: 0,
        address: (1 << 46) + (round << 20),
        size: 1 << 20,
        stream: trace.streams[0],
        time_us: start + trace.wall_us,
        site: 5000,
    };
    ops.chain(frees).chain([leak])
}

/// What the snapshot names again and again, by the numbers in the memo.
struct Words {
    keys: Vec<u32>,
    actions: [u32; 3],
    nothing: [u32; 2],
    /// The frames of Python in each layer, and those of the libraries.
    layers: Vec<u32>,
    below: Vec<u32>,
}

impl Words {
    /// Writes all words once, as one list: Python defines each where it comes first, which costs a reader the same.
    fn define(pickle: &mut Pickle) -> io::Result<Self> {
        pickle.write(b"(")?;
        let keys =
            ["action", "addr", "size", "stream", "time_us", "compile_context", "user_metadata", "frames"];
        let keys = keys.iter().map(|key| pickle.text(key)).collect::<io::Result<_>>()?;
        let mut actions = [0; 3];
        for (action, text) in actions.iter_mut().zip(["alloc", "free_requested", "free_completed"]) {
            *action = pickle.text(text)?;
        }
        let nothing = [pickle.text("N/A")?, pickle.text("")?];
        let of_frame = [pickle.text("name")?, pickle.text("filename")?, pickle.text("line")?];
        let files = [
            pickle.text("/work/train/model.py")?,
            pickle.text("/usr/lib/python3.12/site-packages/torch/nn/modules/module.py")?,
        ];
        let module = pickle.text("_call_impl")?;
        let mut layers = Vec::new();
        for layer in 0..LAYERS {
            for part in 0..12 {
                let name =
                    if part % 2 == 1 { module } else { pickle.text(&format!("layer{layer}_{part}"))? };
                let file = files[usize::from(part % 2 == 1)];
                layers.push(pickle.frame(of_frame, name, file, 100 + layer * 12 + part)?);
            }
        }
        let library = pickle.text("??")?;
        let mut below = Vec::new();
        for at in 0..BELOW {
            let name = pickle
                .text(&format!("at::_ops::operator_{at}::call(c10::DispatchKeySet, at::Tensor const&)"))?;
            below.push(pickle.frame(of_frame, name, library, 0)?);
        }
        // The list of words is let go of.
        pickle.write(b"1")?;
        Ok(Self { keys, actions, nothing, layers, below })
    }

    fn event(&self, pickle: &mut Pickle, event: &Event) -> io::Result<()> {
        pickle.write(b"}")?;
        pickle.memoize()?;
        pickle.write(b"(")?;
        for (at, &key) in self.keys.iter().enumerate() {
            pickle.recall(key)?;
            match at {
                0 => pickle.recall(self.actions[event.action])?,
                1 => pickle.number(event.address)?,
                2 => pickle.number(event.size)?,
                3 => pickle.number(event.stream)?,
                4 => pickle.number(1_780_000_000_000_000 + event.time_us)?,
                5 | 6 => pickle.recall(self.nothing[at - 5])?,
                _ => self.stack(pickle, event.site)?,
            }
        }
        pickle.write(b"u")
    }

    /// Innermost first: the libraries' functions, then the layer's, then those that all stacks end in.
    fn stack(&self, pickle: &mut Pickle, site: u64) -> io::Result<()> {
        pickle.write(b"]")?;
        pickle.memoize()?;
        pickle.write(b"(")?;
        let layer = (site % LAYERS) as usize * 12;
        let (inner, outer) = (12 + site % 37, 12 + site % 13);
        for at in 0..inner {
            pickle.recall(self.below[((site * 31 + at * 7) % BELOW) as usize])?;
        }
        for at in 0..12 {
            pickle.recall(self.layers[layer + at])?;
        }
        for at in 0..outer {
            pickle.recall(self.below[at as usize])?;
        }
        pickle.write(b"e")
    }
}

/// Writes the opcodes of Python's pickler.
struct Pickle {
    out: BufWriter<File>,
    written: u64,
    memoized: u32,
}

impl Pickle {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.written += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    /// Names the value on top, and returns its number.
    fn memoize(&mut self) -> io::Result<u32> {
        self.memoized += 1;
        self.write(b"\x94")?;
        Ok(self.memoized - 1)
    }

    fn recall(&mut self, number: u32) -> io::Result<()> {
        match u8::try_from(number) {
            Ok(number) => self.write(&[b'h', number]),
            Err(_) => {
                let bytes = number.to_le_bytes();
                self.write(&[b'j', bytes[0], bytes[1], bytes[2], bytes[3]])
            }
        }
    }

    fn text(&mut self, text: &str) -> io::Result<u32> {
        self.write(&[0x8c, text.len() as u8])?;
        self.write(text.as_bytes())?;
        self.memoize()
    }

    fn number(&mut self, number: u64) -> io::Result<()> {
        if let Ok(small) = i32::try_from(number) {
            self.write(b"J")?;
            return self.write(&small.to_le_bytes());
        }
        // One byte more than needed, where the top bit would be the sign.
        let bytes = (64 - number.leading_zeros() as usize) / 8 + 1;
        self.write(&[0x8a, bytes as u8])?;
        self.write(&number.to_le_bytes()[..bytes])
    }

    fn frame(&mut self, of_frame: [u32; 3], name: u32, file: u32, line: u64) -> io::Result<u32> {
        self.write(b"}")?;
        let number = self.memoize()?;
        self.write(b"(")?;
        for (key, value) in of_frame.into_iter().zip([name, file]) {
            self.recall(key)?;
            self.recall(value)?;
        }
        self.recall(of_frame[2])?;
        self.number(line)?;
        self.write(b"u")?;
        Ok(number)
    }
}
