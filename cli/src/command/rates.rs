//! The rates of this machine, kept in a file for later commands.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use lowtide_allocator::files::read_input_text;
use lowtide_tensor::{Cpu, OpClass, Rate, Rates};
use lowtide_trainer::{Forecast, NewFile, Result, TrainError};
use serde::{Deserialize, Serialize};

use crate::command::failure::complain;
use crate::report::{date, processor};

/// The variable that names the file. If it is empty, no file is used and times are nominal.
const VARIABLE: &str = "LOWTIDE_RATES";

/// The machine that was measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Machine {
    pub(super) processor: String,
    pub(super) threads: usize,
    pub(super) instruction_set: String,
    /// The version of lowtide whose kernels were measured.
    lowtide: String,
}

/// Measured rates, in the form of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Calibration {
    #[serde(flatten)]
    pub(super) machine: Machine,
    /// The date of the measurement, in UTC.
    pub(super) measured_on: String,
    classes: BTreeMap<String, ClassRate>,
}

/// A [`Rate`] in the form of the file.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct ClassRate {
    flops_per_second: f64,
    bytes_per_second: f64,
    launch_seconds: f64,
}

impl Machine {
    /// This machine with a number of threads.
    pub(super) fn this(threads: usize) -> Machine {
        Machine {
            processor: processor().unwrap_or_else(|| env::consts::ARCH.to_owned()),
            threads,
            instruction_set: Cpu::instruction_set().to_owned(),
            lowtide: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    /// The path of the machine's rates: the file that [`VARIABLE`] names, else a file in the folder
    /// `lowtide` of the user's cache, which is `XDG_CACHE_HOME`, else `.cache` in `HOME`.
    pub(super) fn file(&self) -> Option<PathBuf> {
        self.file_of([VARIABLE, "XDG_CACHE_HOME", "HOME"].map(env::var_os))
    }

    fn file_of(&self, [named, cache, home]: [Option<OsString>; 3]) -> Option<PathBuf> {
        if let Some(named) = named {
            return Some(PathBuf::from(named)).filter(|path| *path != Path::new(""));
        }
        let [cache, home] = [cache, home].map(|value| value.map(PathBuf::from));
        let home = home.map(|home| home.join(".cache"));
        // The XDG specification asks to ignore relative paths.
        let cache = [cache, home].into_iter().flatten().find(|path| path.is_absolute())?;
        let words = format!("{} {} threads {}", self.processor, self.threads, self.instruction_set);
        let words = words.to_lowercase();
        let words: Vec<&str> = words
            .split(|c: char| !c.is_ascii_alphanumeric())
            .filter(|word| !word.is_empty())
            .collect();
        Some(cache.join("lowtide").join(format!("rates-{}.json", words.join("-"))))
    }
}

impl Calibration {
    /// Rates that were just measured.
    pub(super) fn new(machine: Machine, rates: &Rates) -> Calibration {
        let class = |class: OpClass| {
            let Rate { flops_per_second, bytes_per_second, launch_seconds } = rates.of(class);
            let rate = ClassRate { flops_per_second, bytes_per_second, launch_seconds };
            (class.to_string(), rate)
        };
        let now = date(SystemTime::now());
        let (day, _) = now.split_once(' ').expect("a day and a time");
        Calibration {
            machine,
            measured_on: day.to_owned(),
            classes: OpClass::ALL.into_iter().map(class).collect(),
        }
    }

    /// The calibration of this machine with a number of threads, if there is one. If a file is not
    /// used, each call prints the reason on standard error.
    pub(super) fn of_this_machine(threads: usize) -> Option<Calibration> {
        let machine = Machine::this(threads);
        let file = machine.file()?;
        match Calibration::read(&file, &machine) {
            Ok(calibration) => calibration,
            Err(problem) => {
                complain(&format!("note: {}: {problem}; times are nominal", file.display()));
                None
            }
        }
    }

    /// The calibration in a file. A missing file is a problem only if the variable names it.
    fn read(file: &Path, machine: &Machine) -> std::result::Result<Option<Calibration>, String> {
        /// A size larger than any file of rates.
        const RATES_BYTES_MAX: u64 = 1 << 20;
        let text = match read_input_text(file, RATES_BYTES_MAX) {
            Ok(text) => text,
            Err(error)
                if error.kind() == io::ErrorKind::NotFound && env::var_os(VARIABLE).is_none() =>
            {
                return Ok(None);
            }
            Err(error) => return Err(error.to_string()),
        };
        let found: Calibration = serde_json::from_str(&text).map_err(|error| {
            format!("holds no rates ({error}), `lowtide calibrate` measures them")
        })?;
        if found.machine != *machine {
            let Machine { processor, threads, instruction_set, lowtide } = &found.machine;
            return Err(format!(
                "holds the rates of {processor} with {threads} threads and {instruction_set}, by \
                 lowtide {lowtide}, `lowtide calibrate` measures those of this machine"
            ));
        }
        match found.rates() {
            Some(_) => Ok(Some(found)),
            None => Err("holds rates that cannot be, `lowtide calibrate` measures them".to_owned()),
        }
    }

    /// Writes the file under a temporary name first.
    ///
    /// # Errors
    /// `File`.
    pub(super) fn write(&self, file: &Path) -> Result<()> {
        let failed = |source| TrainError::File { path: file.to_owned(), source };
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder).map_err(failed)?;
        }
        let mut new = NewFile::create(file)?;
        let text = serde_json::to_string_pretty(self).expect("plain values");
        writeln!(new.file(), "{text}").map_err(failed)?;
        new.publish()
    }

