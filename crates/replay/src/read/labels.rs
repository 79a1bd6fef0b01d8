//! Tags and call sites of a recording, as call stacks: the frames of the site, and around them the tags.

use rustc_hash::FxHashMap;

use crate::event::{Frame, FrameId, StackId, Stacks};

/// Tags inside each other at most. The recorder keeps to 64.
const DEEPEST: usize = 256;

/// Definitions, by their number less one, and the stacks made of them so far.
#[derive(Debug, Default)]
pub(super) struct Labels {
    tags: Vec<NestedTag>,
    frames: Vec<Frame>,
    sites: Vec<Vec<u32>>,
    /// Numbers in `sites`.
    lines: usize,
    /// Bytes of all texts.
    texts: usize,
    frame_ids: FxHashMap<u32, FrameId>,
    tag_ids: FxHashMap<u32, FrameId>,
    /// The tags that whole pools are of, by the pool's number.
    pools: FxHashMap<u32, String>,
    pool_ids: FxHashMap<u32, FrameId>,
    stacks: FxHashMap<(u32, u32, u32), StackId>,
}

#[derive(Debug)]
struct NestedTag {
    inside: u32,
    depth: usize,
    text: String,
}

impl Labels {
    /// Everything held, for limits.
    pub(super) fn len(&self) -> usize {
        self.tags.len() + self.frames.len() + self.sites.len() + self.pools.len() + self.lines
    }

    /// Bytes of memory that they take, about, with the room that tables grow into.
    pub(super) fn bytes(&self) -> u64 {
        let tables = self.tags.len() * size_of::<NestedTag>()
            + self.frames.len() * size_of::<Frame>()
            + self.sites.len() * size_of::<Vec<u32>>();
        (2 * tables + self.lines * size_of::<u32>() + self.texts) as u64
    }

    pub(super) fn tag(&mut self, tag: u32, inside: u32, text: &str) -> Result<(), &'static str> {
        next(tag, self.tags.len())?;
        let depth = match inside.checked_sub(1) {
            None => 1,
            Some(at) => self.tags.get(at as usize).ok_or("a tag inside one that is not defined")?.depth + 1,
        };
        if depth > DEEPEST {
            return Err("tags too deep inside each other");
        }
        self.texts += text.len();
        self.tags.push(NestedTag { inside, depth, text: text.to_owned() });
        Ok(())
    }

    /// All blocks of this pool have the tag, outside of those of their own.
    pub(super) fn pool(&mut self, pool: u32, tag: &str) {
        self.texts += tag.len();
        self.pools.insert(pool, tag.to_owned());
    }

    pub(super) fn frame(
        &mut self,
        frame: u32,
        name: &str,
        file: &str,
        line: u32,
    ) -> Result<(), &'static str> {
        next(frame, self.frames.len())?;
        self.texts += name.len() + file.len();
        self.frames.push(Frame { name: name.into(), file: file.into(), line });
        Ok(())
    }

    pub(super) fn site(&mut self, site: u32, frames: Vec<u32>) -> Result<(), &'static str> {
        next(site, self.sites.len())?;
        if frames.iter().any(|&frame| frame == 0 || frame as usize > self.frames.len()) {
            return Err("a call site with a frame that is not defined");
        }
        self.lines += frames.len();
        self.sites.push(frames);
        Ok(())
    }

    /// The call stack of a tag and a site, either of which may be 0, in a pool. `left` bounds what all stacks come to:
    /// a file may combine them at will.
    pub(super) fn stack(
        &mut self,
        stacks: &mut Stacks,
        (tag, site, pool): (u32, u32, u32),
        left: &mut usize,
    ) -> Result<StackId, &'static str> {
        let pool = if self.pools.contains_key(&pool) { pool } else { 0 };
        if let Some(&known) = self.stacks.get(&(tag, site, pool)) {
            return Ok(known);
        }
        let mut stack = Vec::new();
        if let Some(at) = site.checked_sub(1) {
            for &frame in self.sites.get(at as usize).ok_or("a call site that is not defined")? {
                let add = || stacks.add_frame(self.frames[frame as usize - 1].clone());
                stack.push(*self.frame_ids.entry(frame).or_insert_with(add));
            }
        }
        let mut inner = tag;
        while let Some(at) = inner.checked_sub(1) {
            let tag = self.tags.get(at as usize).ok_or("a tag that is not defined")?;
            let add = || stacks.add_frame(Frame::of_tag(&tag.text));
            stack.push(*self.tag_ids.entry(inner).or_insert_with(add));
            inner = tag.inside;
        }
        if let Some(tag) = self.pools.get(&pool) {
            let add = || stacks.add_frame(Frame::of_tag(tag));
            stack.push(*self.pool_ids.entry(pool).or_insert_with(add));
        }
        *left = left.checked_sub(stack.len()).ok_or("more call stacks than this reader takes")?;
        let id = stacks.add_stack(&stack);
        self.stacks.insert((tag, site, pool), id);
        Ok(id)
    }
}

/// Numbers of definitions rise by one.
fn next(number: u32, before: usize) -> Result<(), &'static str> {
    if number as usize == before + 1 { Ok(()) } else { Err("a definition out of its order") }
}
