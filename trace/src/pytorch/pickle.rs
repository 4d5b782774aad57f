//! A pickle machine for plain data: numbers, text, lists, tuples, dictionaries.
//!
//! Other objects are refused. Values lie in one arena and refer to each other by number, so neither
//! reading nor dropping them recurses. Memory is bounded by [`MEMORY_PER_BYTE`] and an absolute
//! limit. A container that was put into another one may no longer change, so that there are no
//! cycles.

use super::file::Limits;
use super::memory::Memory;
use crate::error::{PickleProblem as Problem, TraceError, TraceProblem};

pub use super::memory::MEMORY_PER_BYTE;
pub use crate::error::PickleProblem;

/// Largest nesting of containers.
const DEPTH_MAX: u8 = 64;
/// A value, with the place where it was made or recalled from the memo.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Value {
    /// Offset of the instruction that made the value.
    pub offset: usize,
    /// The kind of the value, with the value itself or a handle to it.
    pub kind: Kind,
}

/// The kinds of value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// `None`.
    None,
    /// `True` or `False`.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A floating-point number.
    Float(f64),
    /// Text; see [`Document::text`].
    Text(usize),
    /// A list; see [`Document::items`].
    List(usize),
    /// A tuple; see [`Document::items`].
    Tuple(usize),
    /// A dictionary; see [`Document::items`]. Its keys and values alternate.
    Dict(usize),
}

impl Kind {
    /// The kind in words.
    pub fn name(self) -> &'static str {
        match self {
            Kind::None => "None",
            Kind::Bool(_) => "a truth value",
            Kind::Int(_) => "a whole number",
            Kind::Float(_) => "a fraction",
            Kind::Text(_) => "text",
            Kind::List(_) => "a list",
            Kind::Tuple(_) => "a tuple",
            Kind::Dict(_) => "a dictionary",
        }
    }
}

#[derive(Debug, Default)]
struct Container {
    items: Vec<Value>,
    /// True once the container is inside another one.
    is_sealed: bool,
    /// Depth: 1 more than the deepest item.
    depth: u8,
}

/// A pickle that was read. Values are handles into this document.
#[derive(Debug)]
pub struct Document<'a> {
    /// The outermost value.
    pub root: Value,
    containers: Vec<Container>,
    texts: Vec<&'a str>,
}

impl<'a> Document<'a> {
    /// Reads a pickle of protocol 2 to 5 within the memory of [`Limits::default`].
    ///
    /// # Errors
    /// The pickle is malformed, contains more than plain data, or takes too much memory.
    pub fn read(bytes: &'a [u8]) -> Result<Self, TraceError> {
        let mut memory = Memory::of(bytes.len(), Limits::default().memory_bytes);
        Document::read_within(bytes, &mut memory)
    }

    pub(crate) fn read_within(bytes: &'a [u8], memory: &mut Memory) -> Result<Self, TraceError> {
        let mut machine = Machine::new(bytes, memory);
        loop {
            let offset = machine.at;
            let fail = |problem| TraceError::new(offset, TraceProblem::Pickle(problem));
            if let Some(root) = machine.step().map_err(fail)? {
                let Machine { containers, texts, .. } = machine;
                return Ok(Document { root, containers, texts });
            }
        }
    }

    /// The text of a [`Kind::Text`].
    ///
    /// # Panics
    /// If `index` belongs to another document.
    pub fn text(&self, index: usize) -> &'a str {
        self.texts[index]
    }

    /// The items of a list, tuple or dictionary.
    ///
    /// # Panics
    /// If `index` belongs to another document.
    pub fn items(&self, index: usize) -> &[Value] {
        &self.containers[index].items
    }
}

struct Machine<'a, 'm> {
    bytes: &'a [u8],
    /// Offset of the next byte.
    at: usize,
    /// Offset of the current instruction.
    offset: usize,
    stack: Vec<Value>,
    /// Heights of the stack at its marks.
    marks: Vec<usize>,
    memo: Vec<Option<Value>>,
    containers: Vec<Container>,
    texts: Vec<&'a str>,
    memory: &'m mut Memory,
}

type Step<T = ()> = Result<T, Problem>;

impl<'a, 'm> Machine<'a, 'm> {
    fn new(bytes: &'a [u8], memory: &'m mut Memory) -> Self {
        Machine {
            bytes,
            at: 0,
            offset: 0,
            stack: Vec::new(),
            marks: Vec::new(),
            memo: Vec::new(),
            containers: Vec::new(),
            texts: Vec::new(),
            memory,
        }
    }

