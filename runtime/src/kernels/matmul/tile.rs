//! The register tile, written once for all vector flavours.
//!
//! ```text
//!           B panel [depth][columns]                 acc[i][j] = fma(a[p][i], b[p][j], acc[i][j])     for p in 0..depth, in order
//!  A panel  ┌──────────────┐
//!  [depth]  │ ROWS ×       │  C (+)= acc
//!  [A_WIDTH]│ VECTORS·LANES│
//!           └──────────────┘
//! ```
//!
//! A panel's elements are *words*: one value each, or a pair of bf16 ([`Simd::PAIR`]), where `fma` is `dot`. (AMX has tiles, panels and sums of its own:
//! [`super::amx`].)
//!
//! An element of C is one chain of fused multiply-adds over a block of the summed dimension, whatever tile it falls into and however wide the vectors are: that is
//! what makes products batch-invariant.

/// Words in a packed row of A, for all flavours of vectors: none of their tiles has more rows.
pub(in crate::kernels) const A_WIDTH: usize = 8;

/// Lanes of a register at most.
const MOST_LANES: usize = 16;

/// What a product is summed in.
pub(in crate::kernels) trait Real:
    Copy + Default + Send + Sync + std::ops::Add<Output = Self> + 'static
{
    /// The nearest bf16.
    fn rounded(self) -> half::bf16;
}
impl Real for f32 {
    #[inline(always)]
    fn rounded(self) -> half::bf16 {
        half::bf16::narrow(self)
    }
}
impl Real for f64 {
    fn rounded(self) -> half::bf16 {
        half::bf16::from_f64(self)
    }
}

/// What A and B are stored in.
pub(in crate::kernels) trait Source<T>: Copy + 'static {
    /// The value at full precision.
    fn widen(self) -> T;
    /// The value rounded to this type.
    fn narrow(wide: T) -> Self;
    /// Can a tile read it as it is?
    const PLAIN: bool;
}

impl Source<f32> for f32 {
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
    #[inline(always)]
    fn narrow(wide: f32) -> f32 {
        wide
    }
    const PLAIN: bool = true;
}

impl Source<f64> for f64 {
    #[inline(always)]
    fn widen(self) -> f64 {
        self
    }
    #[inline(always)]
    fn narrow(wide: f64) -> f64 {
        wide
    }
    const PLAIN: bool = true;
}

impl Source<f32> for half::bf16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        crate::kernels::math::widened(self.to_bits())
    }
    #[inline(always)]
    fn narrow(wide: f32) -> half::bf16 {
        half::bf16::from_bits(crate::kernels::math::narrowed(wide))
    }
    const PLAIN: bool = false;
}

/// Where a tile's B and C are.
#[derive(Clone, Copy)]
pub(in crate::kernels) struct TileArgs<T> {
    /// Rows of the tile, `1..=ROWS`.
    pub rows: usize,
    /// Columns, `1..=COLUMNS`.
    pub columns: usize,
    /// How many words of panels are summed.
    pub depth: usize,
    /// The tile's rows of A.
    pub a: *const T,
    /// From one row of A to the next: 1 in packed panels.
    pub a_row: usize,
    /// From one product to the next: `A_WIDTH` in packed panels.
    pub a_step: usize,
    /// Rows of B.
    pub b: *const T,
    /// From one row of B to the next.
    pub b_stride: usize,
    /// Do rows of B have all `COLUMNS` of a full tile, as packed ones do?
    pub padded: bool,
    /// The first element of C; columns are contiguous.
    pub c: *mut T,
    /// From one row of C to the next.
    pub c_stride: usize,
    /// Add to C instead of replacing it.
    pub add: bool,
    /// Where sums are rounded to bf16 and stored instead, if anywhere, and how far it is from one row there to the next: the first element, columns are
    /// contiguous. What is to be added is in C all the same. For one tile at a time.
    pub rounded: Option<(*mut half::bf16, usize)>,
    /// Is A the plan's B? For sums whose order depends on it.
    #[cfg_attr(not(any(test, target_arch = "x86_64")), expect(dead_code, reason = "there are no tiles"))]
    pub turned: bool,
    /// How many tiles of the same columns of B, one below the other.
    pub count: usize,
    /// From one tile to the next in A.
    pub a_next: usize,
    /// From one tile to the next in C.
    pub c_next: usize,
}

