//! Loads to replay: requests and frees in order, for any subject.

/// One step of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    /// A request for a block. The block gets a number that no live block has.
    Allocate {
        /// Number of the block.
        block: u32,
        /// Stream that will use the block.
        stream: u8,
        /// Bytes of the request.
        size_bytes: u64,
    },
    /// A free of the block with this number.
    Free {
        /// Number of the block.
        block: u32,
    },
    /// A release of the whole cache.
    Trim,
}

/// A program of requests.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    /// Name of the load, in snake case.
    pub(crate) name: String,
    /// Operations before the clock starts.
    pub(crate) setup: Vec<Op>,
    /// Operations that are timed.
    pub(crate) ops: Vec<Op>,
    /// End of the block numbers.
    pub(crate) block_count: usize,
    /// Number of streams that the load uses.
    pub(crate) stream_count: usize,
}

impl Load {
    /// Number of allocations and frees in the timed part.
    pub(crate) fn operation_count(&self) -> u64 {
        self.ops.iter().filter(|op| **op != Op::Trim).count() as u64
    }
}

/// A writer of loads. Numbers of freed blocks are used again, the last freed first, so that the
/// table of live blocks stays small.
#[derive(Default)]
pub(crate) struct Script {
    setup: Vec<Op>,
    ops: Vec<Op>,
    vacant: Vec<u32>,
    block_count: u32,
    stream_count: u8,
}

impl Script {
    pub(crate) fn new() -> Script {
        Script { stream_count: 1, ..Script::default() }
    }

    /// Writes a request for a block on the default stream.
    pub(crate) fn allocate(&mut self, size_bytes: u64) -> u32 {
        self.allocate_on(0, size_bytes)
    }

    pub(crate) fn allocate_on(&mut self, stream: u8, size_bytes: u64) -> u32 {
        let block = self.vacant.pop().unwrap_or_else(|| {
            self.block_count += 1;
            self.block_count - 1
        });
        self.stream_count = self.stream_count.max(stream + 1);
        self.ops.push(Op::Allocate { block, stream, size_bytes });
        block
    }

    pub(crate) fn free(&mut self, block: u32) {
        self.ops.push(Op::Free { block });
        self.vacant.push(block);
    }

    pub(crate) fn trim(&mut self) {
        self.ops.push(Op::Trim);
    }

    /// Makes all operations so far part of the setup, which is not timed.
    pub(crate) fn start_the_clock(&mut self) {
        self.setup.append(&mut self.ops);
    }

    pub(crate) fn finish(self, name: impl Into<String>) -> Load {
        Load {
            name: name.into(),
            setup: self.setup,
            ops: self.ops,
            block_count: self.block_count as usize,
            stream_count: usize::from(self.stream_count),
        }
    }
}

/// SplitMix64 (Steele, Lea and Flood 2014): the same load on every machine.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number in `0..end`, uniform except for a bias below 2^-30 for ends below 2^34.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}
