//! Code that the programs of this folder share: command line, numbers and measurement.

#[path = "../cases.rs"]
pub(crate) mod cases;
#[path = "../measure.rs"]
#[allow(dead_code, reason = "part of it is for training steps, which are lowtide's alone here")]
mod measure;

pub(crate) use cases::Part;
pub(crate) use measure::uniform;

use measure::measure_prepared;

/// A measurement of one operation in one library.
pub(crate) struct Session {
    peer: &'static str,
    op: &'static cases::Op,
    threads: usize,
}

impl Session {
    /// Reads the arguments `PROGRAM WORKLOAD THREADS`. Call this before any thread starts.
    pub(crate) fn from_arguments(peer: &'static str) -> Self {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let op = arguments.first().and_then(|name| cases::find(name));
        let threads: Option<usize> = arguments.get(1).and_then(|count| count.parse().ok());
        let (Some(op), Some(threads)) = (op, threads) else {
            let names: Vec<_> = cases::names().collect();
            eprintln!("usage: PROGRAM WORKLOAD THREADS, WORKLOAD one of {}", names.join(", "));
            std::process::exit(2);
        };
        // SAFETY: no other thread may read the environment at the same time, and there is no other
        // thread: `main` calls this first, and the libraries start their pools when an operation
        // first needs them.
        unsafe { std::env::set_var("RAYON_NUM_THREADS", threads.to_string()) };
        Self { peer, op, threads }
    }

    pub(crate) fn part(&self) -> Part {
        self.op.part
    }

    /// The sizes, as listed in [`Part`].
    pub(crate) fn sizes<const N: usize>(&self) -> [usize; N] {
        self.op.dims.try_into().expect("each part has its number of sizes")
    }

    /// Reports an operation that the library cannot express, so that it is not missing silently.
    #[allow(dead_code, reason = "burn and candle have them all")]
    pub(crate) fn unsupported(&self, why: &str) {
        let (peer, name) = (self.peer, self.op.workload.name);
        println!(r#"{{"peer":"{peer}","workload":"{name}","unsupported":"{why}"}}"#);
    }

    /// Times `run` including the drop of its result. `values` reads the first result.
    pub(crate) fn measure<T, E>(
        &self,
        mut run: impl FnMut() -> Result<T, E>,
        values: impl FnOnce(T) -> Result<Vec<f32>, E>,
    ) -> Result<(), E> {
        self.measure_backward(|| Ok(()), |()| run(), values)
    }

    /// [`Self::measure`] for a gradient that needs a graph. `forward` makes the graph before each
    /// step, and the graph is dropped after the step; both are not timed.
    pub(crate) fn measure_backward<P, T, E>(
        &self,
        mut forward: impl FnMut() -> Result<P, E>,
        mut backward: impl FnMut(&mut P) -> Result<T, E>,
        values: impl FnOnce(T) -> Result<Vec<f32>, E>,
    ) -> Result<(), E> {
        let magnitude = magnitude(&values(backward(&mut forward()?)?)?);
        let step = |graph: &mut P| backward(graph).map(|_| magnitude);
        measure_prepared(self.peer, &self.op.workload, self.threads, forward, step)
    }
}

/// The mean magnitude of the values.
fn magnitude(values: &[f32]) -> f32 {
    let sum: f64 = values.iter().map(|value| f64::from(value.abs())).sum();
    (sum / values.len() as f64) as f32
}