    /// The rates, if every class has valid ones.
    pub(super) fn rates(&self) -> Option<Rates> {
        let is_possible = |value: f64| value.is_finite() && value > 0.0;
        let mut rates = Rates::nominal(1.0, 1.0);
        for class in OpClass::ALL {
            let &ClassRate { flops_per_second, bytes_per_second, launch_seconds } =
                self.classes.get(&class.to_string())?;
            let values = [flops_per_second, bytes_per_second];
            if !values.into_iter().chain([launch_seconds]).all(is_possible) {
                return None;
            }
            let rate = Rate { flops_per_second, bytes_per_second, launch_seconds };
            rates = rates.with(class, rate);
        }
        Some(rates)
    }
}

/// Seconds of a step if rates were measured. Nominal rates only serve to order plans.
pub(super) fn measured_seconds(
    calibration: Option<&Calibration>,
    forecast: &Forecast,
) -> Option<f64> {
    calibration.map(|_| forecast.step_seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        let this = Machine::this(2);
        Machine {
            processor: "AMD EPYC (7 B13)".to_owned(),
            instruction_set: "AVX2".to_owned(),
            ..this
        }
    }

    /// Rates whose numbers are all different.
    fn rates() -> Rates {
        let mut rates = Rates::nominal(1.0, 1.0);
        for (index, class) in OpClass::ALL.into_iter().enumerate() {
            let index = index as f64 + 1.0;
            let rate = Rate {
                flops_per_second: index / 3.0,
                bytes_per_second: index / 7.0,
                launch_seconds: index / 13.0,
            };
            rates = rates.with(class, rate);
        }
        rates
    }

    #[test]
    fn file_is_named_by_the_variable_or_by_the_machine() {
        let file = |values: [Option<&str>; 3]| {
            machine().file_of(values.map(|value| value.map(OsString::from)))
        };
        let name = "lowtide/rates-amd-epyc-7-b13-2-threads-avx2.json";
        assert_eq!(file([Some("mine"), Some("/cache"), None]), Some("mine".into()));
        assert_eq!(file([Some(""), Some("/cache"), Some("/own")]), None);
        let in_cache = file([None, Some("/cache"), Some("/own")]);
        assert_eq!(in_cache, Some(Path::new("/cache").join(name)));
        // A cache path that is not absolute is ignored.
        let in_home = file([None, Some("here"), Some("/own")]);
        assert_eq!(in_home, Some(Path::new("/own/.cache").join(name)));
        assert_eq!(file([None, None, None]), None);
    }

    #[test]
    fn file_gives_back_what_was_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("new/rates.json");
        let calibration = Calibration::new(machine(), &rates());
        assert_eq!(calibration.rates(), Some(rates()));
        calibration.write(&file).expect("room");
        assert_eq!(Calibration::read(&file, &machine()), Ok(Some(calibration.clone())));
        let other = Machine { threads: 3, ..machine() };
        let problem = Calibration::read(&file, &other).expect_err("another machine");
        assert!(problem.contains("AMD EPYC (7 B13) with 2 threads"), "{problem}");
    }

    #[test]
    fn damaged_file_is_told_and_a_missing_one_is_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("rates.json");
        assert_eq!(Calibration::read(&file, &machine()), Ok(None));
        let text = serde_json::to_string(&Calibration::new(machine(), &rates())).expect("plain");
        let impossible = text.replace("\"launch_seconds\":", "\"launch_seconds\":-");
        let fewer = text.replace("\"update\"", "\"downdate\"");
        for damaged in ["", "{}", "[1]", &text[..text.len() / 2], &impossible, &fewer] {
            fs::write(&file, damaged).expect("room");
            let problem = Calibration::read(&file, &machine()).expect_err(damaged);
            assert!(problem.contains("`lowtide calibrate`"), "{problem}");
        }
    }
}
