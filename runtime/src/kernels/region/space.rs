//! The iteration space of a region in normal form: few dimensions, in an order that suits memory.

use super::super::{PrepareCx, PrepareError, ensure};
use forebay_plan::{self as plan, DType, Negative, StepOp};

/// Dimensions of a space at most, after collapsing.
pub(super) const MOST_DIMS: usize = 10;

/// What an access reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// A buffer, from an element on.
    Buffer { buffer: usize, offset: usize },
    /// Nothing: the element's value is its index.
    Index,
}

/// A view, or an index, over the dimensions of the space.
#[derive(Clone, Debug)]
pub(super) struct Access {
    pub place: Place,
    pub dtype: DType,
    pub strides: Vec<usize>,
    pub through: Option<Through>,
}

/// The index that a load goes through.
#[derive(Clone, Copy, Debug)]
pub(super) struct Through {
    /// The access that reads it.
    pub index: usize,
    pub divide: usize,
    /// Elements from one position of the looked-up axis to the next.
    pub axis_stride: usize,
    pub axis_size: usize,
    pub negative: Negative,
}

/// How an access varies, seen from a block: rows of one outer dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// One value.
    One,
    /// A value for each row.
    Row,
    /// A value for each column, the same in all blocks.
    Column,
    /// A value for each element.
    Full,
}

impl Shape {
    /// The shape of what is computed from both.
    pub fn join(self, other: Shape) -> Shape {
        match (self, other) {
            (Shape::One, shape) | (shape, Shape::One) => shape,
            (a, b) if a == b => a,
            _ => Shape::Full,
        }
    }
}

/// A ragged dimension.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ragged {
    /// Which.
    pub dim: usize,
    /// Elements of the dimension for each ragged element.
    pub unit: usize,
    pub buffer: usize,
    pub groups: usize,
    /// Most ragged elements.
    pub bound: u64,
}

/// Outer dimensions, then those of a row.
#[derive(Clone, Debug)]
pub(super) struct Space {
    /// Sizes, the ragged one at its bound. There is at least one dimension.
    pub dims: Vec<usize>,
    /// How many of the last dimensions form a row, at least 1.
    pub row_dims: usize,
    pub ragged: Option<Ragged>,
}

impl Space {
    /// Elements of a row, at the bound.
    pub fn row(&self) -> usize {
        self.dims[self.outer()..].iter().product()
    }

    /// Number of outer dimensions.
    pub fn outer(&self) -> usize {
        self.dims.len() - self.row_dims
    }

    /// How an access varies by its own strides.
    pub fn shape(&self, access: &Access) -> Shape {
        let (outer, row) = access.strides.split_at(self.outer());
        match (outer.iter().any(|&s| s != 0), row.iter().any(|&s| s != 0)) {
            (false, false) => Shape::One,
            (true, false) => Shape::Row,
            (false, true) => Shape::Column,
            (true, true) => Shape::Full,
        }
    }
}

/// Loads, then indices (in the order of their steps), then stores, then what loads go through.
pub(super) struct Accesses {
    pub all: Vec<Access>,
    pub loads: usize,
    pub indices: usize,
}

/// The space and its accesses.
pub(super) fn normalise(region: &plan::Region, cx: &PrepareCx) -> Result<(Space, Accesses), PrepareError> {
    let mut accesses = collect(region, cx)?;
    let mut space = Space {
        dims: region.dims.iter().map(|&d| d as usize).collect(),
        row_dims: region.row_dims as usize,
        ragged: None,
    };
    ensure(space.row_dims <= space.dims.len(), || "a row has more dimensions than the region".into())?;
    if let Some(ragged) = &region.ragged {
        let dim = ragged.dim as usize;
        ensure(dim < space.dims.len(), || format!("there is no dimension {dim}"))?;
        space.ragged = Some(Ragged {
            dim,
            unit: 1,
            buffer: cx.buffer_of(ragged.offsets, DType::I32, "ragged offsets")?,
            groups: ragged.groups as usize,
            bound: region.dims[dim],
        });
    }
    let reduces = region.steps.iter().any(|s| s.op.is_row_reduction());
    let all = &mut accesses.all;
    if !reduces {
        // One row dimension is enough: every element is on its own.
        space.row_dims = 1;
        drop_units(&mut space, all, reduces);
        choose_inner(&mut space, all);
    } else {
        let ragged_row = space.ragged.is_some_and(|r| r.dim >= space.outer());
        ensure(!ragged_row, || "a dimension of the row is ragged".into())?;
        drop_units(&mut space, all, reduces);
    }
    collapse(&mut space, all, reduces);
    choose_last_outer(&mut space, all);
    ensure(space.dims.len() <= MOST_DIMS, || format!("{} dimensions that do not collapse", space.dims.len()))?;
    Ok((space, accesses))
}

