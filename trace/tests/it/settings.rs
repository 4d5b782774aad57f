//! The text of PyTorch's settings.

use lowtide_allocator::torch::TorchSettings;
use lowtide_trace::{SettingsError, SettingsProblem, parse_settings};

use crate::shelf::MIB;

fn parse(text: &str) -> TorchSettings {
    parse_settings(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[track_caller]
fn check_error(text: &str, key: &str, offset: usize, message: &str) {
    let error = parse_settings(text).expect_err(text);
    assert_eq!((error.key.as_str(), error.offset), (key, offset), "{text}");
    assert_eq!(error.to_string(), format!("byte {offset}: allocator setting {key}: {message}"));
}

#[test]
fn settings_are_read_as_pytorch_reads_them() {
    // The text and the values of PyTorch's `AllocatorConfigTest` (BSD-3).
    let settings = parse(
        "max_split_size_mb:40,max_non_split_rounding_mb:30,garbage_collection_threshold:0.5,\
         roundup_power2_divisions:[64:8,128:2,256:4,512:2,1024:4,>:1],expandable_segments:True",
    );
    assert_eq!(settings.max_split_bytes, Some(40 * MIB));
    assert_eq!(settings.max_non_split_rounding_bytes, 30 * MIB);
    assert!((settings.garbage_collection_threshold - 0.5).abs() < f64::EPSILON);
    assert_eq!(settings.large_segment_bytes, 20 * MIB);
    assert!(settings.expandable_segments);
    let cases = [(1, 8), (32, 8), (64, 8), (128, 2), (256, 4), (512, 2), (1024, 4), (2048, 1)];
    for (size_mib, divisions) in cases {
        assert_eq!(settings.divisions(size_mib * MIB), divisions, "{size_mib} MiB");
    }
    assert_eq!(parse(""), TorchSettings::default());
    assert_eq!(parse(" roundup_power2_divisions : 4 ,").power2_divisions, [4; 16]);
    // The last of two equal keys holds.
    assert!(!parse("expandable_segments:True,expandable_segments:False").expandable_segments);
}

#[test]
fn intervals_of_divisions_are_filled_as_pytorch_fills_them() {
    let of = |text: &str| parse(&format!("roundup_power2_divisions:{text}")).power2_divisions;
    let mut expected = [8; 16];
    expected[2..].fill(0);
    assert_eq!(of("[2:8]"), expected);
    expected[3] = 2;
    expected[4..].fill(16);
    assert_eq!(of("[2:8,8:2,>:16]"), expected);
    // Sizes above the last interval belong to it; `>` alone leaves the first interval out.
    assert_eq!(of("[1048576:4]"), [4; 16]);
    assert_eq!((of("[>:4]")[0], of("[>:4]")[1]), (0, 4));
    assert_eq!(of("[1:0]"), [0; 16]);
}

#[test]
fn large_segments_bound_the_other_sizes_wherever_they_stand() {
    let settings = parse("max_split_size_mb:64,large_segment_size_mb:64");
    assert_eq!(
        (settings.max_split_bytes, settings.large_segment_bytes),
        (Some(64 * MIB), 64 * MIB)
    );
    assert_eq!(settings.max_non_split_rounding_bytes, 64 * MIB);
    let text = "max_split_size_mb:63,large_segment_size_mb:64";
    check_error(
        text,
        "max_split_size_mb",
        18,
        "\"63\" is not a whole number of at least large_segment_size_mb",
    );
    assert_eq!(parse("max_split_size_mb:20").max_split_bytes, Some(20 * MIB));
    // The limit is larger than any request.
    assert_eq!(parse("max_split_size_mb:99999999999999999").max_split_bytes, Some(1 << 60));
}

#[test]
fn memory_fraction_is_of_the_device() {
    let limit = |text: &str| parse(text).for_device(1000 * MIB).limit_bytes;
    assert_eq!(limit("per_process_memory_fraction:0.5"), Some(500 * MIB));
    assert_eq!(limit("per_process_memory_fraction:0"), Some(0));
    assert_eq!(limit("per_process_memory_fraction:1.0"), None);
    assert_eq!(limit(""), None);
    let limited = TorchSettings { limit_bytes: Some(MIB), ..TorchSettings::default() };
    assert_eq!(limited.for_device(1000 * MIB).limit_bytes, Some(MIB));
}

#[test]
fn settings_without_a_say_in_placement_are_taken_and_ignored() {
    let text = "release_lock_on_cudamalloc:True,release_lock_on_hipmalloc:False,\
                pinned_use_cuda_host_register:True,pinned_use_hip_host_register:False,\
                pinned_num_register_threads:128,pinned_use_background_threads:True,\
                pinned_reserve_segment_size_mb:5,pinned_free_catch_all:True,\
                graph_capture_record_stream_reuse:False,throw_on_cudamalloc_oom:True,\
                expandable_segments_reserve:40G,\
                expandable_segments_reserve_by_class:[a:0.5,b:1G],backend:native";
    assert_eq!(parse(text), TorchSettings::default());
}

#[test]
fn settings_that_pytorch_raises_for_are_refused() {
    // The bad settings of `test_allocator_settings` in PyTorch's `test_cuda.py` (BSD-3).
    check_error("foo:1,bar:2", "foo", 0, "there is no such setting");
    let number = "\"1.2\" is not a number between 0 and 1";
    check_error("garbage_collection_threshold:1.2", "garbage_collection_threshold", 29, number);
    let least = "\"2\" is not a whole number of at least large_segment_size_mb";
    check_error("max_split_size_mb:2", "max_split_size_mb", 18, least);
    let truth = "\"none\" is not True or False";
    check_error("release_lock_on_cudamalloc:none", "release_lock_on_cudamalloc", 27, truth);
    check_error("pinned_use_cuda_host_register:none", "pinned_use_cuda_host_register", 30, truth);
    for (value, offset) in [("none", 28), ("1024", 28)] {
        let text = format!("pinned_num_register_threads:{value}");
        let message = format!("\"{value}\" is not a power of two up to 128");
        check_error(&text, "pinned_num_register_threads", offset, &message);
    }
    let closing = "\"\" instead of a comma or a closing bracket";
    check_error("roundup_power2_divisions:[64:4", "roundup_power2_divisions", 30, closing);
    let power = "\"3\" is not a power of two, or >";
    check_error("roundup_power2_divisions:[3:4]", "roundup_power2_divisions", 26, power);
}

#[test]
fn errors_say_where_they_are() {
    let at = |text: &str| parse_settings(text).expect_err(text).offset;
    assert_eq!(at("max_split_size_mb"), 17);
    assert_eq!(at("max_split_size_mb:"), 18);
    assert_eq!(at("max_split_size_mb:x"), 18);
    assert_eq!(at("expandable_segments:True max_split_size_mb:40"), 20);
    assert_eq!(at("expandable_segments:True:max"), 24);
    assert_eq!(at(",expandable_segments:True"), 0);
    assert_eq!(at("expandable_segments:true"), 20);
    assert_eq!(at(" expandable_segments : true"), 23);
    assert_eq!(at("large_segment_size_mb:10"), 22);
    assert_eq!(at("roundup_power2_divisions:3"), 25);
    assert_eq!(at("roundup_power2_divisions:0"), 25);
    assert_eq!(at("roundup_power2_divisions:[64:8;>:1]"), 29);
    assert_eq!(at("garbage_collection_threshold:nan"), 29);
    assert_eq!(at("garbage_collection_threshold:0"), 29);
    assert_eq!(at("per_process_memory_fraction:1.1"), 28);
    assert_eq!(at("expandable_segments_reserve_by_class:[a:1"), 41);
}

#[test]
fn backends_that_place_by_themselves_are_refused() {
    for value in ["cudaMallocAsync", "hipMallocAsync"] {
        let problem = SettingsProblem::Backend { value: value.into() };
        let error = SettingsError { key: "backend".into(), offset: 8, problem };
        assert_eq!(parse_settings(&format!("backend:{value}")), Err(error));
    }
    let message = "\"other\" is not native";
    check_error("backend:other", "backend", 8, message);
}