/// How products are cut and packed: nothing of it changes bits. Sums of `rows` times a panel's columns are to be no more than [`super::SUMS`].
pub(in crate::kernels) struct Blocking {
    /// Rows of a task at most: the more, the less often B is packed, but packed rows of A are to stay in the second-level cache.
    pub rows: usize,
    /// Where several chains are packed at once: are all tiles of a panel done chain by chain, or all chains tile by tile? Chains together may take more than the first-level
    /// cache; sums of all tiles take more than those of one.
    pub chain_by_chain: bool,
    /// Are the operands that are read next, and what is written behind tiles, fetched while tiles multiply ([`super::ahead`])?
    pub fetches: bool,
    /// Elements of C that an epilogue is given at once at most: of short parts of rows it does fewer in a second, whatever is still in a cache.
    pub epilogue: usize,
}

/// Work that is compiled for a flavour's CPU features: `run` is to be `#[inline(always)]`.
pub(in crate::kernels) trait Pass {
    /// Does it.
    ///
    /// # Safety
    /// The work's own contract.
    unsafe fn run(self);
}

/// One vector flavour. The methods but `tile` and `pack_*` are for code that is compiled for the flavour's CPU features.
///
/// # Safety
/// All methods: the machine has the flavour's features, and pointers are good for what is read or written.
pub(in crate::kernels) trait Simd: Copy + 'static {
    type T: Real;
    type R: Copy;
    const LANES: usize;
    /// Rows of a full tile, at most [`Simd::PANEL`].
    const ROWS: usize;
    /// Vectors in a row of a full tile.
    const VECTORS: usize;
    /// Columns of a full tile.
    const COLUMNS: usize = Self::LANES * Self::VECTORS;
    unsafe fn zero() -> Self::R;
    unsafe fn splat(p: *const Self::T) -> Self::R;
    unsafe fn load(p: *const Self::T) -> Self::R;
    unsafe fn store(p: *mut Self::T, v: Self::R);
    /// The first `n` lanes; the others are zero.
    unsafe fn load_part(p: *const Self::T, n: usize) -> Self::R;
    /// The first `n` lanes; nothing else is touched.
    unsafe fn store_part(p: *mut Self::T, v: Self::R, n: usize);
    /// `a·b + c`
    unsafe fn fma(a: Self::R, b: Self::R, c: Self::R) -> Self::R;
    unsafe fn add(a: Self::R, b: Self::R) -> Self::R;
    /// Stores the first `n` lanes rounded to bf16.
    #[inline(always)]
    unsafe fn store_rounded(p: *mut half::bf16, v: Self::R, n: usize) {
        let mut lanes = [Self::T::default(); MOST_LANES];
        // SAFETY: the trait's contract; there is room for a register.
        unsafe {
            Self::store(lanes.as_mut_ptr(), v);
            lanes.iter().take(n).enumerate().for_each(|(i, lane)| *p.add(i) = lane.rounded());
        }
    }
    /// Products that are summed in one chain, whole pairs: a part of the definition of the result's bits, but for bf16 with AMX, whose chains go on. Sums that go to memory between chains are read again, and
    /// a tile has to be filled and emptied for each; but panels of so many products must stay in the cache.
    const BLOCK_K: usize = 256;
    /// Products in one word of a panel: 1, or 2 where a word of 32 bits holds two bf16, the first in the low half.
    const PAIR: usize = 1;
    /// Adds the products of words: `Σ a·b + c`.
    #[inline(always)]
    unsafe fn dot(a: Self::R, b: Self::R, c: Self::R) -> Self::R {
        // SAFETY: the trait's contract.
        unsafe { Self::fma(a, b, c) }
    }
    /// Rounds the values of two vectors to bf16, ties to even: those of `low` fill the first half of a vector of words, those of `high` the second. Where words hold
    /// pairs.
    #[inline(always)]
    unsafe fn round(low: Self::R, high: Self::R) -> Self::R {
        let _ = (low, high);
        unreachable!("words hold one value")
    }
    /// The values of both halves as pairs, lane by lane: those of the first half are the first of their pairs.
    #[inline(always)]
    unsafe fn zip(halves: Self::R) -> Self::R {
        let _ = halves;
        unreachable!("words hold one value")
    }
    /// Stores each half to a place of its own.
    #[inline(always)]
    unsafe fn store_halves([first, second]: [*mut Self::T; 2], halves: Self::R) {
        let _ = (first, second, halves);
        unreachable!("words hold one value")
    }
    /// Words that hold so many products.
    #[inline(always)]
    fn words(products: usize) -> usize {
        products.div_ceil(Self::PAIR)
    }
    /// `dst[p·width + i] = src[i·stride + p]` for `i < rows` and `p < TRANSPOSE`; lanes `rows..TRANSPOSE` become zero.
    unsafe fn transpose(src: *const Self::T, stride: usize, rows: usize, dst: *mut Self::T, width: usize);
    /// The same of full squares that follow each other along the rows: two of them.
    #[inline(always)]
    unsafe fn transpose_two(src: *const Self::T, stride: usize, dst: *mut Self::T, width: usize) {
        let side = Self::TRANSPOSE;
        // SAFETY: the trait's contract; there are `side` rows of twice as many values.
        unsafe {
            Self::transpose(src, stride, side, dst, width);
            Self::transpose(src.add(side), stride, side, dst.add(side * width), width);
        }
    }
    /// The values of two rows of 32 as words, the first row's in the low halves.
    #[inline(always)]
    unsafe fn pairs(low: *const u16, high: *const u16) -> [[u32; A_WIDTH]; super::pack::SIDE_BY_SIDE] {
        // SAFETY: the trait's contract.
        unsafe { super::pairs::words(low, high) }
    }
    /// How products are cut and packed.
    const BLOCKING: Blocking = Blocking { rows: 256, chain_by_chain: false, fetches: true, epilogue: usize::MAX };
    /// May tiles read A and B where they are, if they are of the type that is summed?
    const IN_PLACE: bool = true;
    /// Rows that a packed panel of A has room for.
    const PANEL: usize = A_WIDTH;
    /// Tiles of a few rows take as long as those of a multiple of this.
    const GRAIN: usize = 1;
    /// Packs rows of A, or panels of them, from product `first` of the panel on.
    #[inline(always)]
    unsafe fn pack_a<X: Source<Self::T>>(args: super::pack::PackArgs<X, Self::T>, first: usize) {
        // SAFETY: the trait's contract.
        unsafe { Self::pack(super::pack::PackArgs { dst: args.dst.add(first / Self::PAIR * Self::PANEL), ..args }) }
    }
    /// Packs columns of B, or a part of a panel, from product `first` of a panel of so many words on.
    #[inline(always)]
    unsafe fn pack_b<X: Source<Self::T>>(args: super::pack::PackArgs<X, Self::T>, first: usize, words: usize) {
        let _ = words;
        // SAFETY: the trait's contract.
        unsafe { Self::pack(super::pack::PackArgs { dst: args.dst.add(first / Self::PAIR * Self::COLUMNS), ..args }) }
    }
    /// A product of small matrices.
    #[inline(always)]
    unsafe fn product(product: super::product::Product<Self::T>) {
        // SAFETY: the trait's contract.
        unsafe { product.by_tiles::<Self>() }
    }
    /// Words of a panel that holds so many products.
    #[inline(always)]
    fn panel_words(products: usize) -> usize {
        Self::words(products)
    }
    /// To be called before the tiles of a task, on the thread that makes them.
    unsafe fn begin() {}
    /// To be called behind them.
    unsafe fn end() {}
    /// Is `fma` one operation, rounded once?
    const FUSED: bool;
    /// Side of the squares that `transpose` takes; divides `A_WIDTH` and `COLUMNS`.
    const TRANSPOSE: usize;

    unsafe fn tile(args: &TileArgs<Self::T>);
    /// Packs `width ≤ 8` rows of A, or columns of B, as `dst[p·panel + i]`; see [`super::pack`].
    unsafe fn pack<X: Source<Self::T>>(args: super::pack::PackArgs<X, Self::T>);
    /// Runs other work with code that is compiled for the flavour's CPU features.
    unsafe fn apply<P: Pass>(pass: P);
    /// Rounds a block of sums and stores it, or adds it to C.
    unsafe fn finish<X: Source<Self::T>>(args: super::pack::FinishArgs<X, Self::T>);
}

