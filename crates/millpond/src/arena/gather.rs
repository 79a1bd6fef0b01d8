//! Gathering: once a job that repeats itself has moved about as many pages as are free, all that are free at
//! low water are brought to one place, side by side: where most of them lie already, if they do.
//!
//! Pages move where no free block of the right length is: each move leaves a gap in the addresses where the page was,
//! and the more gaps there are, the fewer free blocks are long. Where all that a job takes and gives back lies in one
//! range without gaps, best fit alone nearly always finds room (docs/pages.md has figures). So moving everything once
//! spares moving a little at every step.
//!
//! It is due when it costs no more than what was spent on moves since the last time, so that at worst it doubles
//! that; and only where what is out comes back to one low level again and again (`tides`), on one stream. From then on
//! the pool is *lenient*: a hit may pin whatever is free, since moving a page for it would tear the first gap. That
//! may cost memory, where blocks that stay come to lie amid the range: so leniency ends once much is pinned at low
//! water, when what comes and goes is gone; or where the pool comes to hold more than ever, by a 16th of what is
//! needed. The next time takes twice as many moves then.

use super::blocks::State;
use super::find::Want;
use super::placing::Place;
use super::supply::Supply;
use super::tides::{Tides, Turn};
use super::{Arena, Refusal, Zone};
use crate::order::{Stream, StreamKey};

/// Misses since the last time before pages are gathered: with fewer, what was moved may be for two or three long blocks.
const LEAST_MISSES: u64 = 32;

/// Pages moved since the last time before it is looked at whether it is due.
const LEAST_MOVED: u64 = 64;

/// What a lenient pool may hold beyond the most that was ever needed: this part of it.
const BEYOND_PART: u64 = 16;

/// What may be pinned at low water while the pool is lenient, in times what may be before placements are strict. Of jobs
/// that repeat themselves it was less.
const STAYING_PINS: u64 = 3;

/// The most that moves may have to come to before pages are gathered again, in pages for each that is free.
const MOST_PATIENCE: u64 = 1 << 20;

/// Requests that are forgiven one for another stream.
const STRAY: u32 = 16;

/// Requests of one stream, less those forgiven, from which on it is the only one that counts; and how many of them are
/// counted.
const ALONE: u32 = 256;
const MOST_ALONE: u32 = 2 * ALONE;

/// What is known for gathering. See the [module](self).
#[derive(Debug)]
pub(super) struct Gatherer {
    tides: Tides,
    /// Pages stolen, and misses, up to the last time.
    stolen: u64,
    misses: u64,
    is_lenient: bool,
    /// Pages to be moved for each that is free, before the next time.
    patience: u64,
    /// The most units that were ever out.
    most_out: u64,
    /// The stream that most requests are for, and how clearly so.
    stream: Option<StreamKey>,
    lead: u32,
}

impl Default for Gatherer {
    fn default() -> Self {
        Self {
            tides: Tides::default(),
            stolen: 0,
            misses: 0,
            is_lenient: false,
            patience: 1,
            most_out: 0,
            stream: None,
            lead: 0,
        }
    }
}

impl Gatherer {
    /// Whether a hit may pin whatever is free.
    pub(super) fn is_lenient(&self) -> bool {
        self.is_lenient
    }

    /// Boyer and Moore's vote for the majority, in which others weigh more.
    fn note_stream(&mut self, stream: StreamKey) {
        if self.stream == Some(stream) {
            self.lead = (self.lead + 1).min(MOST_ALONE);
            return;
        }
        self.lead = self.lead.saturating_sub(STRAY);
        if self.lead == 0 {
            self.stream = Some(stream);
        }
    }

    fn begin_anew(&mut self, stolen: u64, misses: u64) {
        (self.stolen, self.misses) = (stolen, misses);
    }

    /// It was no gain: what pins much may do so no more.
    fn regret(&mut self) {
        self.is_lenient = false;
        self.patience = (2 * self.patience).min(MOST_PATIENCE);
    }
}

