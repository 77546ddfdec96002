//! What a rank has of its tensors, read as numbers and written, in memory of this process or on a device; and parameters of which it has halves.
//!
//! What one tensor holds is in three places: the lower halves in the parameter's, the upper halves, rounded, in the copy's, and a bit each in the signs of
//! the second moment ([`crate::kernels::halves`]). From outside there are a parameter and a second moment like any other.

use super::parts::{Part, find};
use super::{ExecError, Rank};
use crate::kernels::halves;
use crate::kernels::math::narrowed;
use forebay_plan::{Form, Role, Tensor, TensorKind};
use std::borrow::Cow;

/// Elements that are made at once.
const BLOCK: usize = 1 << 16;
/// What of an f32 is not its sign.
const MAGNITUDE: u32 = !(1 << 31);

/// What of a value is where.
pub(super) struct Beside<'p> {
    copy: &'p Tensor,
    moment: &'p Tensor,
}

/// Who has a rank's tensors: memory of this process, or a device.
pub(super) trait Holds<'p> {
    /// The rank's role.
    fn role(&self) -> &'p Role;

    /// Where the rank is.
    fn coordinates(&self) -> &[u32];

    /// What it has of a tensor, as it lies there.
    fn bytes(&self, tensor: &Tensor) -> Result<Cow<'_, [u8]>, ExecError>;

    /// Changes that.
    fn change(&mut self, tensor: &Tensor, change: &mut dyn FnMut(&mut [u8])) -> Result<(), ExecError>;

    /// What it has of a tensor, as numbers of the tensor's type.
    fn numbers(&self, tensor: &Tensor) -> Result<Cow<'_, [u8]>, ExecError> {
        let bytes = self.bytes(tensor)?;
        Ok(match (self.beside(tensor), tensor.kind) {
            (Some(beside), TensorKind::Param) => Cow::Owned(self.joined(tensor, &bytes, &beside)?),
            (Some(_), TensorKind::SecondMoment) => {
                let magnitude = |x: &[u8; 4]| (u32::from_ne_bytes(*x) & MAGNITUDE).to_ne_bytes();
                Cow::Owned(bytes.as_chunks().0.iter().flat_map(magnitude).collect())
            }
            _ => bytes,
        })
    }

    /// Is it more, or less, than the numbers that lie at its place?
    fn is_apart(&self, tensor: &Tensor) -> bool {
        matches!(tensor.kind, TensorKind::Param | TensorKind::SecondMoment) && self.beside(tensor).is_some()
    }

    /// Gives it its part of a whole tensor's numbers; of one in halves, to its copy as well.
    fn set(&mut self, tensor: &Tensor, whole: &[u8]) -> Result<(), ExecError> {
        if self.is_apart(tensor) {
            return self.fill_apart(tensor, &|first, bytes| {
                let first = first as usize * size_of::<f32>();
                bytes.copy_from_slice(&whole[first..first + bytes.len()]);
            });
        }
        let (part, width) = (Part::new(tensor, self.coordinates()), tensor.dtype.bytes() as usize);
        self.change(tensor, &mut |bytes| {
            part.runs(|here, there, n| {
                bytes[here * width..(here + n) * width].copy_from_slice(&whole[there * width..(there + n) * width]);
            });
        })
    }

    /// Gives a tensor in halves numbers that are made: `fill` gets the number of an element of the whole tensor, and elements from there on.
    fn fill_apart(&mut self, tensor: &Tensor, fill: &dyn Fn(u64, &mut [u8])) -> Result<(), ExecError> {
        let beside = self.beside(tensor).expect("it is in halves");
        if tensor.kind == TensorKind::SecondMoment {
            return self.each(tensor, tensor, fill, &mut |moment: &mut [u8; 4], x| {
                let mark = u32::from_ne_bytes(*moment) & !MAGNITUDE;
                *moment = (x.to_bits() & MAGNITUDE | mark).to_ne_bytes();
            });
        }
        self.each(tensor, tensor, fill, &mut |half: &mut [u8; 2], x| {
            *half = (halves::lower(x.to_bits()) as i16).to_ne_bytes();
        })?;
        self.each(beside.copy, beside.copy, fill, &mut |copy: &mut [u8; 2], x| {
            *copy = narrowed(x).to_ne_bytes();
        })?;
        self.each(beside.moment, tensor, fill, &mut |moment: &mut [u8; 4], x| {
            *moment = halves::mark(f32::from_ne_bytes(*moment), x).to_ne_bytes();
        })
    }

    /// The tensors that a parameter in halves, or its second moment, goes with.
    fn beside(&self, tensor: &Tensor) -> Option<Beside<'p>> {
        let other = |kind| find(self.role(), &tensor.name, kind);
        let param =
            matches!(tensor.kind, TensorKind::Param | TensorKind::SecondMoment).then(|| other(TensorKind::Param));
        param.flatten().filter(|param| param.form == Form::LowerHalf)?;
        Some(Beside { copy: other(TensorKind::ComputeCopy)?, moment: other(TensorKind::SecondMoment)? })
    }

    fn joined(&self, tensor: &Tensor, lower: &[u8], beside: &Beside) -> Result<Vec<u8>, ExecError> {
        // The copy may be of more.
        let skip = tensor.held(self.coordinates()).from - beside.copy.held(self.coordinates()).from;
        let (copies, moments) = (self.bytes(beside.copy)?, self.bytes(beside.moment)?);
        let copies = copies.as_chunks::<2>().0.iter().skip(skip as usize);
        let moments = moments.as_chunks::<4>().0;
        let all = lower.as_chunks::<2>().0.iter().zip(copies).zip(moments);
        let join = |((lower, copy), moment): ((&[u8; 2], &[u8; 2]), &[u8; 4])| {
            let copy = u32::from(u16::from_ne_bytes(*copy)) << 16;
            halves::join(copy, i16::from_ne_bytes(*lower).into(), u32::from_ne_bytes(*moment)).to_ne_bytes()
        };
        Ok(all.flat_map(join).collect())
    }

    /// Changes each element at the place of `to` with the number of `of` that is made for it.
    fn each<const N: usize>(
        &mut self,
        to: &Tensor,
        of: &Tensor,
        fill: &dyn Fn(u64, &mut [u8]),
        change: &mut dyn FnMut(&mut [u8; N], f32),
    ) -> Result<(), ExecError> {
        let part = Part::new(of, self.coordinates());
        self.change(to, &mut |bytes| each_of(bytes, &part, fill, change))
    }
}

