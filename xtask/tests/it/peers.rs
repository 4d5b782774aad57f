//! The comparison with PyTorch by shape: its list, its table and its page.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use xtask::bench::Machine;
use xtask::peers::{Row, Sample, page, report, rows};

fn sample(peer: &str, operation: &str, min_ms: f64, magnitude: f64) -> Sample {
    Sample {
        peer: peer.to_owned(),
        operation: operation.to_owned(),
        min_ms,
        magnitude,
        peak_mb: None,
    }
}

/// Two rounds of three programs.
fn samples() -> Vec<Sample> {
    let (first, second) = ("net a conv forward", "net b conv to-weight");
    vec![
        sample("lowtide", first, 2.0, 1.0),
        sample("lowtide", second, 8.0, 3.0),
        sample("torch-eager", first, 4.0, 1.0001),
        sample("torch-eager", second, 4.5, 3.0),
        sample("torch-channels-last", first, 5.0, 1.0),
        sample("lowtide", first, 1.0, 1.0),
        sample("lowtide", second, 9.0, 3.0),
        sample("torch-eager", second, 4.0, 3.05),
        sample("lowtide", "net c only-here forward", 1.0, 1.0),
    ]
}

#[test]
fn rows_have_the_fastest_of_all_rounds_and_modes() {
    let rows = rows(&samples(), "f32");
    let [a, b] = &rows[..] else { panic!("{rows:?}") };
    assert_eq!((a.own_ms, a.spread, a.differs), (1.0, 2.0, false));
    assert_eq!(a.other, ("torch-eager".to_owned(), 4.0));
    assert_eq!((b.own_ms, b.ratio(), b.differs), (8.0, 2.0, true));
    assert!(!xtask::peers::rows(&samples(), "bf16")[1].differs, "0.05 of 3 is near in half types");
}

#[test]
fn what_mkl_does_on_other_processors_stands_beside_what_is_installed() {
    let more = sample("torch-mkl-avx512", "net a conv forward", 0.5, 1.0);
    let rows = rows(&[samples(), vec![more]].concat(), "f32");
    assert_eq!(rows[0].other, ("torch-eager".to_owned(), 4.0));
    assert_eq!(rows[0].with_mkl_avx512, Some(("torch-mkl-avx512".to_owned(), 0.5)));
    assert_eq!(rows[1].with_mkl_avx512, None);
    let text = report(&Machine::default(), "2 threads", &rows, None);
    assert!(text.contains("of 1 rows: **2.00**"), "{text}");
    assert!(text.contains("| 1.000 | 2.00 | 0.500 | mkl-avx512 | 2.00 | - |"), "{text}");
    let page = page(&Machine::default(), "2 threads", &rows);
    assert!(page.contains("<h2>With MKL's AVX-512 allowed: 2.00</h2>"), "{page}");
}

#[test]
fn report_has_means_the_worst_and_the_ratio_to_an_earlier_one() {
    let rows = rows(&samples(), "f32");
    let before = [sample("lowtide", "net a conv forward", 4.0, 1.0)];
    let text = report(&Machine::default(), "2 threads", &rows, Some(&before));
    // The geometric mean of 0.25 and 2 is the root of 0.5.
    assert!(text.contains("Geometric mean of 2 operations: **0.71**; 1 above 1.5."), "{text}");
    assert!(text.contains("| net | 2 | 0.71 | 2.00 |"), "{text}");
    assert!(text.contains("| net a conv forward | 1.000 | 2.00 | 4.000 | eager | 0.25 | 0.25 |"));
    let worst = text.find("net b conv to-weight (results differ)").expect("it is the worst");
    assert!(worst < text.find("net a conv forward").expect("it is there"));
}

