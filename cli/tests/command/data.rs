//! Recipes on every common kind of data, in small. Each is planned, trained and evaluated, and the
//! plan matches the run to the byte.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use lowtide_data::{TokenFormat, write_tokens};
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, FloatType, Int64Type};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use crate::place::Place;

/// Trains `recipe` for two epochs. Checks that every metric is present and finite.
fn check(place: &Place, name: &str, recipe: &str, metrics: &[&str]) {
    let file = format!("{name}.toml");
    place.write(&file, recipe);
    let summary = place.train(&format!("{file} --epochs 2"), name);
    assert_eq!(summary["predicted_peak_bytes"], summary["measured_peak_bytes"], "{name}");
    for metric in metrics {
        let value = summary[metric].as_f64().unwrap_or(f64::NAN);
        assert!(value.is_finite() && value >= 0.0, "{name}: {metric} in {summary}");
    }
    place.run(&format!("eval {name}")).check_done();
}

/// A PNG file of 20x17 pixels of 8 bits. `value` gives a pixel by row, column and channel.
fn png(path: &Path, color: png::ColorType, value: impl Fn(usize, usize, usize) -> u8) {
    let (width, height, channels) = (20, 17, color.samples());
    fs::create_dir_all(path.parent().expect("a folder")).expect("room");
    let file = fs::File::create(path).expect("room");
    let mut encoder = png::Encoder::new(file, width as u32, height as u32);
    encoder.set_color(color);
    let bytes: Vec<u8> = (0..width * height * channels)
        .map(|at| value(at / channels / width, at / channels % width, at % channels))
        .collect();
    let mut writer = encoder.write_header().expect("room");
    writer.write_image_data(&bytes).expect("as many bytes as pixels");
}

/// Twelve dark and twelve bright images below `folder`.
fn image_folder(folder: &Path) {
    for (class, light) in [("dark", 20), ("light", 180)] {
        for index in 0..12 {
            let path = folder.join(class).join(format!("{index}.png"));
            png(&path, png::ColorType::Rgb, |row, column, channel| {
                (light + 3 * index + row + column + channel) as u8
            });
        }
    }
}

const SMALL_CNN: &str = "[model]\nkind = \"simple-cnn\"\nchannels = 4\n[train]\nbatch_size = 8\n";
const ALL_VARIATIONS: &str = "\
[augment]
flip = true
random_resized_crop = true
rotate = 15.0
jitter = 0.4
hue = 0.1
erase = 0.25
mixup = 0.2
normalise = true
";

#[test]
fn image_folders_train_as_they_are_varied_and_in_parts() {
    let place = Place::new();
    image_folder(&place.path("all"));
    let data = "[data]\nkind = \"image-folder\"\nfolder = \"all\"\nshape = [3, 16, 16]\n";
    check(&place, "plain", &format!("{data}test_share = 0.25\n{SMALL_CNN}"), &["test_accuracy"]);
    check(&place, "varied", &format!("{data}{ALL_VARIATIONS}{SMALL_CNN}"), &["test_accuracy"]);
    for part in ["train", "val"] {
        image_folder(&place.path("parts").join(part));
    }
    let data = "[data]\nkind = \"image-folder\"\nfolder = \"parts\"\nshape = [1, 12, 20]\n";
    let cut = "[augment]\ncrop_padding = 2\ncutmix = 1.0\n";
    check(&place, "parts", &format!("{data}{cut}{SMALL_CNN}"), &["test_accuracy"]);
    // A file that is not an image ends the run, unless training samples may be left out.
    place.write("parts/train/dark/0.png", b"no image");
    let words = ["cannot be loaded", "0.png"];
    place.run("train parts.toml --epochs 1").check_failed(1, &words);
    let run = "train parts.toml --epochs 1 --set train.bad_samples={skip=1} --out skipped";
    place.run(run).check_done();
    let metrics = String::from_utf8(place.read("skipped/metrics.jsonl")).expect("UTF-8");
    assert!(metrics.contains("\"bad_samples\":[0]"), "{metrics}");
    place.write("parts/val/dark/1.png", b"no image");
    place.run(run).check_failed(1, &["cannot be loaded", "1.png"]);
    fs::rename(place.path("parts/val/dark"), place.path("parts/val/black")).expect("room");
    let words = ["data.folder", "different classes"];
    place.run("train parts.toml").check_refused(1, &words);
}

