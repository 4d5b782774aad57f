//! `--device` and the budgets: the device that computes, and the limits on its memory.

use clap::Args;
use lowtide_allocator::{MemoryLimit, available_bytes};
use lowtide_ranks::Rank;
#[cfg(feature = "cuda")]
use lowtide_tensor::cuda::gate::Product;
#[cfg(feature = "cuda")]
use lowtide_tensor::cuda::{CudaOptions, Precision, Products};
use lowtide_tensor::{CpuOptions, Device, Rates, SimSpec};
use lowtide_trainer::{Result, TrainError};

use crate::command::failure::complain;
use crate::command::parse_count;
use crate::command::process::{Process, ProcessBudget};
use crate::command::rates::Calibration;
use crate::human::{exact_bytes, format_bytes, parse_bytes};

/// The device that computes.
#[derive(Args, Clone)]
pub(super) struct DeviceArgs {
    /// The device: cpu, cuda or cuda:N. To plan for an absent NVIDIA device: NAME:MEMORY, such as
    /// h100:80GiB; names are t4, l4, a10, a100, rtx3090, rtx4090, h100, h200.
    #[arg(long, value_name = "WHERE", default_value = "cpu", value_parser = parse_place)]
    pub(super) device: DeviceName,
    /// The most memory to reserve, such as 6MiB; if absent, the memory that the system allows.
    /// `plan` takes several, with commas between them.
    #[arg(long = "budget", value_name = "BYTES", allow_hyphen_values = true)]
    #[arg(value_delimiter = ',', value_parser = parse_budget)]
    pub(super) budgets: Vec<usize>,
    /// The most memory that the whole process may take, such as 256MiB: the budget, data, batches,
    /// copies for files, and the program. Memory of a cuda device is not counted.
    #[arg(long, value_name = "BYTES", allow_hyphen_values = true, value_parser = parse_budget)]
    pub(super) process_budget: Option<usize>,
    /// Rounds the factors of products and convolutions in f32 to tf32, which has 11 of the 24
    /// binary digits and takes a fraction of the time; on NVIDIA devices since the A100.
    #[arg(long)]
    pub(super) tf32: bool,
    /// Number of threads that compute on the processor; one per core if absent.
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    #[arg(value_parser = |text: &str| parse_count(text, 1..=THREADS_MAX))]
    threads: Option<u64>,
    /// Number of ranks that share the memory of the machine.
    #[arg(skip = 1_usize)]
    shared_by: usize,
}

/// A capacity in which any model can be built.
pub(super) const CAPACITY_BYTES: usize = 1 << 50;

/// A budget smaller than the need of any model and its data.
const BUDGET_MIN: usize = 1 << 10;

/// A number larger than the processors of any machine.
pub(super) const THREADS_MAX: u64 = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeviceName {
    /// The processor of this machine.
    Cpu,
    /// The NVIDIA device of this number.
    Cuda(usize),
    /// An absent NVIDIA device, to plan for.
    Absent(AbsentDevice),
}

/// An absent NVIDIA device, to plan for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AbsentDevice {
    name: &'static str,
    memory_bytes: usize,
    /// Rate of f32 operations.
    gflops_per_second: u32,
    gigabytes_per_second: u32,
    /// Rate of copies from and to the host.
    link_gigabytes_per_second: u32,
}

/// Rates from NVIDIA's data sheets: f32 without tensor cores, memory (of the SXM form if there are
/// several, and of the A100 with 80 GB), and PCIe in one direction: 16 GB/s for generation 3, 32
/// for 4, 64 for 5.
const ABSENT_DEVICES: [(&str, u32, u32, u32); 8] = [
    ("t4", 8_100, 320, 16),
    ("l4", 30_300, 300, 32),
    ("a10", 31_200, 600, 32),
    ("a100", 19_500, 2_039, 32),
    ("rtx3090", 35_600, 936, 32),
    ("rtx4090", 82_600, 1_008, 32),
    ("h100", 67_000, 3_350, 64),
    ("h200", 67_000, 4_800, 64),
];

impl AbsentDevice {
    fn has_tf32(&self) -> bool {
        self.name != "t4"
    }

    fn spec(&self) -> SimSpec {
        SimSpec {
            rates: Rates::nominal(
                f64::from(self.gflops_per_second) * 1e9,
                f64::from(self.gigabytes_per_second) * 1e9,
            )
            .with_link(f64::from(self.link_gigabytes_per_second) * 1e9),
            ..SimSpec::like_cuda(self.memory_bytes)
        }
    }
}

fn without_tf32(place: &str) -> TrainError {
    let problem = format!("{place} has no tf32, which NVIDIA devices have since the A100");
    TrainError::Setting { place: "--tf32".to_owned(), problem }
}

