//! Laws of the pages: well formed, self-contained, equal to the measurements, and small.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use lowtide_allocator::{Category, ModulePath, Origin};
use lowtide_tensor::{CpuOptions, DType, Device, Tensor};
use lowtide_trace::Recording;
use lowtide_trace::timeline::{TimelineMark, TimelineNotes, escaped_html};
use lowtide_trainer::TrainError;
use serde_json::{Value, json};

use super::thin::{POINTS_MAX, thin};
use super::{About, Curves, Run, Status, compare};
use crate::timeline::RecordedStep;

const MIB: u64 = 1 << 20;
const HOSTILE: &str = "</script><img src=x onerror=\"a\">&'<!--";

/// Steps with a loss, an epoch every ten steps, and a retry at step 40 if there is one.
fn curves(step_count: u64) -> Curves {
    let mut curves = Curves::default();
    for step in 1..=step_count {
        let retries = match step {
            40 => json!([{ "reason": "out of memory", "recovery": "same plan", "ledger": {} }]),
            _ => json!([]),
        };
        add(
            &mut curves,
            &json!({
                "step": step, "epoch": 1 + (step - 1) / 10, "loss": 2.3 / step as f64,
                "learning_rate": 0.1, "batch": 64, "micro_batch": 32, "skipped": step == 7,
                "retries": retries, "reserved_peak_bytes": 4 * MIB, "seconds": 0.5,
            }),
        );
        if step.is_multiple_of(10) {
            add(
                &mut curves,
                &json!({
                    "epoch": step / 10, "step": step, "test_loss": 1.0 / step as f64,
                    "test_accuracy": 0.9,
                }),
            );
        }
    }
    curves
}

fn add(curves: &mut Curves, line: &Value) {
    curves.add(line.as_object().expect("an object"));
}

/// A few allocations of two modules, with notes.
fn memory() -> RecordedStep {
    let options =
        CpuOptions { budget_bytes: Some(6 * MIB as usize), threads: Some(1), ..Default::default() };
    let device = Device::cpu(options).expect("memory");
    let first = device.allocator().event_count();
    let mut kept = Vec::new();
    for name in ["conv", "linear"] {
        let module = Some(ModulePath::new(name));
        let _origin = Origin { module, site: None }.enter();
        let _scope = device.category(Category::Activation);
        kept.push(Tensor::empty(&device, [1000], DType::F32).expect("memory"));
    }
    let recording = Recording::since(&device.allocator().capture(), first);
    let notes = TimelineNotes {
        planned_peak_bytes: Some(5 * MIB),
        phases: vec![(0, "forward".to_owned()), (1, "backward".to_owned())],
        marks: vec![TimelineMark { event: 1, label: "again".into(), text: "why".into() }],
    };
    RecordedStep { step: 40, retry_count: 1, is_committed: true, recording, notes }
}

/// A run with all kinds of content.
fn example(step_count: u64) -> Run {
    Run {
        about: About {
            title: "Digits".to_owned(),
            recipe: "[train]\nepochs = 3\n\n[model]\nchannels = 4\n".to_owned(),
            command: "lowtide train".to_owned(),
            commit: Some("0123456789ab-dirty".to_owned()),
            date: "2026-02-28 23:59:59 UTC".to_owned(),
            machine: "laptop".to_owned(),
        },
        status: Status::Finished,
        steps_planned: step_count,
        epochs_planned: step_count / 10,
        seconds: 83.0,
        curves: curves(step_count),
        memory: Some(memory()),
        budget_bytes: Some(6 * MIB),
        facts: vec![("State hash".to_owned(), "00ff".to_owned())],
    }
}

fn running() -> Run {
    let written = SystemTime::UNIX_EPOCH + Duration::from_secs(951_782_399);
    Run { status: Status::Running { written }, steps_planned: 500, ..example(120) }
}

/// Checks that every opened tag is closed in order, every attribute is quoted, and no markup is
/// left in text.
#[track_caller]
fn check_well_formed(html: &str) {
    const VOID: [&str; 3] = ["meta", "!DOCTYPE", "input"];
    let mut open: Vec<&str> = Vec::new();
    let mut rest = html;
    while let Some(start) = rest.find('<') {
        assert!(!rest[..start].contains('>'), "bare > in {:?}", &rest[..start]);
        rest = &rest[start + 1..];
        let end = rest.find('>').expect("a tag ends");
        let (tag, after) = (&rest[..end], &rest[end + 1..]);
        rest = after;
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "open: {open:?}");
            continue;
        }
        let quotes = tag.matches('"').count();
        assert_eq!(quotes, 2 * tag.matches("=\"").count(), "quotes of <{tag}>");
        let name = tag.split_ascii_whitespace().next().expect("a tag has a name");
        if VOID.contains(&name) || tag.ends_with('/') {
            continue;
        }
        open.push(name);
        if name == "script" || name == "style" {
            rest = &rest[rest.find(&format!("</{name}>")).expect("raw text ends")..];
        }
    }
    assert!(open.is_empty(), "left open: {open:?}");
}

