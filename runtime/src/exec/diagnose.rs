//! Which operation first made a value that is not a number.
//!
//! The calls before the commit change nothing that lasts, so they can be run once more, instruction by instruction, with a look at everything
//! that each of them wrote. Minus infinity is what masks are made of and never blamed; plus infinity is blamed when there is no NaN.

use super::halves::Holds;
use super::parts::AT_HAND;
use super::{ExecError, Executor, PhaseId, Place, Rank, element, is_saved};
use crate::data::Batch;
use crate::kernels::Buf;
use forebay_plan::{Arg, Buffer, BufferId, DType, Kernel, Operand, RaggedDim, Tensor};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::{Mutex, PoisonError};

/// What is wrong with a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Suspect {
    /// Plus infinity.
    Infinite,
    /// Not a number.
    NaN,
}

impl fmt::Display for Suspect {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Suspect::Infinite => "infinite",
            Suspect::NaN => "NaN",
        })
    }
}

/// Where the first such value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It was in a tensor before the step began.
    Tensor(String, Suspect),
    /// An instruction made it from values that were numbers.
    Instruction(Place, Suspect),
    /// The second run was fine.
    Unknown,
    /// Devices ran it, which do not look at their values.
    NotLooked,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Cause::Tensor(name, suspect) => write!(f, "the tensor `{name}` was {suspect} before the step began"),
            Cause::Instruction(place, Suspect::NaN) => write!(f, "first produced by {place}"),
            Cause::Instruction(place, Suspect::Infinite) => write!(f, "first overflowed in {place}"),
            Cause::NotLooked => write!(f, "the same run on the CPU says where it comes from"),
            Cause::Unknown => write!(f, "the same step run again was fine, which points at the machine"),
        }
    }
}

/// What an instruction writes: an operand, and the dimension of which only a run-time part is written.
struct Written {
    operand: Operand,
    /// The dimension, and the buffer and number of its group offsets.
    ragged: Option<(usize, BufferId, u64)>,
    /// What made it: the kernel's name, or the step of a region.
    op: String,
}

/// What a rank has found: the first NaN and the first infinity, each with the number of its call and instruction.
#[derive(Debug, Default)]
struct Found {
    nan: Option<(usize, usize, Place)>,
    infinite: Option<(usize, usize, Place)>,
}

impl Executor<'_> {
    /// Runs the calls before the phase's commit again to find where the first NaN (or else the first overflow) comes from.
    ///
    /// # Errors
    /// When data make a kernel stop.
    pub fn diagnose(&mut self, id: PhaseId, batch: &Batch, step: u64) -> Result<Cause, ExecError> {
        if self.fleet.is_some() {
            return Ok(Cause::NotLooked);
        }
        let in_rank = |rank: &Rank| {
            let tensors = rank.role.tensors.iter().filter(|t| is_saved(t.kind));
            tensors.filter_map(|t| Some((rank.number, t.name.clone(), rank.suspect_tensor(t)?))).next()
        };
        if let Some((_, name, suspect)) = self.least(self.ranks.iter().find_map(in_rank))? {
            return Ok(Cause::Tensor(name, suspect));
        }
        let found: Mutex<Vec<Found>> = Mutex::new(vec![]);
        let alone = self.ranks() == 1;
        self.on_all(&|rank| {
            let own = rank.look(id, batch, step, alone)?;
            found.lock().unwrap_or_else(PoisonError::into_inner).push(own);
            Ok(())
        })?;
        let found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
        // Ranks run the same calls at about the same time: the lowest number is the best guess at who was first.
        let (nan, infinite): (Vec<_>, Vec<_>) = found.into_iter().map(|f| (f.nan, f.infinite)).unzip();
        let first = |of: Vec<Option<(usize, usize, Place)>>| {
            let sorted = |(call, index, place): (usize, usize, Place)| ((is_comm(&place.op), call, index), place);
            self.least(of.into_iter().flatten().map(sorted).min())
        };
        Ok(match (first(nan)?, first(infinite)?) {
            (Some((_, place)), _) => Cause::Instruction(place, Suspect::NaN),
            (None, Some((_, place))) => Cause::Instruction(place, Suspect::Infinite),
            (None, None) => Cause::Unknown,
        })
    }
}

/// What comes from another rank was made there.
fn is_comm(op: &str) -> bool {
    ["exchange", "all_to_all_v", "recv"].contains(&op)
}

impl Rank<'_> {
    /// Runs the calls before the commit, looking at all that is written. It ends at the first NaN only when nobody waits for it.
    fn look(&mut self, id: PhaseId, batch: &Batch, step: u64, alone: bool) -> Result<Found, ExecError> {
        let plan = self.plan;
        let mut found = Found::default();
        self.write_inputs(id, batch, step)?;
        let phase = self.phase(id);
        for (number, call) in phase.calls[..phase.commit as usize].iter().enumerate() {
            self.bind(call);
            let program = &plan.programs[call.program as usize];
            for (index, instruction) in program.instructions.iter().enumerate() {
                self.instruction(call, index, step)?;
                if found.nan.is_some() {
                    continue;
                }
                let Some((suspect, op)) = self.suspect_result(&instruction.kernel, &program.buffers) else { continue };
                let place = Place { op, ..self.place(call, index) };
                match suspect {
                    Suspect::NaN => found.nan = Some((number, index, place)),
                    Suspect::Infinite => drop(found.infinite.get_or_insert((number, index, place))),
                }
                if alone && found.nan.is_some() {
                    return Ok(found);
                }
            }
        }
        Ok(found)
    }

    fn suspect_tensor(&self, tensor: &Tensor) -> Option<Suspect> {
        let bytes = self.numbers(tensor).expect(AT_HAND);
        let elements = bytes.len() / tensor.dtype.bytes() as usize;
        (0..elements).filter_map(|i| suspect(element(tensor.dtype, &bytes, i))).max()
    }

    /// The worst value among what the bound program's kernel has just written, and what made it.
    fn suspect_result(&self, kernel: &Kernel, buffers: &[Buffer]) -> Option<(Suspect, String)> {
        let written = written(kernel).into_iter();
        let found = written.filter_map(|w| {
            let buf = self.buffers[w.operand.buffer as usize];
            let dtype = buffers[w.operand.buffer as usize].dtype;
            if matches!(dtype, DType::I32 | DType::I16 | DType::Bool) {
                return None;
            }
            let mut dims = w.operand.dims;
            if let Some((dim, offsets, groups)) = w.ragged {
                dims[dim].0 = dims[dim].0.min(last_offset(&self.buffers[offsets as usize], groups));
            }
            worst(&buf, dtype, w.operand.offset, &dims).map(|s| (s, w.op))
        });
        found.reduce(|a, b| if b.0 > a.0 { b } else { a })
    }
}