/// Number of threads that compute on the processor: the given number, or one per core.
pub(super) fn threads_of(asked: Option<u64>) -> usize {
    // The number is at most `THREADS_MAX`.
    asked.map_or_else(
        || std::thread::available_parallelism().map_or(1, usize::from),
        |threads| threads as usize,
    )
}

impl DeviceArgs {
    /// The device of one of several ranks. On the processor, the ranks divide the cores, and
    /// without a budget for each rank also the memory. With CUDA, each rank has its own device.
    ///
    /// # Errors
    /// `Setting` for a limit on the process, because the process has several ranks.
    pub(super) fn of_rank(&self, Rank { index, count }: Rank) -> Result<DeviceArgs> {
        let mut own = self.clone();
        if count == 1 {
            return Ok(own);
        }
        if self.process_budget.is_some() {
            let place = "--process-budget".to_owned();
            let problem = "is for one rank; --budget says what each of several may take";
            return Err(TrainError::Setting { place, problem: problem.to_owned() });
        }
        match &mut own.device {
            DeviceName::Cpu => {
                let threads = (threads_of(None) / count).max(1) as u64;
                own.threads.get_or_insert(threads);
                own.shared_by = count;
            }
            DeviceName::Cuda(device) => *device += index,
            DeviceName::Absent(_) => {}
        }
        Ok(own)
    }

    /// The given budget, or the first of several.
    pub(super) fn budget(&self) -> Option<usize> {
        self.budgets.first().copied()
    }

    /// The given limit on the whole process.
    pub(super) fn process_bytes(&self) -> Option<usize> {
        self.process_budget
    }

