use lowtide_allocator::{AllocError, Category, Fault, Repeat};

use crate::common::{PLENTY, World};

#[test]
fn categories_nest_and_come_back() {
    let memory = World::sim(PLENTY).memory;
    assert_eq!(memory.current_category(), Category::Other);
    {
        let _outer = memory.category(Category::Activation);
        {
            let _inner = memory.clone().category(Category::Workspace);
            assert_eq!(memory.allocate(1).unwrap().category(), Category::Workspace);
        }
        assert_eq!(memory.allocate(1).unwrap().category(), Category::Activation);
    }
    assert_eq!(memory.allocate(1).unwrap().category(), Category::Other);
}

#[test]
fn categories_are_counted_apart() {
    let memory = World::sim(PLENTY).memory;
    let _blocks: Vec<_> = Category::ALL
        .into_iter()
        .zip(1..)
        .map(|(category, n)| memory.allocate_in(category, 512 * n).unwrap())
        .collect();
    let counters = memory.statistics().by_category;
    for (category, n) in Category::ALL.into_iter().zip(1..) {
        assert_eq!(counters[category].current_bytes, 512 * n, "{category}");
    }
}

#[test]
fn category_names_are_in_snake_case() {
    let names: Vec<_> = Category::ALL.iter().map(Category::to_string).collect();
    let expected = "parameter gradient optimizer_state activation workspace input other".split(' ');
    assert_eq!(names, expected.collect::<Vec<_>>());
}

#[test]
fn sealed_allocator_refuses_growth_and_nothing_else() {
    let memory = World::sim(PLENTY).memory;
    let block = memory.allocate(1000).unwrap();
    let mut charge = memory.charge(Category::Workspace, 100).unwrap();
    let requests = memory.request_count();
    let before = memory.statistics();
    memory.inject_fault(Fault { nth: 1, repeat: Repeat::Once });
    {
        let _seal = memory.seal();
        drop(memory.seal());
        let line = line!() + 1;
        match memory.allocate(77).unwrap_err() {
            AllocError::Sealed { site, requested_bytes } => {
                assert_eq!(requested_bytes, 77);
                assert_eq!((site.file(), site.line()), (file!(), line));
            }
            error => panic!("{error}"),
        }
        assert!(matches!(memory.charge(Category::Other, 1), Err(AllocError::Sealed { .. })));
        assert!(matches!(charge.raise_to(101), Err(AllocError::Sealed { .. })));
        charge.raise_to(100).unwrap();
        assert_eq!(memory.statistics(), before);
        drop(block);
    }
    assert_eq!(memory.request_count(), requests, "refused requests are not counted");
    assert!(memory.allocate(1).unwrap_err().out_of_memory().unwrap().injected);
    memory.allocate(1).unwrap();
}

#[test]
fn charge_counts_until_it_is_dropped() {
    let memory = World::sim(10_000).memory;
    let mut charge = memory.charge(Category::Workspace, 4_000).unwrap();
    charge.raise_to(3_000).unwrap();
    assert_eq!(charge.size_bytes(), 4_000, "a charge only grows");
    charge.raise_to(10_000).unwrap();
    let statistics = memory.statistics();
    assert_eq!(statistics.charged.current_bytes, 10_000);
    assert_eq!(statistics.reserved.current_bytes, 10_000);
    assert_eq!(statistics.by_category[Category::Workspace].current_bytes, 10_000);
    assert_eq!(statistics.allocated.current_bytes, 0);

    let error = charge.raise_to(10_001).unwrap_err();
    assert_eq!(error.out_of_memory().unwrap().missing_bytes, 1);
    assert_eq!(charge.size_bytes(), 10_000);
    assert!(memory.allocate(1).is_err());
    drop(charge);
    memory.check_invariants();
    assert_eq!(memory.statistics().reserved.current_bytes, 0);
    memory.allocate(1).unwrap();
}
