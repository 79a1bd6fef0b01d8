//! A request that found no memory in the recorded run: what was live then, what was held and not given out, whose blocks keep it,
//! and with which allocators it would have been served.
//!
//! All of it is what the recording says of that moment. Only whether another allocator would have run is found by replays.

use millpond::HumanBytes;
use serde::Serialize;

use crate::fit::Need;
use crate::holes::Holes;
use crate::replay::Map;
use crate::sites::site_of;
use crate::trace::{OpKind, Trace};

/// The last request of a trace that found no memory. Sizes in bytes.
#[derive(Debug, Clone, Serialize)]
pub struct OutOfMemory {
    /// What was asked for.
    pub asked: u64,
    /// By whom, where that was recorded.
    pub site: Option<String>,
    /// When, in microseconds since the trace began.
    pub time_us: u64,
    /// How many requests found no memory, this one among them.
    pub refused: usize,
    /// Whether the program allocated nothing afterwards.
    pub is_last: bool,
    /// What was live: requested, and not yet reusable.
    pub live: u64,
    /// Of that, what the program had freed, and what waited for other streams.
    pub waiting: u64,
    /// What the recorded allocator held, where that was recorded.
    pub reserved: Option<u64>,
    /// What it held and had not given out.
    pub unallocated: Option<u64>,
    /// The longest stretch of it, where the recording says what lay where.
    pub longest: Option<u64>,
    /// What the device had free.
    pub device_free: u64,
    /// What the job could have had, where that is known.
    pub room: Option<Room>,
    /// Whose blocks keep what is not given out.
    #[serde(flatten)]
    pub holes: Holes,
    /// With which allocators the job would have run to its end.
    pub would_run: Vec<Would>,
    /// With which it would not.
    pub would_not: Vec<Would>,
    /// With which it would have run if the limit is at least what they need.
    pub unsure: Vec<Would>,
}

/// The memory that a job could have had: what it held, and what was left. Both are the same where the device itself was full. A
/// limit of the process does not stand in a recording: it lies between the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Room {
    /// So much at least, in bytes.
    pub at_least: u64,
    /// And no more than this, in bytes.
    pub at_most: u64,
}

/// An allocator, and what the job needs with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Would {
    /// Its name.
    pub allocator: String,
    /// In bytes; `None` where no size suffices, or it was not looked for.
    pub needs: Option<u64>,
}

/// What device memory is taken in, at least.
const GRANULARITY: u64 = 2 << 20;

/// PyTorch's allocator takes so much for requests from 1 MiB on, and as much as they are from 10 MiB on.
const LARGE_SEGMENT: u64 = 20 << 20;
const SMALL: u64 = 1 << 20;
const LARGE: u64 = 10 << 20;

impl OutOfMemory {
    /// The last request that found no memory, if any did.
    pub fn of(trace: &Trace) -> Option<Self> {
        let oom = trace.recorded_ooms.last()?;
        let (live, waiting) = live_before(trace, oom.before_op);
        let bytes = |blocks: &[u32]| blocks.iter().map(|&block| trace.blocks[block as usize].size).sum();
        let [live_bytes, waiting]: [u64; 2] = [bytes(&live), bytes(&waiting)];
        let reserved = trace.segments.held_after(oom.before_op).filter(|&held| held > 0);
        let map = trace.segments.after(oom.before_op).map(|backing| map(trace, backing, &live));
        let mut holes = Holes::default();
        let mut longest = None;
        if let Some(map) = &map {
            (holes, longest) = (Holes::apart(trace, map), Some(Holes::longest_free(map)));
        }
        let later = &trace.ops[oom.before_op..];
        let again = |op: &&crate::trace::Op| op.kind == OpKind::Alloc && op.block != oom.block;
        Some(Self {
            asked: oom.size,
            site: site_of(trace, trace.blocks[oom.block as usize].stack),
            time_us: trace.ops[oom.before_op].time_us,
            refused: trace.recorded_ooms.len(),
            is_last: !later.iter().any(|op| again(&op)),
            live: live_bytes,
            waiting,
            reserved,
            unallocated: reserved.map(|held| held.saturating_sub(live_bytes)),
            longest,
            device_free: oom.device_free,
            room: reserved.map(|held| room(held, oom.device_free, taken_for(oom.size, trace.is_pytorchs))),
            holes,
            would_run: Vec::new(),
            would_not: Vec::new(),
            unsure: Vec::new(),
        })
    }

    /// Says with which allocators the job would have run, by what it needs with each. `ran` is the one that did not. `limit` is
    /// taken for what refused the request, where it may have been.
    pub fn judge(&mut self, needs: &[(&str, Option<Need>)], ran: &str, limit: Option<u64>) {
        let Some(mut room) = self.room else { return };
        if let Some(limit) = limit.filter(|limit| (room.at_least..=room.at_most).contains(limit)) {
            room = Room { at_least: limit, at_most: limit };
            self.room = Some(room);
        }
        for (name, need) in needs {
            let would = Would { allocator: (*name).to_owned(), needs: need.map(|need| need.bytes) };
            match would.needs {
                // What was seen is worth more than what a replay says of it.
                _ if *name == ran => self.would_not.push(would),
                Some(bytes) if bytes <= room.at_least => self.would_run.push(would),
                Some(bytes) if bytes <= room.at_most => self.unsure.push(would),
                _ => self.would_not.push(would),
            }
        }
    }

