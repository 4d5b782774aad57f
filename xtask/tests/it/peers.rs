//! The comparison with PyTorch by shape: its list, its table and its page.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use xtask::bench::Machine;
use xtask::peers::{Row, Sample, page, report, rows};

fn sample(peer: &str, operation: &str, min_ms: f64, magnitude: f64) -> Sample {
    Sample { peer: peer.to_owned(), operation: operation.to_owned(), min_ms, magnitude }
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
fn report_has_means_the_worst_and_the_ratio_to_an_earlier_one() {
    let rows = rows(&samples(), "f32");
    let before = [sample("lowtide", "net a conv forward", 4.0, 1.0)];
    let text = report(&Machine::default(), "2 threads", &rows, Some(&before));
    // The root of 0.25 times 2.
    assert!(text.contains("Geometric mean of 2 operations: **0.71**; 1 above 1.5."), "{text}");
    assert!(text.contains("| net | 2 | 0.71 | 2.00 |"), "{text}");
    assert!(text.contains("| net a conv forward | 1.000 | 2.00 | 4.000 | eager | 0.25 | 0.25 |"));
    let worst = text.find("net b conv to-weight (results differ)").expect("it is the worst");
    assert!(worst < text.find("net a conv forward").expect("it is there"));
}

#[test]
fn page_has_a_bar_for_each_operation_and_escapes_names() {
    let row = Row {
        operation: "a<b c conv forward".to_owned(),
        own_ms: 1.0,
        spread: 1.0,
        other: ("torch-eager".to_owned(), 8.0),
        differs: false,
    };
    let text = page(&Machine::default(), "f32 & more", &[row]);
    assert_eq!(text.matches("<rect").count(), 1);
    assert!(text.contains("a&lt;b") && text.contains("f32 &amp; more") && !text.contains("a<b"));
    // Eight times as fast: from the left end to the middle.
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
