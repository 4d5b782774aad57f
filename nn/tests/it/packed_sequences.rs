//! Sequences of several lengths without padding, against numbers of PyTorch 2.15 in f64.

use lowtide_autograd::{Attempt, Pass, Var};
use lowtide_nn::{
    Directions, Gru, Lstm, LstmState, Module, NnError, NnResult as Result, PackedSequence,
    Parameters, RecurrentOptions, Rnn, RnnActivation,
};
use lowtide_tensor::{CpuOptions, Device, Tensor, TensorResult};

use crate::common::{KEY, Outcome, cpu, f64s, widen};

const SORTED: [usize; 4] = [5, 5, 3, 2];
const UNSORTED: [usize; 4] = [3, 5, 1, 3];
const ONE: RecurrentOptions = RecurrentOptions {
    bias: true,
    inputs: 3,
    hidden: 2,
    layers: 1,
    dropout: 0.0,
    directions: Directions::Forward,
};
const BOTH: RecurrentOptions = RecurrentOptions { layers: 2, directions: Directions::Both, ..ONE };

/// `2 · (i · step mod modulus - ⌊modulus / 2⌋) / modulus`
fn counted(device: &Device, shape: &[usize], [step, modulus]: [usize; 2]) -> TensorResult<Tensor> {
    let number = |i| ((i * step % modulus) as f64 - (modulus / 2) as f64) / modulus as f64 * 2.0;
    let numbers: Vec<f64> = (0..shape.iter().product()).map(number).collect();
    Tensor::from_slice(device, shape, &numbers)
}

/// The layer with parameters from `counted`, in the order of the visit.
fn filled<M: Parameters>(mut layer: M) -> Result<M> {
    widen(&mut layer);
    let (mut index, mut outcome) = (0, Ok(()));
    layer.visit(&mut |_, parameter| {
        let shape = parameter.value().shape().to_vec();
        match counted(parameter.value().device(), &shape, [7, 11 + 2 * index]) {
            Ok(value) => *parameter.value_mut() = value,
            Err(error) => outcome = Err(error),
        }
        index += 1;
    });
    outcome?;
    Ok(layer)
}

/// Σ x, Σ x² and Σ x · `counted`, over several tensors.
fn sums(tensors: &[Tensor]) -> Result<[f64; 3]> {
    let mut sums = [0.0; 3];
    for tensor in tensors {
        let weights = counted(tensor.device(), &tensor.shape()[..], [5, 9])?.to_vec::<f64>()?;
        for (x, weight) in tensor.contiguous()?.to_vec::<f64>()?.into_iter().zip(weights) {
            sums[0] += x;
            sums[1] += x * x;
            sums[2] += x * weight;
        }
    }
    Ok(sums)
}

/// Runs a layer. Returns its padded outputs, then its states.
type Run<'a> = &'a dyn Fn(&Pass, &PackedSequence, Option<[Var; 2]>) -> Result<Vec<Var>>;

/// Sizes of the start states, if any: the number of cells, and the features of h and of c.
type Starts = Option<[usize; 3]>;

/// Sums of the results, of the gradients of the input, of the parameters, and of the start states.
fn found(
    device: &Device,
    layer: &mut dyn Parameters,
    (lengths, starts, has_c): ([usize; 4], Starts, bool),
    run: Run<'_>,
) -> Result<Vec<[f64; 3]>> {
    let attempt = Attempt::new();
    let pass = Pass::train(KEY, &attempt);
    let leaf = |value: Tensor| -> Result<_> {
        let parameter = lowtide_nn::Parameter::new(value);
        Ok((parameter.id(), parameter.var(&pass)?))
    };
    let (x_id, x) = leaf(counted(device, &[4, 5, 3], [5, 7])?)?;
    let (mut start, mut ids) = (None, Vec::new());
    if let Some([cells, h, c]) = starts {
        let (h_id, h) = leaf(counted(device, &[cells, 4, h], [3, 13])?)?;
        let (c_id, c) = leaf(counted(device, &[cells, 4, c], [4, 13])?)?;
        ids.push(h_id);
        ids.extend(has_c.then_some(c_id));
        start = Some([h, c]);
    }
    let results = run(&pass, &PackedSequence::pack(x, &lengths)?, start)?;
    let values: Vec<Tensor> = results.iter().map(|y| y.value().clone()).collect();
    let mut found = vec![sums(&values)?];
    let mut loss: Option<Var> = None;
    for y in results {
        let weights = counted(device, &y.shape()[..], [5, 9])?;
        let term = y.mul(pass.constant(weights))?.sum_all()?;
        loss = Some(match loss {
            Some(loss) => loss.add(term)?,
            None => term,
        });
    }
    pass.backward(loss.expect("a result"))?;
    let gradients = attempt.into_gradients();
    let gradient = |id| gradients.get(id).expect("a gradient").clone();
    found.push(sums(&[gradient(x_id)])?);
    let mut of_parameters = Vec::new();
    layer.visit(&mut |_, parameter| of_parameters.push(gradient(parameter.id())));
    found.push(sums(&of_parameters)?);
    if !ids.is_empty() {
        let of_start: Vec<Tensor> = ids.into_iter().map(gradient).collect();
        found.push(sums(&of_start)?);
    }
    Ok(found)
}