    /// Runs one instruction. After the last instruction, returns the root.
    fn step(&mut self) -> Step<Option<Value>> {
        self.offset = self.at;
        let [opcode] = self.read()?;
        if (self.offset == 0) != (opcode == 0x80) {
            return Err(Problem::Protocol);
        }
        match opcode {
            0x80 => self.protocol()?,
            b'.' => return self.stop().map(Some),
            0x95 => self.frame()?,
            b'(' => self.mark()?,
            b'N' => self.push(Kind::None)?,
            0x88 => self.push(Kind::Bool(true))?,
            0x89 => self.push(Kind::Bool(false))?,
            b'J' => {
                let value = i32::from_le_bytes(self.read()?);
                self.push(Kind::Int(value.into()))?;
            }
            b'K' => {
                let [value] = self.read()?;
                self.push(Kind::Int(value.into()))?;
            }
            b'M' => {
                let value = u16::from_le_bytes(self.read()?);
                self.push(Kind::Int(value.into()))?;
            }
            0x8a => self.long()?,
            b'G' => {
                let value = f64::from_be_bytes(self.read()?);
                self.push(Kind::Float(value))?;
            }
            0x8c => {
                let [len] = self.read()?;
                self.text(len.into())?;
            }
            b'X' => {
                let len = u32::from_le_bytes(self.read()?);
                self.text(len as usize)?;
            }
            b'}' => self.push_container(Kind::Dict, 0)?,
            b']' => self.push_container(Kind::List, 0)?,
            b')' => self.push_container(Kind::Tuple, 0)?,
            0x85..=0x87 => self.push_container(Kind::Tuple, usize::from(opcode - 0x84))?,
            b't' => self.push_marked(Kind::Tuple)?,
            b'l' => self.push_marked(Kind::List)?,
            b'd' => self.push_marked(Kind::Dict)?,
            b'a' => self.extend(1, false)?,
            b'e' => self.extend_marked(false)?,
            b's' => self.extend(2, true)?,
            b'u' => self.extend_marked(true)?,
            b'q' => {
                let [index] = self.read()?;
                self.memorise(index.into())?;
            }
            b'r' => {
                let index = u32::from_le_bytes(self.read()?);
                self.memorise(index as usize)?;
            }
            0x94 => self.memorise(self.memo.len())?,
            b'h' => {
                let [index] = self.read()?;
                self.recall(index.into())?;
            }
            b'j' => {
                let index = u32::from_le_bytes(self.read()?);
                self.recall(index as usize)?;
            }
            _ => return Err(Problem::Opcode(opcode)),
        }
        Ok(None)
    }

