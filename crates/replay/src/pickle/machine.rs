//! The pickle machine: a stack, a memo, and one arm an opcode.

use std::cmp::Ordering;

use super::heap::{Dict, Fold, Heap};
use super::input::{Input, InputError, InputResult};
use super::limits::Limits;
use super::value::{Text, Value};

pub(super) struct Machine<'a> {
    heap: Heap,
    stack: Vec<Value>,
    /// The longest that the stack was, for which memory was counted.
    highest: usize,
    /// Where in the stack each open mark is.
    marks: Vec<usize>,
    memo: Vec<Value>,
    fold: &'a mut dyn Fold,
    /// Values that may still be made.
    left: usize,
    /// Bytes of memory that may still be taken.
    memory: u64,
    limits: Limits,
}

/// Bytes that `count` entries of a table are counted as: a table that grows has up to twice the room that it fills.
fn grown<T>(count: usize) -> u64 {
    2 * (count * size_of::<T>()) as u64
}

/// What a string takes beside its bytes: its count of owners, and its places in two tables.
const TEXT_BYTES: u64 = 128;

/// What a caller's row takes.
const ROW_BYTES: u64 = 128;

impl<'a> Machine<'a> {
    pub(super) fn new(limits: Limits, fold: &'a mut dyn Fold) -> Self {
        let Limits { values: left, memory, .. } = limits;
        let (heap, stack, marks, memo) = (Heap::default(), Vec::new(), Vec::new(), Vec::new());
        Self { heap, stack, highest: 0, marks, memo, fold, left, memory, limits }
    }

    /// Runs to the end of the pickle.
    pub(super) fn run(mut self, input: &mut Input<'_>) -> InputResult<(Heap, Value)> {
        loop {
            // Every opcode adds at most one value to the stack, the memo and the heap.
            self.left =
                self.left.checked_sub(1).ok_or(InputError::TooManyValues { limit: self.limits.values })?;
            let opcode = input.byte()?;
            if opcode == b'.' {
                let value = self.pop()?;
                return Ok((self.heap, value));
            }
            self.step(opcode, input)?;
            if self.stack.len() > self.highest {
                self.take(grown::<Value>(self.stack.len() - self.highest))?;
                self.highest = self.stack.len();
            }
        }
    }

    /// Counts memory that is about to be taken, or just was.
    fn take(&mut self, bytes: u64) -> InputResult<()> {
        let left = self.memory.checked_sub(bytes);
        self.memory = left.ok_or(InputError::TooMuchMemory { limit: self.limits.memory })?;
        Ok(())
    }

    fn step(&mut self, opcode: u8, input: &mut Input<'_>) -> InputResult<()> {
        match opcode {
            // The protocol's number, and the length of a frame: neither changes what follows.
            0x80 => input.byte().map(drop),
            0x95 => input.array::<8>().map(drop),
            b'(' => {
                self.marks.push(self.stack.len());
                self.take(grown::<usize>(1))
            }
            b'0' => self.pop().map(drop),
            b'1' => self.close_mark().map(|from| self.stack.truncate(from)),
            b'2' => self.top().map(|top| self.stack.push(top)),
            b'q' => input.byte().and_then(|index| self.memoize(usize::from(index))),
            b'r' => input.array().and_then(|index| self.memoize(u32::from_le_bytes(index) as usize)),
            0x94 => self.memoize(self.memo.len()),
            b'h' => input.byte().and_then(|index| self.recall(usize::from(index))),
            b'j' => input.array().and_then(|index| self.recall(u32::from_le_bytes(index) as usize)),
            b'a' => self.stack.len().checked_sub(1).ok_or(UNDERFLOW).and_then(|from| self.append(from)),
            b'e' => self.close_mark().and_then(|from| self.append(from)),
            b's' => self.stack.len().checked_sub(2).ok_or(UNDERFLOW).and_then(|from| self.set_items(from)),
            b'u' => self.close_mark().and_then(|from| self.set_items(from)),
            // GLOBAL, INST, OBJ, NEWOBJ, NEWOBJ_EX, REDUCE, BUILD, STACK_GLOBAL, the extensions, persistent ids.
            b'c' | b'i' | b'o' | 0x81 | 0x92 | b'R' | b'b' | 0x93 | 0x82..=0x84 | b'P' | b'Q' => {
                Err(InputError::Code { opcode })
            }
            _ => self.value(opcode, input).map(|value| self.stack.push(value)),
        }
    }

