//! Writing tensors from outside of programs: all ranks at once, each what it has, on all of its workers.
//!
//! Pieces are shared out like the tasks of kernels, of which each worker begins with some that follow one another: the pages that come with the first write come from the memory nodes of all
//! workers. No page has one user: kernels cut tensors in other ways, and threads are not bound to nodes. (No machine with several nodes was measured.)

use super::fleet::{Fleet, OnDevice};
use super::halves::Holds;
use super::parts::{AT_HAND, Part, find};
use super::{ExecError, Executor, Rank};
use crate::comm::coordinates;
use crate::pool::Pool;
use forebay_plan::{Form, Init, Role, Space, Tensor, TensorKind};
use std::collections::HashMap;
use std::sync::Mutex;

/// Elements of a piece.
const PIECE: usize = 1 << 18;

/// Fills elements that lie side by side in the whole tensor, too; the number is that of the first one there.
pub(crate) type Fill<'a> = dyn Fn(&Tensor, u64, &mut [u8]) + Sync + 'a;

/// Makes elements of a copy from those of its master.
pub(crate) type Convert<'a> = dyn Fn((&Tensor, &[u8]), (&Tensor, &mut [u8])) + Sync + 'a;

impl<'p> Executor<'p> {
    /// Gives every tensor its first value, but for copies of parameters. Zeros are not written where nothing has been: whoever first uses the pages gets
    /// them, which for gradients and moments is a kernel of the first step.
    ///
    /// # Errors
    /// When a rank has given up before.
    pub(crate) fn fill_tensors(&mut self, fill: &Fill) -> Result<(), ExecError> {
        for mut rank in self.fleet.iter().flat_map(Fleet::all) {
            for tensor in rank.role().tensors.iter().filter(|t| t.init != Init::FromParam) {
                let made = |first: u64, bytes: &mut [u8]| fill(tensor, first, bytes);
                if rank.is_apart(tensor) { rank.fill_apart(tensor, &made)? } else { rank.fill(tensor, &made)? }
            }
        }
        self.on_every_rank(&|rank| {
            let untouched = rank.untouched;
            for tensor in &rank.role.tensors {
                let zeros = matches!(tensor.init, Init::Constant(c) if c.to_bits() == 0);
                let made = |first: u64, bytes: &mut [u8]| fill(tensor, first, bytes);
                match tensor.init {
                    Init::FromParam => {}
                    _ if rank.is_apart(tensor) => rank.fill_apart(tensor, &made).expect(AT_HAND),
                    _ if zeros && untouched => {}
                    _ => rank.fill(tensor, &made),
                }
            }
        })
    }

    /// Makes all copies of parameters again.
    ///
    /// # Errors
    /// When a rank or process has given up.
    pub(crate) fn fill_copies(&mut self, convert: &Convert) -> Result<(), ExecError> {
        let (copies, others): (Vec<&Tensor>, Vec<&Tensor>) =
            self.tensors().into_iter().partition(|t| t.init == Init::FromParam);
        let params = others.into_iter().filter(|t| t.kind == TensorKind::Param);
        let params: HashMap<&str, &Tensor> = params.map(|t| (t.name.as_str(), t)).collect();
        for copy in copies {
            // (The copy of one in halves is always a part of it.)
            let Some(param) = params.get(copy.name.as_str()).filter(|p| p.form == Form::Whole) else { continue };
            // A rank's copy may be of more than it has of the master: then the whole master is put together, from all ranks of all processes.
            let alone = (0..).zip(&self.roles).all(|(rank, role)| {
                let at = coordinates(&self.plan.mesh, rank);
                find(role, &copy.name, copy.kind).is_none_or(|own| master(role, &at, param, own).is_some())
            });
            let whole = if alone { None } else { Some(self.whole(param)?.into_owned()) };
            for rank in self.fleet.iter().flat_map(Fleet::all) {
                rank.fill_copy((copy, param), whole.as_deref(), convert)?;
            }
            self.on_every_rank(&|rank| {
                let Some(own) = rank.find(&copy.name, copy.kind) else { return };
                match (master(rank.role, &rank.coordinates, param, own), &whole) {
                    (Some(master), _) => rank.fill_from(master, own, convert),
                    (None, Some(whole)) => {
                        rank.fill(own, &|first, bytes| convert_run((param, whole), (own, bytes), first, convert));
                    }
                    (None, None) => unreachable!("not all have what they need"),
                }
            })?;
        }
        Ok(())
    }

    fn on_every_rank(&mut self, job: &(dyn Fn(&mut Rank<'p>) + Sync)) -> Result<(), ExecError> {
        self.on_all(&|rank| {
            job(rank);
            Ok(())
        })
    }
}

/// The elements of a parameter that a rank's copy is of, when the rank has the same of both.
fn master<'p>(role: &'p Role, coordinates: &[u32], param: &Tensor, copy: &Tensor) -> Option<&'p Tensor> {
    let part = |tensor: &Tensor| Part::new(tensor, coordinates);
    find(role, &param.name, param.kind).filter(|own| part(own) == part(copy))
}