/// Tiles of a constant size; `PACKED` says that A is in panels, so that addresses in it are constants.
#[inline(always)]
pub(super) unsafe fn tiles_of<S: Simd, const ROWS: usize, const VECTORS: usize, const PACKED: bool>(
    args: &TileArgs<S::T>,
) {
    for number in 0..args.count {
        // SAFETY: the caller's contract: A and C have the tiles.
        unsafe {
            let (a, c) = (args.a.add(number * args.a_next), args.c.add(number * args.c_next));
            let args = TileArgs { a, c, ..*args };
            let acc = sums_of::<S, ROWS, VECTORS, PACKED>(&args);
            for (i, acc) in acc.iter().enumerate() {
                for (j, &sum) in acc.iter().enumerate() {
                    let (p, n) = (args.c.add(i * args.c_stride + j * S::LANES), args.lanes::<S, VECTORS>(j));
                    if n == S::LANES {
                        S::store(p, if args.add { S::add(S::load(p), sum) } else { sum });
                    } else {
                        S::store_part(p, if args.add { S::add(S::load_part(p, n), sum) } else { sum }, n);
                    }
                }
            }
        }
    }
}

/// A tile of packed rows, whose sums are rounded.
#[inline(always)]
pub(super) unsafe fn rounded_of<S: Simd, const ROWS: usize, const VECTORS: usize>(
    args: &TileArgs<S::T>,
    (rounded, stride): (*mut half::bf16, usize),
) {
    debug_assert!(args.count == 1 && args.a_row == 1 && args.a_step == A_WIDTH);
    // SAFETY: the caller's contract: there is a place for each sum, and one to be added, where there is any.
    unsafe {
        let acc = sums_of::<S, ROWS, VECTORS, true>(args);
        for (i, acc) in acc.iter().enumerate() {
            for (j, &sum) in acc.iter().enumerate() {
                let n = args.lanes::<S, VECTORS>(j);
                let old = args.c.wrapping_add(i * args.c_stride + j * S::LANES);
                let sum = if args.add { S::add(S::load_part(old, n), sum) } else { sum };
                S::store_rounded(rounded.add(i * stride + j * S::LANES), sum, n);
            }
        }
    }
}