    /// What it comes to, a paragraph a line.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![self.about_request()];
        lines.extend(self.about_room());
        lines.extend(self.about_others());
        lines
    }

    fn about_request(&self) -> String {
        let Self { asked, live, waiting, .. } = self;
        let [asked, live] = [asked, live].map(|bytes| HumanBytes(*bytes));
        let by = self.site.as_deref().map_or_else(String::new, |site| format!(" in {site}"));
        let mut line = match self.refused {
            _ if self.is_last => format!("It died asking for {asked}{by}, with {live} live"),
            1 => format!("A request for {asked}{by} found no memory, with {live} live"),
            many => {
                format!("{many} requests found no memory; the last asked for {asked}{by}, with {live} live")
            }
        };
        if let Some(unallocated) = self.unallocated {
            line += &format!(" and {} reserved but unallocated", HumanBytes(unallocated));
        }
        line += ".";
        if let Some(longest) = self.longest {
            line += &format!(" The longest free stretch had {}.", HumanBytes(longest));
        }
        if *waiting > 0 {
            line += &format!(
                " Of what was live, the program had freed {}, which waited for other streams.",
                HumanBytes(*waiting)
            );
        }
        line
    }

    fn about_room(&self) -> Option<String> {
        let (Room { at_least, at_most }, held) = (self.room?, self.reserved?);
        let [least, most, held, free] = [at_least, at_most, held, self.device_free].map(HumanBytes);
        Some(if at_least == at_most {
            format!("It held {held} of the {least} that it could have had.")
        } else {
            format!(
                "It held {held}, and the device had {free} free: a limit of the process refused the request. A recording does \
                 not have it. It is from {least} to {most}; --capacity LIMIT makes the answer exact."
            )
        })
    }

    fn about_others(&self) -> Option<String> {
        let listed = |would: &[Would]| would.iter().map(Would::told).collect::<Vec<_>>().join(", ");
        let mut said = Vec::new();
        if !self.would_run.is_empty() {
            said.push(format!("It would have run with {}", listed(&self.would_run)));
        }
        if !self.unsure.is_empty() {
            let so = if said.is_empty() { "It would have run, if" } else { "if" };
            said.push(format!("{so} the limit is as large as that, with {}", listed(&self.unsure)));
        }
        if !self.would_not.is_empty() {
            let not = if said.is_empty() { "It would not have run with" } else { "not with" };
            said.push(format!("{not} {}", listed(&self.would_not)));
        }
        (!said.is_empty()).then(|| said.join("; ") + ".")
    }
}

impl Would {
    fn told(&self) -> String {
        match self.needs {
            Some(bytes) => format!("{} (needs {})", self.allocator, HumanBytes(bytes)),
            None => self.allocator.clone(),
        }
    }
}

/// What the recorded allocator would have taken of the device for a request.
fn taken_for(asked: u64, is_pytorchs: bool) -> u64 {
    match asked {
        SMALL..LARGE if is_pytorchs => LARGE_SEGMENT,
        _ => asked.next_multiple_of(GRANULARITY),
    }
}

/// The room that there was, where `held` bytes were held, the device had `free`, and `wanted` bytes more were refused.
fn room(held: u64, free: u64, wanted: u64) -> Room {
    if free < wanted {
        return Room { at_least: held + free, at_most: held + free };
    }
    Room { at_least: held, at_most: held.saturating_add(wanted).saturating_sub(1) }
}

/// The blocks that are live before an op, and those of them that the program has freed.
fn live_before(trace: &Trace, op: usize) -> (Vec<u32>, Vec<u32>) {
    let mut last: Vec<Option<OpKind>> = vec![None; trace.blocks.len()];
    for &block in &trace.live_before {
        last[block as usize] = Some(OpKind::Alloc);
    }
    for op in &trace.ops[..op] {
        last[op.block as usize] = Some(op.kind);
    }
    let with = |is: fn(OpKind) -> bool| {
        let blocks = (0u32..).zip(&last).filter(|(_, last)| last.is_some_and(is));
        blocks.map(|(block, _)| block).collect::<Vec<_>>()
    };
    (with(|kind| kind != OpKind::FreeCompleted), with(|kind| kind == OpKind::FreeRequested))
}