/// Changes each element that lies there with the number that is made for it.
fn each_of<const N: usize>(
    bytes: &mut [u8],
    part: &Part,
    fill: &dyn Fn(u64, &mut [u8]),
    change: &mut dyn FnMut(&mut [u8; N], f32),
) {
    let places = bytes.as_chunks_mut::<N>().0;
    let mut numbers = vec![0; BLOCK.min(places.len()) * size_of::<f32>()];
    for (block, first) in places.chunks_mut(BLOCK).zip((0..).step_by(BLOCK)) {
        let numbers = &mut numbers[..block.len() * size_of::<f32>()];
        part.runs_among(first as u64..(first + block.len()) as u64, |here, there, n| {
            let here = (here - first) * size_of::<f32>();
            fill(there as u64, &mut numbers[here..here + n * size_of::<f32>()]);
        });
        let numbers = numbers.as_chunks().0.iter().map(|x| f32::from_ne_bytes(*x));
        block.iter_mut().zip(numbers).for_each(|(place, x)| change(place, x));
    }
}

impl<'p> Holds<'p> for Rank<'p> {
    fn role(&self) -> &'p Role {
        self.role
    }

    fn coordinates(&self) -> &[u32] {
        &self.coordinates
    }

    fn bytes(&self, tensor: &Tensor) -> Result<Cow<'_, [u8]>, ExecError> {
        Ok(Cow::Borrowed(self.tensor(tensor)))
    }

    fn change(&mut self, tensor: &Tensor, change: &mut dyn FnMut(&mut [u8])) -> Result<(), ExecError> {
        change(self.tensor_mut(tensor));
        Ok(())
    }
}
