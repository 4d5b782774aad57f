//! Calibration: the rates of this machine's processor, measured with operations of this workspace.

mod probes;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lowtide_autograd::{Attempt, Pass};
use lowtide_tensor::{
    CpuOptions, DType, Device, OpClass, RandomKey, Rate, Rates, SimSpec, Tensor, TensorResult,
};

use crate::error::Result;
use probes::{Limit, PROBES, Probe};

/// Time spent on each size of a probe. Every probe runs at least [`ROUNDS`] times, so slow probes
/// take longer.
const PROBE_TIME: Duration = Duration::from_millis(50);
/// Least number of runs for a median.
const ROUNDS: usize = 5;

/// The sizes of a probe, in samples. Both sizes have the same launch time; the rest of the time
/// grows with the samples.
const SAMPLE_COUNTS: [usize; 2] = [1, 16];

/// Sums over the probes of one class and limit.
#[derive(Clone, Copy, Default)]
struct Line {
    /// Number of operations of a run.
    launch_count: f64,
    /// Arithmetic operations or bytes, for the smaller and the larger size.
    work: [f64; 2],
    seconds: [f64; 2],
}

/// Measures the speed of a CPU device with `threads` threads (one per core if absent), in a few
/// seconds. Calls `on_progress` with the fraction of the work that is done, from 0 to 1.
///
/// Other work on the machine at the same time makes the rates wrong.
///
/// # Errors
/// `OutOfMemory` if less than 200 MB are free.
pub fn measure_rates(threads: Option<usize>, on_progress: &mut dyn FnMut(f64)) -> Result<Rates> {
    let cpu = Device::cpu(CpuOptions { threads, ..Default::default() })?;
    let sim = Device::sim(SimSpec { capacity_bytes: usize::MAX >> 1, ..cpu.spec() })?;
    let launch = Launch::measure(&cpu, &sim)?;
    let mut lines = BTreeMap::<_, Line>::new();
    for (index, probe) in PROBES.iter().enumerate() {
        on_progress((index + 1) as f64 / (PROBES.len() + 1) as f64);
        lines.entry((probe.class, probe.limit)).or_default().add(probe, &cpu, &sim)?;
    }
    on_progress(1.0);
    Ok(rates(&lines, &launch))
}

impl Line {
    /// Measures one more probe.
    fn add(&mut self, probe: &Probe, cpu: &Device, sim: &Device) -> Result<()> {
        let &Probe { class, limit, make } = probe;
        for (index, count) in SAMPLE_COUNTS.into_iter().enumerate() {
            let mut rehearsed = make(sim, count)?;
            let before = sim.simulated_work(class);
            rehearsed()?;
            let after = sim.simulated_work(class);
            if index == 0 {
                self.launch_count += (after.launch_count - before.launch_count) as f64;
            }
            self.work[index] += match limit {
                Limit::Arithmetic => after.flops - before.flops,
                Limit::Bytes => after.bytes - before.bytes,
            };
            let mut run = make(cpu, count)?;
            self.seconds[index] += median_seconds(|| Ok(run()?))?;
        }
        Ok(())
    }

    /// The rate, from the additional work of the larger size, and the remaining time of a launch.
    /// If a disturbed machine ran the larger size no slower than the smaller, the rate is that of
    /// the larger size.
    fn rate(&self, launch: &Launch) -> (f64, f64) {
        let Line { launch_count, work: [less, more], seconds: [short, long] } = *self;
        let whole = more / (long - launch_count * launch.bare_seconds).max(long / 2.0);
        let rate = if long > short { (more - less) / (long - short) } else { whole };
        // At most twice the rate of the larger size.
        let rate = rate.min(2.0 * whole);
        let launch_seconds = (short - less / rate) / launch_count;
        (rate, launch_seconds.max(launch.bare_seconds) + launch.tape_seconds())
    }
}

/// The median time of a run.
fn median_seconds(mut run: impl FnMut() -> Result<()>) -> Result<f64> {
    // The first runs reserve memory and wake the threads.
    run()?;
    run()?;
    let (started, mut seconds) = (Instant::now(), Vec::new());
    while seconds.len() < ROUNDS || started.elapsed() < PROBE_TIME {
        let began = Instant::now();
        run()?;
        seconds.push(began.elapsed().as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    Ok(seconds[seconds.len() / 2])
}

/// The cost of an operation on very few numbers.
struct Launch {
    /// The operation alone.
    bare_seconds: f64,
    /// The operation in a training, with its share of recording and of backward.
    seconds: f64,
}

impl Launch {
    fn measure(cpu: &Device, sim: &Device) -> Result<Launch> {
        Ok(Launch {
            bare_seconds: per_launch(bare_launches, cpu, sim)?,
            seconds: per_launch(taped_launches, cpu, sim)?,
        })
    }

    fn tape_seconds(&self) -> f64 {
        (self.seconds - self.bare_seconds).max(0.0)
    }
}

/// A function that runs an operation once.
type Work = Box<dyn FnMut() -> Result<()>>;

/// The time of a run over the number of its launches.
fn per_launch(make: fn(&Device) -> Result<Work>, cpu: &Device, sim: &Device) -> Result<f64> {
    let count = || OpClass::ALL.map(|class| sim.simulated_work(class).launch_count).iter().sum();
    let mut rehearsed = make(sim)?;
    let before: u64 = count();
    rehearsed()?;
    let launch_count: u64 = count() - before;
    Ok(median_seconds(make(cpu)?)? / launch_count as f64)
}

fn tiny(device: &Device) -> TensorResult<Tensor> {
    Tensor::full(device, [16], DType::F32, 1.0)
}

fn bare_launches(device: &Device) -> Result<Work> {
    let x = tiny(device)?;
    Ok(Box::new(move || Ok((0..50).try_for_each(|_| x.mul(&x).map(drop))?)))
}

fn taped_launches(device: &Device) -> Result<Work> {
    let x = tiny(device)?;
    Ok(Box::new(move || {
        let attempt = Attempt::new();
        let pass = Pass::train(RandomKey::new(0), &attempt);
        let mut y = pass.input(x.clone())?;
        for _ in 0..50 {
            y = y.clone().mul(y)?;
        }
        Ok(pass.backward(y.sum(&[0])?)?)
    }))
}

/// The rates of each class by its probes. A class without a probe has the rate of elementwise
/// operations.
fn rates(lines: &BTreeMap<(OpClass, Limit), Line>, launch: &Launch) -> Rates {
    let own = |class, limit| lines.get(&(class, limit)).map(|line| line.rate(launch));
    let of = |class, limit| {
        own(class, limit).or_else(|| own(OpClass::Elementwise, limit)).expect("one for each limit")
    };
    let mut rates = Rates::nominal(1.0, 1.0);
    for class in OpClass::ALL {
        let (flops_per_second, of_arithmetic) = of(class, Limit::Arithmetic);
        let (bytes_per_second, of_bytes) = of(class, Limit::Bytes);
        let has_arithmetic_alone = own(class, Limit::Bytes).is_none();
        let launch_seconds = if has_arithmetic_alone { of_arithmetic } else { of_bytes };
        let rate = Rate { flops_per_second, bytes_per_second, launch_seconds };
        rates = rates.with(class, rate);
    }
    rates
}
