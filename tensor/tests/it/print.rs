use lowtide_tensor::{DType, Tensor};
use safetensors::SafeTensors;

use crate::common::{Style, cpu, file_dtype, laid_out, shared, sim};
use crate::naive::Array;

#[test]
fn tensors_print_as_in_pytorch() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/print.safetensors");
    let bytes = std::fs::read(path).expect("the fixture is part of the repository");
    let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
    let texts = metadata.metadata().as_ref().expect("the texts");
    let file = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(texts.len(), file.len());
    let names = [("float64", "f64"), ("float16", "f16"), ("bfloat16", "bf16"), ("int32", "i32")];
    let names = names.into_iter().chain([("uint8", "u8"), ("float32", "f32"), ("int64", "i64")]);
    let mut wrong = String::new();
    for (name, text) in texts {
        let view = file.tensor(name).unwrap();
        let dtype = file_dtype(view.dtype());
        let tensor = Tensor::from_bytes(shared(), view.shape(), dtype, view.data()).unwrap();
        let found = tensor.to_string();
        // Types have the names of this crate.
        let mut expected = text.clone();
        for (theirs, ours) in names.clone() {
            expected = expected.replace(&format!("torch.{theirs}"), ours);
        }
        expected = expected.replace("torch.bool", "bool");
        if found != expected {
            wrong += &format!("{name}:\n{found}\nPyTorch:\n{expected}\n\n");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn views_print_their_own_elements() {
    let array = Array::new(&[2, 2], vec![1.0, 2.0, 3.0, 4.5]);
    for style in [Style::Contiguous, Style::Transposed, Style::Narrowed] {
        let text = laid_out(&array, style, DType::F32).to_string();
        assert_eq!(text, "tensor([[1.0000, 2.0000],\n        [3.0000, 4.5000]])");
    }
    let wide = Tensor::full(shared(), [1], DType::I32, 7.0).unwrap().expand([2000]).unwrap();
    assert_eq!(wide.to_string(), "tensor([7, 7, 7,  ..., 7, 7, 7], dtype=i32)");
}

#[test]
fn printing_takes_no_memory_and_a_simulation_shows_the_shape() {
    let device = sim(1);
    let x = Tensor::zeros(&device, [2, 3], DType::BF16).unwrap();
    let requests = device.allocator().request_count();
    assert_eq!(x.to_string(), "tensor(..., device='sim', size=(2, 3), dtype=bf16)");
    assert_eq!(device.allocator().request_count(), requests);
    let device = cpu(1);
    let x = Tensor::ones(&device, [50, 50], DType::F32).unwrap();
    let requests = device.allocator().request_count();
    assert!(x.to_string().contains("..."));
    assert_eq!(device.allocator().request_count(), requests);
}

#[test]
fn type_goes_to_a_line_of_its_own_where_it_does_not_fit() {
    const TYPE: &str = "dtype=i32";
    for len in 1..200 {
        let x = Tensor::ones(shared(), [len], DType::I32).unwrap();
        let text = x.to_string();
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        let (before, after) = text.split_once(TYPE).unwrap();
        assert_eq!(after, ")");
        // PyTorch leaves four columns free.
        let last = before.trim_end_matches([',', ' ', '\n']).lines().last().unwrap();
        let fits = last.len() + TYPE.len() + 4 <= 80;
        assert_eq!(before.ends_with(", "), fits, "{text}");
    }
}
