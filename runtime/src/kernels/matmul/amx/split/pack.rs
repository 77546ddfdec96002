//! Copies of A and B in parts, in the order in which registers read them. Products that there are not are zeros; rows of A and columns of B that there are not are anything.

use super::{Engine, SIDE, STEP, STEP_WORDS, THIRD, THIRDS, WIDTH};
use crate::kernels::matmul::pack::PackArgs;
use crate::kernels::matmul::tile::{prefetch, prefetch_run};
use std::ops::Range;

/// Words of a part of a step of a panel.
const THIRD_WORDS: usize = THIRD / size_of::<u32>();

/// Packs rows of A from product `first` of the panel on. The last step is filled up with zeros; a later call may go on in it.
///
/// # Safety
/// The source has the elements, each panel the steps.
#[inline(always)]
pub(super) unsafe fn pack_rows<E: Engine, X: Copy>(args: PackArgs<X, f32>, first: usize) {
    debug_assert!(size_of::<X>() == size_of::<f32>() && args.width <= WIDTH);
    for panel in 0..args.panels {
        let lines = Lines {
            src: args.src.cast::<f32>().wrapping_add(panel * args.width * args.across),
            count: args.width,
            across: args.across,
            along: args.along,
            depth: args.depth,
            // SAFETY: the caller's contract.
            dst: unsafe { args.dst.add(panel * args.panel_step).cast() },
            of: Operand::A,
        };
        // SAFETY: the caller's contract.
        unsafe { lines.pack::<E>(first) };
    }
}

/// Packs columns of B from product `first` of a panel of so many words on, in the same way.
///
/// # Safety
/// The source has the elements, the destination the panel.
#[inline(always)]
pub(super) unsafe fn pack_columns<E: Engine, X: Copy>(args: PackArgs<X, f32>, first: usize, words: usize) {
    for column in (0..args.width).step_by(WIDTH) {
        let lines = Lines {
            src: args.src.cast::<f32>().wrapping_add(column * args.across),
            count: (args.width - column).min(WIDTH),
            across: args.across,
            along: args.along,
            depth: args.depth,
            // SAFETY: the caller's contract.
            dst: unsafe { args.dst.add(column * words).cast() },
            of: Operand::B,
        };
        // SAFETY: the caller's contract.
        unsafe { lines.pack::<E>(first) };
    }
}

/// The parts of a number, each in the upper half of a word.
#[inline(always)]
pub(in crate::kernels::matmul::amx) fn thirds(x: f32) -> [u32; THIRDS] {
    // To nearest, halves away from zero: a shorter way to as small a rest as ties to even.
    let upper = |x: f32| x.to_bits().wrapping_add(0x8000) & 0xffff_0000;
    let first = upper(x);
    let rest = x - f32::from_bits(first);
    let second = upper(rest);
    [first, second, (rest - f32::from_bits(second)).to_bits()]
}

#[derive(Clone, Copy, PartialEq)]
enum Operand {
    A,
    B,
}

/// Up to thirty-two rows of A or columns of B.
struct Lines {
    src: *const f32,
    count: usize,
    /// From one of them to the next.
    across: usize,
    /// From one product to the next.
    along: usize,
    depth: usize,
    dst: *mut u32,
    of: Operand,
}

/// All methods: the source has the products, counted from the first one; the panel has those from `first` on.
impl Lines {
    #[inline(always)]
    unsafe fn pack<E: Engine>(&self, first: usize) {
        // What completes a step of an earlier call.
        let begun = (first.next_multiple_of(STEP) - first).min(self.depth);
        // SAFETY: the caller's contract; products are taken in order, up to `depth`.
        unsafe {
            self.one_by_one(first, 0..begun);
            // Lines that lie along the sum are read one run after the other, those that lie across side by side.
            if self.along == 1 {
                for line in (0..self.count).step_by(SIDE) {
                    for p in (begun..self.depth).step_by(STEP) {
                        self.along::<E>(first, line, p..(p + STEP).min(self.depth));
                    }
                }
                return;
            }
            for p in (begun..self.depth).step_by(STEP) {
                let products = p..(p + STEP).min(self.depth);
                if self.across == 1 {
                    for line in (0..self.count).step_by(SIDE) {
                        self.across::<E>(first, line, products.clone());
                    }
                } else {
                    self.clear(first + p);
                    self.one_by_one(first, products);
                }
            }
        }
    }

    /// Where the step begins that a product is in.
    #[inline(always)]
    unsafe fn step(&self, product: usize) -> *mut u32 {
        // SAFETY: the caller's contract.
        unsafe { self.dst.add(product / STEP * STEP_WORDS * WIDTH) }
    }

    /// Makes a step zeros.
    #[inline(always)]
    unsafe fn clear(&self, product: usize) {
        // SAFETY: the caller's contract.
        unsafe { self.step(product).write_bytes(0, STEP_WORDS * WIDTH) };
    }

