use std::collections::BTreeMap;

use lowtide_allocator::{Category, Fault, Repeat};
use proptest::prelude::*;

use crate::common::{PLENTY, World, program};

/// The keys of `torch.cuda.memory_stats` that have values, built as in PyTorch's documentation.
fn expected_keys() -> Vec<String> {
    let mut keys = vec!["num_alloc_retries".to_owned(), "num_ooms".to_owned()];
    for name in ["requested_bytes", "allocated_bytes", "active_bytes", "reserved_bytes"] {
        for metric in ["current", "peak", "allocated", "freed"] {
            keys.push(format!("{name}.all.{metric}"));
        }
    }
    for name in ["allocation", "active"] {
        for metric in ["current", "allocated", "freed"] {
            keys.push(format!("{name}.all.{metric}"));
        }
    }
    keys.sort();
    keys
}

#[test]
fn keys_are_those_of_torch_and_each_comes_once() {
    let mut keys: Vec<_> =
        World::sim(PLENTY).memory.statistics().torch_named().map(|(key, _)| key).collect();
    keys.sort_unstable();
    assert_eq!(keys, expected_keys());
}

proptest! {
    #[test]
    fn current_is_allocated_less_freed_and_at_most_the_peak(program in program()) {
        let mut world = World::sim(PLENTY);
        world.run(&program).unwrap();
        let values: BTreeMap<_, _> = world.memory.statistics().torch_named().collect();
        for (key, current) in &values {
            let Some(name) = key.strip_suffix(".current") else { continue };
            let of = |metric: &str| values.get(format!("{name}.{metric}").as_str()).copied();
            prop_assert_eq!(Some(*current), Some(of("allocated").unwrap() - of("freed").unwrap()));
            prop_assert!(of("peak").is_none_or(|peak| peak >= *current), "{}", key);
        }
        let requested: usize = world.buffers.iter().map(|buffer| buffer.size_bytes()).sum();
        prop_assert_eq!(values["requested_bytes.all.current"], requested as u64);
        prop_assert_eq!(values["allocation.all.current"], world.buffers.len() as u64);
        let blocks = world.memory.live_blocks();
        let active: usize = blocks.iter().map(|block| block.size_bytes).sum();
        prop_assert_eq!(values["active_bytes.all.current"], active as u64);
    }
}

#[test]
fn failures_are_counted_under_their_names() {
    let memory = World::sim(PLENTY).memory;
    memory.inject_fault(Fault { nth: 1, repeat: Repeat::Once });
    assert!(memory.allocate_in(Category::Other, 1).is_err());
    let values: BTreeMap<_, _> = memory.statistics().torch_named().collect();
    assert_eq!((values["num_ooms"], values["num_alloc_retries"]), (1, 1));
}