    /// The kind of the device, without its number.
    pub(super) fn kind_name(&self) -> &'static str {
        match self.device {
            DeviceName::Cpu => "cpu",
            DeviceName::Cuda(_) => "cuda",
            DeviceName::Absent(_) => "absent",
        }
    }

    /// Makes `budget_bytes` the budget, unless a limit is given.
    pub(super) fn limit_to(&mut self, budget_bytes: usize) {
        if self.budgets.is_empty() && self.process_budget.is_none() {
            self.budgets.push(budget_bytes);
        }
    }

    /// The limit on the whole process: the option, or without a budget the memory that the control
    /// group leaves to the process now.
    pub(super) fn process_budget(&self) -> Option<ProcessBudget> {
        match (self.process_budget, self.budget(), self.device) {
            (Some(bytes), ..) => Some(ProcessBudget::given(bytes)),
            (None, None, DeviceName::Cpu) if self.shared_by == 1 => {
                ProcessBudget::of_control_group()
            }
            _ => None,
        }
    }

    /// Opens the device with the budget. Until the process is [divided](Process::divide), the
    /// device may take as much as the process.
    ///
    /// # Errors
    /// `Setting` for several budgets; `OutOfMemory`; errors of opening the device.
    pub(super) fn open(&self, process: Option<ProcessBudget>) -> Result<Device> {
        if let [first, second, ..] = self.budgets[..] {
            return Err(no_budget(&format!(
                "a run has one, found {first} bytes and {second} bytes"
            )));
        }
        self.check_tf32()?;
        let calibration = self.calibration();
        let rates = calibration.as_ref().and_then(Calibration::rates);
        self.open_within(self.limit(process), rates)
    }

    /// The measured rates of the processor, if it computes and has been measured.
    fn calibration(&self) -> Option<Calibration> {
        match self.device {
            DeviceName::Cpu => Calibration::of_this_machine(threads_of(self.threads)),
            DeviceName::Cuda(_) | DeviceName::Absent(_) => None,
        }
    }

    /// The smallest limit on the device's memory.
    fn limit(&self, process: Option<ProcessBudget>) -> Option<usize> {
        let of_process = process.filter(|_| self.device == DeviceName::Cpu);
        let of_process = of_process.map(|budget| budget.bytes);
        let share = (self.shared_by > 1 && self.budget().is_none())
            .then(|| MemoryLimit::of_this_process().bytes / self.shared_by);
        self.budget().into_iter().chain(of_process).chain(share).min()
    }

    /// Checks several budgets of a plan.
    ///
    /// # Errors
    /// `Setting` for a budget that is too small for any model.
    pub(super) fn check_budgets(&self) -> Result<()> {
        match self.budgets.iter().find(|&&bytes| bytes < BUDGET_MIN) {
            Some(bytes) => Err(no_budget(&format!("{bytes} bytes hold no model"))),
            None => Ok(()),
        }
    }

    /// # Errors
    /// `Setting` for tf32 on a device without it.
    fn check_tf32(&self) -> Result<()> {
        match self.device {
            DeviceName::Cpu if self.tf32 => Err(without_tf32("the processor")),
            DeviceName::Absent(device) if self.tf32 && !device.has_tf32() => {
                Err(without_tf32(device.name))
            }
            _ => Ok(()),
        }
    }

    fn open_within(&self, budget_bytes: Option<usize>, rates: Option<Rates>) -> Result<Device> {
        match self.device {
            DeviceName::Cpu => {
                let threads = self.threads.map(|_| threads_of(self.threads));
                Ok(Device::cpu(CpuOptions { budget_bytes, threads, rates })?)
            }
            #[cfg(feature = "cuda")]
            DeviceName::Cuda(index) => {
                let precision = if self.tf32 { Precision::Tf32 } else { Precision::F32 };
                let products = Products::Library(precision);
                let device = Device::cuda(index, CudaOptions { budget_bytes, products })?;
                if self.tf32 && !device.is_in_tf32() {
                    return Err(without_tf32("the device"));
                }
                Ok(device)
            }
            DeviceName::Absent(device) => Err(TrainError::Setting {
                place: "--device".to_owned(),
                problem: format!("{} with a size is one to plan for, not to run on", device.name),
            }),
            #[cfg(not(feature = "cuda"))]
            DeviceName::Cuda(_) => Err(TrainError::Setting {
                place: "--device".to_owned(),
                problem: "this lowtide was built without the feature `cuda`".to_owned(),
            }),
        }
    }

    /// A simulated device of the same kind, large enough to build any model. A CUDA device is
    /// opened only if no budget gives its memory.
    pub(super) fn open_simulated(&self, process: Option<ProcessBudget>) -> Result<Simulated> {
        self.check_tf32()?;
        let (mut products, calibration) = (None, self.calibration());
        let rates = calibration.as_ref().and_then(Calibration::rates);
        let (spec, budget_bytes) = match (self.limit(process), self.device) {
            // This machine may not have enough addresses for the budget; a plan for another machine
            // needs none.
            (Some(budget_bytes), DeviceName::Cpu) => {
                match self.open_within(Some(budget_bytes), rates) {
                    Ok(device) => (device.spec(), budget_bytes),
                    Err(_) => {
                        let spec = SimSpec::like_this_machine(CAPACITY_BYTES);
                        (SimSpec { rates: rates.unwrap_or(spec.rates), ..spec }, budget_bytes)
                    }
                }
            }
            #[cfg(feature = "cuda")]
            (Some(budget_bytes), DeviceName::Cuda(_)) => {
                (SimSpec { tf32: self.tf32, ..SimSpec::like_cuda(CAPACITY_BYTES) }, budget_bytes)
            }
            (budget, DeviceName::Absent(device)) => {
                let spec = SimSpec { tf32: self.tf32, ..device.spec() };
                (spec, budget.unwrap_or(spec.capacity_bytes - spec.outside_bytes))
            }
            _ => {
                let device = self
                    .open_within(self.limit(process), rates)
                    .map_err(|error| self.without_device(error))?;
                products = DeviceArgs::products(&device);
                (device.spec(), device.allocator().capacity_bytes())
            }
        };
        let device = Device::sim(SimSpec { capacity_bytes: CAPACITY_BYTES, ..spec })?;
        Ok(Simulated { device, budget_bytes, products, calibration })
    }

    /// The origin of the budget, in words.
    pub(super) fn budget_origin(&self, process: Option<&Process>) -> String {
        if let Some(origin) = process.and_then(Process::origin_of_training) {
            return origin;
        }
        match (self.budget(), self.device) {
            (Some(_), _) => "--budget".to_owned(),
            (None, DeviceName::Cpu) => {
                let origin = MemoryLimit::of_this_process().origin.to_string();
                match self.shared_by {
                    1 => origin,
                    count => format!("{origin}, for {count} ranks together"),
                }
            }
            (None, DeviceName::Absent(device)) => format!("what is left of the {}", device.name),
            (None, DeviceName::Cuda(_)) => "what the device has free, less a reserve".to_owned(),
        }
    }

    /// True if the bytes outside the budget are an assumption.
    pub(super) fn is_assumed(&self) -> bool {
        self.budget().is_some() || matches!(self.device, DeviceName::Absent(_))
    }

    /// The origin of the rates for simulated times, in words.
    pub(super) fn tell_rates(&self, calibration: Option<&Calibration>) -> String {
        match (calibration, self.device) {
            (Some(calibration), _) => {
                format!("by the rates measured on {}", calibration.measured_on)
            }
            (None, DeviceName::Cpu) => {
                "by nominal rates, to compare plans; `lowtide calibrate` measures them".to_owned()
            }
            (None, _) => "by nominal rates, to compare plans".to_owned(),
        }
    }

    /// Prints a note if the machine has too little memory left for the budget of all ranks
    /// together, or without a budget for their predicted peak.
    pub(super) fn doubt(&self, predicted_peak_bytes: usize) {
        let (name, bytes) = match (self.budget(), self.process_budget) {
            (Some(bytes), Some(of_process)) if bytes > of_process => ("process budget", of_process),
            (Some(budget_bytes), _) => ("budget", budget_bytes),
            (None, Some(bytes)) => ("process budget", bytes),
            (None, None) => ("predicted peak", predicted_peak_bytes),
        };
        let bytes = bytes.saturating_mul(self.shared_by);
        if let (DeviceName::Cpu, Some(left_bytes)) = (self.device, available_bytes())
            && bytes > left_bytes
        {
            let [bytes, left] = [bytes, left_bytes].map(|bytes| format_bytes(bytes as u64));
            complain(&format!("note: the {name} of {bytes} is more than the {left} available now"));
        }
    }

    /// The error of a plan for a device whose memory cannot be queried.
    fn without_device(&self, error: TrainError) -> TrainError {
        if self.device == DeviceName::Cpu || cfg!(not(feature = "cuda")) {
            return error;
        }
        let problem = format!("say how much memory to plan for, no device can be asked: {error}");
        TrainError::Setting { place: "--budget".to_owned(), problem }
    }

    /// A description of the computing hardware, in words.
    pub(super) fn describe(&self, device: &Device) -> String {
        match self.device {
            DeviceName::Cpu => format!("{} threads", device.threads()),
            DeviceName::Cuda(index) => format!("NVIDIA device {index}"),
            DeviceName::Absent(device) => device.name.to_owned(),
        }
    }

    /// The library for matrix products on an NVIDIA device, in words.
    pub(super) fn products(device: &Device) -> Option<String> {
        #[cfg(feature = "cuda")]
        if let Some(cuda) = device.as_cuda() {
            return Some(cuda.products().to_string());
        }
        let _ = device;
        None
    }

    /// The kernel that cuBLASLt chose for each product so far, in cuBLASLt's description.
    pub(super) fn product_kernels(device: &Device) -> Vec<String> {
        #[cfg(feature = "cuda")]
        if let Some(cuda) = device.as_cuda() {
            let choices = cuda.library_choices().into_iter().map(|(product, words)| {
                let Product { batch, m, n, k, .. } = product;
                let words = words.map(|word| format!("{word:016x}"));
                format!("{batch} of {m} x {k} by {k} x {n}: {}", words.join(" "))
            });
            return choices.collect();
        }
        let _ = device;
        Vec::new()
    }
}

