//! Laws of the page: well formed, closed to the outside, complete at the extremes, small.

use super::sample::{columns, smooth, thin};
use super::svg::{Scale, byte_ticks};
use super::{MemoryTimeline, Report, escape, grouped};

const MIB: u64 = 1 << 20;

/// A run with everything in it: retries, a budget, and `event_count` allocation events.
fn example(event_count: usize) -> Report {
    let events: Vec<Vec<u64>> = (0..event_count as u64)
        .map(|event| vec![MIB, (event * 7919) % (2 * MIB), (event % 3) * 1000])
        .collect();
    Report {
        title: String::from("Digits"),
        facts: vec![(String::from("Device"), String::from("cpu"))],
        loss: (1..=100).map(|step| (step, 2.3 / step as f64)).collect(),
        metrics: vec![(String::from("test accuracy"), vec![(50, 0.9), (100, 0.95)])],
        retries: vec![(40, String::from("out of memory"))],
        micro_batch: vec![(1, 64), (40, 32)],
        memory: MemoryTimeline {
            categories: ["parameter", "activation", "workspace"].map(String::from).to_vec(),
            reserved: vec![4 * MIB; event_count],
            first_event: 0,
            events,
            budget_bytes: Some(6 * MIB),
            peak_bytes: 4 * MIB,
            phases: vec![(0, String::from("forward")), (event_count / 2, String::from("backward"))],
            modules: (0..20).map(|index| (format!("<layers>.{index}"), MIB - index)).collect(),
            caption: String::from("Step 40"),
        },
    }
}

