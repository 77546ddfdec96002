//! Contractions as matrix products: which axes are rows, columns, summed, or independent products.

use super::Emitter;
use super::dtype;
use super::places::Place;
use forebay_ir::{AxisId, ValueId};
use forebay_plan::{self as plan, BatchDim, Groups, Kernel, MatDim, RaggedDim};

/// One dimension of a product with its strides in two of the matrices.
#[derive(Clone, Copy)]
struct Dim {
    size: u64,
    first: u64,
    second: u64,
}

impl Emitter<'_> {
    pub(super) fn contract(&mut self, value: ValueId, over: &[AxisId], accumulate: Option<ValueId>) {
        let node = self.graph.node(value).clone();
        let [left, right] = node.operands[..] else { unreachable!("verified") };
        // The side with the ragged rows is the left one: C's strides are free, so swapping the sides costs nothing.
        let rows_of = |v: ValueId| self.graph.ragged_axis(&self.graph.ty(v).axes).filter(|r| !over.contains(r));
        let (left, right) =
            if rows_of(left).is_none() && rows_of(right).is_some() { (right, left) } else { (left, right) };
        let (a, b) = (self.place(left), self.place(right));
        let c = self.places.dest(accumulate.unwrap_or(value));
        let groups = self.groups(left, right, over, (&a, &b, &c));

        let grouped: Vec<AxisId> = groups.iter().flat_map(|(parent, ragged, _)| [*parent, *ragged]).collect();
        let has = |v: ValueId, axis: AxisId| self.graph.ty(v).has(axis);
        let size = |axis: AxisId| self.graph.size(axis);
        let plain: Vec<AxisId> = self
            .graph
            .dims(&node.ty.axes)
            .into_iter()
            .map(|(axis, _)| axis)
            .filter(|axis| !grouped.contains(axis))
            .collect();
        let of = |keep: &dyn Fn(AxisId) -> bool, p: &Place, q: &Place| -> Vec<Dim> {
            let axes = plain.iter().copied().filter(|&x| keep(x));
            axes.map(|x| Dim { size: size(x), first: p.stride(x), second: q.stride(x) }).collect()
        };
        let m = collapse(of(&|x| has(left, x) && !has(right, x), &a, &c));
        let n = collapse(of(&|x| !has(left, x) && has(right, x), &b, &c));
        let mut batch: Vec<BatchDim> = plain
            .iter()
            .filter(|&&x| has(left, x) && has(right, x))
            .map(|&x| BatchDim(size(x), a.stride(x), b.stride(x), c.stride(x)))
            .collect();

        // Ragged rows are rows of the product: the other rows become independent products. A ragged sum is the sum.
        let ragged = groups.as_ref().map(|(_, ragged, g)| (*ragged, g.ragged));
        let (m, more_m) = match ragged {
            Some((axis, RaggedDim::M)) => (MatDim(size(axis), a.stride(axis), c.stride(axis)), m),
            _ => split_largest(m),
        };
        let (n, more_n) = split_largest(n);
        batch.extend(more_m.iter().map(|d| BatchDim(d.size, d.first, 0, d.second)));
        batch.extend(more_n.iter().map(|d| BatchDim(d.size, 0, d.first, d.second)));

        let mut summed: Vec<AxisId> = over.iter().copied().filter(|x| !grouped.contains(x)).collect();
        summed.sort_by_key(|&x| (std::cmp::Reverse(a.stride(x)), x));
        let k =
            collapse(summed.iter().map(|&x| Dim { size: size(x), first: a.stride(x), second: b.stride(x) }).collect());
        let (k, k_outer) = match ragged {
            Some((axis, RaggedDim::K)) => {
                (MatDim(size(axis), a.stride(axis), b.stride(axis)), k.iter().map(mat).collect())
            }
            _ => {
                let (last, outer) = k.split_last().expect("a contraction sums over something");
                (mat(last), outer.iter().map(mat).collect())
            }
        };
        let kernel = plan::Matmul {
            dtype: dtype(node.ty.dtype),
            a: a.buffer,
            b: b.buffer,
            c: c.buffer,
            offsets: [a.offset, b.offset, c.offset],
            batch,
            m,
            n,
            k,
            k_outer,
            groups: groups.map(|(_, _, g)| g),
            accumulate: accumulate.is_some(),
            epilogue: None,
        };
        self.push(&node.name, Kernel::Matmul(kernel));
    }

    /// The groups of a product over a ragged axis: (parent, ragged axis, groups). A ragged axis that only the left side has, without its parent on
    /// the right, is an ordinary dimension.
    fn groups(
        &mut self,
        left: ValueId,
        right: ValueId,
        over: &[AxisId],
        (a, b, c): (&Place, &Place, &Place),
    ) -> Option<(AxisId, AxisId, Groups)> {
        let ragged = self.graph.ragged_axis(&self.graph.ty(left).axes)?;
        let parent = self.graph.ragged_parent(ragged)?;
        let even = self.graph.even_size(ragged);
        let right_has = |axis| self.graph.ty(right).has(axis);
        let dim = match (over.contains(&ragged), right_has(ragged)) {
            // All rows are one group, which ends where they do.
            (true, _) if over.contains(&parent) => {
                let offsets = self.all_rows(ragged);
                let groups = Groups { offsets, count: 1, even, ragged: RaggedDim::K, strides: [0; 3] };
                return Some((parent, ragged, groups));
            }
            // dW: each group sums over its own rows.
            (true, _) => RaggedDim::K,
            // Each group's rows meet the group's own matrix.
            (false, false) if right_has(parent) => RaggedDim::M,
            _ => return None,
        };
        let (offsets, count) = self.group_starts(ragged);
        let strides = match dim {
            RaggedDim::M => [0, b.stride(parent), 0],
            RaggedDim::K => [0, 0, c.stride(parent)],
            RaggedDim::N => [a.stride(parent), 0, 0],
        };
        Some((parent, ragged, Groups { offsets, count, even, ragged: dim, strides }))
    }

    /// First and last of the starts of groups: a buffer of two.
    fn all_rows(&mut self, ragged: AxisId) -> u32 {
        let (offsets, groups) = self.group_starts(ragged);
        let name = format!("{}.all", self.graph.axis(ragged).name);
        let out = self.places.scratch(&name, plan::DType::I32, 2);
        let view = |buffer, stride| plan::View { buffer, offset: 0, strides: vec![stride] };
        let region = plan::Region {
            dims: vec![2],
            row_dims: 1,
            ragged: None,
            loads: vec![view(offsets, groups).into()],
            steps: vec![],
            stores: vec![plan::Store { value: plan::Arg::Load(0), view: view(out, 1) }],
        };
        self.push(&name, Kernel::Region(region));
        out
    }
}

fn mat(dim: &Dim) -> MatDim {
    MatDim(dim.size, dim.first, dim.second)
}

/// Joins neighbouring dimensions that one stride can walk in both matrices; drops those of size 1.
fn collapse(dims: Vec<Dim>) -> Vec<Dim> {
    let mut joined: Vec<Dim> = vec![];
    for dim in dims.into_iter().filter(|d| d.size != 1) {
        match joined.last_mut() {
            Some(last) if last.first == dim.first * dim.size && last.second == dim.second * dim.size => {
                *last = Dim { size: last.size * dim.size, ..dim };
            }
            _ => joined.push(dim),
        }
    }
    if joined.is_empty() {
        joined.push(Dim { size: 1, first: 0, second: 0 });
    }
    joined
}

/// The largest dimension, and the others.
fn split_largest(mut dims: Vec<Dim>) -> (MatDim, Vec<Dim>) {
    let at = (0..dims.len()).max_by_key(|&i| (dims[i].size, i)).expect("collapse leaves one");
    let largest = dims.remove(at);
    (mat(&largest), dims)
}
