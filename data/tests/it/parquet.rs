//! Parquet files: columns as fields, row groups in a small cache, images, and damaged files.

use crate::folders::{first, png, put};
use crate::{drain, options};
use lowtide_data::{
    DataError, Dataset, ElementType, ImageSource, Loader, Parquet, ParquetError, ParquetImages,
    Pipeline, Step,
};
use parquet::basic::Compression;
use parquet::column::writer::ColumnWriter;
use parquet::data_type::ByteArray;
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataWriter};
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use png::{BitDepth, ColorType};
use std::error::Error;
use std::sync::Arc;
use tempfile::TempDir;

/// One column of one row group: definition levels, repetition levels and values.
enum Column {
    Ints(Vec<i64>),
    Lists(Vec<i16>, Vec<i16>, Vec<f32>),
    Bytes(Vec<Vec<u8>>),
}

fn file(schema: &str, groups: Vec<Vec<Column>>) -> Vec<u8> {
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
    let mut bytes = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut bytes, schema, Arc::new(properties)).unwrap();
    for group in groups {
        let mut group_writer = writer.next_row_group().unwrap();
        for column in group {
            let mut column_writer = group_writer.next_column().unwrap().unwrap();
            match (column_writer.untyped(), column) {
                (ColumnWriter::Int64ColumnWriter(out), Column::Ints(values)) => {
                    out.write_batch(&values, None, None).unwrap();
                }
                (
                    ColumnWriter::FloatColumnWriter(out),
                    Column::Lists(defined, repeated, values),
                ) => {
                    out.write_batch(&values, Some(&defined), Some(&repeated)).unwrap();
                }
                (ColumnWriter::ByteArrayColumnWriter(out), Column::Bytes(values)) => {
                    let values: Vec<_> = values.into_iter().map(ByteArray::from).collect();
                    out.write_batch(&values, Some(&vec![1; values.len()]), None).unwrap();
                }
                _ => panic!("the schema has other columns"),
            }
            column_writer.close().unwrap();
        }
        group_writer.close().unwrap();
    }
    writer.close().unwrap();
    bytes
}

const TABLE: &str = "message table {
    required int64 y;
    optional group x (LIST) { repeated group list { optional float element; } }
}";

/// The rows `start..end`, each with its number and a list of three floats.
fn rows(start: usize, end: usize) -> Vec<Column> {
    let count = end - start;
    let values = (start * 3..end * 3).map(|n| n as f32).collect();
    let repeated = (0..count).flat_map(|_| [0, 1, 1]).collect();
    vec![
        Column::Ints((start as i64..end as i64).collect()),
        Column::Lists(vec![3; count * 3], repeated, values),
    ]
}

fn cause(error: &DataError) -> &ParquetError {
    let DataError::File { source, .. } = error else { panic!("{error}") };
    source.get_ref().and_then(|cause| cause.downcast_ref()).unwrap_or_else(|| panic!("{error}"))
}

#[test]
fn numbers_and_lists_of_one_length_become_fields() {
    let folder = TempDir::new().unwrap();
    put(folder.path(), "t.parquet", &file(TABLE, vec![rows(0, 3), rows(3, 5)]));
    let path = folder.path().join("t.parquet");
    let table = Parquet::open(&path, &["x", "y"]).unwrap();
    assert_eq!((table.len(), table.row_groups()), (5, 2));
    assert_eq!((table.fields()[0].element, &table.fields()[0].shape), (ElementType::F32, &vec![3]));
    let batch = first(table).unwrap();
    let x: Vec<f32> = (0..15).map(|n| n as f32).collect();
    assert_eq!(batch.field("x").unwrap().values::<f32>().unwrap(), x);
    assert_eq!(batch.field("y").unwrap().values::<i64>().unwrap(), [0, 1, 2, 3, 4]);
}

#[test]
fn small_cache_gives_the_same_batches_as_a_large_one() {
    let folder = TempDir::new().unwrap();
    let groups = (0..7).map(|group| rows(group * 5, group * 5 + 5)).collect();
    put(folder.path(), "t.parquet", &file(TABLE, groups));
    let open = || Parquet::open(folder.path().join("t.parquet"), &["y", "x"]).unwrap();
    let whole = drain(Loader::new(open(), options(4, 0, 1)).unwrap().epoch(0));
    for (workers, cache_bytes) in [(0, 0), (2, 0), (8, 200)] {
        let table = open().with_cache_bytes(cache_bytes);
        let loader = Loader::new(table, options(4, workers, 1)).unwrap();
        assert_eq!(drain(loader.epoch(0)), whole);
    }
}

