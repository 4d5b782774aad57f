//! The parts that the programs here share: the command line, the numbers and the measurement.

#[path = "../cases.rs"]
pub(crate) mod cases;
#[path = "../measure.rs"]
#[allow(dead_code, reason = "part of it is for training steps, which are lowtide's alone here")]
mod measure;

pub(crate) use cases::Part;
pub(crate) use measure::uniform;

use measure::measure_prepared;

/// One operation to be measured in one library.
pub(crate) struct Session {
    peer: &'static str,
    op: &'static cases::Op,
    threads: usize,
}

impl Session {
    /// From `PROGRAM WORKLOAD THREADS`; to be called before anything starts a thread.
    pub(crate) fn from_arguments(peer: &'static str) -> Self {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let op = arguments.first().and_then(|name| cases::find(name));
        let threads: Option<usize> = arguments.get(1).and_then(|count| count.parse().ok());
        let (Some(op), Some(threads)) = (op, threads) else {
            let names: Vec<_> = cases::names().collect();
            eprintln!("usage: PROGRAM WORKLOAD THREADS, WORKLOAD one of {}", names.join(", "));
            std::process::exit(2);
        };
        // SAFETY: no other thread may read the environment meanwhile, and there is none yet: `main`
        // calls this first, and the libraries start their pools when an operation first needs them.
        unsafe { std::env::set_var("RAYON_NUM_THREADS", threads.to_string()) };
        Self { peer, op, threads }
    }

    pub(crate) fn part(&self) -> Part {
        self.op.part
    }

    /// The sizes that [`Part`] lists.
    pub(crate) fn sizes<const N: usize>(&self) -> [usize; N] {
        self.op.dims.try_into().expect("each part has its number of sizes")
    }

    /// An operation that the library cannot express: said in the report, never silent.
    #[allow(dead_code, reason = "burn and candle have them all")]
    pub(crate) fn unsupported(&self, why: &str) {
        let (peer, name) = (self.peer, self.op.workload.name);
        println!(r#"{{"peer":"{peer}","workload":"{name}","unsupported":"{why}"}}"#);
    }

    /// Times `run` until its result is dropped; `values` reads the first.
    pub(crate) fn measure<T, E>(
        &self,
        mut run: impl FnMut() -> Result<T, E>,
        values: impl FnOnce(T) -> Result<Vec<f32>, E>,
    ) -> Result<(), E> {
        self.measure_backward(|| Ok(()), |()| run(), values)
    }

    /// As [`Self::measure`] for a gradient that only comes with a graph: `forward` makes it anew
    /// before each step, and it is dropped after it, both untimed.
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

/// The mean magnitude.
fn magnitude(values: &[f32]) -> f32 {
    let sum: f64 = values.iter().map(|value| f64::from(value.abs())).sum();
    (sum / values.len() as f64) as f32
}
