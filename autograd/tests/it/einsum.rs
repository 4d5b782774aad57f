//! Einstein sums against their definition: a sum over the values of all letters.

use std::collections::BTreeMap;

use lowtide_autograd::{AutogradError, Pass, Var};
use lowtide_tensor::{Device, Tensor, TensorError};

use crate::common::{Outcome, cpu, values};

/// The shape and the elements of a result by loops over all letters. `...` is not supported.
fn naive(equation: &str, operands: &[(Vec<usize>, Vec<f64>)]) -> (Vec<usize>, Vec<f64>) {
    let (inputs, output) = equation.split_once("->").expect("an arrow");
    let terms: Vec<Vec<char>> = inputs.split(',').map(|term| term.chars().collect()).collect();
    let output: Vec<char> = output.chars().collect();
    let mut sizes: BTreeMap<char, usize> = BTreeMap::new();
    for (term, (shape, _)) in terms.iter().zip(operands) {
        for (&letter, &size) in term.iter().zip(shape) {
            let known = sizes.entry(letter).or_insert(size);
            if *known == 1 {
                *known = size;
            }
        }
    }
    let shape: Vec<usize> = output.iter().map(|letter| sizes[letter]).collect();
    let mut result = vec![0.0; shape.iter().product()];
    let letters: Vec<(char, usize)> = sizes.into_iter().collect();
    let total: usize = letters.iter().map(|(_, size)| size).product();
    for index in 0..total {
        let mut rest = index;
        let mut at = BTreeMap::new();
        for &(letter, size) in &letters {
            at.insert(letter, rest % size);
            rest /= size;
        }
        let place = |term: &[char], shape: &[usize]| {
            term.iter().zip(shape).fold(0, |place, (letter, &size)| {
                place * size + if size == 1 { 0 } else { at[letter] }
            })
        };
        let factors = terms.iter().zip(operands);
        let product: f64 = factors.map(|(term, (shape, x))| x[place(term, shape)]).product();
        result[place(&output, &shape)] += product;
    }
    (shape, result)
}

fn operands(device: &Device, shapes: &[&[usize]]) -> Vec<(Tensor, Vec<f64>)> {
    let operand = |(index, shape): (usize, &&[usize])| {
        let numbers = values(&format!("operand{index}"), shape.iter().product(), -1.0, 1.0);
        (Tensor::from_slice(device, *shape, &numbers).expect("memory"), numbers)
    };
    shapes.iter().enumerate().map(operand).collect()
}

fn einsum(device: &Device, equation: &str, shapes: &[&[usize]]) -> Result<Tensor, AutogradError> {
    let pass = Pass::eval();
    let operands = operands(device, shapes).into_iter().map(|(x, _)| pass.constant(x));
    Var::einsum(equation, operands.collect()).map(Var::into_value)
}

/// Checks `einsum` against the loops.
fn check_sum(device: &Device, equation: &str, shapes: &[&[usize]]) -> Outcome {
    let y = einsum(device, equation, shapes)?;
    let known: Vec<(Vec<usize>, Vec<f64>)> = operands(device, shapes)
        .into_iter()
        .map(|(x, numbers)| (x.shape().to_vec(), numbers))
        .collect();
    let (shape, expected) = naive(equation, &known);
    assert_eq!(y.shape().to_vec(), shape, "{equation}");
    for (found, expected) in y.contiguous()?.to_vec::<f64>()?.iter().zip(&expected) {
        assert!((found - expected).abs() < 1e-14, "{equation}: {found}, not {expected}");
    }
    Ok(())
}

