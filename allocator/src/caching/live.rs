//! Live blocks, under the arena's own rules and under PyTorch's.

use crate::arena::block_info::BlockInfo;
use crate::arena::layout::node::Live;
use crate::caching::locked::State;
use crate::statistics::{ModuleShare, shares};

impl State {
    /// Live blocks in address order, with the offset of each block or of its first piece.
    pub(crate) fn live(&self) -> Vec<(usize, Live)> {
        self.rules.live(&self.arena)
    }

    pub(crate) fn live_blocks(&self) -> Vec<BlockInfo> {
        self.live().iter().map(|(offset, live)| BlockInfo::of(*offset, live)).collect()
    }

    /// Live bytes by module, most first.
    pub(crate) fn by_module(&self) -> Vec<ModuleShare> {
        shares(self.live().iter().map(|(_, live)| (live.module, live.size_bytes as u64)))
    }

    /// 64-bit FNV-1a (Fowler, Noll, Vo; RFC 9923) over category, offset and size of every live
    /// block or piece of a block, in address order.
    pub(crate) fn layout_hash(&self) -> u64 {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        let mut absorb = |bytes: &[u8]| {
            for &byte in bytes {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
            }
        };
        for (extent, live) in self.rules.live_extents(&self.arena) {
            absorb(&[live.category as u8]);
            absorb(&(extent.offset as u64).to_le_bytes());
            absorb(&(extent.size_bytes as u64).to_le_bytes());
        }
        hash
    }
}