/// The space and the accesses of a region of two dimensions that is run in parts: as they are.
pub(super) fn in_parts(region: &plan::Region, cx: &PrepareCx) -> Result<(Space, Accesses), PrepareError> {
    let reduces = region.steps.iter().any(|s| s.op.is_row_reduction());
    let plain = region.dims.len() == 2 && region.row_dims == 1 && region.ragged.is_none() && !reduces;
    ensure(plain && region.loads.iter().all(|l| l.through.is_none()), || "a region that cannot run in parts".into())?;
    let dims = region.dims.iter().map(|&d| d as usize).collect();
    Ok((Space { dims, row_dims: 1, ragged: None }, collect(region, cx)?))
}

fn collect(region: &plan::Region, cx: &PrepareCx) -> Result<Accesses, PrepareError> {
    let dims = region.dims.len();
    let access = |view: &plan::View| -> Result<Access, PrepareError> {
        let (buffer, dtype) = cx.buffer(view.buffer)?;
        ensure(view.strides.len() == dims, || format!("{} strides for {dims} dimensions", view.strides.len()))?;
        let place = Place::Buffer { buffer, offset: view.offset as usize };
        Ok(Access { place, dtype, strides: view.strides.iter().map(|&s| s as usize).collect(), through: None })
    };
    let mut all = region.loads.iter().map(|l| access(&l.view)).collect::<Result<Vec<_>, _>>()?;
    let loads = all.len();
    for step in &region.steps {
        if let StepOp::Index(dim) = step.op {
            ensure((dim as usize) < dims, || format!("there is no dimension {dim}"))?;
            let strides = (0..dims).map(|d| (d == dim as usize) as usize).collect();
            all.push(Access { place: Place::Index, dtype: DType::I32, strides, through: None });
        }
    }
    let indices = all.len() - loads;
    for store in &region.stores {
        all.push(access(&store.view)?);
    }
    for (load, lookup) in region.loads.iter().enumerate() {
        let Some(lookup) = &lookup.through else { continue };
        cx.buffer_of(lookup.index.buffer, DType::I32, "an index")?;
        ensure(lookup.divide > 0, || "an index divided by 0".into())?;
        all[load].through = Some(Through {
            index: all.len(),
            divide: lookup.divide as usize,
            axis_stride: lookup.axis_stride as usize,
            axis_size: lookup.axis_size as usize,
            negative: lookup.negative,
        });
        all.push(access(&lookup.index)?);
    }
    Ok(Accesses { all, loads, indices })
}

fn remove(space: &mut Space, all: &mut [Access], dim: usize) {
    if dim >= space.outer() {
        space.row_dims -= 1;
    }
    space.dims.remove(dim);
    for access in all.iter_mut() {
        access.strides.remove(dim);
    }
    if let Some(ragged) = &mut space.ragged
        && ragged.dim > dim
    {
        ragged.dim -= 1;
    }
}

/// Drops dimensions of size 1, but keeps one for the row.
fn drop_units(space: &mut Space, all: &mut [Access], reduces: bool) {
    for dim in (0..space.dims.len()).rev() {
        let ragged = space.ragged.is_some_and(|r| r.dim == dim);
        if space.dims[dim] == 1 && !ragged {
            remove(space, all, dim);
        }
    }
    if !reduces {
        space.row_dims = space.dims.len().min(1);
    }
    if space.row_dims == 0 {
        space.dims.push(1);
        all.iter_mut().for_each(|a| a.strides.push(0));
        space.row_dims = 1;
    }
}

/// Moves a dimension.
fn shift(space: &mut Space, all: &mut [Access], from: usize, to: usize) {
    let size = space.dims.remove(from);
    space.dims.insert(to, size);
    for access in all {
        let stride = access.strides.remove(from);
        access.strides.insert(to, stride);
    }
    if let Some(ragged) = &mut space.ragged {
        ragged.dim = match ragged.dim {
            d if d == from => to,
            d if from < d && d <= to => d - 1,
            d if to <= d && d < from => d + 1,
            d => d,
        };
    }
}

