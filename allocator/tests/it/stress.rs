use lowtide_allocator::{
    AllocError, Buffer, CachingAllocator, Category, Charge, SimSource, SimStreams, Stream,
};

const PAGE_BYTES: usize = 2 << 20;

/// Knuth's MMIX generator: the same program everywhere.
struct Draw(u64);

impl Draw {
    fn below(&mut self, count: usize) -> usize {
        let next = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = next.wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % count
    }

    /// A size from 1 byte to 64 MiB; each power of two is equally likely.
    fn size_bytes(&mut self) -> usize {
        let power = self.below(27);
        ((1 << power) + self.below(1 << power)).min(64 << 20)
    }
}

/// Objects of a long program, and the number of refused requests.
struct Stress {
    memory: CachingAllocator,
    streams: Option<SimStreams>,
    buffers: Vec<Buffer>,
    charges: Vec<Charge>,
    refused: usize,
}

impl Stress {
    fn new(source: SimSource, streams: Option<SimStreams>) -> Stress {
        let memory = CachingAllocator::new(source.page_bytes(PAGE_BYTES)).unwrap();
        Stress { memory, streams, buffers: Vec::new(), charges: Vec::new(), refused: 0 }
    }

    fn refuse(&mut self, error: &AllocError) {
        let ledger = error.out_of_memory().expect("nothing else can go wrong");
        assert!(ledger.missing_bytes > 0, "{ledger}");
        assert!(ledger.reserved_bytes <= ledger.capacity_bytes, "{ledger}");
        self.refused += 1;
        // Half of the blocks are freed, so that the program does not stay at the limit.
        self.buffers.truncate(self.buffers.len() / 2);
        self.charges.clear();
    }

    fn allocate(&mut self, draw: &mut Draw, stream: Stream) {
        let category = Category::ALL[draw.below(7)];
        match self.memory.allocate_on(stream, category, draw.size_bytes()) {
            Ok(buffer) => {
                if let Some(streams) = &self.streams {
                    streams.launch(stream, &[&buffer]).unwrap();
                }
                self.buffers.push(buffer);
            }
            Err(error) => self.refuse(&error),
        }
    }

    fn step(&mut self, draw: &mut Draw, live_count: usize, stream_count: usize) {
        let kind = draw.below(1000);
        let stream = Stream::new(draw.below(stream_count)).unwrap();
        if kind == 0 {
            self.memory.trim();
        } else if kind < 4 {
            match self.memory.charge(Category::Workspace, draw.size_bytes()) {
                Ok(charge) => self.charges.push(charge),
                Err(error) => self.refuse(&error),
            }
        } else if kind < 8 && !self.charges.is_empty() {
            drop(self.charges.swap_remove(draw.below(self.charges.len())));
        } else if draw.below(2 * live_count) > self.buffers.len() {
            self.allocate(draw, stream);
        } else if !self.buffers.is_empty() {
            let buffer = self.buffers.swap_remove(draw.below(self.buffers.len()));
            if kind < 100 {
                buffer.record_use(stream);
            }
        }
    }

    fn run(&mut self, step_count: usize, live_count: usize, stream_count: usize) {
        let mut draw = Draw(7);
        for step in 0..step_count {
            self.step(&mut draw, live_count, stream_count);
            if step % 10_000 == 0 {
                self.memory.check_invariants();
            }
        }
        self.memory.check_invariants();
    }

    fn check_end(mut self) {
        assert!(self.memory.statistics().stitches > 0, "nothing was stitched");
        self.buffers.clear();
        self.charges.clear();
        self.memory.check_invariants();
        self.memory.trim();
        assert_eq!(self.memory.statistics().reserved.current_bytes, 0);
        assert_eq!(self.memory.statistics().allocated.current_bytes, 0);
    }
}

#[test]
fn million_operations_keep_the_invariants() {
    let mut stress = Stress::new(SimSource::with_capacity(80 << 30), None);
    stress.run(1_000_000, 1000, 1);
    assert_eq!(stress.refused, 0);
    stress.check_end();
}

#[test]
fn operations_at_the_limit_keep_the_invariants() {
    let mut stress = Stress::new(SimSource::with_capacity(1 << 30), None);
    stress.run(200_000, 400, 1);
    assert!(stress.refused > 100, "{}", stress.refused);
    stress.check_end();
}

#[test]
fn operations_on_streams_keep_the_invariants_and_the_order() {
    let streams = SimStreams::new();
    let source = SimSource::with_capacity(80 << 30).streams(&streams);
    let mut stress = Stress::new(source, Some(streams));
    stress.run(200_000, 300, 5);
    assert!(stress.memory.statistics().waits > 0);
    stress.check_end();
}
