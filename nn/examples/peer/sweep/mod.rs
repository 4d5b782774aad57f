//! Runs the operations of `operations.txt` in sequence and prints lines of JSON:
//!
//! ```text
//! cargo run --release -p lowtide-nn --example peer -- sweep 2 [--dtype bf16] [--only TEXT]
//! ```
//!
//! With `--turns`, each line of input names an operation to measure, so that programs can take
//! turns.

mod run;

use std::time::{Duration, Instant};

use lowtide_tensor::{DType, Device, Tensor, TensorResult as Result};

const OPERATIONS: &str = include_str!("operations.txt");

/// Largest total time of an operation, and its smallest and largest number of runs.
const TIME: Duration = Duration::from_millis(250);
const RUNS: std::ops::RangeInclusive<usize> = 5..=300;

/// Runs an operation once more.
type Run = Box<dyn FnMut() -> Result<Tensor>>;

/// A line of `operations.txt`.
struct Line<'a> {
    network: &'a str,
    layer: &'a str,
    operation: &'a str,
    sizes: Vec<(&'a str, usize)>,
}

impl<'a> Line<'a> {
    fn parse(line: &'a str) -> Line<'a> {
        let mut words = line.split_whitespace();
        let mut word = || words.next().expect("a network, a layer and an operation");
        let [network, layer, operation] = [word(), word(), word()];
        let size = |word: &'a str| {
            let (name, size) = word.split_once('=').expect("a size");
            (name, size.parse().expect("a number"))
        };
        Line { network, layer, operation, sizes: words.map(size).collect() }
    }

    /// The size `name` of the operation.
    fn size(&self, name: &str) -> usize {
        let defaults = [("s", 1), ("p", 0), ("d", 1), ("g", 1)];
        let found = self.sizes.iter().chain(&defaults).find(|(own, _)| *own == name);
        found.unwrap_or_else(|| panic!("{} {}: no {name}", self.network, self.layer)).1
    }
}

/// All operations: each part of each line, with its name.
fn operations() -> impl Iterator<Item = (String, Line<'static>, &'static str)> {
    let lines = OPERATIONS.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.flat_map(|text| {
        Line::parse(text).parts().iter().map(move |part| {
            let line = Line::parse(text);
            (format!("{} {} {} {part}", line.network, line.layer, line.operation), line, *part)
        })
    })
}

/// The names of the operations whose name contains `only`.
pub(crate) fn names(only: &str) -> impl Iterator<Item = String> {
    operations().map(|(name, ..)| name).filter(move |name| name.contains(only))
}

/// Measures the operation that each line of input names.
pub(crate) fn turns(device: &Device, dtype: DType) -> Result<()> {
    for name in std::io::stdin().lines().map_while(std::result::Result::ok) {
        measure(device, dtype, &name)?;
    }
    Ok(())
}

/// Measures the operation `name`.
pub(crate) fn measure(device: &Device, dtype: DType, name: &str) -> Result<()> {
    let found = operations().find(|(other, ..)| other == name);
    let (_, line, part) = found.unwrap_or_else(|| panic!("no operation is called `{name}`"));
    let mut run = line.prepare(part, device, dtype)?;
    let first = run()?.to_dtype(DType::F64)?.abs()?;
    let magnitude = first.sum_all()?.item::<f64>()? / first.element_count() as f64;
    let mut timed = || -> Result<f64> {
        let start = Instant::now();
        run()?;
        Ok(start.elapsed().as_secs_f64() * 1e3)
    };
    timed()?;
    let (begin, mut times) = (Instant::now(), Vec::new());
    while times.len() < *RUNS.start() || (begin.elapsed() < TIME && times.len() < *RUNS.end()) {
        times.push(timed()?);
    }
    times.sort_by(f64::total_cmp);
    let (least, median) = (times[0], times[times.len() / 2]);
    println!(
        "{{\"peer\":\"lowtide\",\"operation\":\"{name}\",\"runs\":{},\"min_ms\":{least:.4},\
         \"median_ms\":{median:.4},\"magnitude\":{magnitude:.6e}}}",
        times.len()
    );
    Ok(())
}