impl Arena {
    /// Counts a block of the zone that is let out.
    #[inline]
    pub(super) fn count_out(&mut self, zone: Zone, units: u64) {
        let before = self.out_units;
        self.out_blocks[zone as usize] += 1;
        self.out_units += units;
        if zone == Zone::Large {
            let reserved = self.counters.reserved.current() >> self.layout.unit_shift();
            for out in [before, self.out_units] {
                match self.gatherer.tides.note(out, reserved, self.pinned) {
                    Some(Turn::Low(pinned)) => self.note_low_water(pinned),
                    Some(Turn::High(pinned)) => self.note_high_water(pinned),
                    None => {}
                }
            }
            self.gatherer.most_out = self.gatherer.most_out.max(self.out_units);
        }
    }

    /// Notes what was pinned at low water: by blocks that stay.
    fn note_low_water(&mut self, pinned: u64) {
        if pinned > STAYING_PINS * self.strict_pins() {
            self.regret_leniency();
        }
    }

    /// Notes that the pool is about to hold more than ever, `after` bytes, for a block of `units`.
    pub(super) fn note_growth(&mut self, after: u64, units: u64) {
        if !self.gatherer.is_lenient {
            return;
        }
        let needed = self.gatherer.most_out.max(self.out_units + units);
        if after >> self.layout.unit_shift() > needed + needed / BEYOND_PART && self.pins_more_than_strict() {
            self.regret_leniency();
        }
    }

    /// Ends leniency where the pool is short of memory.
    pub(super) fn regret_leniency(&mut self) {
        if self.gatherer.is_lenient {
            self.gatherer.regret();
            self.begin_gathering_anew();
            tracing::debug!(reserved = self.counters.reserved.current(), "what is free is pinned no more");
        }
    }

    /// Whether what is free should be [gathered](Self::gather) now, before a large block is looked for on the stream.
    #[inline]
    pub(crate) fn is_gathering_due(&mut self, stream: &Stream) -> bool {
        self.gatherer.note_stream(stream.key());
        self.counters.pages_stolen.get() - self.gatherer.stolen >= LEAST_MOVED && self.is_gathering_worth_it()
    }

    #[cold]
    fn is_gathering_worth_it(&self) -> bool {
        let (gatherer, counters) = (&self.gatherer, &self.counters);
        let reserved = counters.reserved.current() >> self.layout.unit_shift();
        // About so many would be moved.
        let free_pages = self.pages.len() as u64 * reserved.saturating_sub(self.out_units) / reserved.max(1);
        !self.keeps
            && counters.misses.get() - gatherer.misses >= LEAST_MISSES
            && counters.pages_stolen.get() - gatherer.stolen >= gatherer.patience * free_pages
            && gatherer.lead >= ALONE
            && self.is_low_water()
            && !self.pins_more_than_strict()
    }

    /// Whether the level is down where it comes back to.
    pub(super) fn is_low_water(&self) -> bool {
        let reserved = self.counters.reserved.current() >> self.layout.unit_shift();
        self.gatherer.tides.is_low_water(self.out_units, reserved)
    }

    /// Whether a hit may pin whatever is free.
    pub(crate) fn is_lenient(&self) -> bool {
        self.gatherer.is_lenient
    }

    /// Moves the free pages of the large zone that the stream may use to one place. To be called with the caches
    /// emptied. What was moved before an error stays there.
    #[cold]
    pub(crate) fn gather(&mut self, stream: &Stream) -> Result<(), Refusal> {
        self.reap();
        let slots = self.slots_to_gather(stream);
        let reserved = self.counters.reserved.current() >> self.layout.unit_shift();
        let is_most = 2 * (slots << self.layout.slot_shift()) > reserved.saturating_sub(self.out_units);
        let gathered = if is_most { self.gather_slots(slots, stream) } else { Ok(()) };
        if is_most && gathered.is_ok() {
            self.gatherer.is_lenient = true;
        } else {
            self.gatherer.regret();
        }
        self.begin_gathering_anew();
        gathered
    }

    fn begin_gathering_anew(&mut self) {
        self.gatherer.begin_anew(self.counters.pages_stolen.get(), self.counters.misses.get());
    }

