//! Sites of the stacks in a pickle: the most informative line of each stack.
//!
//! A stack goes from the allocator outwards: a dozen native frames of PyTorch, then the frames of
//! the program, with frames of the interpreter between them. A [`Site`] is the innermost frame of
//! the best [`Rank`]. A line of the program ranks before a line of a package, a line of a package
//! before a line of PyTorch, and Python before native code. A thread of the autograd engine runs no
//! Python: its site is the node of the graph, such as `MulBackward0::apply`.

use std::collections::HashMap;

use super::memory::Memory;
use super::pickle::{Document, Kind, Value};
use super::snapshot::{RECORD_KEYS_MAX, Record, wrong_type};
use crate::error::{TraceError, TraceProblem};
use crate::recording::Site;

/// Largest length of a site's text: names of C++ templates can be too long to read.
const TEXT_BYTES_MAX: usize = 512;
/// Largest number of bytes of an entry of a hash map, without its key and value: maps double.
const ENTRY_BYTES: usize = 48;

/// Files of PyTorch and of the interpreter.
const FOREIGN_FILES: [&str; 6] =
    ["/torch/", "c10/", "aten/", "torch/csrc/", "<frozen", "/contextlib.py"];
/// Folders of installed packages. Their frames rank behind the user's own frames.
const PACKAGE_FOLDERS: [&str; 2] = ["site-packages/", "dist-packages/"];
/// Functions that take the stack, or that belong to the allocator.
const RECORDER_FUNCTIONS: [&str; 4] =
    ["unwind", "CapturedTraceback", "gather_with_cpp", "CUDACachingAllocator"];

/// Native code of the interpreter and of the start of a process or thread.
const INTERPRETER_FILES: [&str; 4] = ["/Python/", "/Objects/", "/Modules/", "/Programs/"];
const INTERPRETER_FUNCTIONS: [&str; 7] =
    ["_Py", "Py", "cfunction_", "method_", "__libc_", "_start", "start_thread"];
/// Suffixes of files of native code.
const NATIVE_SUFFIXES: [&str; 9] =
    [".c", ".cc", ".cpp", ".cxx", ".cu", ".cuh", ".h", ".hpp", ".inl"];

/// True if a file is native code, or if its name is missing, as for code without debug information.
pub(crate) fn is_native(file: &str) -> bool {
    matches!(file, "" | "??") || NATIVE_SUFFIXES.iter().any(|suffix| file.ends_with(suffix))
}

/// True if a native function runs only in backward passes: a node of the autograd graph, or the
/// engine that adds gradients up. In C++, `Function<T>::apply` is the forward pass of a node.
pub(crate) fn is_backward(function: &str) -> bool {
    function.contains("torch::autograd::")
        && (function.contains("::apply(") || function.contains("Engine::evaluate_function"))
        && !function.contains("autograd::Function<")
}

/// The kinds of frame, the most informative first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// A line of the program in Python, or a line of PyTorch's optimizers, which says more than the
    /// line of the program that calls it.
    Program,
    /// A line of an installed package.
    Package,
    /// A line of PyTorch's or the interpreter's own Python.
    Library,
    /// A node of the autograd graph.
    Node,
    /// A line of the program in another language.
    NativeProgram,
    /// An operator of PyTorch.
    Operator,
    /// Other native code.
    Native,
    /// Code that runs every program.
    Interpreter,
    /// Code that takes the stack, or that belongs to the allocator.
    Recorder,
}

impl Rank {
    fn of(function: &str, file: &str, line: u32) -> Rank {
        let is_in = |parts: &[&str]| parts.iter().any(|part| file.contains(part));
        if line > 0 && !is_native(file) {
            return if file.contains("/torch/optim/") {
                Rank::Program
            } else if is_in(&FOREIGN_FILES) {
                Rank::Library
            } else if is_in(&PACKAGE_FOLDERS) {
                Rank::Package
            } else {
                Rank::Program
            };
        }
        let is_interpreter = INTERPRETER_FUNCTIONS.iter().any(|head| function.starts_with(head));
        if RECORDER_FUNCTIONS.iter().any(|part| function.contains(part)) {
            Rank::Recorder
        } else if is_backward(function) {
            Rank::Node
        } else if is_interpreter || is_in(&INTERPRETER_FILES) {
            Rank::Interpreter
        } else if line > 0 && !is_in(&FOREIGN_FILES) && !is_in(&PACKAGE_FOLDERS) {
            Rank::NativeProgram
        } else if function.starts_with("at::_ops::") {
            Rank::Operator
        } else {
            Rank::Native
        }
    }
}