fn suspect(value: f64) -> Option<Suspect> {
    if value.is_nan() {
        Some(Suspect::NaN)
    } else if value == f64::INFINITY {
        Some(Suspect::Infinite)
    } else {
        None
    }
}

/// What a kernel writes, with the name of the operation that makes it.
fn written(kernel: &Kernel) -> Vec<Written> {
    if let Kernel::AllToAllV(_) = kernel {
        // Rows that others made; what lies behind them says nothing.
        return vec![];
    }
    let ragged = match kernel {
        // Dimensions of the result: those of the batch, rows, columns, groups.
        Kernel::Matmul(k) => k.groups.as_ref().and_then(|groups| match groups.ragged {
            RaggedDim::M => Some((k.batch.len(), groups.offsets, groups.count)),
            RaggedDim::N => Some((k.batch.len() + 1, groups.offsets, groups.count)),
            RaggedDim::K => None,
        }),
        Kernel::Region(k) => k.ragged.as_ref().map(|r| (r.dim as usize, r.offsets, r.groups)),
        Kernel::Gather(k) => k.ragged.as_ref().map(|r| (r.dim as usize, r.offsets, r.groups)),
        // The pieces of all ranks, of which each has the dimensions of one.
        Kernel::Exchange(k) => k.ragged.as_ref().map(|r| (r.dim as usize + 1, r.offsets, r.groups)),
        _ => None,
    };
    let operands = kernel.operands().into_iter().filter(|o| o.usage.writes());
    let written = operands.enumerate().map(|(i, operand)| Written { operand, ragged, op: op_name(kernel, i) });
    written.collect()
}

/// What makes the kernel's `result`-th result.
fn op_name(kernel: &Kernel, result: usize) -> String {
    let Kernel::Region(region) = kernel else { return kernel.name().to_string() };
    match region.stores.get(result).map(|s| s.value) {
        Some(Arg::Step(step)) => {
            let op = region.steps.get(step as usize).map(|s| serde_json::to_value(s.op).unwrap_or_default());
            op.as_ref().and_then(serde_json::Value::as_str).unwrap_or("index").to_string()
        }
        Some(Arg::Load(_)) => "copy".to_string(),
        Some(Arg::Const(_)) | None => "constant".to_string(),
    }
}

fn last_offset(offsets: &Buf, groups: u64) -> u64 {
    assert!(groups < offsets.elements as u64, "the verifier checked the offsets");
    // SAFETY: the buffer has `groups + 1` elements of i32, as the verifier checked, and no kernel runs.
    let last = unsafe { *offsets.ptr.cast::<i32>().add(groups as usize) };
    u64::try_from(last).unwrap_or(0)
}

/// The worst of the elements that a walk over (size, stride) visits.
fn worst(buf: &Buf, dtype: DType, offset: u64, dims: &[(u64, u64)]) -> Option<Suspect> {
    let Some(((size, stride), rest)) = dims.split_last() else {
        assert!((offset as usize) < buf.elements, "the verifier checked the views");
        // SAFETY: within the buffer, as the assertion says; no kernel runs.
        let bytes = unsafe {
            let at = buf.ptr.add(offset as usize * dtype.bytes() as usize);
            std::slice::from_raw_parts(at, dtype.bytes() as usize)
        };
        return suspect(element(dtype, bytes, 0));
    };
    // Repeated elements are one element.
    let size = if *stride == 0 { (*size).min(1) } else { *size };
    (0..size).filter_map(|i| worst(buf, dtype, offset + i * stride, rest)).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_is_worse_than_infinity_and_masks_are_fine() {
        assert_eq!(suspect(f64::NAN), Some(Suspect::NaN));
        assert_eq!(suspect(f64::INFINITY), Some(Suspect::Infinite));
        assert_eq!(suspect(f64::NEG_INFINITY), None);
        assert!(Suspect::NaN > Suspect::Infinite);
    }

    #[test]
    fn walks_see_only_what_was_written() {
        let mut values = [0.0f32, f32::NAN, f32::INFINITY, 1.0, f32::NAN, f32::NAN];
        let buf = Buf { ptr: values.as_mut_ptr().cast(), dtype: DType::F32, elements: 6 };
        let look = |offset, dims: &[(u64, u64)]| worst(&buf, DType::F32, offset, dims);
        assert_eq!(look(0, &[(2, 3)]), None);
        assert_eq!(look(0, &[(2, 2)]), Some(Suspect::Infinite));
        assert_eq!(look(0, &[(2, 3), (2, 1)]), Some(Suspect::NaN));
        assert_eq!(look(0, &[(0, 3), (2, 1)]), None);
        assert_eq!(look(3, &[(1000, 0)]), None);
    }
}