#[test]
fn einsum_is_the_sum_over_all_letters() -> Outcome {
    let device = cpu();
    let cases: [(&str, &[&[usize]]); 17] = [
        ("ij,jk->ik", &[&[2, 3], &[3, 4]]),
        ("ij,jk->ki", &[&[2, 3], &[3, 4]]),
        ("bij,bjk->bik", &[&[2, 3, 4], &[2, 4, 2]]),
        ("bhqd,bhkd->bhqk", &[&[2, 2, 3, 4], &[2, 2, 5, 4]]),
        ("i,j->ij", &[&[3], &[4]]),
        ("i,i->", &[&[3], &[3]]),
        ("i,i->i", &[&[3], &[3]]),
        ("ij->ji", &[&[2, 3]]),
        ("ij->", &[&[2, 3]]),
        ("ii->i", &[&[3, 3]]),
        ("ii->", &[&[3, 3]]),
        ("iji,j->i", &[&[3, 2, 3], &[2]]),
        ("iii->i", &[&[3, 3, 3]]),
        ("ik,jkl,il->ij", &[&[2, 3], &[4, 3, 5], &[2, 5]]),
        ("ij,jk,kl,lm->im", &[&[2, 3], &[3, 2], &[2, 4], &[4, 1]]),
        // A length of 1 is stretched. A letter of only one operand is summed before the product.
        ("ij,ij->ij", &[&[1, 3], &[4, 3]]),
        ("ijk,kl->jl", &[&[3, 2, 1], &[5, 2]]),
    ];
    cases.into_iter().try_for_each(|(equation, shapes)| check_sum(&device, equation, shapes))
}

#[test]
fn einsum_of_nothing_is_zeros() -> Outcome {
    let device = cpu();
    let cases: [(&str, &[&[usize]]); 3] = [
        ("bij,bjk->ik", &[&[2, 0, 3], &[2, 3, 4]]),
        ("ij,jk->ik", &[&[2, 0], &[0, 3]]),
        ("ij,ij->ij", &[&[1, 3], &[0, 3]]),
    ];
    cases.into_iter().try_for_each(|(equation, shapes)| check_sum(&device, equation, shapes))
}

#[test]
fn ellipses_and_missing_arrows_are_what_they_stand_for() -> Outcome {
    let device = cpu();
    let same: [(&str, &str, &[&[usize]]); 6] = [
        ("ij,jk", "ij,jk->ik", &[&[2, 3], &[3, 4]]),
        ("ba", "ba->ab", &[&[2, 3]]),
        (" i j , j -> i ", "ij,j->i", &[&[2, 3], &[3]]),
        ("...ij,...jk->...ik", "abij,abjk->abik", &[&[2, 2, 3, 4], &[2, 2, 4, 2]]),
        ("i...,...", "iab,ab->abi", &[&[4, 2, 3], &[2, 3]]),
        ("...ij,...j", "abij,bj->abi", &[&[2, 2, 3, 4], &[2, 4]]),
    ];
    for (short, long, shapes) in same {
        let [short, long] = [short, long].map(|equation| einsum(&device, equation, shapes));
        let (short, long) = (short?.contiguous()?, long?.contiguous()?);
        assert_eq!(short.shape(), long.shape());
        assert_eq!(short.to_vec::<f64>()?, long.to_vec::<f64>()?);
    }
    Ok(())
}

#[test]
fn equations_that_cannot_be_followed_are_errors() {
    let device = cpu();
    let faults: [(&str, &[&[usize]]); 7] = [
        ("ij->ij", &[&[2, 3], &[3]]),
        ("ijk->i", &[&[2, 3]]),
        ("i->i", &[&[2, 3]]),
        ("i1->i", &[&[2, 3]]),
        ("ij->ii", &[&[2, 3]]),
        ("ij->k", &[&[2, 3]]),
        ("", &[]),
    ];
    for (equation, shapes) in faults {
        let error = einsum(&device, equation, shapes).expect_err(equation);
        assert!(matches!(error, AutogradError::Equation { .. }), "{equation}: {error}");
    }
    for (equation, shapes) in [("ij,jk->ik", [&[2, 3][..], &[4, 2]]), ("ii,i->", [&[2, 3], &[2]])] {
        let error = einsum(&device, equation, &shapes).expect_err(equation);
        let is_shape = matches!(error, AutogradError::Tensor(TensorError::Shape { .. }));
        assert!(is_shape, "{equation}: {error}");
    }
}
