//! The time of matrix products, with what is done on their results.

use super::{HEAD, Priced, Pricer, precision_of};
use crate::aligned::Alignment;
use crate::kind::Kind;
use forebay_cost::{Precision, Product};
use forebay_plan::{Kernel, Matmul, Program, RaggedDim, Region};

impl Pricer<'_> {
    pub(super) fn matmul(&self, program: &Program, k: &Matmul, kernel: &Kernel) -> Priced {
        let product = self.product_of(program, k, kernel);
        let seconds = self.cluster.product_scaled(&product, self.framework.scaling(k.groups.is_some()));
        let kind = if k.groups.is_some() { Kind::ExpertProducts } else { Kind::Products };
        // The busiest rank is what others wait for; what all compute together is the mean.
        let mean = kernel.ragged_rows().map_or(1.0, |rows| rows.mean_of_busiest(self.imbalance)) / self.beyond(kernel);
        let flops = 2.0 * product.groups * product.m * product.n * product.k * mean;
        let apart = self.apart(kernel);
        let priced = Priced::work(kind, seconds + self.behind(k, &product) + apart.seconds, flops);
        Priced { launches: self.starts(k, &product) + apart.starts, ..priced }
    }

    /// Seconds of the traffic of weights' gradients that are added up: it does not hide behind the product.
    fn behind(&self, k: &Matmul, product: &Product) -> f64 {
        // A machine that was measured has it in its rates.
        if !accumulates(k) || self.cluster.measured.is_some() {
            return 0.0;
        }
        let each = match self.framework.accumulate_bytes {
            each if each > 0.0 => each,
            _ if self.framework.adds_in_products => added_bytes(self.framework.gradient_bytes),
            _ => added_bytes(4.0),
        };
        each * product.groups * product.m * product.n / self.cluster.memory_rate()
    }

    /// Bytes that the epilogue of a product reads and writes beside the result.
    fn beside(&self, program: &Program, k: &Matmul, kernel: &Kernel, product: &Product) -> f64 {
        if k.epilogue.is_none() {
            return 0.0;
        }
        let batch: f64 = k.batch.iter().map(|d| d.0 as f64).product();
        let outer: f64 = k.k_outer.iter().map(|d| d.0 as f64).product();
        let bound = k.dtype.bytes() as f64
            * (batch * (k.m.0 as f64 * k.k.0 as f64 * outer + k.m.0 as f64 * k.n.0 as f64)
                + k.k.0 as f64 * outer * k.n.0 as f64);
        let most = 8.0 * product.groups * product.m * product.n;
        // Of rows for which there is room those that come.
        let share = self.ragged(kernel);
        (share * (kernel.traffic(&program.buffers).bytes() as f64 - bound)).max(0.0).min(most)
    }

    /// Starts of kernels, as multiples of one instruction's, that a product takes: those of experts may be started one by one.
    fn starts(&self, k: &Matmul, product: &Product) -> f64 {
        let cast = match product.precision {
            Precision::Fp8 | Precision::Mxfp8 if self.framework.scaling(k.groups.is_some()).bytes > 0.0 => CASTS,
            _ => 0.0,
        };
        match (&k.groups, self.framework.expert_us) {
            (Some(_), each) if each > 0.0 => self.one_by_one(product.groups).max(1.0) + cast,
            _ => 1.0 + cast,
        }
    }

    /// The shape of a product.
    pub(super) fn product_of(&self, program: &Program, k: &Matmul, kernel: &Kernel) -> Product {
        let batch: f64 = k.batch.iter().map(|d| d.0 as f64).product();
        let outer: f64 = k.k_outer.iter().map(|d| d.0 as f64).product();
        let (mut m, mut n, mut depth, mut groups) = (k.m.0 as f64, k.n.0 as f64, k.k.0 as f64 * outer, batch);
        if let Some(ragged) = &k.groups {
            let count = ragged.count as f64;
            let size = match ragged.ragged {
                RaggedDim::M => &mut m,
                RaggedDim::N => &mut n,
                RaggedDim::K => &mut depth,
            };
            *size *= self.ragged(kernel) / count;
            groups *= count;
        }
        let element = k.dtype.bytes() as f64;
        let of_head = program.name.starts_with(HEAD) && self.precision != Precision::F32;
        let precision = precision_of(k.dtype, if of_head { Precision::Bf16 } else { self.precision });
        let alignment = Alignment::of(k).bytes;
        let matrices = element * groups * (m * depth + depth * n + m * n);
        let mut product = Product { groups, m, n, k: depth, bytes: matrices, precision, alignment };
        // What is done while the product runs is traffic of its own.
        if !accumulates(k) || self.cluster.measured.is_some() {
            product.bytes += self.beside(program, k, kernel, &product);
        }
        product
    }
}

/// Kernels that make inputs of a product fp8, by the product: its left input in the forward pass, and the gradient that both of its backward products take.
const CASTS: f64 = 2.0 / 3.0;

/// Bytes of traffic for each element of a weight's gradient that a product adds to sums of so many bytes: these are read and written, instead of a result written in half. They are
/// added to the product's time: what grouped products on B200 take is nearer to both together than to the longer of them (docs/cost-model.md).
fn added_bytes(of_sum: f64) -> f64 {
    (2.0 * of_sum - 2.0).max(0.0)
}

/// Does a product add to what is in memory: itself, or by an epilogue that updates a buffer?
fn accumulates(k: &Matmul) -> bool {
    let updates = |region: &Region| {
        let loaded = |buffer| region.loads.iter().any(|load| load.view.buffer == buffer);
        region.stores.iter().any(|store| store.view.buffer != k.c && loaded(store.view.buffer))
    };
    k.accumulate || k.epilogue.as_deref().is_some_and(updates)
}
