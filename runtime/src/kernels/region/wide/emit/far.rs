//! Sines and cosines of what is far away.
//!
//! ```text
//! y = the fast function of x                        ... behind the function:
//! if any |x| > limit: go behind the function        x to the stack, call: save all registers, call Rust, restore them; y from the stack
//! ```
//!
//! Beyond [`math::TRIG_LIMIT`] the fast functions are wrong. Hardly any vector has such numbers, so a call that saves every register that code may use costs nothing where there are none.

use super::super::trace::Wave;
use super::{BRIEF, CONSTANTS, Emitter, FAR, Jump, LANES, Rare, SECOND, SPARE, TAIL, Uniform, at};
use crate::kernels::math;
use iced_x86::Register::{EAX, ESI, K1, R8, R9, R10, R11, RCX, RDI, RDX, RSI, RSP, ZMM0};
use iced_x86::{Code, Instruction, Register};

/// A vector whose arguments may be far away.
pub(super) struct Far {
    jump: Jump,
    back: u64,
    x: Register,
    y: Register,
    wave: Wave,
}

/// Bytes of a vector, and how many registers there are; conditions that code may use are in [`K1`] and those behind it.
const VECTOR: usize = 4 * LANES;
const VECTORS: usize = 32;
const CONDITIONS: usize = 7;
/// Registers that a callee may change, beside vectors and conditions (System V); [`SPARE`] is free.
const CHANGED: [Register; 8] = [RCX, RDX, RSI, RDI, R8, R9, R10, R11];
/// Bytes for vectors and conditions, which keep the stack aligned to 16.
const SAVED: usize = VECTORS * VECTOR + (CONDITIONS + 1) * 8;

/// What is called: numbers become their sines, or cosines.
///
/// # Safety
/// There are as many numbers as a vector has.
unsafe extern "sysv64" fn general(numbers: *mut f32, wave: u32) {
    // SAFETY: the caller's contract.
    let numbers = unsafe { std::slice::from_raw_parts_mut(numbers, LANES) };
    let function = if wave == Wave::Sine as u32 { math::sin_any } else { math::cos_any };
    numbers.iter_mut().for_each(|x| *x = function(*x));
    #[cfg(test)]
    overwrite();
}

/// Changes every register that a callee may change, which functions hardly ever do.
#[cfg(test)]
fn overwrite() {
    // SAFETY: code of 512 bits runs here, or nobody would call; the compiler is told of what is changed.
    unsafe {
        std::arch::asm!(
            ".irp i, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
            "vpternlogd zmm\\i, zmm\\i, zmm\\i, 255",
            ".endr",
            ".irp i, 1,2,3,4,5,6,7",
            "kxorw k\\i, k\\i, k\\i",
            ".endr",
            ".irp r, rax,rcx,rdx,rsi,rdi,r8,r9,r10,r11",
            "mov \\r, 1",
            ".endr",
            clobber_abi("sysv64"),
            options(nomem, nostack)
        );
    }
}