    /// Slots of free pages in the large zone that the stream may use.
    fn slots_to_gather(&self, stream: &Stream) -> u64 {
        let mut reach = self.reach(stream);
        let long = self.free[Zone::Large as usize].at_least(self.layout.units_per_slot());
        let ready = long.filter(|id| reach.covers(&self.blocks[*id].fence));
        ready.flat_map(|id| self.whole_pages(id)).map(|(_, _, slots)| u64::from(slots)).sum()
    }

    /// Moves free pages to one place of so many slots, the longest first.
    fn gather_slots(&mut self, slots: u64, stream: &Stream) -> Result<(), Refusal> {
        if self.free[Zone::Large as usize].longest() >= slots << self.layout.slot_shift() {
            // They are in one place.
            return Ok(());
        }
        let place = self.place_to_gather(slots, stream)?;
        let mut supply = self.supply(&place, stream);
        self.keep_ready_large(&mut supply);
        let moved = self.fill_with_free(&place, &mut supply, stream);
        self.close_robbed(&mut supply);
        supply.clear();
        self.spare_supply = supply;
        self.join_unmerged();
        tracing::debug!(bytes = slots * self.layout.slot_bytes, "free pages were gathered");
        moved
    }

    /// A place of so many slots that has most of its pages, if there is one: what was gathered before has gaps now, and
    /// is not moved anew for them. Else a fresh one.
    fn place_to_gather(&mut self, slots: u64, stream: &Stream) -> Result<Place, Refusal> {
        let (units, align) = (slots << self.layout.slot_shift(), self.layout.unit_bytes);
        let want = Want { zone: Zone::Large, units, align, waste: i64::MAX, little: i64::MAX };
        let grown = self.best_growth(&want, stream).filter(|grown| 2 * grown.missing < slots);
        grown.map_or_else(|| self.void_place(slots), Ok)
    }

    /// Puts free pages from elsewhere behind the voids of a place, as far as there are any.
    fn fill_with_free(&mut self, place: &Place, supply: &mut Supply, stream: &Stream) -> Result<(), Refusal> {
        let mut at = Some(place.first);
        while let Some(id) = at.filter(|id| self.blocks[*id].start < place.end) {
            at = self.blocks[id].next;
            if self.blocks[id].state != State::Void {
                continue;
            }
            let slots = self.void_slots(id, (place.start, place.end));
            let mut stretch = self.open_stretch(id, slots);
            let mut moved = Ok(true);
            while let Ok(true) = moved
                && stretch.room() > 0
            {
                moved = self.steal(&mut stretch, supply, stream);
            }
            self.close_stretch(&stretch);
            if !moved? {
                break;
            }
        }
        Ok(())
    }

    /// Small blocks are better off with their pages where they are; and no stream should wait for this.
    fn keep_ready_large(&self, supply: &mut Supply) {
        supply.retain(|region, is_ready| is_ready && self.regions.get(region).zone == Zone::Large);
    }

    /// A void of the large zone with room for so many slots.
    fn void_place(&mut self, slots: u64) -> Result<Place, Refusal> {
        let units = slots << self.layout.slot_shift();
        let void = self.void[Zone::Large as usize].at_least(units).next();
        let first = void.map_or_else(|| self.add_region(Zone::Large, slots), Ok)?;
        Ok(Place::fresh(&self.blocks[first], first, units, slots))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Context;
    use crate::device::sim::{SimDevice, SimOptions};

    #[test]
    fn one_stream_leads_in_spite_of_strays_and_four_have_no_leader() {
        let context = Context::new(SimDevice::new(SimOptions::default()).unwrap());
        let streams = [(); 4].map(|()| context.create_stream().unwrap().key());
        let after = |asking: &mut dyn Iterator<Item = usize>| {
            let mut gatherer = Gatherer::default();
            asking.for_each(|stream| gatherer.note_stream(streams[stream]));
            gatherer.lead >= ALONE
        };
        assert!(after(&mut (0..2000).map(|at| usize::from(at % 100 == 7))));
        assert!(!after(&mut (0..2000).map(|at| at % 4)));
        assert!(!after(&mut (0..2000).map(|at| at / 50 % 4)));
    }
}