#[test]
fn masks_train_a_unet() {
    let place = Place::new();
    for index in 0..10 {
        let inside = |row: usize, column: usize| row > index && column > 5;
        let path = place.path(&format!("images/{index}.png"));
        png(
            &path,
            png::ColorType::Grayscale,
            |row, column, _| {
                if inside(row, column) { 200 } else { 30 }
            },
        );
        let path = place.path(&format!("masks/{index}.png"));
        png(&path, png::ColorType::Grayscale, |row, column, _| u8::from(inside(row, column)));
    }
    let recipe = "\
[data]
kind = \"segmentation-folder\"
shape = [1, 16, 16]
test_share = 0.2
[augment]
flip = true
rotate = 10.0
[model]
kind = \"unet\"
width = 2
[train]
batch_size = 4
";
    check(&place, "masks-run", recipe, &["test_accuracy", "test_iou"]);
    let words = ["data.kind", "pixels"];
    place.run("check masks-run.toml --set model.kind=simple-cnn").check_refused(1, &words);
}

#[test]
fn cifar_and_varied_digits_train() {
    let place = Place::new();
    fs::create_dir(place.path("cifar")).expect("room");
    let record = |index: usize| {
        let label = (index % 10) as u8;
        let pixels = (0..3072).map(move |at| (at % 200 + 5 * usize::from(label)) as u8);
        std::iter::once(label).chain(pixels)
    };
    let names = (1..=5).map(|part| format!("data_batch_{part}.bin"));
    for name in names.chain(["test_batch.bin".to_owned()]) {
        let bytes: Vec<u8> = (0..10).flat_map(record).collect();
        fs::write(place.path("cifar").join(name), bytes).expect("room");
    }
    let vary = "[augment]\nflip = true\ncrop_padding = 4\n";
    let data = "[data]\nkind = \"cifar\"\nfolder = \"cifar\"\n";
    check(&place, "cifar-run", &format!("{data}{vary}{SMALL_CNN}"), &["test_accuracy"]);
    let words = ["data.classes", "10 or 100"];
    place.run("check cifar-run.toml --set data.classes=11").check_refused(1, &words);
    let vary = "[augment]\nrotate = 10.0\ncrop_padding = 1\n";
    let data = "[data]\nshape = [3, 8, 8]\n";
    check(&place, "digits-run", &format!("{data}{vary}{SMALL_CNN}"), &["test_accuracy"]);
}

#[test]
fn tables_train_classes_and_numbers() {
    let place = Place::new();
    let rows: String = (0..60)
        .map(|row| format!("{},{},{},{}\n", row, row % 7, ["no", "yes"][row % 2], 3 * row))
        .collect();
    place.write("table.csv", format!("size,age,kind,price\n{rows}"));
    let mlp = "[model]\nkind = \"mlp\"\nhidden = [8]\n[train]\nbatch_size = 16\n";
    let data = "[data]\nkind = \"csv\"\nfile = \"table.csv\"\n";
    let of_class = "target = \"kind\"\n";
    check(&place, "class", &format!("{data}{of_class}{mlp}"), &["test_accuracy"]);
    // A value that is not a number is reported with its line.
    let of_number = "target = \"price\"\nnumber = true\n";
    place.write("words.toml", format!("{data}{of_number}{mlp}"));
    place.run("check words.toml").check_refused(1, &["table.csv", "line 2"]);
    place.write("numbers.csv", format!("size,age,price\n{}", "1,2,3\n4,5,6\n7,8,9\n".repeat(9)));
    let data = "[data]\nkind = \"csv\"\nfile = \"numbers.csv\"\ntest = \"numbers.csv\"\n";
    check(&place, "number", &format!("{data}{of_number}{mlp}"), &["test_rmse", "test_mae"]);
    let words = ["model.kind", "tables"];
    place.run("check class.toml --set model.kind=lstm").check_refused(1, &words);
}

/// A `.npy` file of version 1.
fn npy(descr: &str, shape: &str, elements: &[u8]) -> Vec<u8> {
    let head = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n");
    let len = (head.len() as u16).to_le_bytes();
    [b"\x93NUMPY\x01\x00", &len[..], head.as_bytes(), elements].concat()
}