/// Makes elements of a copy that lie side by side, from element `first` of the whole master on.
fn convert_run((param, whole): (&Tensor, &[u8]), (own, bytes): (&Tensor, &mut [u8]), first: u64, convert: &Convert) {
    let (first, n) = (first as usize, bytes.len() / own.dtype.bytes() as usize);
    let width = param.dtype.bytes() as usize;
    convert((param, &whole[first * width..(first + n) * width]), (own, bytes));
}

/// Fills a part of a tensor, on all workers.
fn fill_part(pool: &Pool, part: &Part, width: usize, bytes: &mut [u8], fill: &(dyn Fn(u64, &mut [u8]) + Sync)) {
    let pieces: Vec<Mutex<&mut [u8]>> = bytes.chunks_mut(PIECE * width).map(Mutex::new).collect();
    pool.run(pieces.len(), &|i, _| {
        let mut piece = pieces[i].lock().expect("each piece is filled once");
        let first = i * PIECE;
        let end = first + piece.len() / width;
        part.runs_among(first as u64..end as u64, |here, there, n| {
            fill(there as u64, &mut piece[(here - first) * width..(here - first + n) * width]);
        });
    });
}

/// Makes the elements of a copy from the same elements of its master, on all workers.
fn fill_same(pool: &Pool, (from, source): (&Tensor, &[u8]), (to, bytes): (&Tensor, &mut [u8]), convert: &Convert) {
    let piece = |tensor: &Tensor| PIECE * tensor.dtype.bytes() as usize;
    let pieces = source.chunks(piece(from)).zip(bytes.chunks_mut(piece(to)).map(Mutex::new));
    let pieces: Vec<(&[u8], Mutex<&mut [u8]>)> = pieces.collect();
    pool.run(pieces.len(), &|i, _| {
        let mut bytes = pieces[i].1.lock().expect("each piece is filled once");
        convert((from, pieces[i].0), (to, &mut bytes));
    });
}

impl<'p> Rank<'p> {
    /// Fills what it has of a tensor: `fill` gets the number of an element of the whole tensor, and elements from there on.
    fn fill(&mut self, tensor: &Tensor, fill: &(dyn Fn(u64, &mut [u8]) + Sync)) {
        self.untouched = false;
        let part = Part::new(tensor, &self.coordinates);
        let width = tensor.dtype.bytes() as usize;
        let (offset, len) = self.place_of(tensor);
        let arena = match tensor.space {
            Space::Device => &mut self.device,
            Space::Host => &mut self.host,
        };
        fill_part(&self.pool, &part, width, arena.bytes_mut(offset, len), fill);
    }

    /// Fills a tensor from another one of which it has the same elements: `convert` gets the same of both.
    fn fill_from(&mut self, from: &Tensor, to: &Tensor, convert: &Convert) {
        self.untouched = false;
        let (read, write) = (self.place_of(from), self.place_of(to));
        let (source, bytes) = match (from.space, to.space) {
            (Space::Device, Space::Device) => self.device.bytes_and_mut(read, write),
            (Space::Host, Space::Host) => self.host.bytes_and_mut(read, write),
            (Space::Device, Space::Host) => (self.device.bytes(read.0, read.1), self.host.bytes_mut(write.0, write.1)),
            (Space::Host, Space::Device) => (self.host.bytes(read.0, read.1), self.device.bytes_mut(write.0, write.1)),
        };
        fill_same(&self.pool, (from, source), (to, bytes), convert);
    }
}

impl OnDevice<'_, '_> {
    /// As [`Rank::fill`].
    fn fill(&self, tensor: &Tensor, fill: &(dyn Fn(u64, &mut [u8]) + Sync)) -> Result<(), ExecError> {
        let mut bytes = vec![0; self.len(tensor) as usize];
        let part = Part::new(tensor, self.coordinates());
        fill_part(&self.fleet.pool, &part, tensor.dtype.bytes() as usize, &mut bytes, fill);
        self.replace(tensor, &bytes)
    }

    /// Makes its copy of a parameter; from the whole parameter where it has other elements of that.
    fn fill_copy(
        &self,
        (copy, param): (&Tensor, &Tensor),
        whole: Option<&[u8]>,
        convert: &Convert,
    ) -> Result<(), ExecError> {
        let Some(own) = find(self.role(), &copy.name, copy.kind) else { return Ok(()) };
        match (master(self.role(), self.coordinates(), param, own), whole) {
            (Some(master), _) => {
                let source = self.bytes(master)?;
                let mut bytes = vec![0; self.len(own) as usize];
                fill_same(&self.fleet.pool, (master, &source), (own, &mut bytes), convert);
                self.replace(own, &bytes)
            }
            (None, Some(whole)) => {
                self.fill(own, &|first, bytes| convert_run((param, whole), (own, bytes), first, convert))
            }
            (None, None) => unreachable!("not all have what they need"),
        }
    }
}