    /// The opcodes that push a new value.
    fn value(&mut self, opcode: u8, input: &mut Input<'_>) -> InputResult<Value> {
        Ok(match opcode {
            b'N' => Value::None,
            0x88 => Value::Bool(true),
            0x89 => Value::Bool(false),
            b'K' => Value::Int(i64::from(input.byte()?)),
            b'M' => Value::Int(i64::from(u16::from_le_bytes(input.array()?))),
            b'J' => Value::Int(i64::from(i32::from_le_bytes(input.array()?))),
            0x8a => {
                let bytes = input.byte()?;
                Value::Int(input.long(bytes)?)
            }
            b'G' => input.array::<8>().map(|_| Value::Other)?,
            0x8c => {
                let bytes = u64::from(input.byte()?);
                Value::Text(self.text(bytes, input)?)
            }
            b'X' => {
                let bytes = u64::from(u32::from_le_bytes(input.array()?));
                Value::Text(self.text(bytes, input)?)
            }
            b'C' => {
                let bytes = u64::from(input.byte()?);
                input.skip(bytes).map(|()| Value::Other)?
            }
            b'B' => {
                let bytes = u64::from(u32::from_le_bytes(input.array()?));
                input.skip(bytes).map(|()| Value::Other)?
            }
            b')' | b']' => self.items(self.stack.len())?,
            0x85 => self.tuple(1)?,
            0x86 => self.tuple(2)?,
            0x87 => self.tuple(3)?,
            b't' => {
                let from = self.close_mark()?;
                self.items(from)?
            }
            b'}' => {
                self.take(grown::<Dict>(1))?;
                self.heap.dicts.push(Dict::Pairs(Vec::new()));
                Value::Dict(number(self.heap.dicts.len())?)
            }
            0x8f => Value::Other,
            _ => return Err(InputError::Opcode { opcode }),
        })
    }

    fn text(&mut self, bytes: u64, input: &mut Input<'_>) -> InputResult<Text> {
        let (text, is_new) = self.heap.texts.intern(input.text(bytes)?);
        self.take(if is_new { bytes + TEXT_BYTES } else { 0 })?;
        Ok(text)
    }

    fn tuple(&mut self, length: usize) -> InputResult<Value> {
        let from = self.stack.len().checked_sub(length).ok_or(UNDERFLOW)?;
        self.items(from)
    }

    /// A new list or tuple of what lies on the stack from there on.
    fn items(&mut self, from: usize) -> InputResult<Value> {
        // Before: the room of what is appended may be as much again.
        self.take(grown::<Vec<Value>>(1))?;
        let room = self.heap.lists.add(&self.stack[from..]);
        self.stack.truncate(from);
        self.take(grown::<Value>(room))?;
        Ok(Value::Items(number(self.heap.lists.len())?))
    }

    fn append(&mut self, from: usize) -> InputResult<()> {
        let below = from.checked_sub(1).ok_or(UNDERFLOW)?;
        let Value::Items(list) = self.stack[below] else {
            return Err(InputError::Malformed("something is appended to what is no list"));
        };
        let room = self.heap.lists.extend(list, &self.stack[from..]);
        self.stack.truncate(from);
        self.take(grown::<Value>(room))
    }

    fn set_items(&mut self, from: usize) -> InputResult<()> {
        let below = from.checked_sub(1).ok_or(UNDERFLOW)?;
        let Value::Dict(id) = self.stack[below] else {
            return Err(InputError::Malformed("an entry is added to what is no dict"));
        };
        if !(self.stack.len() - from).is_multiple_of(2) {
            return Err(InputError::Malformed("a dict's key has no value"));
        }
        let mut taken = grown::<Value>(self.stack.len() - from);
        let added = self.stack[from..].chunks_exact(2).map(|pair| (pair[0], pair[1]));
        let Dict::Pairs(pairs) = &mut self.heap.dicts[id as usize] else {
            return Err(InputError::Malformed("an entry is added to an event that was complete"));
        };
        if pairs.is_empty() {
            // Most dicts get all their entries at once; those that are rows never get a vector of their own.
            let added: smallvec::SmallVec<[_; 16]> = added.collect();
            match self.fold.dict(&self.heap.texts, &added) {
                Some(row) => {
                    self.heap.dicts[id as usize] = Dict::Row(row);
                    taken = ROW_BYTES;
                }
                None => pairs.extend(added),
            }
        } else {
            pairs.extend(added);
        }
        self.stack.truncate(from);
        self.take(taken)
    }

    fn memoize(&mut self, index: usize) -> InputResult<()> {
        let top = self.top()?;
        // Python numbers memo entries in order; a gap would be memory for nothing.
        match index.cmp(&self.memo.len()) {
            Ordering::Less => self.memo[index] = top,
            Ordering::Equal => {
                self.take(grown::<Value>(1))?;
                self.memo.push(top);
            }
            Ordering::Greater => return Err(InputError::Malformed("a memo entry out of order")),
        }
        Ok(())
    }

    fn recall(&mut self, index: usize) -> InputResult<()> {
        let value = *self.memo.get(index).ok_or(InputError::Malformed("a memo entry that was never made"))?;
        self.stack.push(value);
        Ok(())
    }

    fn top(&self) -> InputResult<Value> {
        self.stack.last().copied().ok_or(UNDERFLOW)
    }

    fn pop(&mut self) -> InputResult<Value> {
        self.stack.pop().ok_or(UNDERFLOW)
    }

    /// Closes the last mark, and returns where in the stack it was.
    fn close_mark(&mut self) -> InputResult<usize> {
        let mark =
            self.marks.pop().ok_or(InputError::Malformed("an opcode looks for a mark that is not there"))?;
        if mark > self.stack.len() { Err(UNDERFLOW) } else { Ok(mark) }
    }
}

const UNDERFLOW: InputError = InputError::Malformed("an opcode takes more values than there are");

/// The number of what was pushed last.
fn number(length: usize) -> InputResult<u32> {
    u32::try_from(length - 1).map_err(|_| InputError::Malformed("more values than can be numbered"))
}