fn close(found: &[[f64; 3]], expected: &[[f64; 3]]) {
    assert_eq!(found.len(), expected.len());
    let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-9 * b.abs().max(1.0);
    let same = found.iter().flatten().zip(expected.iter().flatten()).all(near);
    assert!(same, "{found:?}, not {expected:?}");
}

fn lstm(
    device: &Device,
    layer: Lstm,
    lengths: [usize; 4],
    starts: Starts,
) -> Result<Vec<[f64; 3]>> {
    let mut layer = filled(layer)?;
    let shared = layer.clone();
    let run = move |pass: &Pass, packed: &PackedSequence, start: Option<[Var; 2]>| {
        let start = start.map(|[h, c]| LstmState { h, c });
        let (y, LstmState { h, c }) = shared.run_packed(pass, packed, start)?;
        Ok(vec![y.padded(pass, 0.0, Some(5))?, h, c])
    };
    found(device, &mut layer, (lengths, starts, true), &run)
}

fn gru(device: &Device, layer: Gru, lengths: [usize; 4], starts: Starts) -> Result<Vec<[f64; 3]>> {
    let mut layer = filled(layer)?;
    let shared = layer.clone();
    let run = move |pass: &Pass, packed: &PackedSequence, start: Option<[Var; 2]>| {
        let (y, h) = shared.run_packed(pass, packed, start.map(|[h, _]| h))?;
        Ok(vec![y.padded(pass, 0.0, Some(5))?, h])
    };
    found(device, &mut layer, (lengths, starts, false), &run)
}

fn rnn(device: &Device, layer: Rnn, lengths: [usize; 4], starts: Starts) -> Result<Vec<[f64; 3]>> {
    let mut layer = filled(layer)?;
    let shared = layer.clone();
    let run = move |pass: &Pass, packed: &PackedSequence, start: Option<[Var; 2]>| {
        let (y, h) = shared.run_packed(pass, packed, start.map(|[h, _]| h))?;
        Ok(vec![y.padded(pass, 0.0, Some(5))?, h])
    };
    found(device, &mut layer, (lengths, starts, false), &run)
}

#[test]
fn packed_sequences_give_pytorchs_results_and_gradients() -> Outcome {
    let device = cpu();
    let both = Some([4, 2, 2]);
    close(
        &lstm(&device, Lstm::new(&device, KEY, ONE)?, SORTED, None)?,
        &[
            [-2.63224174006, 3.05101966365, -2.78440853674],
            [0.440199131936, 0.761242751986, 0.205635773575],
            [-3.24956158635, 9.07228436135, 3.27536708101],
        ],
    );
    close(
        &lstm(&device, Lstm::new(&device, KEY, BOTH)?, UNSORTED, both)?,
        &[
            [-1.60548844337, 7.55129572013, -2.78458431615],
            [-0.728901578102, 1.17439674955, -0.508201274835],
            [-10.0885513013, 23.8952574294, -1.11524240755],
            [-0.446985795966, 3.86610151223, 4.3934454217],
        ],
    );
    close(
        &lstm(&device, Lstm::with_projection(&device, KEY, ONE, 1)?, UNSORTED, Some([1, 1, 2]))?,
        &[
            [-1.9092473829, 2.1042010053, -1.53995765887],
            [0.407953308186, 0.286733236153, 0.00137324818517],
            [-0.642463239353, 4.36866104285, 0.772101207744],
            [-0.3537288218, 1.20064970051, 0.446110506286],
        ],
    );
    close(
        &gru(&device, Gru::new(&device, KEY, ONE)?, SORTED, None)?,
        &[
            [1.41413554796, 6.26807179737, -1.40121563869],
            [0.25183954177, 2.8421416095, 0.602735255336],
            [3.13661515499, 29.4213761755, 0.122980147899],
        ],
    );
    close(
        &gru(&device, Gru::new(&device, KEY, BOTH)?, UNSORTED, both)?,
        &[
            [9.73586193352, 19.7915157409, -1.40659579036],
            [-0.0672544276675, 2.56922763012, -0.196579756561],
            [3.05994951803, 23.0768367376, -0.764976386387],
            [1.24939400413, 4.0072957514, 3.20466260231],
        ],
    );
    let tanh = RnnActivation::Tanh;
    close(
        &rnn(&device, Rnn::new(&device, KEY, ONE, tanh)?, SORTED, None)?,
        &[
            [-13.9004498122, 20.6171134518, 2.57360619469],
            [3.10391585682, 5.17483552558, -1.03897842907],
            [1.2974984302, 46.1621274067, 5.92637422242],
        ],
    );
    close(
        &rnn(&device, Rnn::new(&device, KEY, BOTH, tanh)?, UNSORTED, both)?,
        &[
            [-42.3285415882, 37.5537883548, 3.19966296791],
            [1.6370331561, 9.26063298885, -3.66330908797],
            [4.08536274322, 37.2345052103, 4.29252505096],
            [4.31037102324, 5.95793391963, -2.3381493144],
        ],
    );
    Ok(())
}

