//! From a list of operations to AVX-512 machine code.
//!
//! ```text
//! for each row:      pointers into registers, numbers of the row onto the stack
//!   for so many vectors of columns side by side as registers allow:  the operations, each for all vectors
//!   for the rest, a vector at a time:                                the operations, under a mask
//! ```

mod far;
mod over;
mod rare;
mod round;

use super::super::chain::{Micro, Site};
use super::super::tile::Place;
use super::assemble::{Assembler, Jump, at, each};
use super::registers::{NUMBERS, Registers};
use super::trace::{Id, Node, Op};
use crate::kernels::math;
use iced_x86::Register::{
    EAX, K1, K7, R8, R8D, R9, R10, R11, R12, R13, R14, R15, RAX, RBP, RBX, RCX, RDI, RDX, RSI, RSP, XMM30, ZMM0, ZMM30,
    ZMM31,
};
use iced_x86::{Code, IcedError, Instruction, MemoryOperand, Register};
use rare::Rare;
use std::mem::offset_of;

/// What is called: places, rows, columns (both at least 1), constants.
pub(super) type Entry = unsafe extern "sysv64" fn(*mut Place, usize, usize, *const u32);

const PLACES: Register = RDI;
const ROWS: Register = RSI;
const COLUMNS: Register = RDX;
const CONSTANTS: Register = RCX;
/// The column that has been reached.
const COLUMN: Register = R8;
/// For this and that.
const SPARE: Register = RAX;
/// Pointers to places; of those beyond there are copies on the stack.
const POINTERS: [Register; 9] = [RBX, RBP, R9, R10, R11, R12, R13, R14, R15];
/// Which of them belong to the caller (System V).
const SAVED: [Register; 6] = [RBX, RBP, R12, R13, R14, R15];
/// Vectors side by side at most.
const MOST: usize = 4;
/// Registers for operands that are the same in all lanes, and for what is between two instructions of an operation.
const FIRST: Register = ZMM30;
const SECOND: Register = ZMM31;
/// The columns that exist, at the end of a row; before it, for this and that.
const TAIL: Register = K1;
/// A condition between two instructions of an operation.
const BRIEF: Register = K7;
/// Lanes.
pub(super) const LANES: usize = 16;
/// Operations, loads and stores not counted, for each vector of f32 or bf16 that is read from memory, from which on the next row is fetched: what does less waits for the lines that it is to read now, and more of them missing at
/// once only makes it wait longer (`docs/performance.md`).
const MANY: usize = 8;
/// Bytes that are fetched at once.
const CACHE_LINE: usize = 64;

/// Constants that code always has, by their places: 16 bytes of 1; 16 bits.
const ONES: usize = 0;
const ALL: usize = 16;

/// Constants of operations of several instructions: see `lanes::avx512`.
const NEAREST: [u32; 5] = [0x1_0000, 0x7fff, 1, 0x22, 0xffff_0000];
const LOG_ENDS: u32 = 0x0353_0422;
/// All bits but the sign; how far sines are fast.
const FAR: [u32; 2] = [0x7fff_ffff, math::TRIG_LIMIT.to_bits()];
/// The interval of `VGETMANTPS` from ¾ on, and signs as they are.
const FROM_THREE_QUARTERS: u32 = 3;

/// Constants that an operation has besides its operands.
fn implied(op: Op) -> &'static [u32] {
    match op {
        Op::Nearest => &NEAREST,
        Op::LogEnds => &[LOG_ENDS],
        Op::Far(_) => &FAR,
        _ => &[],
    }
}

/// Machine code, and the constants that it reads.
pub(super) struct Emitted {
    pub code: Vec<u8>,
    pub constants: Vec<u32>,
}

