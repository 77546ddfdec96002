//! Operations by instructions that write over an operand.

use super::{Emitter, Id, LOG_ENDS, Op, Operand, Registers, of};
use iced_x86::{Code, Instruction};

/// The table of `VPTERNLOGD` for a | b & c.
const OR_BOTH: u32 = 0xf8;

impl Emitter<'_> {
    /// The group of an operand that ends with an operation, for its result.
    fn taken_over(&self, id: Id, arg: Id, operand: Operand, registers: &mut Registers) -> Option<usize> {
        let Operand::Group(group) = operand else { return None };
        if self.last[arg] != Some(id) {
            return None;
        }
        registers.of[arg] = None;
        registers.of[id] = Some(group);
        Some(group)
    }

    /// `a·b + c`: an instruction that writes over one of the three.
    pub(super) fn fused(&mut self, id: Id, registers: &mut Registers) -> Option<()> {
        let args = [0, 1, 2].map(|i| self.list[id].args[i]);
        let [a, b, c] = self.operands(id, registers)?;
        let mut operands = [(args[2], c), (args[0], a), (args[1], b)].into_iter();
        let over = operands.find_map(|(arg, x)| Some((arg, self.taken_over(id, arg, x, registers)?)));
        let (to, sum) = match over {
            Some((arg, group)) => (group, arg == args[2]),
            None => {
                let group = registers.take(id, false)?;
                for vector in 0..registers.unroll {
                    let (to, a) = (registers.number(group, vector), of(a, registers, vector));
                    self.asm.add(Instruction::with2(Code::EVEX_Vmovaps_zmm_k1z_zmmm512, to, a));
                }
                (group, false)
            }
        };
        // The factor that is not written over.
        let factor = if over.is_some_and(|(arg, _)| arg == args[1] && arg != args[0]) { a } else { b };
        for vector in 0..registers.unroll {
            let to = registers.number(to, vector);
            let [a, b, c, factor] = [a, b, c, factor].map(|operand| of(operand, registers, vector));
            self.asm.add(match sum {
                true => Instruction::with3(Code::EVEX_Vfmadd231ps_zmm_k1z_zmm_zmmm512b32_er, to, a, b),
                false => Instruction::with3(Code::EVEX_Vfmadd213ps_zmm_k1z_zmm_zmmm512b32_er, to, factor, c),
            });
        }
        self.end(id, registers);
        Some(())
    }

    /// Changes y by what x is: its value where x is special or far away, or its sign.
    pub(super) fn changed(&mut self, id: Id, registers: &mut Registers, masked: bool) -> Option<()> {
        let [y, x, sign] = self.operands(id, registers)?;
        let args = &self.list[id].args;
        let over = if args[0] == args[1] { None } else { self.taken_over(id, args[0], y, registers) };
        let to = over.or_else(|| registers.take(id, false))?;
        for vector in 0..registers.unroll {
            let [y, x, sign] = [y, x, sign].map(|operand| of(operand, registers, vector));
            let to = registers.number(to, vector);
            if to != y {
                self.asm.add(Instruction::with2(Code::EVEX_Vmovaps_zmm_k1z_zmmm512, to, y));
            }
            match self.list[id].op {
                Op::LogEnds => self.fix_up(to, x, LOG_ENDS),
                Op::Far(wave) => self.look_far((to, x), wave, masked),
                _ => {
                    let code = Code::EVEX_Vpternlogd_zmm_k1z_zmm_zmmm512b32_imm8;
                    self.asm.add(Instruction::with4(code, to, x, sign, OR_BOTH));
                }
            }
        }
        self.end(id, registers);
        Some(())
    }
}