/// A simulated device, and the budget to plan for.
pub(super) struct Simulated {
    pub(super) device: Device,
    pub(super) budget_bytes: usize,
    /// The library for matrix products, if an NVIDIA device was opened.
    pub(super) products: Option<String>,
    /// The measured rates of the device; `None` for nominal rates.
    pub(super) calibration: Option<Calibration>,
}

/// The budget and its origin, in words.
pub(super) fn tell_budget(budget_bytes: usize, origin: &str) -> String {
    let bytes = exact_bytes(budget_bytes);
    match origin {
        "--budget" => bytes,
        origin => format!("{bytes}: {origin}"),
    }
}

fn no_budget(problem: &str) -> TrainError {
    let problem = format!("{problem}; fractions take a point");
    TrainError::Setting { place: "--budget".to_owned(), problem }
}

fn parse_place(text: &str) -> std::result::Result<DeviceName, String> {
    let index = match text {
        "cpu" => return Ok(DeviceName::Cpu),
        "cuda" => return Ok(DeviceName::Cuda(0)),
        _ => text.strip_prefix("cuda:").and_then(|index| index.parse().ok()),
    };
    if let Some(index) = index {
        return Ok(DeviceName::Cuda(index));
    }
    let expected = || "expected cpu, cuda, cuda:N, or one to plan for, as h100:80GiB".to_owned();
    let (name, memory) = text.split_once(':').ok_or_else(expected)?;
    let known = ABSENT_DEVICES.iter().find(|(known, ..)| known.eq_ignore_ascii_case(name));
    let &(name, gflops_per_second, gigabytes_per_second, link_gigabytes_per_second) =
        known.ok_or_else(expected)?;
    let memory_bytes = parse_budget(memory)?;
    Ok(DeviceName::Absent(AbsentDevice {
        name,
        memory_bytes,
        gflops_per_second,
        gigabytes_per_second,
        link_gigabytes_per_second,
    }))
}

pub(super) fn parse_budget(text: &str) -> std::result::Result<usize, String> {
    let bytes = parse_bytes(text).map_err(|error| error.to_string())?;
    if bytes == 0 {
        return Err("a budget of 0 holds nothing".to_owned());
    }
    usize::try_from(bytes).map_err(|_| format!("{text} is more than this machine can address"))
}
