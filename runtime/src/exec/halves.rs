//! Parameters of which a rank has halves: read as numbers, and written.
//!
//! What one tensor holds is in three places: the lower halves in the parameter's, the upper halves, rounded, in the copy's, and a bit each in the signs of
//! the second moment ([`crate::kernels::halves`]). From outside there are a parameter and a second moment like any other.

use super::Rank;
use super::parts::Part;
use crate::kernels::halves;
use crate::kernels::math::round_to_bf16;
use forebay_plan::{Form, Tensor, TensorKind};
use std::borrow::Cow;

/// Elements that are made at once.
const BLOCK: usize = 1 << 16;
/// What of an f32 is not its sign.
const MAGNITUDE: u32 = !(1 << 31);

/// What of a value is where.
struct Beside<'p> {
    copy: &'p Tensor,
    moment: &'p Tensor,
}

impl<'p> Rank<'p> {
    /// What it has of a tensor, as numbers of the tensor's type.
    pub fn read(&self, tensor: &Tensor) -> Cow<'_, [u8]> {
        let bytes = self.tensor(tensor);
        match (self.beside(tensor), tensor.kind) {
            (Some(beside), TensorKind::Param) => Cow::Owned(self.joined(tensor, bytes, &beside)),
            (Some(_), TensorKind::SecondMoment) => {
                let magnitude = |x: &[u8; 4]| (u32::from_ne_bytes(*x) & MAGNITUDE).to_ne_bytes();
                Cow::Owned(bytes.as_chunks().0.iter().flat_map(magnitude).collect())
            }
            _ => Cow::Borrowed(bytes),
        }
    }

    /// Is it more, or less, than the numbers that lie at its place?
    pub fn is_apart(&self, tensor: &Tensor) -> bool {
        matches!(tensor.kind, TensorKind::Param | TensorKind::SecondMoment) && self.beside(tensor).is_some()
    }

    /// Gives it the numbers of a whole tensor, and its copy as well.
    pub fn set_apart(&mut self, tensor: &Tensor, whole: &[u8]) {
        self.fill_apart(tensor, &|first, bytes| {
            let first = first as usize * size_of::<f32>();
            bytes.copy_from_slice(&whole[first..first + bytes.len()]);
        });
    }

    /// The same with numbers that are made: `fill` gets the number of an element of the whole tensor, and elements from there on.
    pub fn fill_apart(&mut self, tensor: &Tensor, fill: &dyn Fn(u64, &mut [u8])) {
        self.untouched = false;
        let beside = self.beside(tensor).expect("it is in halves");
        if tensor.kind == TensorKind::SecondMoment {
            self.each(tensor, tensor, fill, &mut |moment: &mut [u8; 4], x| {
                let mark = u32::from_ne_bytes(*moment) & !MAGNITUDE;
                *moment = (x.to_bits() & MAGNITUDE | mark).to_ne_bytes();
            });
            return;
        }
        self.each(tensor, tensor, fill, &mut |half: &mut [u8; 2], x| {
            *half = (halves::lower(x.to_bits()) as i16).to_ne_bytes();
        });
        self.each(beside.copy, beside.copy, fill, &mut |copy: &mut [u8; 2], x| {
            *copy = ((round_to_bf16(x).to_bits() >> 16) as u16).to_ne_bytes();
        });
        self.each(beside.moment, tensor, fill, &mut |moment: &mut [u8; 4], x| {
            *moment = halves::mark(f32::from_ne_bytes(*moment), x).to_ne_bytes();
        });
    }

    /// The tensors that a parameter in halves, or its second moment, goes with.
    fn beside(&self, tensor: &Tensor) -> Option<Beside<'p>> {
        let other = |kind| self.find(&tensor.name, kind);
        let param =
            matches!(tensor.kind, TensorKind::Param | TensorKind::SecondMoment).then(|| other(TensorKind::Param));
        param.flatten().filter(|param| param.form == Form::LowerHalf)?;
        Some(Beside { copy: other(TensorKind::ComputeCopy)?, moment: other(TensorKind::SecondMoment)? })
    }

    fn joined(&self, tensor: &Tensor, lower: &[u8], beside: &Beside) -> Vec<u8> {
        // The copy may be of more.
        let skip = tensor.held(&self.coordinates).from - beside.copy.held(&self.coordinates).from;
        let copies = self.tensor(beside.copy).as_chunks::<2>().0.iter().skip(skip as usize);
        let moments = self.tensor(beside.moment).as_chunks::<4>().0;
        let all = lower.as_chunks::<2>().0.iter().zip(copies).zip(moments);
        let join = |((lower, copy), moment): ((&[u8; 2], &[u8; 2]), &[u8; 4])| {
            let copy = u32::from(u16::from_ne_bytes(*copy)) << 16;
            halves::join(copy, i16::from_ne_bytes(*lower).into(), u32::from_ne_bytes(*moment)).to_ne_bytes()
        };
        all.flat_map(join).collect()
    }

    /// Changes each element at the place of `to` with the number of `of` that is made for it.
    fn each<const N: usize>(
        &mut self,
        to: &Tensor,
        of: &Tensor,
        fill: &dyn Fn(u64, &mut [u8]),
        change: &mut dyn FnMut(&mut [u8; N], f32),
    ) {
        let part = Part::new(of, &self.coordinates);
        let (offset, len) = self.place_of(to);
        let places = self.device.bytes_mut(offset, len).as_chunks_mut::<N>().0;
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
}
