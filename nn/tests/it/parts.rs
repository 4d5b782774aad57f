//! Parts of parameters, with an optimizer for each part.

use std::path::Path;

use lowtide_nn::optim::{
    Adam, AdamOptions, Optimizer, Part, Parts, Stateful, part_of_state_from_safetensors,
    state_to_safetensors,
};
use lowtide_nn::{NnError, Parameter, Parameters};
use lowtide_tensor::{DType, Device, RandomKey};

use crate::common::{Named, Outcome, all_bits, cpu, f32s, optimizers};
use crate::prune::gradients;

/// A model whose last parts are whole, shorter or empty.
fn model(device: &Device) -> Named {
    let weight = Parameter::new(f32s(device, "weight", [40, 33]));
    let bias = Parameter::new(f32s(device, "bias", [7]));
    let table = Parameter::new(f32s(device, "table", [2, 512]));
    Named(vec![("weight".into(), weight), ("bias".into(), bias), ("table".into(), table)])
}

fn parts(count: usize) -> impl Iterator<Item = Part> {
    (0..count).map(move |index| Part { index, count })
}

/// Updates a part of the parameters; `name` determines the gradients.
fn update_part(
    optimizer: &mut dyn Optimizer,
    model: &mut Named,
    part: Part,
    name: &str,
) -> Result<(), NnError> {
    let mut own = gradients(model, name);
    part.keep(&mut own)?;
    optimizer.prepare(&mut Parts::new(model, part)?, own)?.commit()
}

#[test]
fn parts_are_all_of_it_and_no_longer_than_the_first() {
    for count in 1..9 {
        for len in [0, 1, 255, 256, 257, 1024, 5000, 65536] {
            let mut end = 0;
            for part in parts(count) {
                let range = part.range(len);
                assert_eq!(range.start, end, "{part:?} of {len}");
                assert!(range.len() <= part.len_of(len));
                assert!(range.is_empty() || range.start == part.index * part.len_of(len));
                end = range.end;
            }
            assert_eq!(end, len, "{count} parts");
        }
    }
}

#[test]
fn parts_that_are_updated_apart_have_the_bits_of_wholes_and_their_state() -> Outcome {
    let device = cpu();
    let mut tried = 0;
    for (name, whole) in optimizers() {
        if !whole.can_update_parts() {
            continue;
        }
        tried += 1;
        for count in [1, 2, 3, 5] {
            let (mut one, mut many) = (model(&device), model(&device));
            let (mut whole, new) = (whole.boxed_clone(), whole.boxed_clone());
            let mut apart: Vec<_> = parts(count).map(|_| new.boxed_clone()).collect();
            for step in 0..4 {
                let step = step.to_string();
                let own = gradients(&one, &step);
                whole.prepare(&mut one, own)?.commit()?;
                for (optimizer, part) in apart.iter_mut().zip(parts(count)) {
                    update_part(&mut **optimizer, &mut many, part, &step)?;
                }
                assert_eq!(all_bits(&mut one), all_bits(&mut many), "{name}, step {step}");
                if step == "1" {
                    // A file has the states of whole parameters. Each optimizer reads its part.
                    let file = state_to_safetensors(&whole, &mut one)?;
                    for (optimizer, part) in apart.iter_mut().zip(parts(count)) {
                        let states = |optimizer: &mut Box<dyn Stateful>| {
                            let mut all = Vec::new();
                            optimizer.visit_state(&mut |state| {
                                all.push(state.to_vec::<f32>().expect("f32"));
                            });
                            all
                        };
                        let mut read = new.boxed_clone();
                        let path = Path::new("file");
                        part_of_state_from_safetensors(&mut read, &mut many, part, &file, path)?;
                        assert_eq!(states(&mut read), states(optimizer), "{name} {part:?}");
                        assert_eq!(read.steps(), whole.steps());
                        *optimizer = read;
                    }
                }
            }
        }
    }
    assert!(tried > 10, "{tried}");
    Ok(())
}

#[test]
fn states_of_a_part_take_its_share() -> Outcome {
    let device = cpu();
    let whole = Adam::new(AdamOptions::default())?;
    let all = whole.memory(&mut model(&device)).state_bytes;
    // States of 1320, 7 and 1024 elements, two each, in blocks of 512 bytes.
    assert_eq!(all, 2 * (11 * 512 + 512 + 8 * 512));
    for part in parts(4) {
        let own = whole.memory(&mut Parts::new(&mut model(&device), part)?).state_bytes;
        // The parts of `weight` and `bias`; `table` has parts of 256 elements. An empty part takes
        // a block.
        let weight = [512, 512, 296, 0][part.index];
        let bias = [7, 0, 0, 0][part.index];
        let blocks = [weight, bias, 256].map(|len: usize| (4 * len).div_ceil(512).max(1));
        assert_eq!(own, 2 * blocks.iter().sum::<usize>() * 512, "{part:?}");
    }
    Ok(())
}

#[test]
fn what_an_optimizer_cannot_divide_it_says() -> Outcome {
    let undivided = ["lamb", "adafactor", "muon", "adam, averaged"];
    for (name, optimizer) in optimizers() {
        assert_eq!(optimizer.can_update_parts(), !undivided.contains(&name), "{name}");
    }
    let adam = Adam::new(AdamOptions::default())?;
    assert!(!adam.clone().with_8bit_states().can_update_parts());
    assert!(!adam.with_stochastic_rounding(RandomKey::new(1)).can_update_parts());
    Ok(())
}

#[test]
fn parameters_that_are_frozen_have_no_parts_and_strided_ones_are_refused() -> Outcome {
    let device = cpu();
    let mut model = model(&device);
    model.0[1].1.freeze();
    let part = Part { index: 0, count: 2 };
    let mut seen = Vec::new();
    Parts::new(&mut model, part)?.visit(&mut |name, parameter| {
        assert_eq!(parameter.value().dtype(), DType::F32);
        seen.push((name.to_owned(), parameter.value().element_count()));
    });
    assert_eq!(seen, [("weight".to_owned(), 768), ("table".to_owned(), 512)]);
    let turned = model.0[0].1.value().transpose(0, 1)?;
    *model.0[0].1.value_mut() = turned;
    assert!(Parts::new(&mut model, part).is_err());
    Ok(())
}
