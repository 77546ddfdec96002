//! Instructions one after the other, and jumps between them.

use iced_x86::{Code, Encoder, IcedError, Instruction, MemoryOperand, Register};

/// Machine code in the making. All forms of instructions that are asked for exist, so that encoding cannot fail.
pub(super) struct Assembler {
    encoder: Encoder,
    at: u64,
    /// Ends of jumps to what is not there yet, and where they go.
    forward: Vec<(usize, u64)>,
}

/// A jump whose target is set later.
#[must_use]
pub(super) struct Jump(usize);

impl Assembler {
    pub fn new() -> Assembler {
        Assembler { encoder: Encoder::new(64), at: 0, forward: vec![] }
    }

    pub fn add(&mut self, instruction: Result<Instruction, IcedError>) {
        let length = instruction.and_then(|i| self.encoder.encode(&i, self.at));
        self.at += length.expect("the form exists") as u64;
    }

    /// The same under a mask, which leaves what is outside of it as it is, or (`clears`) zero.
    pub fn add_masked(&mut self, instruction: Result<Instruction, IcedError>, mask: Register, clears: bool) {
        self.add(instruction.map(|mut i| {
            i.set_op_mask(mask);
            i.set_zeroing_masking(clears);
            i
        }));
    }

    pub fn here(&self) -> u64 {
        self.at
    }

    pub fn jump_back(&mut self, code: Code, target: u64) {
        self.add(Instruction::with_branch(code, target));
    }

    pub fn jump(&mut self, code: Code) -> Jump {
        self.add(Instruction::with_branch(code, self.at));
        Jump(self.at as usize)
    }

    /// The target of a jump is what comes next.
    pub fn land(&mut self, jump: Jump) {
        self.forward.push((jump.0, self.at));
    }

    pub fn finish(mut self) -> Vec<u8> {
        let mut bytes = self.encoder.take_buffer();
        for (end, target) in self.forward {
            let distance = (target as i64 - end as i64) as i32;
            bytes[end - 4..end].copy_from_slice(&distance.to_le_bytes());
        }
        bytes
    }
}

/// Memory so many bytes from where a register points.
pub(super) fn at(base: Register, bytes: usize) -> MemoryOperand {
    MemoryOperand::with_base_displ(base, bytes as i64)
}

/// A word there, for each lane.
pub(super) fn each(base: Register, bytes: usize) -> MemoryOperand {
    MemoryOperand::with_base_displ_bcst_seg(base, bytes as i64, true, Register::None)
}
