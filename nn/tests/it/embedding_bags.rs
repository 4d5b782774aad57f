//! Reduced bags of rows against sums by hand, and gradients against finite differences.

use lowtide_autograd::{Pass, Var, check};
use lowtide_nn::{
    BagOptions, BagReduction, Bags, EmbeddingBag, Module, NnError, Parameters, embedding_bag,
};
use lowtide_tensor::{DType, Tensor, TensorError};

use crate::common::{KEY, Outcome, cpu, f64s, names, values};

const WIDTH: usize = 3;
/// Bags with a row twice, with only padding, and without rows.
const INDEX: [i64; 8] = [1, 4, 1, 2, 2, 0, 3, 2];
const STARTS: [i64; 5] = [0, 3, 5, 5, 7];

/// The rows of each bag, with the positions of their indices.
fn bags() -> Vec<Vec<(usize, i64)>> {
    let ends = STARTS[1..].iter().copied().chain([INDEX.len() as i64]);
    let bag = |(start, end): (&i64, i64)| {
        (*start as usize..end as usize).map(|place| (place, INDEX[place])).collect()
    };
    STARTS.iter().zip(ends).map(bag).collect()
}

fn reduced(
    table: &[f64],
    weights: Option<&[f64]>,
    BagOptions { reduction, padding }: BagOptions,
) -> Vec<f64> {
    let mut y = Vec::new();
    for bag in bags() {
        let kept: Vec<_> =
            bag.into_iter().filter(|(_, row)| padding != Some(*row as usize)).collect();
        for feature in 0..WIDTH {
            let parts = kept.iter().map(|&(place, row)| {
                let weight = weights.map_or(1.0, |weights| weights[place]);
                weight * table[row as usize * WIDTH + feature]
            });
            y.push(match reduction {
                BagReduction::Sum => parts.sum(),
                BagReduction::Mean => parts.sum::<f64>() / kept.len().max(1) as f64,
                BagReduction::Max if kept.is_empty() => 0.0,
                BagReduction::Max => parts.fold(f64::NEG_INFINITY, f64::max),
            });
        }
    }
    y
}

fn assert_close(found: &Tensor, expected: &[f64], what: &str) {
    let found = found.to_vec::<f64>().expect("f64");
    assert_eq!(found.len(), expected.len(), "{what}");
    for (a, b) in found.iter().zip(expected) {
        assert!((a - b).abs() < 1e-12, "{what}: {found:?}, not {expected:?}");
    }
}

#[test]
fn bags_are_reduced_and_gradients_are_differences() -> Outcome {
    let device = cpu();
    let table = f64s(&device, "table", [5, WIDTH]);
    let weights = f64s(&device, "weights", [8]);
    let numbers = [values("table", 5 * WIDTH), values("weights", 8)];
    let index = Tensor::from_slice(&device, [8], &INDEX)?;
    let starts = Tensor::from_slice(&device, [5], &STARTS)?;
    let reductions = [BagReduction::Sum, BagReduction::Mean, BagReduction::Max];
    for (reduction, padding) in reductions.into_iter().flat_map(|r| [(r, None), (r, Some(2))]) {
        let options = BagOptions { reduction, padding };
        let run = |vars: Vec<Var>| {
            let mut vars = vars.into_iter();
            let table = vars.next().expect("a table");
            embedding_bag(table, &index, Bags::From(&starts), vars.next(), options)
        };
        let with_weights: &[bool] =
            if reduction == BagReduction::Sum { &[false, true] } else { &[false] };
        for &is_weighted in with_weights {
            let inputs = if is_weighted {
                vec![table.clone(), weights.clone()]
            } else {
                vec![table.clone()]
            };
            let what = format!("{options:?}, weighted: {is_weighted}");
            let pass = Pass::eval();
            let y = run(inputs.iter().map(|x| pass.constant(x.clone())).collect())?;
            let by_hand = reduced(&numbers[0], is_weighted.then_some(&numbers[1][..]), options);
            assert_close(y.value(), &by_hand, &what);
            let sum = |_: &Pass, vars: Vec<Var>| {
                let y = run(vars).map_err(NnError::into_autograd)?;
                y.clone().mul(y)?.sum_all()
            };
            check::gradients(sum, &inputs).map_err(|error| format!("{what}: {error}"))?;
        }
    }
    Ok(())
}

