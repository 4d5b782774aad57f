//! Text of models, with and without a cache, against text of transformers.

use std::ops::ControlFlow;

use lowtide_autograd::Pass;
use lowtide_nn::NnError;
use lowtide_pretrained::{Decoder, GenerateOptions, PretrainedError, Sampling};
use lowtide_tensor::{DType, Device, Tensor};

use crate::common::{CASES, KEY, Outcome, Run, config, cpu, error, f64s, small_sim};

/// Prompts of a run, and the tokens that transformers adds.
fn expected(case: &str) -> Outcome<[Vec<Vec<i64>>; 2]> {
    let (device, run) = (cpu(1), Run::read(case)?);
    let (prompt, all) = (run.tensor(&device, "prompt")?, run.tensor(&device, "generated")?);
    let rows = |tensor: &Tensor| -> Outcome<Vec<Vec<i64>>> {
        let len = tensor.shape()[1];
        Ok(tensor.to_vec::<i64>()?.chunks(len).map(<[i64]>::to_vec).collect())
    };
    let len = prompt.shape()[1];
    let added = rows(&all)?.into_iter().map(|row| row[len..].to_vec()).collect();
    Ok([rows(&prompt)?, added])
}

fn upload(device: &Device, rows: &[Vec<i64>]) -> Outcome<Tensor> {
    Ok(Tensor::from_slice(device, [rows.len(), rows[0].len()], &rows.concat())?)
}

/// Logits after the last of `tokens`, by the whole model: `[B, V]`.
fn last_logits(model: &Decoder, device: &Device, rows: &[Vec<i64>]) -> Outcome<Vec<f64>> {
    let pass = Pass::eval();
    let logits = model.logits(&pass, pass.constant(upload(device, rows)?), None)?;
    f64s(&logits.value().narrow(1, rows[0].len() - 1, 1)?.contiguous()?)
}

#[test]
fn greedy_text_is_that_of_transformers() -> Outcome {
    for &case in CASES.iter() {
        let [prompts, added] = expected(case)?;
        let options = GenerateOptions::greedy(added[0].len());
        for dtype in [DType::F64, DType::F32] {
            for threads in [1, 3] {
                let device = cpu(threads);
                let model = config(case)?.load(&device, dtype)?;
                assert_eq!(model.generate(&device, &prompts, &options)?, added, "{case}");
            }
        }
    }
    Ok(())
}

#[test]
fn rehearsal_of_the_prompt_and_the_last_token_takes_what_all_tokens_take() -> Outcome {
    for &case in CASES.iter() {
        let [prompts, added] = expected(case)?;
        for len_max in [1, 2, added[0].len()] {
            let device = cpu(2);
            let sim = device.simulate();
            let model = config(case)?.load(&sim, DType::F32)?;
            model.rehearse_generation(&sim, prompts[0].len(), len_max)?;
            let model = config(case)?.load(&device, DType::F32)?;
            model.generate(&device, &prompts[..1], &GenerateOptions::greedy(len_max))?;
            let [rehearsed, taken] = [&sim, &device].map(|it| it.allocator().statistics());
            let [peak, found] = [rehearsed, taken].map(|it| it.reserved.peak_bytes);
            // Blocks of other lengths may lie on other pages.
            assert!(found.abs_diff(peak) <= 2 * taken.page_bytes, "{case}: {found} of {peak}");
        }
    }
    Ok(())
}