/// The data for the script of the curves.
#[track_caller]
fn island(html: &str) -> Value {
    let (_, text) = html.split_once("id=\"curves\">").expect("the data");
    let (text, _) = text.split_once("</script>").expect("an end");
    serde_json::from_str(text).expect("valid JSON")
}

/// The curve with this index in the chart with this title.
#[track_caller]
fn curve(html: &str, title: &str, index: usize) -> Value {
    let data = island(html);
    let charts = data["charts"].as_array().expect("a list");
    let chart = charts.iter().find(|chart| chart["title"] == title).expect("the chart");
    chart["curves"][index].clone()
}

fn titles(html: &str) -> Vec<String> {
    let data = island(html);
    let charts = data["charts"].as_array().expect("a list").iter();
    charts.map(|chart| chart["title"].as_str().expect("text").to_owned()).collect()
}

#[test]
fn pages_are_well_formed() {
    check_well_formed(&Run::default().to_html());
    check_well_formed(&running().to_html());
    check_well_formed(&Run { status: Status::Failed, ..example(3) }.to_html());
    for step_count in [1, 2, 999, 1000, 1001, 5000] {
        check_well_formed(&example(step_count).to_html());
    }
    for run_count in [0, 1, 2, 9] {
        check_well_formed(&compare(&vec![example(50); run_count]));
    }
}

#[test]
#[should_panic(expected = "open")]
fn the_check_of_form_finds_a_crossed_tag() {
    check_well_formed("<p><b></p></b>");
}

#[test]
fn pages_refer_to_nothing_outside() {
    for html in [running().to_html(), compare(&[example(20), example(30)])] {
        // The policy's `http-equiv` is the only place where these letters are allowed.
        let html = html.replace("http-equiv", "");
        for reference in ["http", "src=", "href", "url(", "@import", "import(", "fetch(", "<link"] {
            assert!(!html.contains(reference), "{reference}");
        }
        assert!(html.contains("default-src 'none'"));
    }
}

#[test]
fn text_from_outside_is_never_markup() {
    let mut run = example(100);
    let hostile = || HOSTILE.to_owned();
    run.about = About {
        title: hostile(),
        recipe: hostile(),
        command: hostile(),
        commit: Some(hostile()),
        date: hostile(),
        machine: hostile(),
    };
    run.facts = vec![(hostile(), hostile())];
    add(
        &mut run.curves,
        &json!({ "step": 3, "batch": 1, HOSTILE: 1.5, "retries": [
        { "reason": HOSTILE, "recovery": HOSTILE }
    ] }),
    );
    add(&mut run.curves, &json!({ "step": 4, "batch": 1, HOSTILE: 2.5 }));
    let memory = run.memory.as_mut().expect("it has one");
    memory.notes.phases[0].1 = hostile();
    memory.notes.marks[0].text = hostile();
    memory.recording.sites.iter_mut().for_each(|site| site.module = hostile());
    memory.recording.policy = hostile();
    for html in [run.to_html(), compare(&[run.clone(), example(10)])] {
        check_well_formed(&html);
        assert!(!html.contains("<img") && !html.contains("<!--"));
        assert!(html.contains(&escaped_html(HOSTILE)));
        assert!(titles(&html).contains(&hostile()), "the data has it as it is");
    }
}

#[test]
fn curves_of_the_page_are_those_of_the_metrics() {
    let run = example(1000);
    let html = run.to_html();
    let pairs = [
        ("Loss", 0, "loss"),
        ("Loss", 1, "test_loss"),
        ("Accuracy", 0, "test_accuracy"),
        ("Learning rate", 0, "learning_rate"),
        ("Samples per second", 0, "samples_per_second"),
        ("Reserved peak", 0, "reserved_peak_bytes"),
    ];
    for (title, index, name) in pairs {
        let drawn = curve(&html, title, index);
        let (steps, values): (Vec<u64>, Vec<f64>) =
            run.curves.get(name).expect(name).points.iter().copied().unzip();
        assert_eq!((&drawn["x"], &drawn["mean"]), (&json!(steps), &json!(values)), "{name}");
        assert_eq!((&drawn["each"], &drawn["low"]), (&json!(1), &json!([])), "{name}");
    }
    assert_eq!(run.last("samples_per_second"), Some(128.0));
    assert_eq!(island(&html)["retried"], json!([40]));
    // A metric that never changes has a line instead of a chart.
    assert_eq!(titles(&html).len(), 5);
    assert!(html.contains("Batch 64, Micro batch 32, Seconds per step 500 ms"), "constants");
}