/// Makes code, with no more vectors side by side than rows of so many columns have; nothing where there are more values than registers.
/// `rounds`: the machine has instructions that round to bf16.
pub(super) fn emit(list: &[Node], micros: &[Micro], columns: usize, rounds: bool) -> Option<Emitted> {
    let last = last_uses(list);
    let mut emitter = Emitter::new(list, micros, &last, rounds);
    let uniforms = emitter.uniforms();
    // As many as there are registers for: each hides the latency of the others'. An operand that does not change, and has no register, is fetched once for all of them.
    let fits = |unroll: &usize| *unroll == 1 || *unroll * LANES <= columns;
    let taken = |unroll| Some((unroll, Emitter::new(list, micros, &last, rounds).body(unroll, false)?));
    let (unroll, most) = [MOST, 2, 1].into_iter().filter(fits).find_map(taken)?;
    let free = (most..NUMBERS).rev().map(|number| ZMM0 + number as u32);
    emitter.resident = uniforms.into_iter().zip(free).collect();
    emitter.function(unroll)?;
    Some(Emitted { code: emitter.asm.finish(), constants: emitter.constants })
}

/// For each result the last operation that needs it: itself, where that is done for its effect; nothing, where nobody does.
fn last_uses(list: &[Node]) -> Vec<Option<Id>> {
    let mut last = vec![None; list.len()];
    for (id, node) in list.iter().enumerate().rev() {
        if node.op.stores() {
            last[id] = Some(id);
        }
        if last[id].is_some() {
            for &arg in &node.args {
                last[arg] = last[arg].or(Some(id));
            }
        }
    }
    last
}

struct Emitter<'a> {
    list: &'a [Node],
    micros: &'a [Micro],
    last: &'a [Option<Id>],
    asm: Assembler,
    constants: Vec<u32>,
    /// Places that differ, each by a micro-operation that has it.
    sites: Vec<(Site, usize)>,
    /// Micro-operations whose operand is a number for a whole row.
    rows: Vec<usize>,
    /// What is the same in all lanes and stays in a register.
    resident: Vec<(Op, Register)>,
    /// Is the next row fetched while this one is worked on?
    ahead: bool,
    /// Does the machine round vectors to bf16 by an instruction?
    rounds: bool,
    /// What is written behind the function.
    rare: Vec<Rare>,
}

/// An operand of an instruction that is the same in all lanes.
#[derive(Clone, Copy)]
enum Uniform {
    Register(Register),
    Memory(MemoryOperand),
}

/// An operand: a group, or one register for all vectors.
#[derive(Clone, Copy)]
enum Operand {
    Group(usize),
    Same(Register),
}