#[test]
fn logits_with_a_cache_are_those_without() -> Outcome {
    for &case in CASES.iter() {
        let device = cpu(2);
        let [prompts, added] = expected(case)?;
        let model = config(case)?.load(&device, DType::F64)?;
        let mut rows = prompts.clone();
        let mut cache = model.cache(rows.len(), prompts[0].len() + added[0].len())?;
        let mut logits = model.extend(&mut cache, &upload(&device, &rows)?)?;
        for step in 0..added[0].len() {
            let error = error(&f64s(&logits)?, &last_logits(&model, &device, &rows)?);
            assert!(error < 1e-12, "{case} {step}: {error:e}");
            let next: Vec<Vec<i64>> = added.iter().map(|row| vec![row[step]]).collect();
            rows.iter_mut().zip(&next).for_each(|(row, next)| row.extend(next));
            logits = model.extend(&mut cache, &upload(&device, &next)?)?;
        }
        assert_eq!(cache.len(), cache.capacity());
        let more = upload(&device, &[vec![1], vec![1]])?;
        let full = model.extend(&mut cache, &more).expect_err("it is full");
        assert!(matches!(full, NnError::Option { name: "tokens", .. }), "{full}");
    }
    Ok(())
}

/// A cache extended by several tokens at once equals a cache extended one token at a time.
#[test]
fn tokens_may_follow_in_any_pieces() -> Outcome {
    for case in ["mistral", "gemma3", "gpt2", "neox", "gemma2"] {
        let device = cpu(2);
        let [prompts, added] = expected(case)?;
        let model = config(case)?.load(&device, DType::F64)?;
        let rows: Vec<Vec<i64>> =
            prompts.iter().zip(&added).map(|(a, b)| [&a[..], &b[..]].concat()).collect();
        let whole = last_logits(&model, &device, &rows)?;
        for pieces in [vec![17], vec![1; 17], vec![1, 16], vec![9, 8], vec![3, 1, 5, 8]] {
            let mut cache = model.cache(rows.len(), 17)?;
            let (mut start, mut logits) = (0, Vec::new());
            for len in pieces {
                let piece: Vec<Vec<i64>> =
                    rows.iter().map(|row| row[start..start + len].to_vec()).collect();
                logits = f64s(&model.extend(&mut cache, &upload(&device, &piece)?)?)?;
                start += len;
            }
            let error = error(&logits, &whole);
            assert!(error < 1e-12, "{case}: {error:e}");
        }
    }
    Ok(())
}

#[test]
fn a_stop_token_ends_its_sequence_only() -> Outcome {
    let (device, [prompts, added]) = (cpu(2), expected("llama")?);
    let model = config("llama")?.load(&device, DType::F64)?;
    let stop = added[0][3];
    let options =
        GenerateOptions { stop_tokens: vec![stop], ..GenerateOptions::greedy(added[0].len()) };
    let found = model.generate(&device, &prompts, &options)?;
    for (found, added) in found.iter().zip(&added) {
        let end = added.iter().position(|token| *token == stop).map_or(added.len(), |at| at + 1);
        assert_eq!(*found, added[..end]);
    }
    Ok(())
}

#[test]
fn prompts_of_several_lengths_go_on_as_each_alone() -> Outcome {
    let device = cpu(2);
    let model = config("qwen3")?.load(&device, DType::F64)?;
    let prompts = [vec![3, 7, 1], vec![2], vec![5, 5, 4], vec![1, 9, 8, 6]];
    let options = GenerateOptions::greedy(9);
    let together = model.generate(&device, &prompts, &options)?;
    for (prompt, added) in prompts.iter().zip(&together) {
        assert_eq!(model.generate(&device, std::slice::from_ref(prompt), &options)?[0], *added);
    }
    Ok(())
}