impl<T> TileArgs<T> {
    /// How many lanes of a vector there are.
    #[inline(always)]
    fn lanes<S: Simd<T = T>, const VECTORS: usize>(&self, vector: usize) -> usize {
        if vector + 1 < VECTORS { S::LANES } else { self.columns - (VECTORS - 1) * S::LANES }
    }
}

/// The sums of a tile.
#[inline(always)]
unsafe fn sums_of<S: Simd, const ROWS: usize, const VECTORS: usize, const PACKED: bool>(
    args: &TileArgs<S::T>,
) -> [[S::R; VECTORS]; ROWS] {
    let (a_row, a_step) = if PACKED { (1, A_WIDTH) } else { (args.a_row, args.a_step) };
    let last = args.columns - (VECTORS - 1) * S::LANES;
    // SAFETY: `args` describe live arrays of these sizes (the caller's contract): B has `columns` values in each row, `COLUMNS` when padded; loads and
    // stores of the last vector of a row are cut to `last` lanes where the row may end there.
    unsafe {
        let mut acc = [[S::zero(); VECTORS]; ROWS];
        let (mut a, mut b) = (args.a, args.b);
        prefetch_c::<S, ROWS, VECTORS>(args);
        // (Behind the last product there may be nothing.)
        if last == S::LANES || args.padded {
            for _ in 0..args.depth {
                let row = std::array::from_fn(|j| S::load(b.add(j * S::LANES)));
                step::<S, ROWS, VECTORS>(&mut acc, a, a_row, row);
                a = a.wrapping_add(a_step);
                b = b.wrapping_add(args.b_stride);
            }
        } else {
            for _ in 0..args.depth {
                let row = std::array::from_fn(|j| {
                    let p = b.add(j * S::LANES);
                    if j + 1 < VECTORS { S::load(p) } else { S::load_part(p, last) }
                });
                step::<S, ROWS, VECTORS>(&mut acc, a, a_row, row);
                a = a.wrapping_add(a_step);
                b = b.wrapping_add(args.b_stride);
            }
        }
        acc
    }
}