#[test]
fn arrays_of_numpy_train() {
    let place = Place::new();
    let bytes: Vec<u8> = (0..24 * 64).map(|at| (at * 37 % 251) as u8).collect();
    place.write("images.npy", npy("|u1", "(24, 8, 8)", &bytes));
    place.write("colour.npy", npy("|u1", "(8, 3, 8, 8)", &bytes));
    let labels = |len: i32| (0..len).flat_map(|at| (at % 3).to_le_bytes()).collect::<Vec<u8>>();
    place.write("labels.npy", npy("<i4", "(24,)", &labels(24)));
    place.write("colour-labels.npy", npy("<i4", "(8,)", &labels(8)));
    let data = "[data]\nkind = \"npy\"\ninputs = \"images.npy\"\ntargets = \"labels.npy\"\n";
    let recipe = format!("{data}classes = 3\n{SMALL_CNN}");
    check(&place, "images-run", &recipe, &["test_accuracy"]);
    let words = ["data.classes", "needed for images"];
    place.write("none.toml", format!("{data}{SMALL_CNN}"));
    place.run("check none.toml").check_refused(1, &words);
    let words = ["label 2 is none of 2 classes"];
    place.run("train images-run.toml --set data.classes=2").check_refused(1, &words);
    let test = "test = [\"colour.npy\", \"colour-labels.npy\"]\n";
    place.write("other.toml", format!("{data}classes = 3\n{test}{SMALL_CNN}"));
    place.run("check other.toml").check_refused(1, &["data.test", "another shape"]);
    let data = "[data]\nkind = \"npy\"\ninputs = \"colour.npy\"\ntargets = \"colour-labels.npy\"\n";
    check(
        &place,
        "colour-run",
        &format!("{data}classes = 3\n{test}{SMALL_CNN}"),
        &["test_accuracy"],
    );

    let pixels: Vec<u8> = (0..12 * 256).map(|at| (at % 200) as u8).collect();
    place.write("photos.npy", npy("|u1", "(12, 16, 16)", &pixels));
    let classes: Vec<u8> = pixels.iter().map(|&value| u8::from(value > 99)).collect();
    place.write("masks.npy", npy("|u1", "(12, 16, 16)", &classes));
    let data = "[data]\nkind = \"npy\"\ninputs = \"photos.npy\"\ntargets = \"masks.npy\"\n";
    let unet = "classes = 2\n[model]\nkind = \"unet\"\nwidth = 2\n[train]\nbatch_size = 4\n";
    check(&place, "masks-run", &format!("{data}{unet}"), &["test_iou"]);
    let words = ["data.targets", "[16, 16]"];
    place.run("check masks-run.toml --set model.kind=simple-cnn").check_refused(1, &words);

    let rows: Vec<u8> = (0..120).flat_map(|at| f64::from(at).sin().to_le_bytes()).collect();
    place.write("rows.npy", npy("<f8", "(40, 3)", &rows));
    place.write("sums.npy", npy("<f8", "(40,)", &rows[..320]));
    let data = "[data]\nkind = \"npy\"\ninputs = \"rows.npy\"\ntargets = \"sums.npy\"\n";
    let mlp = "[model]\nkind = \"mlp\"\nhidden = [8]\n[train]\nbatch_size = 16\n";
    check(&place, "rows-run", &format!("{data}{mlp}"), &["test_rmse", "test_mae"]);
    let words = ["data.targets", "f64", "no classes"];
    place.run("check rows-run.toml --set data.classes=2").check_refused(1, &words);
}

/// One column of a Parquet file.
enum Column {
    Classes(Vec<i64>),
    Numbers(Vec<f64>),
    /// A list of two numbers in each row.
    Pairs(Vec<f32>),
    Files(Vec<Vec<u8>>),
}

fn parquet(schema: &str, columns: Vec<Column>) -> Vec<u8> {
    let schema = Arc::new(parse_message_type(schema).expect("a schema"));
    let mut bytes = Vec::new();
    let mut writer =
        SerializedFileWriter::new(&mut bytes, schema, Arc::default()).expect("in memory");
    let mut group = writer.next_row_group().expect("in memory");
    for column in columns {
        let mut out = group.next_column().expect("in memory").expect("a column of the schema");
        let written = match column {
            Column::Classes(values) => out.typed::<Int64Type>().write_batch(&values, None, None),
            Column::Numbers(values) => out.typed::<DoubleType>().write_batch(&values, None, None),
            Column::Pairs(values) => {
                let begins: Vec<i16> = (0..values.len()).map(|at| (at % 2) as i16).collect();
                let all = vec![1; values.len()];
                out.typed::<FloatType>().write_batch(&values, Some(&all), Some(&begins))
            }
            Column::Files(values) => {
                let values: Vec<_> = values.into_iter().map(ByteArray::from).collect();
                out.typed::<ByteArrayType>().write_batch(&values, None, None)
            }
        };
        written.expect("in memory");
        out.close().expect("in memory");
    }
    group.close().expect("in memory");
    writer.close().expect("in memory");
    bytes
}