#[test]
fn metrics_of_a_task_have_charts_without_further_work() {
    let mut run = example(20);
    for step in 1..=20 {
        let of_own = json!({ "step": step, "f1": 0.5 / step as f64, "norms": { "all": step } });
        add(&mut run.curves, &of_own);
    }
    let html = run.to_html();
    assert_eq!(titles(&html)[5..], ["F1", "Norms.all"]);
    assert_eq!(curve(&html, "Norms.all", 0)["mean"][19], json!(20.0));
}

#[test]
fn every_set_that_is_evaluated_has_a_curve_in_the_chart_of_its_metric() {
    let mut run = example(20);
    let valid = json!({ "step": 20, "epoch": 2, "seconds": 3.0, "valid_loss": 0.5 });
    add(&mut run.curves, &valid);
    let html = run.to_html();
    let named = |index| {
        let curve = curve(&html, "Loss", index);
        (curve["name"].clone(), curve["colour"].clone())
    };
    assert_eq!(named(0), (json!("train"), json!(0)));
    assert_eq!(named(1), (json!("test"), json!(1)));
    assert_eq!(named(2), (json!("valid"), json!(2)));
    assert!(html.contains("<dt>Valid loss</dt><dd>0.5</dd>"));
    // The time of an evaluation does not count as the time of a step.
    assert_eq!(run.curves.get("seconds").map(|series| series.points.len()), Some(20));
    assert_eq!(run.last("evaluation_seconds"), Some(3.0));
}

#[test]
fn memory_of_the_page_is_the_recorded_step() {
    let run = example(100);
    let memory = run.memory.as_ref().expect("it has one");
    let html = run.to_html();
    // The content of the element is tested in the trace crate; here it only has to be this element.
    assert!(html.contains(&memory.recording.timeline_element(&memory.notes)));
    assert!(html.contains("<h2>Memory inside step 40</h2>"));
    assert!(html.contains("rolled back and tried again"));
    // Without scripts: 4000 bytes each, rounded up to a multiple of 512.
    assert!(html.contains("<th scope=\"row\">conv</th><td class=\"number\">4 KiB</td>"));
    assert!(html.contains("<th scope=\"row\">activation</th><td class=\"number\">8 KiB</td>"));
    let without = Run { memory: None, ..run };
    assert!(without.to_html().contains("No step was recorded"));
}

#[test]
fn page_loads_itself_again_until_the_run_is_over() {
    let marks = ["location.reload()", "http-equiv=\"refresh\""];
    let html = running().to_html();
    assert!(marks.iter().all(|mark| html.contains(mark)));
    assert!(html.contains("running: step 120 of 500, epoch 12 of 12, written 2000-02-28 23:59:59"));
    for (status, told) in [
        (Status::Finished, "stopped after step 120 of 500"),
        (Status::Failed, "ended by an error after step 120 of 500"),
    ] {
        let html = Run { status, ..running() }.to_html();
        assert!(!marks.iter().any(|mark| html.contains(mark)), "{status:?}");
        assert!(html.contains(told), "{status:?}");
    }
    assert!(example(120).to_html().contains("finished: step 120 of 120, epoch 12 of 12"));
}

#[test]
fn key_figures_are_text() {
    let html = example(100).to_html();
    for text in [
        "<dt>Last train loss</dt><dd>0.023</dd>",
        "<dt>Test accuracy</dt><dd>90.00 %</dd>",
        "<dt>Samples per second</dt><dd>128</dd>",
        "<dd>6 MiB (6291456 bytes)</dd>",
        "<dd>1 min 23 s</dd>",
        "<dd>32 of 64</dd>",
        "<dd>00ff</dd>",
        "<dd>0123456789ab-dirty</dd>",
        "<td class=\"number\">40</td><td>out of memory; again with same plan</td>",
        "was not finite: step 7.",
        "epochs = 3",
    ] {
        assert!(html.contains(text), "{text}");
    }
    let empty = Run::default().to_html();
    assert!(empty.contains("No step yet") && empty.contains("No step was recorded"));
}