#[test]
fn tokens_are_told_as_they_are_chosen_until_told_to_stop() -> Outcome {
    let device = cpu(1);
    let model = config("llama")?.load(&device, DType::F32)?;
    let prompts = [vec![3, 7], vec![2, 4], vec![5]];
    let whole = model.generate(&device, &prompts, &GenerateOptions::greedy(6))?;
    let mut told = vec![Vec::new(); 3];
    let mut tell = |stop: usize| {
        told = vec![Vec::new(); 3];
        let mut count = 0;
        let found =
            model.generate_with(&device, &prompts, &GenerateOptions::greedy(6), |at, token| {
                told[at].push(token);
                count += 1;
                if count < stop { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })?;
        assert_eq!(found, told);
        Ok::<_, PretrainedError>(found)
    };
    assert_eq!(tell(usize::MAX)?, whole);
    // The prompts are extended in order of length, the shortest first.
    let some = tell(9)?;
    assert_eq!(some, [&whole[0][..2], &whole[1][..1], &whole[2][..]]);
    Ok(())
}

#[test]
fn random_text_is_a_function_of_the_key() -> Outcome {
    let (device, [prompts, _]) = (cpu(2), expected("qwen3")?);
    let model = config("qwen3")?.load(&device, DType::F32)?;
    let text = |key: u64, temperature: f64| -> Outcome<_> {
        let key = KEY.step(key);
        let sampling = Sampling::Random { key, temperature, top_k: Some(10), top_p: 0.9 };
        let options = GenerateOptions { sampling, ..GenerateOptions::greedy(20) };
        Ok(model.generate(&device, &prompts, &options)?)
    };
    assert_eq!(text(1, 1.0)?, text(1, 1.0)?);
    assert_ne!(text(1, 1.0)?, text(2, 1.0)?);
    let greedy = model.generate(&device, &prompts, &GenerateOptions::greedy(20))?;
    assert_eq!(text(1, 1e-6)?, greedy);
    assert_ne!(text(1, 1.0)?, greedy);
    Ok(())
}

#[test]
fn options_that_make_no_sense_are_refused() -> Outcome {
    let device = cpu(1);
    let model = config("gpt2")?.load(&device, DType::F32)?;
    let random =
        |temperature, top_k, top_p| Sampling::Random { key: KEY, temperature, top_k, top_p };
    let refused = |prompts: &[Vec<i64>], sampling, len_max| {
        let options = GenerateOptions { sampling, ..GenerateOptions::greedy(len_max) };
        match model.generate(&device, prompts, &options) {
            Err(PretrainedError::Nn(NnError::Option { name, .. })) => name,
            other => panic!("{other:?}"),
        }
    };
    let one = [vec![3]];
    for (sampling, name) in [
        (random(0.0, None, 1.0), "temperature"),
        (random(f64::NAN, None, 1.0), "temperature"),
        (random(1.0, Some(0), 1.0), "top_k"),
        (random(1.0, None, 0.0), "top_p"),
        (random(1.0, None, 1.1), "top_p"),
    ] {
        assert_eq!(refused(&one, sampling, 3), name);
    }
    assert_eq!(refused(&[], Sampling::Greedy, 3), "prompts");
    assert_eq!(refused(&[vec![1, 2], vec![]], Sampling::Greedy, 3), "prompts");
    assert_eq!(refused(&one, Sampling::Greedy, 33), "capacity");
    assert_eq!(model.generate(&device, &one, &GenerateOptions::greedy(32))?[0].len(), 32);
    assert!(model.generate(&device, &[vec![20]], &GenerateOptions::greedy(3)).is_err());
    Ok(())
}

/// The memory of a cache is allocated before the first token, and windows bound it.
#[test]
fn a_cache_has_the_same_memory_on_a_simulated_device() -> Outcome {
    for &case in CASES.iter() {
        let bytes = |device: Device| -> Outcome<_> {
            let model = config(case)?.decoder(&device, KEY, DType::F32)?;
            let before = device.allocator().statistics().allocated.current_bytes;
            let mut cache = model.cache(2, 30)?;
            model.extend(&mut cache, &Tensor::full(&device, [2, 9], DType::I64, 3.0)?)?;
            model.extend(&mut cache, &Tensor::full(&device, [2, 1], DType::I64, 3.0)?)?;
            let statistics = device.allocator().statistics().allocated;
            Ok((statistics, statistics.current_bytes - before))
        };
        assert_eq!(bytes(cpu(2))?, bytes(small_sim(2))?, "{case}");
    }
    Ok(())
}