#[test]
fn columns_of_parquet_train() {
    let place = Place::new();
    let schema = "message table { required double size; repeated float place;
        required int64 kind; required binary name; }";
    let table = |len: usize| {
        parquet(
            schema,
            vec![
                Column::Numbers((0..len).map(|at| at as f64).collect()),
                Column::Pairs((0..2 * len).map(|at| (at % 7) as f32).collect()),
                Column::Classes((0..len as i64).map(|at| at % 2).collect()),
                Column::Files(vec![b"a name".to_vec(); len]),
            ],
        )
    };
    place.write("train.parquet", table(60));
    place.write("test.parquet", table(20));
    let mlp = "[model]\nkind = \"mlp\"\nhidden = [8]\n[train]\nbatch_size = 16\n";
    let data = "[data]\nkind = \"parquet\"\n";
    // The column of names is left out.
    let of_class = format!("{data}target = \"kind\"\nclasses = 2\n{mlp}");
    check(&place, "class", &of_class, &["test_accuracy"]);
    let of_number =
        format!("{data}target = \"size\"\ncolumns = [\"place\"]\ntest = \"test.parquet\"\n{mlp}");
    check(&place, "number", &of_number, &["test_rmse"]);
    place.write(
        "one.parquet",
        parquet("message table { required double size; }", vec![Column::Numbers(vec![1.0; 20])]),
    );
    let words = ["data.columns", "beside the target"];
    place
        .run("check number.toml --set data.columns=[] --set data.file=one.parquet")
        .check_refused(1, &words);
    let words = ["train.parquet", "\"price\""];
    place.run("check number.toml --set data.target=price").check_refused(1, &words);
    let words = ["train.parquet", "name", "not supported"];
    place.run("check number.toml --set data.columns=[\"name\"]").check_refused(1, &words);
}

/// The bytes of one of the images of [`image_folder`].
fn image(place: &Place, class: &str, index: usize) -> Vec<u8> {
    place.read(&format!("all/{class}/{index}.png"))
}

/// A member of a tar archive.
fn member(name: &str, content: &[u8]) -> Vec<u8> {
    let mut header = [0_u8; 512];
    header[..name.len()].copy_from_slice(name.as_bytes());
    header[100..108].copy_from_slice(b"0000644\0");
    header[124..136].copy_from_slice(format!("{:011o}\0", content.len()).as_bytes());
    header[148..156].fill(b' ');
    header[156] = b'0';
    let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut bytes = [&header[..], content].concat();
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

#[test]
fn images_in_parquet_and_tar_train() {
    let place = Place::new();
    image_folder(&place.path("all"));
    let samples: Vec<(usize, Vec<u8>)> =
        (0..24).map(|at| (at % 2, image(&place, ["dark", "light"][at % 2], at / 2))).collect();
    let tar = |samples: &[(usize, Vec<u8>)]| {
        let members = samples.iter().enumerate().flat_map(|(at, (class, file))| {
            [
                member(&format!("{at:04}.png"), file),
                member(&format!("{at:04}.cls"), class.to_string().as_bytes()),
            ]
        });
        members.chain([vec![0; 1024]]).collect::<Vec<_>>().concat()
    };
    place.write("0.tar", tar(&samples[..12]));
    place.write("1.tar", tar(&samples[12..]));
    let data = "[data]\nkind = \"tar-shards\"\nshape = [3, 16, 16]\n";
    let all = format!("{data}files = [\"0.tar\", \"1.tar\"]\n{ALL_VARIATIONS}{SMALL_CNN}");
    check(&place, "all-run", &all, &["test_accuracy"]);
    let parts = format!("{data}files = [\"0.tar\"]\ntest = [\"1.tar\"]\n{SMALL_CNN}");
    check(&place, "parts-run", &parts, &["test_accuracy"]);
    let words = ["data.kind", "class for each pixel"];
    place.run("check parts-run.toml --set model.kind=unet").check_refused(1, &words);

    let schema = "message table { required group image { required binary bytes; }
        required int64 label; }";
    let (labels, files) = samples.into_iter().map(|(class, file)| (class as i64, file)).unzip();
    let bytes = parquet(schema, vec![Column::Files(files), Column::Classes(labels)]);
    place.write("train.parquet", bytes);
    let data = "[data]\nkind = \"parquet-images\"\nshape = [1, 16, 16]\nclasses = 2\n";
    let all = format!("{data}{ALL_VARIATIONS}{SMALL_CNN}");
    check(&place, "parquet-run", &all, &["test_accuracy"]);
    let parts = format!("{data}test = \"train.parquet\"\n{SMALL_CNN}");
    check(&place, "parquet-parts", &parts, &["test_accuracy"]);
}

const SMALL_GPT: &str = "\
[model]
kind = \"gpt\"
width = 8
heads = 2
blocks = 1
[train]
batch_size = 4
";