#[test]
fn rows_of_indices_are_bags_of_one_length() -> Outcome {
    let (device, pass) = (cpu(), Pass::eval());
    let table = pass.constant(f64s(&device, "table", [5, WIDTH]));
    let rows = Tensor::from_slice(&device, [2, 4], &INDEX)?;
    let (flat, starts) = (rows.reshape([8])?, Tensor::from_slice(&device, [2], &[0_i64, 4])?);
    for reduction in [BagReduction::Sum, BagReduction::Mean, BagReduction::Max] {
        let options = BagOptions { reduction, padding: None };
        let of_rows = embedding_bag(table.clone(), &rows, Bags::Rows, None, options)?;
        let of_starts = embedding_bag(table.clone(), &flat, Bags::From(&starts), None, options)?;
        assert_eq!(of_rows.value().to_vec::<f64>()?, of_starts.value().to_vec::<f64>()?);
    }
    Ok(())
}

#[test]
fn a_layer_of_bags_has_pytorchs_names_and_a_row_of_zeros_for_padding() -> Outcome {
    let device = cpu();
    let options = BagOptions { padding: Some(4), ..Default::default() };
    let mut layer = EmbeddingBag::new(&device, KEY, [5, WIDTH], options)?;
    assert_eq!(names(&mut layer), ["weight"]);
    let mut last = Vec::new();
    layer.visit(&mut |_, parameter| {
        last = parameter.value().select(0, 4).expect("a row").to_vec::<f32>().expect("f32");
    });
    assert_eq!(last, [0.0; WIDTH]);
    let pass = Pass::eval();
    let y = layer.forward(&pass, pass.constant(Tensor::zeros(&device, [2, 3], DType::I64)?))?;
    assert_eq!(y.shape()[..], [2, WIDTH]);
    assert!(EmbeddingBag::new(&device, KEY, [4, WIDTH], options).is_err());
    Ok(())
}

#[test]
fn bags_that_do_not_fit_are_errors() -> Outcome {
    let (device, pass) = (cpu(), Pass::eval());
    let table = || pass.constant(f64s(&device, "table", [5, WIDTH]));
    let index = Tensor::from_slice(&device, [8], &INDEX)?;
    let starts = |numbers: &[i64]| Tensor::from_slice(&device, [numbers.len()], numbers);
    let run = |index: &Tensor, bags, weights, options| match embedding_bag(
        table(),
        index,
        bags,
        weights,
        options,
    ) {
        Err(NnError::Autograd(error)) => error,
        Err(error) => panic!("another error: {error}"),
        Ok(_) => panic!("no error"),
    };
    let (first, late) = (starts(&[0])?, starts(&[1, 3])?);
    let is_shape = |error: &lowtide_autograd::AutogradError| {
        matches!(error, lowtide_autograd::AutogradError::Tensor(TensorError::Shape { .. }))
    };
    let mean = BagOptions::default();
    let weights = || Some(pass.constant(f64s(&device, "weights", [8])));
    assert!(is_shape(&run(&index, Bags::Rows, None, mean)));
    assert!(is_shape(&run(&index.reshape([2, 4])?, Bags::From(&first), None, mean)));
    assert!(is_shape(&run(&index, Bags::From(&first), weights(), mean)));
    let sum = BagOptions { reduction: BagReduction::Sum, padding: None };
    let one = Some(pass.constant(f64s(&device, "weights", [1])));
    assert!(is_shape(&run(&index, Bags::From(&first), one, sum)));
    let error = run(&index, Bags::From(&late), None, mean);
    assert!(error.to_string().contains("index"), "{error}");
    let outside = Tensor::from_slice(&device, [1], &[5_i64])?;
    let outside = run(&outside, Bags::From(&first), None, mean);
    assert!(outside.to_string().contains("index"), "{outside}");
    Ok(())
}
