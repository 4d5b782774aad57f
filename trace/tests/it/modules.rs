use lowtide_allocator::{
    Buffer, CachingAllocator, Category, ModulePath, Origin, Policy, SimSource,
};
use lowtide_trace::{EventKind, Limits, Recording, Site};

use crate::common::{PLENTY, World};

/// Allocates in two modules: also a block that gets its module late, and a block that exists only
/// at the peak.
fn recorded(memory: &CachingAllocator) -> Vec<Buffer> {
    let origin = |path: &str| Origin { module: Some(ModulePath::new(path)), site: None };
    let weight = memory.allocate_in(Category::Parameter, 3000).unwrap();
    let outside = memory.allocate_in(Category::Input, 100).unwrap();
    let kept = {
        let _first = origin("first").enter();
        memory.allocate_in(Category::Activation, 2000).unwrap()
    };
    weight.set_module(ModulePath::of_parameter("second.0.weight"));
    let _root = origin("").enter();
    drop(memory.allocate_in(Category::Workspace, 9000).unwrap());
    vec![weight, outside, kept]
}

#[test]
fn explanation_has_the_modules_at_the_peak() {
    let memory = World::sim(PLENTY).memory;
    let _held = recorded(&memory);
    let capture = memory.capture();
    let at_peak = capture.modules_at_peak(0);
    assert_eq!(at_peak.len(), 4);
    let told = Recording::of(&capture).explain();
    let told_rows: Vec<_> =
        told.peak.by_module.iter().map(|m| (m.module.as_str(), m.blocks, m.bytes)).collect();
    let names: Vec<String> = at_peak.iter().map(|share| share.name()).collect();
    let expected = at_peak.iter().zip(&names).map(|(share, name)| {
        (if name == "(none)" { "" } else { name.as_str() }, share.blocks, share.bytes)
    });
    assert_eq!(told_rows, expected.collect::<Vec<_>>());
    let text = told.to_string();
    let heading = text.find("By module at the peak").expect("a table");
    assert!(text[heading..].contains("second.0"), "{text}");
}

#[test]
fn a_block_that_is_named_late_is_recorded_by_that_name() {
    for memory in [World::sim(PLENTY).memory, torch()] {
        let held = recorded(&memory);
        let recording = Recording::of(&memory.capture());
        let module = |site: Option<u32>| recording.sites[site.unwrap() as usize].module.as_str();
        let weight = held[0].serial();
        let event = recording
            .events
            .iter()
            .find(|event| matches!(event.kind, EventKind::Allocate { id } if id == weight));
        assert_eq!(module(event.unwrap().site), "second.0");
        let blocks = recording.end.iter().flat_map(|range| &range.blocks);
        let live: Vec<_> = blocks.map(|block| module(block.site)).collect();
        assert_eq!(live.iter().filter(|name| **name == "second.0").count(), 1);
        drop(held);
        let after = Recording::of(&memory.capture());
        let free = after.events.iter().find(|event| event.kind == EventKind::Free { id: weight });
        assert_eq!(after.sites[free.unwrap().site.unwrap() as usize].module, "second.0");
    }
}

fn torch() -> CachingAllocator {
    let policy = Policy::Torch(Default::default());
    CachingAllocator::with_policy(SimSource::with_capacity(1 << 30), policy).unwrap()
}

#[test]
fn traces_keep_modules_and_old_ones_have_none() {
    let memory = World::sim(PLENTY).memory;
    let _held = recorded(&memory);
    let recording = Recording::of(&memory.capture());
    let mut file = Vec::new();
    recording.write_json_lines(&mut file).unwrap();
    let limits = Limits::default();
    assert_eq!(Recording::read_json_lines(file.as_slice(), limits).unwrap(), recording);

    let old = concat!(
        r#"{"format":"lowtide-trace","version":1,"policy":"pages","capacity_bytes":0,"#,
        r#""page_bytes":0,"lost_events":0,"start_reserved_bytes":0}"#,
        "\n",
        r#"{"site":{"file":"a.rs","line":1,"function":"f"}}"#,
        "\n",
        r#"{"end":{"sites":1,"pieces":0,"start":0,"charges":0,"events":0,"segments":0,"live":0}}"#,
        "\n",
    );
    let mut written = Vec::new();
    let site = Site { file: "a.rs".into(), line: 1, function: "f".into(), ..Site::default() };
    let expected = Recording { policy: "pages".into(), sites: vec![site], ..Recording::default() };
    expected.write_json_lines(&mut written).unwrap();
    let text = String::from_utf8(written.clone()).unwrap();
    assert_eq!(text, old);
    assert_eq!(Recording::read_json_lines(old.as_bytes(), limits).unwrap(), expected);
}

#[test]
fn snapshots_for_pytorch_have_the_module_as_an_outer_frame() {
    let memory = World::sim(PLENTY).memory;
    let _held = recorded(&memory);
    let mut file = Vec::new();
    Recording::of(&memory.capture()).write_pickle(&mut file).unwrap();
    let text = String::from_utf8_lossy(&file);
    for part in ["second.0", "(module)", "modules.rs"] {
        assert!(text.contains(part), "{part:?} is not in the pickle");
    }
}