#[test]
fn texts_tokens_and_json_lines_train() {
    let place = Place::new();
    let bytes = "[data]\nkind = \"text\"\ntokenizer = \"bytes\"\ncontext = 32\n";
    check(&place, "bytes", &format!("{bytes}{SMALL_GPT}"), &["test_perplexity"]);
    let gpt2 = "[data]\nkind = \"text\"\ntokenizer = \"gpt2\"\ncontext = 16\n";
    check(&place, "gpt2", &format!("{gpt2}{SMALL_GPT}"), &["test_perplexity"]);

    let words = (0..40).map(|word| format!("\"w{word}\": {word}")).collect::<Vec<_>>().join(",");
    let model =
        format!("{{\"type\": \"WordLevel\", \"unk_token\": \"w0\", \"vocab\": {{{words}}}}}");
    let split = "{\"type\": \"WhitespaceSplit\"}";
    let file = format!("{{\"added_tokens\": [], \"pre_tokenizer\": {split}, \"model\": {model}}}");
    place.write("words.json", file);
    let text: Vec<String> = (0..900).map(|at| format!("w{}", at * 7 % 40)).collect();
    place.write("words.txt", text.join(" "));
    let of_file = "file = \"words.txt\"\ntokenizer = \"words.json\"\ncontext = 16\n";
    let data = format!("[data]\nkind = \"text\"\n{of_file}{SMALL_GPT}");
    check(&place, "words", &data, &["test_perplexity"]);

    let tokens: Vec<u32> = (0..2000).map(|at| at * 7 % 50).collect();
    write_tokens(place.path("train.bin"), TokenFormat::RawU16, &tokens).expect("room");
    write_tokens(place.path("test.bin"), TokenFormat::LlmcU16, &tokens[..500]).expect("room");
    let files = "[data]\nkind = \"token-file\"\nvocabulary = 50\ncontext = 32\n";
    check(&place, "tokens", &format!("{files}{SMALL_GPT}"), &["test_perplexity"]);
    let with_test = format!("{files}test = [\"test.bin\"]\n{SMALL_GPT}");
    check(&place, "tokens-test", &with_test, &["test_perplexity"]);
    let words = ["train.bin", "outside the vocabulary of 40"];
    place.run("train tokens.toml --set data.vocabulary=40").check_refused(1, &words);

    let line = |index: usize, format: &str| {
        let (ask, say) = (format!("What follows {index}?"), format!("{} does.", index + 1));
        match format {
            "text" => serde_json::json!({ "text": format!("{ask} {say}") }),
            "completion" => serde_json::json!({ "prompt": ask, "completion": say }),
            _ => serde_json::json!({ "messages": [
                { "role": "user", "content": ask }, { "role": "assistant", "content": say },
            ] }),
        }
    };
    for format in ["text", "completion", "chat"] {
        let lines: Vec<String> = (0..40).map(|index| line(index, format).to_string()).collect();
        place.write(&format!("{format}.jsonl"), lines.join("\n"));
        for packed in [true, false] {
            let recipe = format!(
                "[data]\nkind = \"json-lines\"\nfile = \"{format}.jsonl\"\nformat = \"{format}\"\n\
                 tokenizer = \"bytes\"\ncontext = 96\npacked = {packed}\n{SMALL_GPT}"
            );
            check(&place, &format!("{format}-{packed}"), &recipe, &["test_perplexity"]);
        }
    }
    let words = ["data.context", "prompts fill"];
    place.run("check chat-false.toml --set data.context=16").check_refused(1, &words);
    place.write("bad.jsonl", "{\"text\": \"a\"}\n{\"text\": }\n");
    let words = ["bad.jsonl", "line 2"];
    place.run("check text-true.toml --set data.file=bad.jsonl").check_refused(1, &words);
    let words = ["data.tokenizer", "gpt3", "gpt2"];
    place.run("check text-true.toml --set data.tokenizer=gpt3").check_refused(1, &words);
}

#[test]
fn variations_that_make_no_sense_are_refused() {
    let place = Place::new();
    for (set, words) in [
        ("augment.rotate=200", ["augment.rotate", "0 to 180"]),
        ("augment.mixup=1 --set augment.cutmix=1", ["augment.cutmix", "augment.mixup"]),
        ("augment.flips=true", ["augment.flips", "flip"]),
    ] {
        place.run(&format!("check digits --set {set}")).check_refused(1, &words);
    }
    let words = ["augment", "images", "text"];
    place.run("check text-gpt --set augment.flip=true").check_refused(1, &words);
}