/// Sites by number, each site once.
pub(crate) struct Sites<'a> {
    document: &'a Document<'a>,
    sites: Vec<Site>,
    numbers: HashMap<Site, u32>,
    /// Site numbers by stack: the records of stacks and of frames are shared.
    of_stack: HashMap<usize, Option<u32>>,
    rank_of_frame: HashMap<usize, Rank>,
}

impl<'a> Sites<'a> {
    pub(crate) fn new(document: &'a Document<'a>) -> Self {
        Sites {
            document,
            sites: Vec::new(),
            numbers: HashMap::new(),
            of_stack: HashMap::new(),
            rank_of_frame: HashMap::new(),
        }
    }

    pub(crate) fn into_sites(self) -> Vec<Site> {
        self.sites
    }

    /// The number of the site of a stack.
    pub(crate) fn innermost(
        &mut self,
        frames: Option<Value>,
        memory: &mut Memory,
    ) -> Result<Option<u32>, TraceError> {
        let Some(frames) = frames.filter(|value| value.kind != Kind::None) else {
            return Ok(None);
        };
        let (Kind::List(index) | Kind::Tuple(index)) = frames.kind else {
            return Err(wrong_type("frames", "a list", frames));
        };
        if let Some(&site) = self.of_stack.get(&index) {
            return Ok(site);
        }
        let mut best: Option<(Rank, Value)> = None;
        for &frame in self.document.items(index) {
            let rank = self.rank(frame, memory)?;
            if best.is_none_or(|(best, _)| rank < best) {
                best = Some((rank, frame));
            }
            if rank == Rank::Program {
                break;
            }
        }
        let site = match best {
            None | Some((Rank::Recorder | Rank::Interpreter, _)) => None,
            Some((_, frame)) => Some(self.intern(frame, memory)?),
        };
        spend(memory, ENTRY_BYTES, frames)?;
        self.of_stack.insert(index, site);
        Ok(site)
    }

    fn record(&self, frame: Value) -> Result<(usize, Record<'a>), TraceError> {
        let Kind::Dict(index) = frame.kind else {
            return Err(wrong_type("frame", "a dictionary", frame));
        };
        let (document, offset, items) = (self.document, frame.offset, self.document.items(index));
        if items.len() > 2 * RECORD_KEYS_MAX {
            let problem =
                TraceProblem::Limit { limit: RECORD_KEYS_MAX as u64, what: "keys in a record" };
            return Err(TraceError::new(offset, problem));
        }
        Ok((index, Record { document, offset, items }))
    }

    fn rank(&mut self, frame: Value, memory: &mut Memory) -> Result<Rank, TraceError> {
        let (index, record) = self.record(frame)?;
        if let Some(&rank) = self.rank_of_frame.get(&index) {
            return Ok(rank);
        }
        let file = self.text(&record, "filename");
        let rank = Rank::of(self.text(&record, "name"), file, line(&record));
        spend(memory, ENTRY_BYTES, frame)?;
        self.rank_of_frame.insert(index, rank);
        Ok(rank)
    }

    /// The beginning of a text; empty if the value is not text.
    fn text(&self, record: &Record<'a>, key: &'static str) -> &'a str {
        match record.find(key) {
            Some(Value { kind: Kind::Text(index), .. }) => {
                let text = self.document.text(index);
                &text[..text.floor_char_boundary(TEXT_BYTES_MAX)]
            }
            _ => "",
        }
    }

    fn intern(&mut self, frame: Value, memory: &mut Memory) -> Result<u32, TraceError> {
        let (_, record) = self.record(frame)?;
        let site = Site {
            module: String::new(),
            file: self.text(&record, "filename").to_owned(),
            line: line(&record),
            function: self.text(&record, "name").to_owned(),
        };
        if let Some(&number) = self.numbers.get(&site) {
            return Ok(number);
        }
        // The list and the map both have the text, and either may double.
        let site_bytes = 2 * size_of::<Site>() + site.file.len() + site.function.len();
        spend(memory, 2 * site_bytes + ENTRY_BYTES, frame)?;
        let number = self.sites.len() as u32;
        self.numbers.insert(site.clone(), number);
        self.sites.push(site);
        Ok(number)
    }
}

fn spend(memory: &mut Memory, bytes: usize, value: Value) -> Result<(), TraceError> {
    memory.spend(bytes).map_err(|problem| TraceError::new(value.offset, problem.into()))
}

fn line(record: &Record<'_>) -> u32 {
    match record.find("line") {
        Some(Value { kind: Kind::Int(line), .. }) => u32::try_from(line).unwrap_or(0),
        _ => 0,
    }
}
