//! The message of a panic that was caught.

use std::any::Any;

/// The message of a panic's payload.
pub(crate) fn message_of(payload: Box<dyn Any + Send>) -> String {
    if let Some(text) = payload.downcast_ref::<&str>() {
        return (*text).to_owned();
    }
    match payload.downcast::<String>() {
        Ok(text) => *text,
        Err(payload) => {
            // A payload of the dataset's own type is leaked. Dropping the payload may panic again,
            // which would end the worker and leave the consumer waiting.
            std::mem::forget(payload);
            "payload is not text".to_owned()
        }
    }
}
