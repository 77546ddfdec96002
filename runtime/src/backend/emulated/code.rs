//! Programs as the devices have them: prepared kernels, and which bytes each touches.

use crate::exec::{ExecError, Programs, prepare};
use crate::kernels::Cpu;
use forebay_plan::verify::ALIGN;
use forebay_plan::{Kernel, Operand, Program};

/// Bytes of a buffer that an instruction touches, in one stretch: in whole units of [`ALIGN`], as plans place memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Touch {
    pub buffer: u32,
    /// From the start of the buffer; first and one past the last.
    pub bytes: (u64, u64),
    pub reads: bool,
    pub writes: bool,
}

/// What was loaded.
#[derive(Debug, Default)]
pub(super) struct Code {
    pub programs: Vec<Program>,
    pub prepared: Programs,
    /// For each program and instruction.
    touches: Vec<Vec<Vec<Touch>>>,
}

impl Code {
    pub fn new(programs: &[Program], cpu: Cpu) -> Result<Code, ExecError> {
        let of_program = |p: &Program| p.instructions.iter().map(|i| touches(p, &i.kernel)).collect();
        Ok(Code {
            programs: programs.to_vec(),
            prepared: prepare(programs, cpu)?,
            touches: programs.iter().map(of_program).collect(),
        })
    }

    pub fn touches(&self, program: u32, instruction: u32) -> &[Touch] {
        &self.touches[program as usize][instruction as usize]
    }

    pub fn kernel(&self, program: u32, instruction: u32) -> &Kernel {
        &self.programs[program as usize].instructions[instruction as usize].kernel
    }
}

/// What a kernel touches of the buffers of its program.
pub(super) fn touches(program: &Program, kernel: &Kernel) -> Vec<Touch> {
    let of_operand = |operand: Operand| {
        let width = program.buffers[operand.buffer as usize].dtype.bytes();
        let (buffer, reads, writes) = (operand.buffer, operand.usage.reads(), operand.usage.writes());
        stretches(&operand, width).into_iter().map(move |bytes| Touch { buffer, bytes, reads, writes })
    };
    kernel.operands().into_iter().flat_map(of_operand).collect()
}

/// An operand that lies in more stretches counts as one, from its first byte to its last.
const MOST_STRETCHES: u64 = 64;

/// The bytes that an operand may touch, in stretches of whole units of [`ALIGN`]: what lies between two stretches is at least a unit, and not the operand's.
fn stretches(operand: &Operand, width: u64) -> Vec<(u64, u64)> {
    let Some(end) = operand.end().filter(|end| *end > operand.offset) else { return vec![] };
    let mut dims: Vec<(u64, u64)> = operand.dims.iter().copied().filter(|(n, stride)| *n > 1 && *stride > 0).collect();
    dims.sort_by_key(|(_, stride)| *stride);
    let outward = |from: u64, to: u64| (from / ALIGN * ALIGN, to.next_multiple_of(ALIGN));
    // From inside to outside: one stretch, as long as the next step leaves no unit out.
    let mut length = width;
    let mut starts = vec![operand.offset * width];
    for (size, stride) in dims {
        let (step, reach) = (stride * width, (size - 1) * stride * width);
        if starts.len() == 1 && step < length + ALIGN {
            length += reach;
            continue;
        }
        if size.saturating_mul(starts.len() as u64) > MOST_STRETCHES {
            return vec![outward(operand.offset * width, end * width)];
        }
        starts = (0..size).flat_map(|i| starts.iter().map(move |start| start + i * step)).collect();
    }
    starts.into_iter().map(|start| outward(start, start + length)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_plan::Usage;

    #[test]
    fn strided_operands_are_stretches() {
        let of = |offset, dims: &[(u64, u64)]| {
            let (usage, dtype) = (Usage::Read, None);
            let operand = Operand { buffer: 0, what: "x", usage, dtype, offset, dims: dims.to_vec(), visits: None };
            stretches(&operand, 4)
        };
        assert_eq!(of(0, &[(100, 1)]), [(0, 448)]);
        // Numbers in units of their own, side by side.
        assert_eq!(of(0, &[(3, 16)]), [(0, 192)]);
        assert_eq!(of(0, &[(3, 32)]), [(0, 64), (128, 192), (256, 320)]);
        assert_eq!(of(16, &[(2, 64), (16, 1)]), [(64, 128), (320, 384)]);
        // Too many.
        assert_eq!(of(0, &[(1000, 32)]), [(0, 64 + 999 * 128)]);
        assert_eq!(of(0, &[(0, 1)]), []);
        assert_eq!(of(7, &[(9, 0)]), [(0, 64)]);
    }
}