#[inline(always)]
unsafe fn step<S: Simd, const ROWS: usize, const VECTORS: usize>(
    acc: &mut [[S::R; VECTORS]; ROWS],
    a: *const S::T,
    a_row: usize,
    row: [S::R; VECTORS],
) {
    for (i, acc) in acc.iter_mut().enumerate() {
        // SAFETY: A has `ROWS` rows; packed ones `A_WIDTH ≥ ROWS`.
        unsafe {
            let x = S::splat(a.add(i * a_row));
            for (acc, &y) in acc.iter_mut().zip(&row) {
                *acc = S::dot(x, y, *acc);
            }
        }
    }
}

/// C is needed in a few thousand cycles: long enough to fetch it meanwhile.
#[inline(always)]
unsafe fn prefetch_c<S: Simd, const ROWS: usize, const VECTORS: usize>(args: &TileArgs<S::T>) {
    for i in 0..ROWS {
        if let Some((rounded, stride)) = args.rounded {
            prefetch_run(rounded.wrapping_add(i * stride), VECTORS * S::LANES);
        }
        if args.add || args.rounded.is_none() {
            for j in 0..VECTORS {
                prefetch(args.c.wrapping_add(i * args.c_stride + j * S::LANES));
            }
        }
    }
}

/// Fetches the cache line at an address, which may be any.
#[inline(always)]
pub(in crate::kernels) fn prefetch<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address is harmless.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast::<i8>());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Fetches the cache lines of `n` values.
#[inline(always)]
pub(in crate::kernels) fn prefetch_run<T>(at: *const T, n: usize) {
    lines(at, n, prefetch);
}

/// The same into the second-level cache, which has room for more.
#[inline(always)]
pub(in crate::kernels) fn fetch_run<T>(at: *const T, n: usize) {
    lines(at, n, |at| {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch of any address is harmless.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(at.cast::<i8>());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = at;
    });
}

/// Calls `f` with an address in each cache line of `n` values.
#[inline(always)]
pub(super) fn lines<T>(at: *const T, n: usize, f: impl Fn(*const u8)) {
    let bytes = n * size_of::<T>();
    let at = at.cast::<u8>();
    let mut byte = 0;
    while byte < bytes {
        f(at.wrapping_add(byte));
        byte += CACHE_LINE;
    }
    if bytes > 0 {
        // Runs need not begin with a line.
        f(at.wrapping_add(bytes - 1));
    }
}

/// Bytes.
pub(super) const CACHE_LINE: usize = 64;