impl Emitter<'_> {
    /// Goes behind the function where an argument is beyond the limit.
    pub(super) fn look_far(&mut self, (y, x): (Register, Register), wave: Wave, masked: bool) {
        let [size, limit] = FAR.map(|bits| self.uniform(bits));
        let size = self.three(Code::EVEX_Vpandd_zmm_k1z_zmm_zmmm512b32, SECOND, x, size);
        self.asm.add(size);
        // Greater, ordered and quiet: a NaN stays what it is.
        let (code, greater) = (Code::EVEX_Vcmpps_kr_k1_zmm_zmmm512b32_imm8_sae, 30);
        let is_far = match limit {
            Uniform::Register(limit) => Instruction::with4(code, BRIEF, SECOND, limit, greater),
            Uniform::Memory(limit) => Instruction::with4(code, BRIEF, SECOND, limit, greater),
        };
        // What is beyond a tail may be anything.
        if masked {
            self.asm.add_masked(is_far, TAIL, false)
        } else {
            self.asm.add(is_far)
        }
        self.asm.add(Instruction::with2(Code::VEX_Kortestw_kr_kr, BRIEF, BRIEF));
        let jump = self.asm.jump(Code::Jne_rel32_64);
        self.rare.push(Rare::Far(Far { jump, back: self.asm.here(), x, y, wave }));
    }

    /// What is jumped to; the jump to what saves registers and calls comes back.
    pub(super) fn ask(&mut self, Far { jump, back, x, y, wave }: Far) -> Jump {
        self.asm.land(jump);
        self.asm.add(Instruction::with2(Code::Sub_rm64_imm32, RSP, VECTOR as i32));
        self.asm.add(Instruction::with2(Code::EVEX_Vmovups_zmmm512_k1z_zmm, at(RSP, 0), x));
        self.asm.add(Instruction::with2(Code::Mov_r32_imm32, EAX, wave as u32));
        let call = self.asm.jump(Code::Call_rel32_64);
        self.asm.add(Instruction::with2(Code::EVEX_Vmovups_zmm_k1z_zmmm512, y, at(RSP, 0)));
        self.asm.add(Instruction::with2(Code::Add_rm64_imm32, RSP, VECTOR as i32));
        self.asm.jump_back(Code::Jmp_rel32_64, back);
        call
    }

    /// Calls Rust with the vector above the return address, and changes no register but [`SPARE`].
    ///
    /// The stack is aligned to 16 at the call: a function begins 8 off, its six registers and its frame keep that, the vector as well; the return address
    /// brings it back, and [`CHANGED`] and [`SAVED`] keep it.
    pub(super) fn call_general(&mut self, calls: Vec<Jump>) {
        calls.into_iter().for_each(|call| self.asm.land(call));
        let address = self.address(general as *const () as usize);
        for register in CHANGED {
            self.asm.add(Instruction::with1(Code::Push_r64, register));
        }
        self.asm.add(Instruction::with2(Code::Sub_rm64_imm32, RSP, SAVED as i32));
        for vector in 0..VECTORS {
            let (to, from) = (at(RSP, vector * VECTOR), ZMM0 + vector as u32);
            self.asm.add(Instruction::with2(Code::EVEX_Vmovups_zmmm512_k1z_zmm, to, from));
        }
        let condition = |number: usize| (at(RSP, VECTORS * VECTOR + 8 * number), K1 + number as u32);
        for (to, from) in (0..CONDITIONS).map(condition) {
            self.asm.add(Instruction::with2(Code::VEX_Kmovw_m16_kr, to, from));
        }
        self.asm.add(Ok(Instruction::with(Code::VEX_Vzeroupper)));
        self.asm.add(Instruction::with2(Code::Lea_r64_m, RDI, at(RSP, SAVED + 8 * CHANGED.len() + 8)));
        self.asm.add(Instruction::with2(Code::Mov_r32_rm32, ESI, EAX));
        self.asm.add(Instruction::with2(Code::Mov_r64_rm64, SPARE, at(CONSTANTS, address)));
        self.asm.add(Instruction::with1(Code::Call_rm64, SPARE));
        for vector in 0..VECTORS {
            let (from, to) = (at(RSP, vector * VECTOR), ZMM0 + vector as u32);
            self.asm.add(Instruction::with2(Code::EVEX_Vmovups_zmm_k1z_zmmm512, to, from));
        }
        for (from, to) in (0..CONDITIONS).map(condition) {
            self.asm.add(Instruction::with2(Code::VEX_Kmovw_kr_km16, to, from));
        }
        self.asm.add(Instruction::with2(Code::Add_rm64_imm32, RSP, SAVED as i32));
        for register in CHANGED.into_iter().rev() {
            self.asm.add(Instruction::with1(Code::Pop_r64, register));
        }
        self.asm.add(Ok(Instruction::with(Code::Retnq)));
    }

    /// Bytes from the start of the constants to an address.
    fn address(&mut self, address: usize) -> usize {
        let place = self.constants.len();
        self.constants.extend([address as u32, (address as u64 >> 32) as u32]);
        4 * place
    }
}
