//! `scoreboard names SUITE` prints the operations that a suite's script makes cases for.
//! `scoreboard run SUITE CASES OUT` runs the cases of a folder and writes `OUT.jsonl`, `OUT.md`,
//! and `OUT.rows`, the suite's rows of the table in the README. With `--device cuda` at the end,
//! the cases run on the first NVIDIA device.

#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use lowtide_scoreboard::ops;
use lowtide_scoreboard::report::Report;
use lowtide_scoreboard::transformers;
#[cfg(feature = "cuda")]
use lowtide_tensor::{Device, cuda::CudaOptions};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments[..] {
        ["names", "opinfo"] => {
            ops::names().for_each(|name| println!("{name}"));
            Ok(true)
        }
        ["names", "moduleinfo"] => {
            ops::modules().for_each(|name| println!("{name}"));
            Ok(true)
        }
        ["names", "optiminfo"] => {
            ops::optimizers().for_each(|name| println!("{name}"));
            Ok(true)
        }
        // The script writes all cases. Missing operators are reported case by case.
        ["names", "onnx"] => Ok(true),
        // The script knows its models. Models that lowtide cannot make count as missing.
        ["names", transformers::SUITE] => Ok(true),
        ["run", suite, cases, out] => {
            Report::of_folder(suite, Path::new(cases)).and_then(|report| write(&report, out))
        }
        #[cfg(feature = "cuda")]
        ["run", suite, cases, out, "--device", "cuda"] => {
            let device = Device::cuda(0, CudaOptions::default()).map_err(|error| error.to_string());
            let report =
                device.and_then(|device| Report::of_folder_on(suite, Path::new(cases), &device));
            report.and_then(|report| write(&report, out))
        }
        _ => Err("usage: scoreboard names SUITE | scoreboard run SUITE CASES OUT [--device cuda]"
            .to_owned()),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("scoreboard: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Writes the files of a report; `Ok(false)` if a case failed.
fn write(report: &Report, out: &str) -> Result<bool, String> {
    let write = |extension: &str, text: &str| {
        let path: PathBuf = Path::new(out).with_extension(extension);
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
    };
    write("jsonl", &report.lines())?;
    write("md", &report.markdown())?;
    write("rows", &report.table())?;
    println!("{}", report.summary());
    Ok(report.is_good())
}