#[test]
fn values_that_are_not_finite_are_gaps_and_counted() {
    let mut run = Run::default();
    for (step, loss) in [(1, json!(2.0)), (2, json!(null)), (3, json!(1.0))] {
        add(&mut run.curves, &json!({ "step": step, "batch": 1, "loss": loss }));
    }
    let drawn = curve(&run.to_html(), "Loss", 0);
    assert_eq!((&drawn["mean"], &drawn["gaps"]), (&json!([2.0, null, 1.0]), &json!(1)));
    assert_eq!(run.last("loss"), Some(1.0));
}

#[test]
fn short_last_batch_of_an_epoch_is_no_curve_but_a_smaller_plan_is() {
    let cut = |sizes: &[u64]| {
        let mut run = Run::default();
        for (step, size) in (1..).zip(sizes) {
            let line = json!({ "step": step, "batch": 64, "micro_batch": size, "loss": 1.0 });
            add(&mut run.curves, &line);
        }
        run.to_html()
    };
    let html = cut(&[64, 64, 13, 64, 64, 13]);
    assert_eq!(titles(&html), ["Loss"]);
    assert!(html.contains("Micro batch 64 (now and then 13)"));
    assert_eq!(titles(&cut(&[64, 64, 32, 32])), ["Loss", "Micro batch"]);
}

#[test]
fn same_run_gives_the_same_bytes() {
    let run = example(2000);
    assert_eq!(run.to_html(), run.to_html());
    assert_eq!(compare(&[run.clone(), run.clone()]), compare(&[run.clone(), run]));
}

#[test]
fn thinning_keeps_every_value_within_its_points() {
    for len in [0, 1, 2, 1000, 1001, 54_321] {
        let mut points: Vec<(u64, f64)> =
            (0..len).map(|i| (i + 1, ((i * 7919) % 1009) as f64)).collect();
        if len > 1000 {
            points[len as usize / 3].1 = 1e6;
            points[len as usize / 2].1 = -1e6;
            points[7].1 = f64::NAN;
        }
        let thinned = thin(&points);
        assert!(thinned.steps.len() <= POINTS_MAX);
        assert_eq!(thinned.steps.len(), thinned.means.len());
        assert_eq!(thinned.gap_count, usize::from(len > 1000));
        for (index, part) in points.chunks(thinned.each).enumerate() {
            assert_eq!(thinned.steps[index], part[0].0);
            if thinned.each == 1 {
                assert_eq!(thinned.means[index], part[0].1);
                continue;
            }
            let finite: Vec<f64> = part.iter().map(|p| p.1).filter(|v| v.is_finite()).collect();
            let mean = finite.iter().sum::<f64>() / finite.len() as f64;
            assert!((thinned.means[index] - mean).abs() <= 1e-6 * mean.abs().max(1.0));
            for value in finite {
                assert!(thinned.lows[index] <= value && value <= thinned.highs[index]);
            }
        }
    }
}

#[test]
fn a_hundred_thousand_steps_are_quick_to_load_and_say_that_they_are_thinned() {
    let mut run = example(1);
    for step in 2..=100_000_u64 {
        let noise = ((step * 7919) % 1000) as f64 / 7.0;
        add(
            &mut run.curves,
            &json!({
                "step": step, "loss": noise, "learning_rate": 1.0 / step as f64, "batch": 64,
                "micro_batch": 64, "seconds": noise / 3.0 + 0.1, "reserved_peak_bytes": step,
                "retries": [{ "reason": "out of memory", "recovery": "same plan" }],
            }),
        );
    }
    let html = run.to_html();
    check_well_formed(&html);
    assert!(html.len() < 320 << 10, "{} bytes", html.len());
    assert!(html.contains("the mean of up to 100 steps"));
    assert!(html.contains("and 99,979 more"));
}

#[test]
fn numbers_are_written_for_people() {
    use super::charts::quantity;
    let cases = [
        ("loss", 0.0, "0"),
        ("loss", 2.345_678_9, "2.34568"),
        ("loss", 0.000_012_34, "1.2340e-5"),
        ("loss", -12.5, "-12.5"),
        ("samples_per_second", 64_014.6, "64,015"),
        ("steps", 1_234_567.0, "1,234,567"),
        ("test_accuracy", 0.977_777, "97.78 %"),
        ("reserved_peak_bytes", 6_291_456.0, "6 MiB"),
        ("seconds", 0.25, "250 ms"),
        ("seconds", 83.4, "83.4 s"),
        ("loss", f64::NAN, "not finite"),
        ("loss", 1e300, "1.0000e300"),
    ];
    for (name, value, text) in cases {
        assert_eq!(quantity(name, value), text, "{name} {value}");
    }
}