    fn take(&mut self, len: usize) -> Step<&'a [u8]> {
        let rest = &self.bytes[self.at..];
        let taken = rest.get(..len).ok_or(Problem::Truncated)?;
        self.at += len;
        Ok(taken)
    }

    fn read<const N: usize>(&mut self) -> Step<[u8; N]> {
        let taken = self.take(N)?;
        Ok(taken.try_into().expect("as many bytes as asked for"))
    }

    fn push(&mut self, kind: Kind) -> Step {
        self.memory.push(&mut self.stack, Value { offset: self.offset, kind })
    }

    fn mark(&mut self) -> Step {
        self.memory.push(&mut self.marks, self.stack.len())
    }

    /// The lowest height of the stack that instructions may reach.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn protocol(&mut self) -> Step {
        let [version] = self.read()?;
        if (2..=5).contains(&version) { Ok(()) } else { Err(Problem::Protocol) }
    }

    fn frame(&mut self) -> Step {
        let len = u64::from_le_bytes(self.read()?);
        let rest = (self.bytes.len() - self.at) as u64;
        if len <= rest { Ok(()) } else { Err(Problem::Truncated) }
    }

    fn stop(&mut self) -> Step<Value> {
        if self.at < self.bytes.len() {
            return Err(Problem::Trailing);
        }
        match (self.stack.as_slice(), self.marks.as_slice()) {
            (&[root], []) => Ok(root),
            _ => Err(Problem::Stack),
        }
    }

    fn long(&mut self) -> Step {
        let [len] = self.read()?;
        if len > 8 {
            return Err(Problem::Number(len));
        }
        let digits = self.take(len.into())?;
        let is_negative = digits.last().is_some_and(|&digit| digit >= 0x80);
        let mut bytes = [if is_negative { 0xff } else { 0 }; 8];
        bytes[..digits.len()].copy_from_slice(digits);
        self.push(Kind::Int(i64::from_le_bytes(bytes)))
    }

    fn text(&mut self, len: usize) -> Step {
        let bytes = self.take(len)?;
        let text = std::str::from_utf8(bytes).map_err(|_| Problem::Text)?;
        self.memory.push(&mut self.texts, text)?;
        self.push(Kind::Text(self.texts.len() - 1))
    }

    /// Makes a container of the topmost values.
    fn push_container(&mut self, kind: fn(usize) -> Kind, count: usize) -> Step {
        let container = Container { items: Vec::new(), is_sealed: false, depth: 1 };
        self.memory.push(&mut self.containers, container)?;
        let index = self.containers.len() - 1;
        let is_dict = matches!(kind(index), Kind::Dict(_));
        self.fill(index, count, is_dict)?;
        self.push(kind(index))
    }

    fn push_marked(&mut self, kind: fn(usize) -> Kind) -> Step {
        let count = self.stack.len() - self.floor();
        self.push_container(kind, count)?;
        self.marks.pop().map(drop).ok_or(Problem::Stack)
    }

    fn extend_marked(&mut self, is_dict: bool) -> Step {
        let mark = self.marks.pop().ok_or(Problem::Stack)?;
        self.extend(self.stack.len() - mark, is_dict)
    }

    /// Moves the topmost values into the container below them.
    fn extend(&mut self, count: usize, is_dict: bool) -> Step {
        let below = self.stack.len().checked_sub(count + 1).filter(|&at| at >= self.floor());
        let target = self.stack[below.ok_or(Problem::Stack)?];
        let expected = if is_dict { "a dictionary" } else { "a list" };
        match (target.kind, is_dict) {
            (Kind::List(index), false) | (Kind::Dict(index), true) => {
                if self.containers[index].is_sealed {
                    return Err(Problem::Sealed);
                }
                self.fill(index, count, is_dict)
            }
            (kind, _) => Err(Problem::Kind { expected, found: kind.name() }),
        }
    }

    fn fill(&mut self, index: usize, count: usize, is_dict: bool) -> Step {
        let from = self.stack.len().checked_sub(count).filter(|&at| at >= self.floor());
        let from = from.ok_or(Problem::Stack)?;
        if is_dict && !count.is_multiple_of(2) {
            return Err(Problem::Stack);
        }
        for position in from..self.stack.len() {
            let kind = self.stack[position].kind;
            if is_dict && (position - from).is_multiple_of(2) {
                check_key(kind)?;
            }
            if let Kind::List(item) | Kind::Tuple(item) | Kind::Dict(item) = kind {
                let item = &mut self.containers[item];
                item.is_sealed = true;
                let depth = item.depth + 1;
                let container = &mut self.containers[index];
                container.depth = container.depth.max(depth);
            }
        }
        let container = &mut self.containers[index];
        if container.is_sealed {
            return Err(Problem::Sealed);
        }
        if container.depth > DEPTH_MAX {
            return Err(Problem::Depth);
        }
        self.memory.reserve(&mut container.items, count)?;
        container.items.extend(self.stack.drain(from..));
        Ok(())
    }

    fn memorise(&mut self, index: usize) -> Step {
        let top = self.stack.get(self.floor()..).and_then(<[Value]>::last).copied();
        let top = top.ok_or(Problem::Stack)?;
        // Writers number densely. A memo number larger than the offset is an attack on memory.
        if index > self.offset {
            return Err(Problem::Memo(index as u64));
        }
        if let Some(missing) = (index + 1).checked_sub(self.memo.len()) {
            self.memory.reserve(&mut self.memo, missing)?;
            self.memo.resize(index + 1, None);
        }
        self.memo[index] = Some(top);
        Ok(())
    }

    fn recall(&mut self, index: usize) -> Step {
        let value = self.memo.get(index).copied().flatten();
        let Value { kind, .. } = value.ok_or(Problem::Memo(index as u64))?;
        self.push(kind)
    }
}

/// Checks that a key is hashable in Python.
fn check_key(kind: Kind) -> Step {
    match kind {
        Kind::List(_) | Kind::Dict(_) => {
            Err(Problem::Kind { expected: "a key", found: kind.name() })
        }
        _ => Ok(()),
    }
}
