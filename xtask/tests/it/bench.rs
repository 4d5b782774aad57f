use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use xtask::bench::{Case, Machine, Work, command_line, date_of, read_cases, report};

/// Writes the two files of criterion for one case.
fn write_case(criterion: &Path, folder: &str, benchmark: &str, median_ns: f64) {
    let folder = criterion.join(folder).join("new");
    fs::create_dir_all(&folder).expect("a folder");
    fs::write(folder.join("benchmark.json"), benchmark).expect("a file");
    let estimate = |value: f64| {
        format!(
            "{{\"confidence_interval\":{{\"confidence_level\":0.95,\"lower_bound\":1.0,\
             \"upper_bound\":2.0}},\"point_estimate\":{value},\"standard_error\":0.1}}"
        )
    };
    let estimates = format!(
        "{{\"mean\":{0},\"median\":{1},\"median_abs_dev\":{2},\"slope\":null,\"std_dev\":{0}}}",
        estimate(999.0),
        estimate(median_ns),
        estimate(median_ns / 100.0)
    );
    fs::write(folder.join("estimates.json"), estimates).expect("a file");
}

fn benchmark(group: &str, function: &str, parameter: &str, throughput: &str) -> String {
    let text = |value: &str| match value {
        "" => "null".to_owned(),
        value => format!("\"{value}\""),
    };
    format!(
        "{{\"group_id\":\"{group}\",\"function_id\":{},\"value_str\":{},\
         \"throughput\":{throughput},\"full_id\":\"x\",\"directory_name\":\"x\",\"title\":\"x\"}}",
        text(function),
        text(parameter)
    )
}

fn fixture() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: String, ns| write_case(folder.path(), name, &text, ns);
    let bytes = "{\"Bytes\":1048576}";
    write("m/sum/1M", benchmark("tensor/sum", "chunked", "1M", bytes), 250_000.0);
    write("m/naive/1M", benchmark("tensor/sum", "baseline_naive", "1M", bytes), 1_000_000.0);
    write("m/sum/2M", benchmark("tensor/sum", "chunked", "2M", "null"), 500_000.0);
    write("a/replay", benchmark("allocator/replay", "pages", "", "{\"Elements\":3000}"), 1_500.0);
    write("a/malloc", benchmark("allocator/replay", "baseline", "", "null"), 3_000.0);
    fs::create_dir_all(folder.path().join("m/report")).expect("a folder");
    folder
}

#[test]
fn cases_are_read_at_any_depth_and_sorted() {
    let folder = fixture();
    let cases = read_cases(folder.path(), SystemTime::UNIX_EPOCH).expect("a fixture");
    let medians: Vec<f64> = cases.iter().map(|case| case.median_ns).collect();
    assert_eq!(medians, [3_000.0, 1_500.0, 1_000_000.0, 250_000.0, 500_000.0]);
    let expected = Case {
        group: "tensor/sum".to_owned(),
        function: "chunked".to_owned(),
        parameter: "1M".to_owned(),
        median_ns: 250_000.0,
        spread_ns: 2_500.0,
        work: Some(Work::Bytes(1_048_576.0)),
    };
    assert_eq!(cases[3], expected);
}

#[test]
fn results_of_an_earlier_run_are_left_out() {
    let folder = fixture();
    let later = SystemTime::now() + Duration::from_secs(3_600);
    assert_eq!(read_cases(folder.path(), later), Ok(Vec::new()));
}

#[test]
fn missing_folder_has_no_cases() {
    let folder = tempfile::tempdir().expect("a folder");
    assert_eq!(read_cases(&folder.path().join("none"), SystemTime::UNIX_EPOCH), Ok(Vec::new()));
}

#[test]
fn unknown_format_is_an_error_that_names_the_case() {
    let folder = fixture();
    write_case(folder.path(), "odd", "{\"name\":\"x\"}", 1.0);
    let error = read_cases(folder.path(), SystemTime::UNIX_EPOCH).expect_err("no group_id");
    assert!(error.contains("odd"), "{error}");
}

#[test]
fn report_compares_each_case_with_the_baseline_of_its_parameter() {
    let folder = fixture();
    let cases = read_cases(folder.path(), SystemTime::UNIX_EPOCH).expect("a fixture");
    let machine = Machine {
        commit: "abc".to_owned(),
        date: "2026-01-02".to_owned(),
        cpu: "A CPU".to_owned(),
        core_count: 2,
        rustc: "rustc 1.95.0".to_owned(),
        command: "cargo bench".to_owned(),
    };
    let expected = "\
# Benchmark report

- commit: abc
- date: 2026-01-02
- cpu: A CPU, 2 cores
- rustc: rustc 1.95.0
- command: `cargo bench`

Spread is the median absolute deviation. Ratio is the median divided by that of the
group's baseline: below 1 is faster than the baseline.

## allocator/replay

| case | median | spread | throughput | ratio |
|---|--:|--:|--:|--:|
| baseline | 3.00 µs | 30.00 ns | - | 1.00 |
| pages | 1.50 µs | 15.00 ns | 2.00 Gelem/s | 0.50 |

## tensor/sum

| case | median | spread | throughput | ratio |
|---|--:|--:|--:|--:|
| baseline_naive/1M | 1.00 ms | 10.00 µs | 1000.00 MiB/s | 1.00 |
| chunked/1M | 250.00 µs | 2.50 µs | 3.91 GiB/s | 0.25 |
| chunked/2M | 500.00 µs | 5.00 µs | - | - |
";
    assert_eq!(report(&machine, &cases), expected);
}

#[test]
fn filter_is_a_crate_or_a_name() {
    let words = |filter, package| command_line(filter, package).join(" ");
    assert_eq!(words(None, None), "bench --workspace --benches");
    assert_eq!(words(Some("nn"), Some("lowtide-nn")), "bench -p lowtide-nn --benches");
    assert_eq!(words(Some("softmax"), None), "bench --workspace --benches -- softmax");
}

#[test]
fn dates_follow_the_calendar() {
    const DAY_S: u64 = 86_400;
    assert_eq!(date_of(0), "1970-01-01");
    assert_eq!(date_of(951_782_400), "2000-02-29");
    assert_eq!(date_of(951_782_400 + DAY_S), "2000-03-01");
    assert_eq!(date_of(1_735_689_599), "2024-12-31");
    assert_eq!(date_of(4_107_542_400 - 1), "2100-02-28");
    assert_eq!(date_of(4_107_542_400), "2100-03-01");
}