#[test]
fn images_in_a_column_are_decoded() {
    let folder = TempDir::new().unwrap();
    let schema = "message images {
        optional group image { required binary bytes; }
        required int64 label;
    }";
    let grey = |value: u8| png(2, 2, ColorType::Grayscale, BitDepth::Eight, &[value; 4]);
    let columns = vec![Column::Bytes(vec![grey(5), grey(6)]), Column::Ints(vec![1, 0])];
    put(folder.path(), "t.parquet", &file(schema, vec![columns]));
    let path = folder.path().join("t.parquet");
    let images = ParquetImages::open(&path, "image.bytes", "label").unwrap().grey();
    let pipeline = Pipeline::new([Step::CentreCrop([1, 1])]).unwrap().as_bytes().unwrap();
    let batch = first(images.through(pipeline).unwrap()).unwrap();
    assert_eq!(batch.field("images").unwrap().bytes(), [5, 6]);
    assert_eq!(batch.field("labels").unwrap().values::<i64>().unwrap(), [1, 0]);
    let error = ParquetImages::open(&path, "label", "label").unwrap_err();
    assert!(matches!(cause(&error), ParquetError::Kind { .. }), "{error}");
    let error = Parquet::open(&path, &["image.bytes"]).unwrap_err();
    assert!(matches!(cause(&error), ParquetError::Kind { .. }), "{error}");
}

#[test]
fn row_groups_that_claim_more_rows_than_memory_are_refused() {
    let whole = file("message t { required int64 y; }", vec![vec![Column::Ints(vec![1; 10])]]);
    let reader = SerializedFileReader::new(bytes::Bytes::from(whole.clone())).unwrap();
    let metadata = reader.metadata();
    let group = metadata.row_group(0).clone().into_builder().set_num_rows(1 << 40).build();
    let lying = ParquetMetaData::new(metadata.file_metadata().clone(), vec![group.unwrap()]);
    // The last eight bytes are the length of the metadata and a magic number.
    let footer = whole.len() - 8;
    let len = u32::from_le_bytes(whole[footer..footer + 4].try_into().unwrap());
    let mut bytes = whole[..footer - len as usize].to_vec();
    ParquetMetaDataWriter::new(&mut bytes, &lying).finish().unwrap();
    let folder = TempDir::new().unwrap();
    put(folder.path(), "lie.parquet", &bytes);
    let table = Parquet::open(folder.path().join("lie.parquet"), &["y"]).unwrap();
    assert_eq!(table.len(), 1 << 40);
    let error = first(table).expect_err("there are ten");
    assert!(error.to_string().contains("sample 0"), "{error}");
    let causes = std::iter::successors(error.source(), |&error| error.source());
    assert!(causes.last().unwrap().to_string().contains("more than 4 GiB in row group 0"));
}

#[test]
fn columns_that_are_missing_and_lists_of_other_lengths_are_refused() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("t.parquet");
    put(folder.path(), "t.parquet", &file(TABLE, vec![rows(0, 3)]));
    let error = Parquet::open(&path, &["z"]).unwrap_err();
    assert!(matches!(cause(&error), ParquetError::Column { column } if column == "z"), "{error}");
    let columns = |defined: Vec<i16>, repeated: Vec<i16>| {
        let values = defined.iter().filter(|&&level| level == 3).map(|_| 1.0).collect();
        vec![Column::Ints(vec![0, 1]), Column::Lists(defined, repeated, values)]
    };
    for (defined, repeated) in [
        // Lists of two and three values; of two and four values, one of them null; of two values
        // and none.
        (vec![3; 5], vec![0, 1, 0, 1, 1]),
        (vec![3, 3, 3, 2], vec![0, 1, 0, 1]),
        (vec![3, 3, 1], vec![0, 1, 0]),
        (vec![3; 4], vec![0, 0, 1, 1]),
    ] {
        put(folder.path(), "t.parquet", &file(TABLE, vec![columns(defined, repeated)]));
        let error = first(Parquet::open(&path, &["x"]).unwrap()).unwrap_err();
        let DataError::Sample { source, .. } = error else { panic!("{error}") };
        let error = source.downcast_ref::<DataError>().expect("a file's");
        assert!(matches!(cause(error), ParquetError::Ragged { group: 0, .. }), "{error}");
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(400))]
    #[test]
    fn mutated_files_give_errors_and_no_panics(
        changes in proptest::collection::vec((0..4096_usize, proptest::num::u8::ANY), 1..6),
        cut in 0..4096_usize,
    ) {
        let mut bytes = file(TABLE, vec![rows(0, 3), rows(3, 5)]);
        for (at, value) in changes {
            let len = bytes.len();
            bytes[at % len] = value;
        }
        if cut < 400 {
            bytes.truncate(cut);
        }
        let folder = TempDir::new().unwrap();
        put(folder.path(), "t.parquet", &bytes);
        if let Ok(table) = Parquet::open(folder.path().join("t.parquet"), &["x", "y"])
            && (1..1000).contains(&table.len())
        {
            let panicked = matches!(first(table), Err(DataError::Panicked { .. }));
            proptest::prop_assert!(!panicked);
        }
    }
}
