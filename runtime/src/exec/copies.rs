//! Bytes that programs copy between a device's memory and its host's: of ragged tensors those of the rows that came.

use forebay_plan::{Instruction, Kernel, Program, RaggedLimit, Space};
use std::ops::{AddAssign, Sub};

/// Bytes over the link to the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostTraffic {
    /// To the host's memory.
    pub out: u64,
    /// From there.
    pub back: u64,
}

impl AddAssign for HostTraffic {
    fn add_assign(&mut self, other: HostTraffic) {
        self.out += other.out;
        self.back += other.back;
    }
}

impl Sub for HostTraffic {
    type Output = HostTraffic;

    fn sub(self, other: HostTraffic) -> HostTraffic {
        HostTraffic { out: self.out - other.out, back: self.back - other.back }
    }
}

/// An instruction that copies between the memories.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HostCopy {
    to_host: bool,
    /// All bytes; of a ragged copy those of one row.
    bytes: u64,
    /// What says how many rows there are.
    pub rows: Option<RaggedLimit>,
}

impl HostCopy {
    /// What an instruction copies, if it does.
    pub fn of(program: &Program, instruction: &Instruction) -> Option<HostCopy> {
        let Kernel::Region(region) = &instruction.kernel else { return None };
        let buffer = |view: &forebay_plan::View| &program.buffers[view.buffer as usize];
        let in_host = |view| program.slots[buffer(view).slot as usize].space == Space::Host;
        let (load, store) = (region.loads.first()?, region.stores.first()?);
        let to_host = in_host(&store.view);
        if to_host == in_host(&load.view) {
            return None;
        }
        let dims = region.dims.iter().zip(0..);
        let fixed = dims.filter(|(_, d)| region.ragged.as_ref().is_none_or(|r| r.dim != *d)).map(|(n, _)| *n);
        let bytes = fixed.product::<u64>() * buffer(&store.view).dtype.bytes();
        Some(HostCopy { to_host, bytes, rows: region.ragged.clone() })
    }

    /// What it copies when so many rows are there.
    pub fn traffic(&self, rows: u64) -> HostTraffic {
        let bytes = if self.rows.is_some() { self.bytes * rows } else { self.bytes };
        if self.to_host { HostTraffic { out: bytes, back: 0 } } else { HostTraffic { out: 0, back: bytes } }
    }
}
