//! Laws of CUDA sources on the pretend driver, and some on any driver; see `gpu`.

#[expect(dead_code, reason = "some of what the other tests need")]
#[path = "../it/common.rs"]
mod common;
mod device;
mod early_reuse;
#[expect(dead_code, reason = "its `main` is for people")]
#[path = "../../examples/cudarc.rs"]
mod example;
mod faults;
mod gpu;
mod pinned;
mod source;
