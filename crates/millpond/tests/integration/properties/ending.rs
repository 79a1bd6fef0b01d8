//! How a program ends: everything is given back, and nothing is left.

use super::checks::ensure;
use super::options::{Ending, GRANULARITY};
use super::world::{Owner, Verdict, World};

impl World {
    /// Ends the program, and checks that everything went back to the device.
    pub(crate) fn finish(mut self) -> Verdict {
        self.sim.fail_no_more();
        match self.options.ending {
            Ending::Orderly => {
                self.release_holds();
                self.free_all()?;
                self.check()?;
                self.trim_all()?;
            }
            Ending::PoolsFirst => {
                self.release_holds();
                let ids: Vec<_> = self.blocks.iter().map(|block| block.pool).collect();
                let with_blocks = self.pools.iter().filter(|slot| ids.contains(&slot.id)).count();
                drop(std::mem::take(&mut self.pools));
                self.free_all()?;
                // Memory of pools that outlived their handles goes when the host next waits.
                if with_blocks > 0 {
                    self.synchronize()?;
                }
            }
            Ending::Hasty => {
                self.free_all()?;
                self.release_holds();
            }
        }
        self.take_down()
    }

    fn free_all(&mut self) -> Verdict {
        while let Some(last) = self.blocks.len().checked_sub(1) {
            // A free that needs the host to wait needs the streams to go on.
            if self.free_one(last)? {
                continue;
            }
            self.release_holds();
            ensure!(self.free_one(last)?, "a block could not be freed at the end");
        }
        Ok(())
    }

    fn free_one(&mut self, block: usize) -> Verdict<bool> {
        if !matches!(self.blocks[block].owner, Owner::Program) {
            return self.free_owner(block);
        }
        let slot = block % super::program::STREAMS;
        Ok(self.order_free(block, slot)? && self.free(block, slot, false)?)
    }

    /// With nothing live and nothing pending, every byte can be released.
    fn trim_all(&mut self) -> Verdict {
        ensure!(self.synchronize()?, "the device could not be synchronised at the end");
        for slot in &self.pools {
            let reserved = slot.pool.reserved().current;
            let kept = slot.pool.release_threshold();
            ensure!(
                reserved <= kept || slot.destroyed,
                "{reserved} bytes above the threshold of {kept} stayed"
            );
            ensure!(reserved == 0 || !slot.destroyed, "a destroyed pool keeps {reserved} bytes");
            slot.pool.trim_to(0).map_err(|error| format!("the last trim failed: {error}"))?;
            let left = slot.pool.reserved().current;
            ensure!(left == 0, "{left} bytes ({} pages) were not released", left / GRANULARITY);
            slot.pool.check().map_err(|why| format!("{}: {why}", slot.pool.name()))?;
        }
        self.check()
    }

    /// Drops everything, and asks what is left.
    fn take_down(mut self) -> Verdict {
        self.events.clear();
        self.pools.clear();
        for slot in std::mem::take(&mut self.streams) {
            self.retire_stream(slot);
        }
        self.sim.fail_no_more();
        let Self { checker, context, stray_holds, sim, .. } = self;
        stray_holds.into_iter().for_each(|hold| sim.release(hold));
        drop(context);
        checker.verify_nothing_left().map_err(|report| report.to_string())
    }
}
