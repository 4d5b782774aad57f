//! Events, as records of a fixed size, and copies of a moment for crates that explain them.

pub(crate) mod capture;
mod modules;
pub(crate) mod ring;

use std::panic::Location;

use crate::arena::layout::node::Live;
use crate::category::Category;
use crate::origin::ModulePath;
use crate::stream::Stream;

/// The kinds of event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Action {
    /// A block became live.
    Allocate,
    /// A block was dropped; the site is the site of its allocation.
    Free,
    /// A piece of a stitched block. The pieces follow the record of their block, in order.
    Piece,
    /// The source put pages behind a range.
    Commit,
    /// The source took pages back.
    Decommit,
    /// Pages were mapped at a second address. The offset is the offset of the pages, not of the
    /// view.
    Map,
    /// Pages are no longer mapped at a second address.
    Unmap,
    /// The stream waits for another stream, whose number is the offset.
    Wait,
    /// Charged bytes rose by `size_bytes`.
    Charge,
    /// Charged bytes fell by `size_bytes`.
    Discharge,
    /// A request failed. `size_bytes` is the request; the offset is the rest of the capacity.
    OutOfMemory,
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Number of the event: counts from 0 without gaps.
    pub sequence: u64,
    /// The kind of event.
    pub action: Action,
    /// Category of the block or charge, or of the request that caused the source call.
    pub category: Category,
    /// The stream of the block or of the request.
    pub stream: Stream,
    /// Offset of the block or pages; 0 for charges.
    pub offset: usize,
    /// Active bytes for blocks.
    pub size_bytes: usize,
    /// Bytes that the caller asked for.
    pub requested_bytes: usize,
    /// Serial of the block or charge; 0 where there is none.
    pub serial: u64,
    /// The source line of the request.
    pub site: &'static Location<'static>,
    /// The module that ran; `None` outside of every model.
    pub module: Option<ModulePath>,
}

const _: () = assert!(size_of::<Record>() == 56);

impl Record {
    /// An event of a live block; the ring gives the sequence.
    #[inline]
    pub(crate) fn of_block(action: Action, offset: usize, live: &Live) -> Record {
        Record {
            sequence: 0,
            action,
            category: live.category,
            stream: live.stream,
            offset,
            size_bytes: live.size_bytes,
            requested_bytes: live.requested_bytes,
            serial: live.serial,
            site: live.site,
            module: live.module,
        }
    }
}

/// A moment at which the time was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The record that was written then.
    pub sequence: u64,
    /// Microseconds since 1970 (UTC).
    pub time_us: u64,
}

/// A copy of the ring, oldest record first.
#[derive(Clone, Debug)]
pub struct History {
    records: Vec<Record>,
    overwritten: u64,
    moments: Vec<Moment>,
}

impl History {
    /// The records, oldest first.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// Number of older records that are gone.
    pub fn overwritten(&self) -> u64 {
        self.overwritten
    }

    /// Times at which records were written: for one in 64 records, and for the last one.
    pub fn moments(&self) -> &[Moment] {
        &self.moments
    }
}