/// The methods of a flavour that are compiled for its CPU features; tiles of these sizes.
macro_rules! entry_points {
    ($(features $features:literal,)? rows $($rows:literal)*, vectors $($vectors:literal)*) => {
        unsafe fn tile(args: &crate::kernels::matmul::tile::TileArgs<Self::T>) {
            $(#[target_feature(enable = $features)])?
            unsafe fn sized<const ROWS: usize, const VECTORS: usize, const PACKED: bool>(
                args: &crate::kernels::matmul::tile::TileArgs<<Flavour as Simd>::T>,
            ) {
                // SAFETY: the caller's contract.
                unsafe { crate::kernels::matmul::tile::tiles_of::<Flavour, ROWS, VECTORS, PACKED>(args) }
            }
            // A function of its own: sums that go either way would not stay in registers.
            $(#[target_feature(enable = $features)])?
            unsafe fn rounded<const ROWS: usize, const VECTORS: usize>(
                args: &crate::kernels::matmul::tile::TileArgs<<Flavour as Simd>::T>,
                to: (*mut half::bf16, usize),
            ) {
                // SAFETY: the caller's contract.
                unsafe { crate::kernels::matmul::tile::rounded_of::<Flavour, ROWS, VECTORS>(args, to) }
            }
            entry_points!(@rows args, args.columns.div_ceil(Self::LANES), [$($rows)*], [$($vectors)*])
        }

        crate::kernels::matmul::tile::compiled!($(features $features)?);
    };
    (@rows $args:expr, $n:expr, [$($rows:literal)*], $vectors:tt) => {
        match $args.rows {
            $($rows => entry_points!(@vectors $args, $n, $rows, $vectors),)*
            _ => unreachable!("a tile of {} rows", $args.rows),
        }
    };
    (@vectors $args:expr, $n:expr, $rows:literal, [$($vectors:literal)*]) => {
        match $n {
            // SAFETY: the machine has the features (the trait's contract).
            $($vectors => unsafe {
                if let Some(to) = $args.rounded {
                    rounded::<$rows, $vectors>($args, to)
                } else if $args.a_row == 1 && $args.a_step == crate::kernels::matmul::tile::A_WIDTH {
                    sized::<$rows, $vectors, true>($args)
                } else {
                    sized::<$rows, $vectors, false>($args)
                }
            },)*
            _ => unreachable!("a tile of {} vectors", $n),
        }
    };
}
pub(super) use entry_points;

/// The other methods that are compiled for a flavour's CPU features.
macro_rules! compiled {
    ($(features $features:literal)?) => {
        unsafe fn pack<X: crate::kernels::matmul::tile::Source<Self::T>>(
            args: crate::kernels::matmul::pack::PackArgs<X, Self::T>,
        ) {
            $(#[target_feature(enable = $features)])?
            unsafe fn featured<X: crate::kernels::matmul::tile::Source<<Flavour as Simd>::T>>(
                args: crate::kernels::matmul::pack::PackArgs<X, <Flavour as Simd>::T>,
            ) {
                // SAFETY: the caller's contract.
                unsafe { crate::kernels::matmul::pack::pack_panel::<Flavour, X>(args) }
            }
            // SAFETY: the machine has the features (the trait's contract).
            unsafe { featured::<X>(args) }
        }

        unsafe fn apply<P: crate::kernels::matmul::tile::Pass>(pass: P) {
            $(#[target_feature(enable = $features)])?
            unsafe fn featured<P: crate::kernels::matmul::tile::Pass>(pass: P) {
                // SAFETY: the caller's contract.
                unsafe { pass.run() }
            }
            // SAFETY: the machine has the features (the trait's contract).
            unsafe { featured::<P>(pass) }
        }

        unsafe fn finish<X: crate::kernels::matmul::tile::Source<Self::T>>(
            args: crate::kernels::matmul::pack::FinishArgs<X, Self::T>,
        ) {
            $(#[target_feature(enable = $features)])?
            unsafe fn featured<X: crate::kernels::matmul::tile::Source<<Flavour as Simd>::T>>(
                args: crate::kernels::matmul::pack::FinishArgs<X, <Flavour as Simd>::T>,
            ) {
                // SAFETY: the caller's contract.
                unsafe { crate::kernels::matmul::pack::finish_block::<Flavour, X>(args) }
            }
            // SAFETY: the machine has the features (the trait's contract).
            unsafe { featured::<X>(args) }
        }
    };
}
pub(super) use compiled;