/// Makes the dimension along which most elements are read and written side by side the innermost; where there is a choice, the one that is. (Elements, not accesses: what has one for each
/// row says little, whatever there is of it.)
fn choose_inner(space: &mut Space, all: &mut [Access]) {
    // Along a dimension of an index elements are picked one by one.
    let picks = |a: &Access, dim: usize| a.through.is_some_and(|t| all[t.index].strides[dim] != 0);
    let values = all.len() - all.iter().filter(|a| a.through.is_some()).count();
    let elements = |a: &Access| -> u128 {
        let sizes = space.dims.iter().zip(&a.strides).filter(|(_, stride)| **stride != 0);
        sizes.map(|(size, _)| *size as u128).product()
    };
    let score = |dim: usize| -> u128 {
        let contiguous = |a: &&Access| a.place != Place::Index && a.strides[dim] == 1 && !picks(a, dim);
        // A narrow dimension makes short rows, however contiguous.
        let wide = if space.dims[dim] >= 8 { 2 } else { 1 };
        all[..values].iter().filter(contiguous).map(elements).sum::<u128>() * wide
    };
    let last = space.dims.len() - 1;
    let best = (0..=last).max_by_key(|&dim| (score(dim), dim)).expect("there is a dimension");
    if best != last && score(best) > score(last) {
        shift(space, all, best, last);
    }
}

/// Joins neighbours that every access walks as one.
fn collapse(space: &mut Space, all: &mut [Access], reduces: bool) {
    let mut dim = space.dims.len() - 1;
    while dim > 0 {
        dim -= 1;
        let (size, inner) = (space.dims[dim], space.dims[dim + 1]);
        let apart = reduces && dim + 1 == space.outer();
        let ragged = space.ragged.is_some_and(|r| r.dim == dim + 1);
        // An empty dimension makes any stride fit, but the sizes must stay apart for rows to have a length.
        let joined = all.iter().all(|a| a.strides[dim] == a.strides[dim + 1] * inner) && inner > 0 && size > 0;
        if apart || ragged || !joined {
            continue;
        }
        space.dims[dim + 1] = size * inner;
        if let Some(r) = &mut space.ragged
            && r.dim == dim
        {
            r.unit *= inner;
            r.dim = dim + 1;
        }
        if !reduces {
            // The joined dimension may be the row or not; keep the count of row dimensions.
            space.dims.remove(dim);
            for access in all.iter_mut() {
                access.strides.remove(dim);
            }
            if let Some(r) = &mut space.ragged
                && r.dim > dim
            {
                r.dim -= 1;
            }
        } else {
            remove(space, all, dim);
        }
    }
}

/// A block is made of rows along the last outer dimension: when that is short, a longer one takes its place.
fn choose_last_outer(space: &mut Space, all: &mut [Access]) {
    let outer = space.outer();
    if outer < 2 || space.dims[outer - 1] * space.row() >= 512 {
        return;
    }
    let longest = (0..outer).max_by_key(|&d| (space.dims[d], d)).expect("there are outer dimensions");
    shift(space, all, longest, outer - 1);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(strides: &[usize]) -> Access {
        let place = Place::Buffer { buffer: 0, offset: 0 };
        Access { place, dtype: DType::F32, strides: strides.to_vec(), through: None }
    }

    fn chosen(dims: &[usize], strides: &[&[usize]]) -> Vec<usize> {
        let mut space = Space { dims: dims.to_vec(), row_dims: 1, ragged: None };
        let mut all: Vec<Access> = strides.iter().map(|s| access(s)).collect();
        choose_inner(&mut space, &mut all);
        space.dims
    }

    /// The gradient of logits reads three numbers for each row: rows stay rows.
    #[test]
    fn what_has_one_element_for_each_row_is_outvoted() {
        let (logits, of_row) = (&[4_194_304, 8192, 1], &[512, 1, 0]);
        assert_eq!(chosen(&[4, 512, 8192], &[logits, of_row, of_row, of_row, logits]), [4, 512, 8192]);
        // What lies the other way in most of memory is walked that way, unless rows would be short.
        let (across, along) = (&[1, 64], &[32, 1]);
        assert_eq!(chosen(&[64, 32], &[across, across, along]), [32, 64]);
        assert_eq!(chosen(&[4, 32], &[&[1, 4], &[1, 4], along]), [4, 32]);
        assert_eq!(chosen(&[64, 4], &[&[1, 64], &[4, 1]]), [4, 64]);
    }
}