/// Every opened tag is closed in order, every attribute is quoted, and no text is left as markup.
#[track_caller]
fn check_well_formed(html: &str) {
    const VOID: [&str; 2] = ["meta", "!DOCTYPE"];
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

/// The data of the n-th figure, as the script would read it.
#[track_caller]
fn island(html: &str, index: usize) -> serde_json::Value {
    let start = "<script type=\"application/json\">";
    let text = html.split(start).nth(index + 1).expect("a data island");
    let text = &text[..text.find("</script>").expect("an end")];
    serde_json::from_str(text).expect("valid JSON")
}

#[test]
fn pages_are_well_formed() {
    check_well_formed(&Report::default().to_html());
    for event_count in [1, 2, 799, 800, 801, 5000] {
        check_well_formed(&example(event_count).to_html());
    }
}

#[test]
#[should_panic(expected = "open")]
fn the_check_of_form_finds_a_crossed_tag() {
    check_well_formed("<p><b></p></b>");
}

#[test]
fn the_page_refers_to_nothing_outside() {
    let html = example(100).to_html();
    for reference in ["http", "src=", "href", "url(", "@import", "import(", "fetch(", "<link"] {
        // The policy's `http-equiv` is the only place where these letters may stand.
        let html = html.replace("http-equiv", "");
        assert!(!html.contains(reference), "{reference}");
    }
    assert!(html.contains("default-src 'none'"));
}

#[test]
fn text_from_outside_is_never_markup() {
    let hostile = String::from("</script><img src=x onerror=\"a\">&'");
    let mut report = example(1000);
    report.title = hostile.clone();
    report.facts = vec![(hostile.clone(), hostile.clone())];
    report.retries = vec![(3, hostile.clone())];
    report.memory.categories = vec![hostile.clone(); 3];
    report.memory.phases = vec![(0, hostile.clone()), (500, hostile.clone())];
    report.memory.caption = hostile.clone();
    let html = report.to_html();
    check_well_formed(&html);
    assert!(!html.contains("<img"));
    assert!(html.contains(&escape(&hostile)));
    assert_eq!(island(&html, 2)["phases"]["names"][0], hostile.as_str());
    assert_eq!(escape("<a b=\"c\">'&"), "&lt;a b=&quot;c&quot;&gt;&#39;&amp;");
}

#[test]
fn missing_data_is_named_and_the_rest_still_shown() {
    let html = Report::default().to_html();
    assert_eq!(html.matches("class=\"empty\"").count(), 3);
    assert!(!html.contains("<figure"));

    let mut report = example(10);
    report.loss.clear();
    let html = report.to_html();
    assert_eq!(html.matches("class=\"empty\"").count(), 1);
    assert_eq!(html.matches("<figure").count(), 2);
    assert!(html.contains("out of memory"), "retries do not vanish with the loss");

    report.loss = vec![(1, f64::NAN), (2, f64::INFINITY)];
    assert!(report.to_html().contains("no loss was finite"));
}

#[test]
fn one_step_is_a_dot() {
    let mut report = example(1);
    report.loss = vec![(1, 2.3)];
    report.metrics = vec![(String::from("test <loss>"), vec![(1, 0.1)])];
    report.retries.clear();
    let html = report.to_html();
    check_well_formed(&html);
    assert!(html.contains("<path class=\"smooth\" d=\"M1000 500h0\"/>"), "{html}");
}

#[test]
fn losses_that_are_not_finite_are_left_out_and_counted() {
    let mut report = example(10);
    report.loss = vec![(1, 2.0), (2, f64::NAN), (3, 1.0), (4, f64::NEG_INFINITY)];
    let html = report.to_html();
    assert_eq!(island(&html, 0)["x"], serde_json::json!([1, 3]));
    assert!(html.contains("2 steps without a finite loss"));
    assert!(!html.contains("NaN"));
}

#[test]
fn a_peak_of_one_event_survives_among_a_hundred_thousand() {
    for peak_event in [0, 1, 49_999, 77_777, 99_999] {
        let mut report = example(100_000);
        report.memory.events[peak_event] = vec![MIB, 9 * MIB, 0];
        report.memory.reserved[peak_event] = 11 * MIB;
        let html = report.to_html();
        let data = island(&html, 2);
        let column = data["event"]
            .as_array()
            .and_then(|events| events.iter().position(|event| *event == peak_event))
            .expect("the fullest event has a column");
        // The rows of the script's table are the stack from the top; the steady ones are lowest.
        assert_eq!(data["live"][column], serde_json::json!([9 * MIB, 0, MIB]));
        assert_eq!(data["reserved"][column], 11 * MIB);
        assert!(html.contains(&format!("Fullest: event {}", grouped(peak_event as u64))));
        assert!(html.contains("<td class=\"number\">9 MiB</td>"));
    }
}

#[test]
fn a_hundred_thousand_events_and_steps_stay_below_a_quarter_mebibyte() {
    let mut report = example(100_000);
    report.memory.categories = (0..9).map(|index| format!("category {index}")).collect();
    let row = |event: u64| (0..9).map(|c| (event * 7919 * (c + 1)) % MIB).collect();
    report.memory.events = (0..100_000).map(row).collect();
    report.memory.phases =
        (0..20_000).map(|index| (5 * index, format!("p{}", index % 3))).collect();
    report.loss = (0..100_000).map(|step| (step, ((step * 7919) % 1000) as f64)).collect();
    report.retries = (0..5000).map(|index| (20 * index, String::from("out of memory"))).collect();
    report.micro_batch = (0..5000).map(|index| (20 * index, 1 + index as usize % 2)).collect();
    let html = report.to_html();
    check_well_formed(&html);
    assert!(html.len() < 256 << 10, "{} bytes", html.len());
    assert!(html.contains("and 4,980 more"));
}

#[test]
fn rows_of_the_wrong_length_count_as_zero_where_they_are_short() {
    let mut report = example(3);
    report.memory.events = vec![vec![], vec![5 * MIB], vec![MIB, MIB, MIB, 99 * MIB]];
    report.memory.reserved = vec![MIB];
    let html = report.to_html();
    check_well_formed(&html);
    assert!(html.contains("Fullest: event 1,"), "bytes beyond the categories are not live");
    assert_eq!(island(&html, 2)["reserved"], serde_json::json!([MIB, 0, 0]));
}

#[test]
fn extreme_byte_counts_do_not_overflow() {
    let mut report = example(2);
    report.memory.events = vec![vec![u64::MAX; 3]; 2];
    report.memory.reserved = vec![u64::MAX; 2];
    report.memory.peak_bytes = u64::MAX;
    report.memory.budget_bytes = Some(0);
    check_well_formed(&report.to_html());
    report.memory.events = vec![vec![0; 3]; 2];
    report.memory.reserved = vec![0; 2];
    check_well_formed(&report.to_html());
}

#[test]
fn a_budget_far_above_the_picture_is_named_but_does_not_flatten_it() {
    let mut report = example(100);
    assert!(report.to_html().contains("<path class=\"budget\""));
    report.memory.budget_bytes = Some(24 << 30);
    let html = report.to_html();
    assert!(!html.contains("<path class=\"budget\""));
    assert!(html.contains("budget 24 GiB, above this picture"));
}

#[test]
fn columns_partition_the_events() {
    for len in [0, 1, 2, 799, 800, 801, 1601, 100_000] {
        let columns = columns(len);
        assert!(columns.iter().all(|column| !column.is_empty()));
        assert!(columns.len() <= 800);
        let events: Vec<usize> = columns.into_iter().flatten().collect();
        assert_eq!(events, (0..len).collect::<Vec<_>>());
    }
}

#[test]
fn thinning_keeps_both_ends_and_both_extremes_of_any_series() {
    for len in [1, 2, 1000, 54_321] {
        let mut values: Vec<f64> = (0..len).map(|i| ((i * 7919) % 1009) as f64).collect();
        values[len / 3] = 1e6;
        values[2 * len / 3] = if len > 2 { -1e6 } else { 0.0 };
        let kept = thin(&values);
        assert!(kept.is_sorted_by(|a, b| a < b));
        assert_eq!((kept[0], kept[kept.len() - 1]), (0, len - 1));
        assert!(len < 3 || kept.contains(&(len / 3)) && kept.contains(&(2 * len / 3)));
        assert!(kept.len() <= 2 * 800 + 2);
    }
    assert!(thin(&[]).is_empty());
}

#[test]
fn the_mean_of_a_straight_line_is_the_line() {
    let line: Vec<f64> = (0..1000).map(f64::from).collect();
    for (value, mean) in line.iter().zip(smooth(&line)) {
        assert!((value - mean).abs() < 1e-9, "{value} {mean}");
    }
    let noisy: Vec<f64> = (0..1000).map(|index| f64::from(index % 2)).collect();
    assert!(smooth(&noisy)[500] > 0.4 && smooth(&noisy)[500] < 0.6);
}

#[test]
fn ticks_are_round_inside_the_range_and_few() {
    for (low, high) in [(0.0, 2.4), (-3.0, 5.0), (0.9, 1.0), (1.0, 100_000.0), (1e-6, 3e-6)] {
        let (ticks, decimals) = Scale::new(low, high).ticks(5, 0.0);
        assert!((3..=9).contains(&ticks.len()), "{low}..{high}: {ticks:?}");
        for tick in ticks {
            assert!(tick >= low - 1e-9 && tick <= high * (1.0 + 1e-9), "{tick}");
            let written: f64 = format!("{tick:.decimals$}").parse().expect("a number");
            assert!((written - tick).abs() <= 1e-9 * high, "{tick} is written as {written}");
        }
    }
    let (ticks, _) = Scale::new(1.0, 3.0).ticks(5, 1.0);
    assert_eq!(ticks, [1.0, 2.0, 3.0], "steps have no fractions");
    for high_bytes in [1, 5, 1000, 6 * MIB, 25 << 30, u64::MAX] {
        let ticks = byte_ticks(high_bytes);
        assert!((2..=8).contains(&ticks.len()), "{high_bytes}: {ticks:?}");
        assert!(ticks.iter().all(|tick| *tick <= high_bytes));
    }
}

#[test]
fn thousands_are_set_apart() {
    let cases = [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")];
    for (number, text) in cases {
        assert_eq!(grouped(number), text);
    }
}
