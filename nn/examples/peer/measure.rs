//! The numbers that every peer starts from, the timing loop and the report.

use std::fs;
use std::time::Instant;

/// Streams of the inputs and labels. Parameters take the streams 1, 2, 3, ... in the order of
/// creation.
pub(crate) const X: u64 = 1001;
pub(crate) const Y: u64 = 1002;

/// SplitMix64 (Steele, Lea & Flood 2014) at place `i` of a stream.
fn mix(stream: u64, i: u64) -> u64 {
    let start = stream.wrapping_mul(0xD134_2543_DE82_EF95);
    let mut z = start.wrapping_add((i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Floats that are uniform in `[-bound, bound)`.
pub(crate) fn uniform(stream: u64, len: usize, bound: f32) -> Vec<f32> {
    let unit = |i| (mix(stream, i) >> 40) as f32 * (1.0 / 8_388_608.0) - 1.0;
    (0..len as u64).map(|i| unit(i) * bound).collect()
}

/// Integers that are uniform in `0..modulo`.
pub(crate) fn integers(stream: u64, len: usize, modulo: u32) -> Vec<i64> {
    (0..len as u64).map(|i| i64::from((mix(stream, i) >> 32) as u32 % modulo)).collect()
}

/// A workload: its name, its batch and its number of steps.
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    pub(crate) batch: usize,
    pub(crate) steps: usize,
    /// The work of a step of a single operation: (unit, amount in 1e9).
    pub(crate) giga: Option<(&'static str, f64)>,
}

/// Memory of this process under a key of `/proc/self/status`, in MiB; 0 if the key is missing.
fn status_mb(key: &str) -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(key)).unwrap_or_default();
    let kilobytes = line.split_whitespace().nth(1).and_then(|word| word.parse::<f64>().ok());
    kilobytes.unwrap_or(0.0) / 1024.0
}

/// Processor seconds of this process and of the whole machine.
fn processor_s() -> [f64; 2] {
    let ticks = |path: &str, fields: &[usize]| -> f64 {
        let text = fs::read_to_string(path).unwrap_or_default();
        let line = text.lines().next().unwrap_or_default();
        let numbers = line.rsplit(')').next().unwrap_or_default().split_whitespace();
        let values: Vec<f64> = numbers.map(|word| word.parse().unwrap_or(0.0)).collect();
        fields.iter().filter_map(|&field| values.get(field)).sum::<f64>() / 100.0
    };
    [ticks("/proc/self/stat", &[11, 12]), ticks("/proc/stat", &[1, 2, 3, 6, 7, 8])]
}

/// Runs `step`, which returns the loss, and prints the line of JSON that the peers' report reads.
pub(crate) fn measure<E>(
    peer: &str,
    workload: &Workload,
    threads: usize,
    mut step: impl FnMut() -> Result<f32, E>,
) -> Result<(), E> {
    measure_prepared(peer, workload, threads, || Ok(()), |()| step())
}

/// [`measure`] with a preparation before each step, for example the forward pass of a timed
/// backward pass. Its result is dropped after the step. Preparation and drop are not timed, but
/// memory and busy cores include them.
pub(crate) fn measure_prepared<P, E>(
    peer: &str,
    workload: &Workload,
    threads: usize,
    mut prepare: impl FnMut() -> Result<P, E>,
    mut step: impl FnMut(&mut P) -> Result<f32, E>,
) -> Result<(), E> {
    // Resets the peak of memory. If the file is not writable, the peak counts from the start.
    let _ = fs::write("/proc/self/clear_refs", "5");
    let base_mb = status_mb("VmRSS");
    let mut losses = Vec::new();
    let mut timed = |losses: &mut Vec<f32>| -> Result<f64, E> {
        let mut prepared = prepare()?;
        let start = Instant::now();
        losses.push(step(&mut prepared)?);
        Ok(start.elapsed().as_secs_f64() * 1e3)
    };
    let first_ms = timed(&mut losses)?;
    let second_ms = timed(&mut losses)?;
    let (warm_up, steps) = if second_ms > 2000.0 { (2, 6) } else { (5, workload.steps) };
    while losses.len() < warm_up {
        timed(&mut losses)?;
    }
    let (before, wall) = (processor_s(), Instant::now());
    let mut ms = (0..steps).map(|_| timed(&mut losses)).collect::<Result<Vec<f64>, E>>()?;
    let (after, wall_s) = (processor_s(), wall.elapsed().as_secs_f64());
    let [own, machine] = [0, 1].map(|i| after[i] - before[i]);
    ms.sort_by(f64::total_cmp);
    let median_ms = f64::midpoint(ms[(steps - 1) / 2], ms[steps / 2]);
    let rate = match workload.giga {
        Some((unit, giga)) => format!(r#""{unit}":{:.2}"#, giga / (median_ms / 1e3)),
        None => {
            format!(r#""samples_per_s":{:.1}"#, workload.batch as f64 / (median_ms / 1e3))
        }
    };
    println!(
        "{{\"peer\":\"{peer}\",\"workload\":\"{}\",\"batch\":{},\"threads\":{threads},\
         \"steps\":{steps},\"median_step_ms\":{median_ms:.3},\"min_step_ms\":{:.3},\
         \"max_step_ms\":{:.3},\"first_step_ms\":{first_ms:.1},{rate},\"peak_rss_mb\":{:.1},\
         \"base_rss_mb\":{base_mb:.1},\"cores_busy\":{:.2},\"others_busy\":{:.2},\
         \"loss_first\":{:.6},\"loss_8th\":{:.6},\"loss_last\":{:.6}}}",
        workload.name,
        workload.batch,
        ms[0],
        ms[steps - 1],
        status_mb("VmHWM"),
        own / wall_s,
        (machine - own).max(0.0) / wall_s,
        losses[0],
        losses[7],
        losses[losses.len() - 1],
    );
    Ok(())
}
