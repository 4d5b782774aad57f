//! A live block as it is shown to users.

use std::panic::Location;

use crate::arena::layout::node::Live;
use crate::category::Category;
use crate::origin::ModulePath;
use crate::stream::Stream;

/// A live block, as a report of left-over blocks shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockInfo {
    /// Offset of the block, or of its first piece if it is stitched.
    pub offset: usize,
    /// Active bytes: the bytes that the block takes.
    pub size_bytes: usize,
    /// Bytes asked for.
    pub requested_bytes: usize,
    /// Category of the block.
    pub category: Category,
    /// Stream that owns the block.
    pub stream: Stream,
    /// The source line of the request.
    pub site: &'static Location<'static>,
    /// The module that the block belongs to; `None` outside of every model.
    pub module: Option<ModulePath>,
    /// Serial number: counts up with every block and charge.
    pub serial: u64,
}

impl BlockInfo {
    pub(crate) fn of(offset: usize, live: &Live) -> BlockInfo {
        BlockInfo {
            offset,
            size_bytes: live.size_bytes,
            requested_bytes: live.requested_bytes,
            category: live.category,
            stream: live.stream,
            site: live.site,
            module: live.module,
            serial: live.serial,
        }
    }
}