    #[inline(always)]
    unsafe fn one_by_one(&self, first: usize, products: Range<usize>) {
        for p in products {
            let (word, half) = ((first + p) % STEP / 2, (first + p) % 2);
            for line in 0..self.count {
                let at = match self.of {
                    Operand::A => line * SIDE + word,
                    Operand::B => word * WIDTH + line,
                };
                // SAFETY: the caller's contract.
                unsafe {
                    let parts = thirds(*self.src.add(line * self.across + p * self.along));
                    for (third, part) in parts.into_iter().enumerate() {
                        let to = self.step(first + p).add(third * THIRD_WORDS + at).cast::<u16>();
                        *to.add(half) = (part >> 16) as u16;
                    }
                }
            }
        }
    }

    /// A step of up to sixteen lines that lie along the sum.
    #[inline(always)]
    unsafe fn along<E: Engine>(&self, first: usize, line: usize, products: Range<usize>) {
        let mut step = Squares::new();
        // SAFETY: the caller's contract; a copy has room for a step.
        unsafe {
            let place = self.place(first + products.start, line);
            for i in 0..(self.count - line).min(SIDE) {
                let mut values = [0.0f32; STEP];
                let mut from = self.src.add((line + i) * self.across + products.start);
                prefetch_run(from.wrapping_add(SIDE * self.across), STEP);
                if products.len() < STEP {
                    values.as_mut_ptr().copy_from_nonoverlapping(from, products.len());
                    from = values.as_ptr();
                }
                let row = if self.of == Operand::A { place.row(i) } else { step.place().row(i) };
                E::split_along(from, row);
            }
            if self.of == Operand::B {
                step.clear((self.count - line).min(SIDE)..SIDE);
                step.turn::<E>(place);
            }
        }
    }

    /// A step of up to sixteen lines that lie side by side.
    #[inline(always)]
    unsafe fn across<E: Engine>(&self, first: usize, line: usize, products: Range<usize>) {
        let mut step = Squares::new();
        let count = (self.count - line).min(SIDE);
        let mut copies = [[0.0f32; SIDE]; 2];
        // SAFETY: the caller's contract; a copy has room for a row, and products that there are not are zeros.
        unsafe {
            let place = self.place(first + products.start, line);
            for word in 0..SIDE {
                let mut rows = [std::ptr::null(); 2];
                for half in 0..2 {
                    let (p, copy) = (products.start + 2 * word + half, &mut copies[half]);
                    let from = self.src.wrapping_add(p * self.along + line);
                    prefetch(from.wrapping_add(STEP * self.along));
                    rows[half] = if p >= products.end {
                        *copy = [0.0; SIDE];
                        copy.as_ptr()
                    } else if count < SIDE {
                        copy.as_mut_ptr().copy_from_nonoverlapping(from, count);
                        copy.as_ptr()
                    } else {
                        from
                    };
                }
                let row = if self.of == Operand::B { place.row(word) } else { step.place().row(word) };
                E::split_across(rows, row);
            }
            if self.of == Operand::A {
                // All rows of words are written: products that there are not are zeros.
                step.turn::<E>(place);
            }
        }
    }

    /// Where sixteen lines of a step are.
    #[inline(always)]
    unsafe fn place(&self, product: usize, line: usize) -> Place {
        // SAFETY: the caller's contract.
        unsafe {
            let step = self.step(product);
            match self.of {
                Operand::A => Place { at: step.add(line * SIDE), row: SIDE, third: THIRD_WORDS },
                Operand::B => Place { at: step.add(line), row: WIDTH, third: THIRD_WORDS },
            }
        }
    }
}

/// Where rows of sixteen words are, of three parts.
#[derive(Clone, Copy)]
struct Place {
    at: *mut u32,
    row: usize,
    third: usize,
}

impl Place {
    /// # Safety
    /// There is such a row.
    #[inline(always)]
    unsafe fn row(self, number: usize) -> [*mut u32; THIRDS] {
        // SAFETY: the caller's contract.
        let at = unsafe { self.at.add(number * self.row) };
        [at, at.wrapping_add(self.third), at.wrapping_add(2 * self.third)]
    }
}

/// Words that are to be turned.
#[repr(align(64))]
struct Squares([std::mem::MaybeUninit<[[u32; SIDE]; SIDE]>; THIRDS]);

impl Squares {
    #[inline(always)]
    fn new() -> Squares {
        Squares([const { std::mem::MaybeUninit::uninit() }; THIRDS])
    }

    #[inline(always)]
    fn place(&mut self) -> Place {
        Place { at: self.0.as_mut_ptr().cast(), row: SIDE, third: SIDE * SIDE }
    }

    /// Makes rows of all parts zeros: lines that there are not, which are turned with the others.
    #[inline(always)]
    fn clear(&mut self, rows: Range<usize>) {
        for row in rows {
            // SAFETY: squares have sixteen rows.
            unsafe { self.place().row(row).into_iter().for_each(|row| row.write_bytes(0, SIDE)) };
        }
    }

    /// Turns them to another place.
    ///
    /// # Safety
    /// All rows are written; the machine has the engine's instructions, the place the rows.
    #[inline(always)]
    unsafe fn turn<E: Engine>(&self, to: Place) {
        for third in 0..THIRDS {
            // SAFETY: the caller's contract.
            unsafe {
                let square = E::transposed(&*self.0[third].as_ptr());
                for (number, row) in square.iter().enumerate() {
                    *to.row(number)[third].cast::<[u32; SIDE]>() = *row;
                }
            }
        }
    }
}