#[test]
fn any_number_of_threads_gives_the_same_bits() -> Outcome {
    let bits = |threads| -> Result<Vec<u64>> {
        let options = CpuOptions { threads: Some(threads), ..Default::default() };
        let device = Device::cpu(options)?;
        let sums = lstm(&device, Lstm::new(&device, KEY, BOTH)?, UNSORTED, Some([4, 2, 2]))?;
        Ok(sums.into_iter().flatten().map(f64::to_bits).collect())
    };
    assert_eq!(bits(1)?, bits(2)?);
    assert_eq!(bits(1)?, bits(3)?);
    Ok(())
}

#[test]
fn sequences_of_one_length_are_a_batch() -> Outcome {
    let device = cpu();
    let gru = filled(Gru::new(&device, KEY, BOTH)?)?;
    let (pass, x) = (Pass::eval(), f64s(&device, "x", [2, 4, 3]));
    let packed = PackedSequence::pack(pass.constant(x.clone()), &[4, 4])?;
    let y = gru.run_packed(&pass, &packed, None)?.0.padded(&pass, 0.0, None)?;
    let whole = gru.forward(&pass, pass.constant(x))?;
    let [y, whole] = [y, whole].map(|y| y.value().contiguous());
    assert_eq!(y?.to_vec::<f64>()?, whole?.to_vec::<f64>()?);
    Ok(())
}

#[test]
fn packing_leaves_padding_out_and_puts_it_back() -> Outcome {
    let (device, pass) = (cpu(), Pass::eval());
    let numbers: Vec<f64> = (0..8).map(f64::from).collect();
    let x = pass.constant(Tensor::from_slice(&device, [2, 4], &numbers)?);
    let packed = PackedSequence::pack(x.clone(), &[1, 3])?;
    assert_eq!(packed.lengths(), [1, 3]);
    assert_eq!(packed.data().value().to_vec::<f64>()?, [4.0, 0.0, 5.0, 6.0]);
    let back = packed.padded(&pass, -1.0, None)?;
    assert_eq!(back.value().to_vec::<f64>()?, [0.0, -1.0, -1.0, 4.0, 5.0, 6.0]);
    assert_eq!(packed.padded(&pass, 0.0, Some(4))?.shape()[..], [2, 4]);
    assert!(matches!(packed.padded(&pass, 0.0, Some(2)), Err(NnError::Option { .. })));
    for lengths in [[0, 3], [1, 5]] {
        let refused = PackedSequence::pack(x.clone(), &lengths);
        assert!(matches!(refused, Err(NnError::Option { name: "length", .. })));
    }
    assert!(PackedSequence::pack(x, &[1]).is_err(), "a length for each sequence");
    Ok(())
}

#[test]
fn states_of_another_batch_are_refused() -> Outcome {
    let (device, pass) = (cpu(), Pass::eval());
    let gru = filled(Gru::new(&device, KEY, ONE)?)?;
    let x = pass.constant(f64s(&device, "x", [2, 3, 3]));
    for lengths in [[3, 2], [2, 3]] {
        let packed = PackedSequence::pack(x.clone(), &lengths)?;
        let start = pass.constant(f64s(&device, "h", [1, 3, 2]));
        assert!(gru.run_packed(&pass, &packed, Some(start)).is_err(), "three states");
    }
    Ok(())
}