/// A folder with these metrics and this recipe.
fn folder(metrics: &str, recipe: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("run <1>");
    fs::create_dir(&path).expect("a folder");
    fs::write(path.join("metrics.jsonl"), metrics).expect("a file");
    fs::write(path.join("recipe.toml"), recipe).expect("a file");
    (folder, path)
}

const LINES: &str = "{\"step\":1,\"epoch\":1,\"loss\":2.5,\"batch\":4,\"seconds\":0.5}\n\
                     {\"epoch\":1,\"step\":1,\"test_loss\":1.5,\"test_accuracy\":0.25}\n";

#[test]
fn run_is_read_from_its_folder_as_far_as_it_goes() {
    let (_keep, path) = folder(LINES, "[train]\nepochs = 1\n");
    let run = Run::read(&path).expect("a run");
    assert_eq!((run.about.title.as_str(), run.status), ("run <1>", Status::Finished));
    assert_eq!((run.last("loss"), run.last("test_accuracy")), (Some(2.5), Some(0.25)));
    assert_eq!(run.last("samples_per_second"), Some(8.0));
    assert_eq!(run.about.recipe, "[train]\nepochs = 1\n");
    check_well_formed(&run.to_html());

    let summary = r#"{"seconds":7.5,"budget_bytes":1024,"final_state_hash":"ab","test_loss":1.5}"#;
    fs::write(path.join("summary.json"), summary).expect("a file");
    let run = Run::read(&path).expect("a run");
    assert_eq!((run.seconds, run.budget_bytes), (7.5, Some(1024)));
    assert!(run.facts.contains(&("Final state hash".to_owned(), "ab".to_owned())));

    // A killed run has its metrics under the temporary name, perhaps with a half last line.
    fs::write(path.join("metrics.jsonl.partial"), format!("{LINES}{{\"step\":2,\"lo"))
        .expect("one");
    fs::remove_file(path.join("metrics.jsonl")).expect("it is there");
    let run = Run::read(&path).expect("a run");
    assert_eq!((run.status, run.curves.last_step()), (Status::Failed, 1));
}

#[test]
fn folder_without_metrics_and_lines_that_are_none_are_errors_that_name_the_place() {
    let (_keep, path) = folder(&format!("{LINES}[1]\n{LINES}"), "");
    let error = Run::read(&path).expect_err("a list is no line");
    assert!(error.to_string().contains("metrics.jsonl:3"), "{error}");
    fs::remove_file(path.join("metrics.jsonl")).expect("it is there");
    let error = Run::read(&path).expect_err("no metrics");
    assert!(matches!(&error, TrainError::File { path, .. } if path.ends_with("metrics.jsonl")));
}

#[test]
fn comparison_shows_both_curves_what_differs_and_what_came_of_it() {
    let mut two = example(50);
    two.about.title = "Other".to_owned();
    two.about.recipe = "[train]\nepochs = 5\nseed = 1\n\n[model]\nchannels = 4\n".to_owned();
    let one = example(30);
    let html = compare(&[one.clone(), two.clone()]);
    let drawn = |index| curve(&html, "Loss", index);
    for (index, run, name) in
        [(0, &one, "loss"), (1, &one, "test_loss"), (2, &two, "loss"), (3, &two, "test_loss")]
    {
        let values: Vec<f64> =
            run.curves.get(name).expect(name).points.iter().map(|&(_, value)| value).collect();
        assert_eq!(drawn(index)["mean"], json!(values), "{name}");
        assert_eq!(drawn(index)["run"], json!(index / 2));
    }
    assert_eq!(island(&html)["runs"], json!(["Digits", "Other"]));
    let (_, differences) = html.split_once("What differs in the recipes").expect("a section");
    let (differences, _) = differences.split_once("</section>").expect("its end");
    for row in [
        "<th scope=\"row\">train.epochs</th><td>3</td><td>5</td>",
        "<th scope=\"row\">train.seed</th><td class=\"none\">none</td><td>1</td>",
    ] {
        assert!(differences.contains(row), "{row}");
    }
    assert!(!differences.contains("channels"), "what is the same does not differ");
    for row in [
        "<th scope=\"row\">Steps</th><td>30</td><td>50</td>",
        "<th scope=\"row\">Test loss, best</th><td>0.0333333 at step 30</td>\
         <td>0.02 at step 50</td>",
        "<th scope=\"row\">State hash</th><td>00ff</td><td>00ff</td>",
    ] {
        assert!(html.contains(row), "{row}");
    }
    assert!(compare(&[one.clone(), one]).contains("The recipes are the same."));
}
