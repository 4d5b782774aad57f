use lowtide_allocator::torch::StreamId;
use lowtide_trace::{Action, RecordedEvent};

/// An event with only the required fields of a trace.
pub(crate) fn recorded_event(
    action: Action,
    address: u64,
    size_bytes: u64,
    stream: StreamId,
) -> RecordedEvent {
    RecordedEvent {
        action,
        address,
        size_bytes,
        stream,
        device_free_bytes: 0,
        time_us: 0,
        category: None,
        site: None,
    }
}
