//! Operations by instructions that write over an operand.

use super::{Emitter, Id, LOG_ENDS, Operand, Registers, of};
use iced_x86::{Code, Instruction};

impl Emitter<'_> {
    /// `a·b + c`: an instruction that writes over one of the three.
    pub(super) fn fused(&mut self, id: Id, registers: &mut Registers) -> Option<()> {
        let args = [0, 1, 2].map(|i| self.list[id].args[i]);
        let [a, b, c] = self.operands(id, registers)?;
        let ends = |arg: Id, operand: Operand| self.last[arg] == Some(id) && matches!(operand, Operand::Group(_));
        let over = [(args[2], c), (args[0], a), (args[1], b)].into_iter().find(|&(arg, operand)| ends(arg, operand));
        let (to, sum) = match over {
            Some((arg, Operand::Group(group))) => {
                registers.of[arg] = None;
                registers.of[id] = Some(group);
                (group, arg == args[2])
            }
            _ => {
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

    /// Changes y where x is special.
    pub(super) fn log_ends(&mut self, id: Id, registers: &mut Registers) -> Option<()> {
        let [y, x, _] = self.operands(id, registers)?;
        let to = registers.take(id, false)?;
        for vector in 0..registers.unroll {
            let (to, y, x) = (registers.number(to, vector), of(y, registers, vector), of(x, registers, vector));
            self.asm.add(Instruction::with2(Code::EVEX_Vmovaps_zmm_k1z_zmmm512, to, y));
            self.fix_up(to, x, LOG_ENDS);
        }
        self.end(id, registers);
        Some(())
    }
}
