//! Rounding to bf16.
//!
//! `VCVTNE2PS2BF16` rounds two vectors to one, which is stored as it is: six instructions for both, where plain AVX-512 takes seven for each. It takes denormals
//! for zeros, whatever MXCSR says, and chains keep them. So vectors are looked at before, and those with denormals go a way of their own, behind the function.

use super::{BRIEF, Emitter, FIRST, Id, Jump, NEAREST, Op, Rare, Registers, SECOND, TAIL};
use iced_x86::{Code, Instruction, Register};

/// The class of denormal numbers of `VFPCLASSPS`.
const DENORMAL: u32 = 0x20;

/// Two vectors that follow each other and are stored as bf16, for where one has denormals.
pub(super) struct Denormals {
    jump: Jump,
    back: u64,
    from: [Register; 2],
    micro: usize,
    vector: usize,
}

impl Emitter<'_> {
    /// As `nearest_bf16` of AVX-512 does it. Where only the upper halves are stored, the lower ones may be anything.
    pub(super) fn nearest(&mut self, to: Register, a: Register, clears: bool) {
        let [odd, half, one, table, upper] = NEAREST;
        let [odd, half, one] = [odd, half, one].map(|bits| self.uniform(bits));
        let is_odd = self.three(Code::EVEX_Vptestmd_kr_k1_zmm_zmmm512b32, BRIEF, a, odd);
        self.asm.add(is_odd);
        let sum = self.three(Code::EVEX_Vpaddd_zmm_k1z_zmm_zmmm512b32, FIRST, a, half);
        self.asm.add(sum);
        let sum = self.three(Code::EVEX_Vpaddd_zmm_k1z_zmm_zmmm512b32, FIRST, FIRST, one);
        self.asm.add_masked(sum, BRIEF, false);
        self.fix_up(FIRST, a, table);
        if clears {
            let upper = self.uniform(upper);
            let cleared = self.three(Code::EVEX_Vpandd_zmm_k1z_zmm_zmmm512b32, to, FIRST, upper);
            self.asm.add(cleared);
        } else {
            self.asm.add(Instruction::with2(Code::EVEX_Vmovaps_zmm_k1z_zmmm512, to, FIRST));
        }
    }

    /// The upper halves of a vector.
    pub(super) fn store_upper(&mut self, from: Register, micro: usize, vector: usize, masked: bool) {
        let to = self.elements(micro, 2, vector);
        self.asm.add(Instruction::with3(Code::EVEX_Vpsrld_zmm_k1z_zmmm512b32_imm8, SECOND, from, 16));
        self.store(Instruction::with2(Code::EVEX_Vpmovdw_ymmm256_k1z_zmm, to, SECOND), masked);
    }

    /// Is a result the rounding of a vector that whoever stores it does, two vectors at a time?
    pub(super) fn rounds_in_store(&self, id: Id) -> bool {
        self.rounds
            && self.list[id].op == Op::Nearest
            && !self.list[self.list[id].args[0]].op.is_uniform()
            && self.is_only_stored(id)
    }

    /// Is a result only stored, and of that the upper halves?
    pub(super) fn is_only_stored(&self, id: Id) -> bool {
        let mut readers = self.list.iter().filter(|node| node.args.contains(&id));
        readers.all(|node| matches!(node.op, Op::StoreUpper(_)))
    }

    /// Leaves a result as its operand is.
    pub(super) fn pass_on(&mut self, id: Id, registers: &mut Registers) -> Option<()> {
        let from = self.list[id].args[0];
        if self.last[from] == Some(id) {
            registers.of[id] = registers.of[from].take();
            return Some(());
        }
        let (from, to) = (registers.of[from]?, registers.take(id, false)?);
        for vector in 0..registers.unroll {
            let [to, from] = [to, from].map(|group| registers.number(group, vector));
            self.asm.add(Instruction::with2(Code::EVEX_Vmovaps_zmm_k1z_zmmm512, to, from));
        }
        Some(())
    }

    /// Rounds two vectors and stores them.
    pub(super) fn store_rounded(&mut self, from: [Register; 2], micro: usize, vector: usize) {
        // There is no tail where vectors are side by side.
        let [low, high] = from;
        for (mask, vector) in [(BRIEF, low), (TAIL, high)] {
            let class = Code::EVEX_Vfpclassps_kr_k1_zmmm512b32_imm8;
            self.asm.add(Instruction::with3(class, mask, vector, DENORMAL));
        }
        self.asm.add(Instruction::with2(Code::VEX_Kortestw_kr_kr, BRIEF, TAIL));
        let jump = self.asm.jump(Code::Jne_rel32_64);
        let to = self.elements(micro, 2, vector);
        self.asm.add(Instruction::with3(Code::EVEX_Vcvtne2ps2bf16_zmm_k1z_zmm_zmmm512b32, SECOND, high, low));
        self.asm.add(Instruction::with2(Code::EVEX_Vmovups_zmmm512_k1z_zmm, to, SECOND));
        self.rare.push(Rare::Denormals(Denormals { jump, back: self.asm.here(), from, micro, vector }));
    }

    /// What is jumped to for denormals.
    pub(super) fn store_denormals(&mut self, Denormals { jump, back, from, micro, vector }: Denormals) {
        self.asm.land(jump);
        for (i, from) in from.into_iter().enumerate() {
            self.nearest(SECOND, from, false);
            self.store_upper(SECOND, micro, vector + i, false);
        }
        self.asm.jump_back(Code::Jmp_rel32_64, back);
    }
}