impl<'a> Emitter<'a> {
    fn new(list: &'a [Node], micros: &'a [Micro], last: &'a [Option<Id>], rounds: bool) -> Emitter<'a> {
        let (mut sites, mut rows) = (vec![], vec![]);
        for (node, _) in list.iter().zip(last).filter(|(_, last)| last.is_some()) {
            match node.op {
                Op::Row(micro) => rows.push(micro),
                Op::Columns(micro)
                | Op::Bf16(micro)
                | Op::Truths(micro)
                | Op::Store(micro)
                | Op::StoreUpper(micro)
                | Op::StoreTruths(micro)
                    if !sites.iter().any(|(site, _)| *site == micros[micro].site) =>
                {
                    sites.push((micros[micro].site, micro));
                }
                _ => {}
            }
        }
        let constants = vec![0x0101_0101, 0x0101_0101, 0x0101_0101, 0x0101_0101, 0xffff];
        let needed = || list.iter().zip(last).filter(|(_, last)| last.is_some()).map(|(node, _)| node.op);
        let is_read = |micro: usize| matches!(micros[micro].site, Site::Access(_));
        let loads = needed().filter(|op| op.load().is_some_and(is_read)).count();
        let work = needed().filter(|op| !op.is_uniform() && op.load().is_none() && !op.stores()).count();
        let ahead = work >= MANY * loads;
        Emitter {
            list,
            micros,
            last,
            asm: Assembler::new(),
            constants,
            sites,
            rows,
            resident: vec![],
            ahead,
            rounds,
            rare: vec![],
        }
    }

    /// What is the same in all lanes, what is used most first.
    fn uniforms(&self) -> Vec<Op> {
        let mut uses: Vec<(Op, usize)> = vec![];
        let mut count = |op: Op| match uses.iter_mut().find(|(other, _)| *other == op) {
            Some((_, times)) => *times += 1,
            None => uses.push((op, 1)),
        };
        for (id, node) in self.list.iter().enumerate().filter(|&(id, _)| self.last[id].is_some()) {
            node.args.iter().map(|&arg| self.list[arg].op).filter(|op| op.is_uniform()).for_each(&mut count);
            if !self.rounds_in_store(id) {
                implied(node.op).iter().for_each(|&bits| count(Op::Constant(bits)));
            }
        }
        uses.sort_by_key(|&(_, times)| std::cmp::Reverse(times));
        uses.into_iter().map(|(op, _)| op).collect()
    }

    fn fetch(&mut self, op: Op, to: Register) {
        let from = match op {
            Op::Row(micro) => self.of_row(micro),
            Op::Constant(bits) => at(CONSTANTS, self.constant(bits)),
            op => unreachable!("{op:?} is not the same in all lanes"),
        };
        self.asm.add(Instruction::with2(Code::EVEX_Vbroadcastss_zmm_k1z_xmmm32, to, from));
    }

    /// Fetches what stays: constants once, numbers of a row for each row.
    fn fetch_resident(&mut self, of_rows: bool) {
        for (op, register) in self.resident.clone() {
            if matches!(op, Op::Row(_)) == of_rows {
                self.fetch(op, register);
            }
        }
    }

    fn is_resident(&self, op: Op) -> Option<Register> {
        self.resident.iter().find(|(other, _)| *other == op).map(|(_, register)| *register)
    }

    /// A constant as the last operand of an instruction.
    fn uniform(&mut self, bits: u32) -> Uniform {
        match self.is_resident(Op::Constant(bits)) {
            Some(register) => Uniform::Register(register),
            None => Uniform::Memory(each(CONSTANTS, self.constant(bits))),
        }
    }

    fn three(&mut self, code: Code, to: Register, a: Register, b: Uniform) -> Result<Instruction, IcedError> {
        match b {
            Uniform::Register(b) => Instruction::with3(code, to, a, b),
            Uniform::Memory(b) => Instruction::with3(code, to, a, b),
        }
    }

    /// Replaces what is special of `x` by a table.
    fn fix_up(&mut self, to: Register, x: Register, table: u32) {
        let code = Code::EVEX_Vfixupimmps_zmm_k1z_zmm_zmmm512b32_imm8_sae;
        let fixed = match self.uniform(table) {
            Uniform::Register(table) => Instruction::with4(code, to, x, table, 0),
            Uniform::Memory(table) => Instruction::with4(code, to, x, table, 0),
        };
        self.asm.add(fixed);
    }

    /// Bytes from the start of the constants.
    fn constant(&mut self, bits: u32) -> usize {
        let known = self.constants.iter().skip(ALL / 4).position(|&other| other == bits);
        let place = known.map_or(self.constants.len(), |at| at + ALL / 4);
        if place == self.constants.len() {
            self.constants.push(bits);
        }
        4 * place
    }

    /// Where the number of a row is on the stack.
    fn of_row(&self, micro: usize) -> MemoryOperand {
        at(RSP, 8 * self.sites.len() + 4 * self.rows.iter().position(|&row| row == micro).expect("it has been listed"))
    }

    fn function(&mut self, unroll: usize) -> Option<()> {
        for register in SAVED {
            self.asm.add(Instruction::with1(Code::Push_r64, register));
        }
        let frame = (8 * self.sites.len() + 4 * self.rows.len()).next_multiple_of(16) as i32;
        self.asm.add(Instruction::with2(Code::Sub_rm64_imm32, RSP, frame));
        self.fetch_resident(false);
        let row = self.asm.here();
        self.row_begins();
        self.fetch_resident(true);
        let step = (unroll * LANES) as i32;
        let columns = self.asm.here();
        self.asm.add(Instruction::with2(Code::Lea_r64_m, SPARE, at(COLUMN, step as usize)));
        self.asm.add(Instruction::with2(Code::Cmp_r64_rm64, SPARE, COLUMNS));
        let rest = self.asm.jump(Code::Ja_rel32_64);
        self.body(unroll, false)?;
        self.asm.add(Instruction::with2(Code::Add_rm64_imm32, COLUMN, step));
        self.asm.jump_back(Code::Jmp_rel32_64, columns);
        self.asm.land(rest);
        let tail = self.asm.here();
        self.asm.add(Instruction::with2(Code::Cmp_r64_rm64, COLUMN, COLUMNS));
        let end = self.asm.jump(Code::Jae_rel32_64);
        self.asm.add(Instruction::with2(Code::Mov_r64_rm64, SPARE, COLUMNS));
        self.asm.add(Instruction::with2(Code::Sub_r64_rm64, SPARE, COLUMN));
        // The rest has fewer than 64 columns; a count above 16 bits leaves all of them.
        self.asm.add(Instruction::with3(Code::VEX_Bzhi_r32_rm32_r32, EAX, at(CONSTANTS, ALL), EAX));
        self.asm.add(Instruction::with2(Code::VEX_Kmovw_kr_r32, TAIL, EAX));
        self.body(1, true)?;
        self.asm.add(Instruction::with2(Code::Add_rm64_imm32, COLUMN, LANES as i32));
        self.asm.jump_back(Code::Jmp_rel32_64, tail);
        self.asm.land(end);
        self.asm.add(Instruction::with1(Code::Dec_rm64, ROWS));
        self.asm.jump_back(Code::Jne_rel32_64, row);
        self.asm.add(Instruction::with2(Code::Add_rm64_imm32, RSP, frame));
        for register in SAVED.into_iter().rev() {
            self.asm.add(Instruction::with1(Code::Pop_r64, register));
        }
        self.asm.add(Ok(Instruction::with(Code::VEX_Vzeroupper)));
        self.asm.add(Ok(Instruction::with(Code::Retnq)));
        self.rare_ways();
        Some(())
    }

    /// Points to a row, and moves the places on to the next one.
    fn row_begins(&mut self) {
        let field = |micro: usize, field: usize| at(PLACES, micro * size_of::<Place>() + field);
        let (ptr, row) = (offset_of!(Place, ptr), offset_of!(Place, row));
        for number in 0..self.sites.len() {
            let micro = self.sites[number].1;
            let pointer = POINTERS.get(number).copied().unwrap_or(SPARE);
            self.asm.add(Instruction::with2(Code::Mov_r64_rm64, pointer, field(micro, ptr)));
            if pointer == SPARE {
                self.asm.add(Instruction::with2(Code::Mov_rm64_r64, at(RSP, 8 * number), SPARE));
            }
            self.asm.add(Instruction::with2(Code::Mov_r64_rm64, COLUMN, field(micro, row)));
            self.asm.add(Instruction::with2(Code::Add_rm64_r64, field(micro, ptr), COLUMN));
        }
        for micro in self.rows.clone() {
            self.asm.add(Instruction::with2(Code::Mov_r64_rm64, SPARE, field(micro, ptr)));
            self.asm.add(Instruction::with2(Code::Mov_r64_rm64, COLUMN, field(micro, row)));
            self.asm.add(Instruction::with2(Code::Add_rm64_r64, field(micro, ptr), COLUMN));
            self.asm.add(Instruction::with2(Code::Mov_r32_rm32, EAX, at(SPARE, 0)));
            self.asm.add(Instruction::with2(Code::Mov_rm32_r32, self.of_row(micro), EAX));
        }
        self.asm.add(Instruction::with2(Code::Xor_r32_rm32, R8D, R8D));
    }

    /// The elements of a place for a vector, of so many bytes each.
    fn elements(&mut self, micro: usize, bytes: usize, vector: usize) -> MemoryOperand {
        let site = self.micros[micro].site;
        let number = self.sites.iter().position(|(other, _)| *other == site).expect("it has been listed");
        let pointer = POINTERS.get(number).copied().unwrap_or_else(|| {
            self.asm.add(Instruction::with2(Code::Mov_r64_rm64, SPARE, at(RSP, 8 * number)));
            SPARE
        });
        let displacement = (vector * LANES * bytes) as i64;
        MemoryOperand::with_base_index_scale_displ_size(pointer, COLUMN, bytes as u32, displacement, 1)
    }

    /// Fetches what the next row has where this one is read: rows that do not follow each other in memory are no stream for a processor to guess.
    fn fetch_next_row(&mut self, micro: usize, bytes: usize, unroll: usize) {
        let site = self.micros[micro].site;
        if !matches!(site, Site::Access(_)) {
            return;
        }
        let place = self.sites.iter().find(|(other, _)| *other == site).expect("it has been listed").1;
        let next = at(PLACES, place * size_of::<Place>() + offset_of!(Place, ptr));
        self.asm.add(Instruction::with2(Code::Mov_r64_rm64, SPARE, next));
        for line in (0..unroll * LANES * bytes).step_by(CACHE_LINE) {
            let there = MemoryOperand::with_base_index_scale_displ_size(SPARE, COLUMN, bytes as u32, line as i64, 1);
            self.asm.add(Instruction::with1(Code::Prefetcht0_m8, there));
        }
    }

    /// All operations for some vectors side by side, or for one under the mask of the tail.
    /// Returns the registers that results took.
    fn body(&mut self, unroll: usize, masked: bool) -> Option<usize> {
        let mut registers = Registers::new(unroll, self.list.len());
        for id in 0..self.list.len() {
            if self.last[id].is_some() {
                self.operation(id, &mut registers, masked)?;
            }
        }
        Some(registers.most * unroll)
    }

    /// An operand; what is the same in all lanes is fetched into a register.
    fn operand(&mut self, id: Id, registers: &Registers, spare: Register) -> Operand {
        let op = self.list[id].op;
        match op {
            Op::Constant(_) | Op::Row(_) => Operand::Same(self.is_resident(op).unwrap_or_else(|| {
                self.fetch(op, spare);
                spare
            })),
            _ => Operand::Group(registers.of[id].expect("it is needed")),
        }
    }

    fn operation(&mut self, id: Id, registers: &mut Registers, masked: bool) -> Option<()> {
        let node = &self.list[id];
        let unroll = registers.unroll;
        let side_by_side = unroll > 1 && !masked;
        match node.op {
            Op::Constant(_) | Op::Row(_) => {}
            Op::Columns(micro) => {
                let to = registers.take(id, false)?;
                for vector in 0..unroll {
                    let from = self.elements(micro, 4, vector);
                    let load =
                        Instruction::with2(Code::EVEX_Vmovups_zmm_k1z_zmmm512, registers.number(to, vector), from);
                    self.add_tail(load, masked);
                }
                if self.ahead && !masked {
                    self.fetch_next_row(micro, 4, unroll);
                }
            }
            Op::Bf16(micro) => {
                let to = registers.take(id, false)?;
                for vector in 0..unroll {
                    let (to, from) = (registers.number(to, vector), self.elements(micro, 2, vector));
                    self.add_tail(Instruction::with2(Code::EVEX_Vpmovzxwd_zmm_k1z_ymmm256, to, from), masked);
                    self.asm.add(Instruction::with3(Code::EVEX_Vpslld_zmm_k1z_zmmm512b32_imm8, to, to, 16));
                }
                if self.ahead && !masked {
                    self.fetch_next_row(micro, 2, unroll);
                }
            }
            Op::Truths(micro) => {
                let to = registers.take(id, true)?;
                for vector in 0..unroll {
                    let from = self.elements(micro, 1, vector);
                    self.add_tail(Instruction::with2(Code::EVEX_Vmovdqu8_xmm_k1z_xmmm128, XMM30, from), masked);
                    let to = registers.truth(to, vector);
                    self.asm.add(Instruction::with3(Code::EVEX_Vptestmb_kr_k1_xmm_xmmm128, to, XMM30, XMM30));
                }
            }
            Op::Store(micro) => {
                let from = self.operand(node.args[0], registers, FIRST);
                for vector in 0..unroll {
                    let to = self.elements(micro, 4, vector);
                    let from = of(from, registers, vector);
                    self.store(Instruction::with2(Code::EVEX_Vmovups_zmmm512_k1z_zmm, to, from), masked);
                }
                self.end(id, registers);
            }
            Op::StoreUpper(micro) => {
                let from = self.operand(node.args[0], registers, FIRST);
                if side_by_side && self.rounds_in_store(node.args[0]) {
                    for vector in (0..unroll).step_by(2) {
                        let pair = [vector, vector + 1].map(|vector| of(from, registers, vector));
                        self.store_rounded(pair, micro, vector);
                    }
                } else {
                    for vector in 0..unroll {
                        self.store_upper(of(from, registers, vector), micro, vector, masked);
                    }
                }
                self.end(id, registers);
            }
            Op::StoreTruths(micro) => {
                let from = registers.of[node.args[0]]?;
                for vector in 0..unroll {
                    let to = self.elements(micro, 1, vector);
                    let ones = Instruction::with2(Code::EVEX_Vmovdqu8_xmm_k1z_xmmm128, XMM30, at(CONSTANTS, ONES));
                    self.asm.add_masked(ones, registers.truth(from, vector), true);
                    self.store(Instruction::with2(Code::EVEX_Vmovdqu8_xmmm128_k1z_xmm, to, XMM30), masked);
                }
                self.end(id, registers);
            }
            Op::Nearest if side_by_side && self.rounds_in_store(id) => return self.pass_on(id, registers),
            Op::Fused => return self.fused(id, registers),
            Op::LogEnds | Op::WithSign | Op::Far(_) => return self.changed(id, registers, masked),
            _ => {
                let operands = self.operands(id, registers)?;
                // What ends here makes room for the result: of one vector all is read before that is written.
                self.end(id, registers);
                let to = registers.take(id, node.op.is_truth())?;
                let clears = !self.is_only_stored(id);
                for vector in 0..unroll {
                    self.simple(node.op, (to, operands), registers, (vector, clears));
                }
            }
        }
        Some(())
    }

    /// The operands, of which two at most are fetched.
    fn operands(&mut self, id: Id, registers: &Registers) -> Option<[Operand; 3]> {
        let mut all = [Operand::Same(FIRST); 3];
        let mut spares = [FIRST, SECOND].into_iter();
        let mut used = 0;
        for (place, &arg) in all.iter_mut().zip(&self.list[id].args) {
            let fetched = self.list[arg].op.is_uniform() && self.is_resident(self.list[arg].op).is_none();
            *place = self.operand(arg, registers, if fetched { spares.next()? } else { FIRST });
            used += usize::from(fetched);
        }
        // Rounding needs a register between its instructions.
        (self.list[id].op != Op::Nearest || used == 0).then_some(all)
    }

    /// One vector of an operation whose result may be where an operand was.
    fn simple(
        &mut self,
        op: Op,
        (to, args): (usize, [Operand; 3]),
        registers: &Registers,
        (vector, clears): (usize, bool),
    ) {
        let [a, b, c] = args.map(|arg| of(arg, registers, vector));
        let truth = |arg: Operand| match arg {
            Operand::Group(group) => registers.truth(group, vector),
            Operand::Same(_) => unreachable!("conditions have registers of their own"),
        };
        let is_truth = op.is_truth();
        let to = if is_truth { registers.truth(to, vector) } else { registers.number(to, vector) };
        let two = |code| Instruction::with2(code, to, a);
        let three = |code| Instruction::with3(code, to, a, b);
        let compare = |how: u32| Instruction::with4(Code::EVEX_Vcmpps_kr_k1_zmm_zmmm512b32_imm8_sae, to, a, b, how);
        let instruction = match op {
            Op::Add => three(Code::EVEX_Vaddps_zmm_k1z_zmm_zmmm512b32_er),
            Op::Sub => three(Code::EVEX_Vsubps_zmm_k1z_zmm_zmmm512b32_er),
            Op::Mul => three(Code::EVEX_Vmulps_zmm_k1z_zmm_zmmm512b32_er),
            Op::Div => three(Code::EVEX_Vdivps_zmm_k1z_zmm_zmmm512b32_er),
            Op::Least => three(Code::EVEX_Vminps_zmm_k1z_zmm_zmmm512b32_sae),
            Op::Most => three(Code::EVEX_Vmaxps_zmm_k1z_zmm_zmmm512b32_sae),
            Op::IntAdd => three(Code::EVEX_Vpaddd_zmm_k1z_zmm_zmmm512b32),
            Op::IntSub => three(Code::EVEX_Vpsubd_zmm_k1z_zmm_zmmm512b32),
            Op::And => three(Code::EVEX_Vpandd_zmm_k1z_zmm_zmmm512b32),
            Op::Or => three(Code::EVEX_Vpord_zmm_k1z_zmm_zmmm512b32),
            Op::Xor => three(Code::EVEX_Vpxord_zmm_k1z_zmm_zmmm512b32),
            Op::Sqrt => two(Code::EVEX_Vsqrtps_zmm_k1z_zmmm512b32_er),
            Op::FromInts => two(Code::EVEX_Vcvtdq2ps_zmm_k1z_zmmm512b32_er),
            Op::Floor => Instruction::with3(Code::EVEX_Vrndscaleps_zmm_k1z_zmmm512b32_imm8_sae, to, a, 9),
            Op::Mantissa => {
                Instruction::with3(Code::EVEX_Vgetmantps_zmm_k1z_zmmm512b32_imm8_sae, to, a, FROM_THREE_QUARTERS)
            }
            Op::Exponent => two(Code::EVEX_Vgetexpps_zmm_k1z_zmmm512b32_sae),
            Op::Up(bits) => Instruction::with3(Code::EVEX_Vpslld_zmm_k1z_zmmm512b32_imm8, to, a, bits),
            Op::Down(bits) => Instruction::with3(Code::EVEX_Vpsrad_zmm_k1z_zmmm512b32_imm8, to, a, bits),
            // Ordered and quiet, as everywhere.
            Op::Equal => compare(0),
            Op::Lt => compare(17),
            Op::NotLt => compare(21),
            Op::Le => compare(18),
            Op::Both => Instruction::with3(Code::VEX_Kandw_kr_kr_kr, to, truth(args[0]), truth(args[1])),
            Op::Either => Instruction::with3(Code::VEX_Korw_kr_kr_kr, to, truth(args[0]), truth(args[1])),
            Op::Not => Instruction::with2(Code::VEX_Knotw_kr_kr, to, truth(args[0])),
            Op::Choose => {
                let choose = Instruction::with3(Code::EVEX_Vblendmps_zmm_k1z_zmm_zmmm512b32, to, c, b);
                return self.asm.add_masked(choose, truth(args[0]), false);
            }
            Op::Nearest => return self.nearest(to, a, clears),
            Op::TimesPower => {
                return self.asm.add_masked(
                    three(Code::EVEX_Vscalefps_zmm_k1z_zmm_zmmm512b32_er),
                    truth(args[2]),
                    true,
                );
            }
            op => unreachable!("{op:?} has a way of its own"),
        };
        self.asm.add(instruction);
    }

    /// Gives back the registers of operands that nobody needs any more.
    fn end(&self, id: Id, registers: &mut Registers) {
        for &arg in &self.list[id].args {
            if self.last[arg] == Some(id) {
                registers.give_back(arg, self.list[arg].op.is_truth());
            }
        }
    }

    /// A load: what is beyond the tail becomes zero.
    fn add_tail(&mut self, load: Result<Instruction, IcedError>, masked: bool) {
        if masked { self.asm.add_masked(load, TAIL, true) } else { self.asm.add(load) }
    }

    /// A store: what is beyond the tail stays as it is.
    fn store(&mut self, store: Result<Instruction, IcedError>, masked: bool) {
        if masked { self.asm.add_masked(store, TAIL, false) } else { self.asm.add(store) }
    }
}

/// An operand's register for a vector.
fn of(operand: Operand, registers: &Registers, vector: usize) -> Register {
    match operand {
        Operand::Group(group) => registers.number(group, vector),
        Operand::Same(register) => register,
    }
}