/// What lay where.
fn map(trace: &Trace, backing: Vec<(u64, u64)>, live: &[u32]) -> Map {
    let mut blocks = live.to_vec();
    blocks.sort_by_key(|&block| trace.blocks[block as usize].address);
    let place = |&block: &u32| {
        let block = &trace.blocks[block as usize];
        (block.address, block.size)
    };
    Map { backing, live: blocks.iter().map(place).collect(), blocks }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Event, EventKind, StackId};
    use crate::segments::Segment;
    use crate::trace::TraceBuilder;

    const MIB: u64 = 1 << 20;

    fn need(bytes: u64) -> Option<Need> {
        Some(Need { bytes, elsewhere: bytes, unlimited: bytes, retries: 0, decided_at: 0 })
    }

    /// Two segments of 100 MiB with 40 and 90 MiB live, of which one block waits for a stream; then 80 MiB are asked for.
    fn died(device_free: u64, later: &[(EventKind, u64, u64)]) -> Trace {
        let mut builder = TraceBuilder::default();
        builder.is_pytorchs = true;
        let mut push = |kind, address: u64, size: u64| {
            let (address, size) = (address * MIB, size * MIB);
            let event = Event { kind, device: 0, stream: 0, time_us: 1, address, size, stack: StackId::NONE };
            builder.push(event).unwrap();
        };
        use EventKind as E;
        push(E::SegmentAlloc, 1000, 100);
        push(E::Alloc, 1000, 40);
        push(E::SegmentAlloc, 1100, 100);
        push(E::Alloc, 1110, 90);
        push(E::FreeRequested, 1110, 90);
        push(E::OutOfMemory, device_free, 80);
        later.iter().for_each(|&(kind, address, size)| push(kind, address, size));
        for address in [1000, 1100] {
            let segment = Segment { address: address * MIB, bytes: 100 * MIB, stream: 0 };
            builder.segment_at_end(0, segment).unwrap();
        }
        builder.finish("t").remove(0)
    }

    #[test]
    fn the_moment_is_that_of_the_request_and_not_the_end() {
        use EventKind as E;
        let after =
            [(E::FreeRequested, 1000, 40), (E::FreeCompleted, 1000, 40), (E::FreeCompleted, 1110, 90)];
        for later in [&[][..], &after] {
            let found = OutOfMemory::of(&died(0, later)).unwrap();
            let OutOfMemory { asked, live, waiting, .. } = found;
            assert_eq!([asked, live, waiting].map(|bytes| bytes / MIB), [80, 130, 90]);
            assert_eq!(
                [found.reserved, found.unallocated, found.longest],
                [200, 70, 60].map(|mib| Some(mib * MIB))
            );
            // The hole at the end of one segment and that at the start of the next touch, and are two.
            assert_eq!(found.holes.by_size.values().sum::<u64>(), 70 * MIB);
            assert_eq!(found.holes.beside.iter().map(|beside| beside.holes).sum::<u64>(), 2);
            assert!(found.is_last);
        }
        let went_on = OutOfMemory::of(&died(0, &[(E::Alloc, 1040, 8)])).unwrap();
        assert!(!went_on.is_last);
        assert!(went_on.lines()[0].starts_with("A request for 80.00 MiB found no memory"));
        assert!(OutOfMemory::of(&crate::fixtures::recorded(crate::fixtures::GNN)).is_none());
    }

    #[test]
    fn a_full_device_is_exact_and_a_limit_is_between_two() {
        let room = |free| OutOfMemory::of(&died(free, &[])).unwrap().room.unwrap();
        assert_eq!(room(30), Room { at_least: 230 * MIB, at_most: 230 * MIB });
        assert_eq!(room(500), Room { at_least: 200 * MIB, at_most: 280 * MIB - 1 });
    }

    #[test]
    fn allocators_are_told_apart_by_what_they_need() {
        let mut found = OutOfMemory::of(&died(500, &[])).unwrap();
        let needs = [("a", need(190 * MIB)), ("b", need(240 * MIB)), ("c", need(290 * MIB)), ("d", None)];
        found.judge(&[&needs[..], &[("caching", need(1))]].concat(), "caching", None);
        let lines = found.lines();
        assert_eq!(
            lines[0],
            "It died asking for 80.00 MiB, with 130.00 MiB live and 70.00 MiB reserved but unallocated. The longest free \
             stretch had 60.00 MiB. Of what was live, the program had freed 90.00 MiB, which waited for other streams."
        );
        assert!(lines[1].contains("It is from 200.00 MiB to 280.00 MiB"), "{lines:?}");
        assert_eq!(
            lines[2],
            "It would have run with a (needs 190.00 MiB); if the limit is as large as that, with b (needs 240.00 MiB); not \
             with c (needs 290.00 MiB), d, caching (needs 1 B)."
        );
        let mut exact = OutOfMemory::of(&died(500, &[])).unwrap();
        exact.judge(&[&needs[..], &[("caching", need(1))]].concat(), "caching", Some(250 * MIB));
        assert_eq!(exact.lines()[1], "It held 200.00 MiB of the 250.00 MiB that it could have had.");
        assert!(
            exact.lines()[2]
                .starts_with("It would have run with a (needs 190.00 MiB), b (needs 240.00 MiB); not")
        );
        let mut larger = OutOfMemory::of(&died(500, &[])).unwrap();
        larger.judge(&needs, "caching", Some(500 * MIB));
        assert_eq!(larger.lines()[1], found.lines()[1], "a larger card is another question");
    }
}