#[test]
fn steps_are_a_table_of_their_own_with_their_memory() {
    let step = |peer: &str, min_ms: f64, peak_mb: f64| Sample {
        peak_mb: Some(peak_mb),
        ..sample(peer, "whole-step net", min_ms, 7.0)
    };
    let steps = [
        step("lowtide", 3.0, 60.0),
        step("torch-eager", 6.0, 90.0),
        step("torch-fused", 4.0, 80.0),
        sample("torch-compiled", "whole-step net", 5.0, 7.0),
    ];
    let rows = rows(&[steps.to_vec(), samples()].concat(), "f32");
    assert_eq!(rows[0].peak_mb, Some([60.0, 80.0]));
    let text = report(&Machine::default(), "2 threads", &rows, None);
    assert!(text.contains("Geometric mean of 1 steps: **0.75**; 0 above 1.5."), "{text}");
    assert!(text.contains("Geometric mean of 2 operations: **0.71**"), "{text}");
    assert!(
        text.contains("| whole-step net | 3.000 | 1.00 | 4.000 | fused | 0.75 | - |"),
        "{text}"
    );
    assert!(text.contains("| whole-step net | 60 | 80 | 0.75 |"), "{text}");
    let page = page(&Machine::default(), "2 threads", &rows);
    assert!(page.contains("<h2>Whole steps: 0.75</h2>") && page.contains("60 MB"), "{page}");
}

#[test]
fn all_programs_have_the_same_steps() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |path: &str| fs::read_to_string(root.join(path)).expect(path);
    let asked = read("xtask/src/peers/programs.rs");
    let list = asked.split("const NETWORKS").nth(1).expect("the list");
    let list = list.split("];").next().expect("its end").split('"');
    let names: Vec<&str> = list.skip(1).step_by(2).collect();
    assert_eq!(names.len(), 12, "{names:?}");
    for path in ["nn/examples/peer/steps/mod.rs", "nn/examples/peer/steps/torch_steps.py"] {
        let text = read(path);
        for name in &names {
            assert!(text.contains(&format!("\"{name}\"")), "{path}: no {name}");
        }
    }
}

#[test]
fn page_has_a_bar_for_each_operation_and_escapes_names() {
    let row = Row {
        operation: "a<b c conv forward".to_owned(),
        own_ms: 1.0,
        spread: 1.0,
        other: ("torch-eager".to_owned(), 8.0),
        with_mkl_avx512: None,
        differs: false,
        peak_mb: None,
    };
    let text = page(&Machine::default(), "f32 & more", &[row]);
    // The row is among the worst rows, and in its network.
    assert_eq!(text.matches("<rect class=\"own\"").count(), 2);
    assert!(text.contains("a&lt;b") && text.contains("f32 &amp; more") && !text.contains("a<b"));
    // lowtide is eight times as fast: the bar goes from the left end to the middle.
    assert!(text.contains("x=\"0.0\" y=\"2\" width=\"300.0\""), "{text}");
}

#[test]
fn list_names_each_operation_once_with_its_sizes() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let path = root.join("nn/examples/peer/sweep/operations.txt");
    let text = fs::read_to_string(path).expect("the list");
    let needed = |operation: &str| match operation {
        "conv" | "conv-transpose" => "n c h w o k",
        "linear" => "m k n",
        "attention" => "n heads t d causal",
        "max-pool" => "n c h w k s p",
        "batch-norm" | "relu" | "add" => "n c h w",
        "layer-norm" | "rms-norm" | "softmax" | "gelu" | "cross-entropy" => "rows columns",
        other => panic!("no operation is called {other}"),
    };
    let mut names = BTreeSet::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert!(names.insert(words[..3].join(" ")), "{line}");
        let sizes: Vec<(&str, usize)> = words[3..]
            .iter()
            .map(|word| word.split_once('=').expect(line))
            .map(|(name, size)| (name, size.parse().expect(line)))
            .collect();
        for name in needed(words[2]).split(' ') {
            assert!(sizes.iter().any(|(own, _)| *own == name), "{line}: no {name}");
        }
    }
    assert!(names.len() >= 80, "{}", names.len());
}
