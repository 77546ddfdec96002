//! Copies of A and B in the order in which registers read them.

use super::{Engine, PARTS, SIDE, STEP, WIDTH};
use crate::kernels::matmul::pack::{PackArgs, SIDE_BY_SIDE};
use crate::kernels::matmul::tile::{A_WIDTH, Simd, Source};
use std::ops::Range;

/// Packs rows of A from product `first` of the panel on. The last step is filled up with zeros; a later call may go on in it.
///
/// # Safety
/// The source has the elements, each panel the steps.
#[inline(always)]
pub(super) unsafe fn pack_rows<S: Simd, E: Engine, X: Copy>(args: PackArgs<X, f32>, first: usize) {
    debug_assert!(size_of::<X>() == 2 && args.width <= WIDTH && args.panels <= SIDE_BY_SIDE);
    let rows = Rows {
        src: args.src.cast(),
        count: args.width,
        across: args.across,
        along: args.along,
        dst: args.dst.cast(),
        panels: args.panels,
        panel_step: 2 * args.panel_step,
    };
    // What completes a step of an earlier call.
    let begun = (first.next_multiple_of(STEP) - first).min(args.depth);
    // SAFETY: the caller's contract; products are taken in order, up to `depth`.
    unsafe {
        rows.one_by_one(first, 0..begun);
        for p in (begun..args.depth).step_by(STEP) {
            let products = p..(p + STEP).min(args.depth);
            match (rows.across, rows.along) {
                (_, 1) => rows.along(first, products),
                (1, _) if rows.count == WIDTH => rows.across::<S, E>(first, products),
                _ => {
                    rows.clear(first + p);
                    rows.one_by_one(first, products);
                }
            }
        }
    }
}

/// Rows that are packed: `count` for each of the panels.
struct Rows {
    src: *const u16,
    count: usize,
    across: usize,
    along: usize,
    dst: *mut u16,
    panels: usize,
    panel_step: usize,
}

/// All methods: the source has the products, counted from the first one; the panels have those from `first` on.
impl Rows {
    /// Where a product of a row goes.
    #[inline(always)]
    unsafe fn place(&self, panel: usize, row: usize, product: usize) -> *mut u16 {
        // SAFETY: the caller's contract.
        unsafe { self.dst.add(panel * self.panel_step + (product / STEP * WIDTH + row) * STEP + product % STEP) }
    }

    /// Each row: its panel, its number there, and its first product.
    #[inline(always)]
    fn each(&self) -> impl Iterator<Item = (usize, usize, *const u16)> {
        let (src, across, count) = (self.src, self.across, self.count);
        (0..self.panels * count).map(move |row| (row / count, row % count, src.wrapping_add(row * across)))
    }

    #[inline(always)]
    unsafe fn one_by_one(&self, first: usize, products: Range<usize>) {
        for p in products {
            for (panel, row, from) in self.each() {
                // SAFETY: the caller's contract.
                unsafe { *self.place(panel, row, first + p) = *from.add(p * self.along) };
            }
        }
    }

    /// Makes the rows of a step zeros.
    #[inline(always)]
    unsafe fn clear(&self, product: usize) {
        for panel in 0..self.panels {
            // SAFETY: the caller's contract; the rows of a step follow each other.
            unsafe { self.place(panel, 0, product).write_bytes(0, self.count * STEP) };
        }
    }

    /// A step of rows that lie along the sum.
    #[inline(always)]
    unsafe fn along(&self, first: usize, products: Range<usize>) {
        for (panel, row, from) in self.each() {
            // SAFETY: the caller's contract.
            unsafe {
                let from = from.add(products.start);
                let to = self.place(panel, row, first + products.start).cast::<[u16; STEP]>();
                if products.len() == STEP {
                    *to = from.cast::<[u16; STEP]>().read_unaligned();
                } else {
                    let mut values = [0; STEP];
                    values.as_mut_ptr().copy_from_nonoverlapping(from, products.len());
                    *to = values;
                }
            }
        }
    }

    /// A step of full panels whose rows lie side by side: products of all of them follow each other.
    #[inline(always)]
    unsafe fn across<S: Simd, E: Engine>(&self, first: usize, products: Range<usize>) {
        let zeros = [0u16; SIDE_BY_SIDE * WIDTH];
        // SAFETY: the caller's contract; products that there are not are zeros.
        unsafe {
            let of = |p: usize| if p < products.end { self.src.add(p * self.along) } else { zeros.as_ptr() };
            let mut squares = [[[[0u32; SIDE]; SIDE]; 2]; SIDE_BY_SIDE];
            for word in 0..SIDE {
                let [low, high] = [0, 1].map(|half| of(products.start + 2 * word + half));
                for (panel, squares) in squares.iter_mut().enumerate().take(self.panels) {
                    let words = S::pairs(low.add(panel * WIDTH), high.add(panel * WIDTH));
                    let [upper, lower] = std::mem::transmute::<[[u32; A_WIDTH]; SIDE_BY_SIDE], [[u32; SIDE]; 2]>(words);
                    (squares[0][word], squares[1][word]) = (upper, lower);
                }
            }
            for (panel, squares) in squares.iter().enumerate().take(self.panels) {
                for (half, square) in squares.iter().enumerate() {
                    let place = self.place(panel, half * SIDE, first + products.start);
                    *place.cast::<[[u32; SIDE]; SIDE]>() = E::transposed(square);
                }
            }
        }
    }
}

/// Packs columns of B from product `first` of a panel of so many words on. The last step is filled up with zeros; a later call may go on in it.
///
/// # Safety
/// The source has the elements, the destination the panel.
#[inline(always)]
pub(super) unsafe fn pack_columns<S: Simd<T = f32>, X: Source<f32>>(
    args: PackArgs<X, f32>,
    first: usize,
    words: usize,
) {
    debug_assert!(size_of::<X>() == 2 && args.width <= PARTS * WIDTH);
    let part = words * WIDTH;
    let (from, end) = (first / 2, (first + args.depth).div_ceil(2));
    let whole = args.width / WIDTH;
    let zeros = [0u16; PARTS * WIDTH];
    // SAFETY: the caller's contract; words of a part follow each other.
    unsafe {
        for i in 0..args.width.div_ceil(WIDTH) {
            args.dst.add(i * part + end * WIDTH).write_bytes(0, (end.next_multiple_of(SIDE) - end) * WIDTH);
        }
        let mut rest = 0;
        if args.across == 1 && first.is_multiple_of(2) {
            // Of all parts at a time: lines that follow each other.
            rest = whole;
            for word in from..end {
                let p = 2 * word - first;
                let low = args.src.add(p * args.along).cast::<u16>();
                let high = if p + 1 < args.depth { low.add(args.along) } else { zeros.as_ptr() };
                for i in 0..whole {
                    let to = args.dst.add(i * part + word * WIDTH);
                    *to.cast::<[[u32; A_WIDTH]; SIDE_BY_SIDE]>() = S::pairs(low.add(i * WIDTH), high.add(i * WIDTH));
                }
            }
        }
        for i in rest..args.width.div_ceil(WIDTH) {
            S::pack(PackArgs {
                src: args.src.add(i * WIDTH * args.across),
                width: (args.width - i * WIDTH).min(WIDTH),
                dst: args.dst.add(i * part + from * WIDTH),
                panel: WIDTH,
                ..args
            });
        }
    }
}
