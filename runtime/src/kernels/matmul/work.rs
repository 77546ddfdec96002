//! The tasks of a product, and what a task does.

use super::ahead::{Turns, Upcoming};
use super::blocks::Cut;
use super::pack::{FinishArgs, PackArgs, SIDE_BY_SIDE};
use super::parts::{Block, Columns, Rows, Task, chained};
use super::problem::{Piece, Problem};
use super::tile::{Simd, Source, TileArgs};
use super::{SERIAL, SUMS};
use crate::kernels::scratch::Scratch;
use crate::pool::Pool;
use std::ops::Range;

/// Elements that rows of A take in panels, for one chain.
fn packed_a<S: Simd>() -> usize {
    S::BLOCKING.rows.div_ceil(S::ROWS) * S::PANEL * S::panel_words(S::BLOCK_K)
}

/// Elements that a panel of B takes, for one chain.
fn packed_b<S: Simd>() -> usize {
    S::COLUMNS * S::panel_words(S::BLOCK_K)
}

/// Elements that a worker needs: rows of A, a panel of B, a block of sums.
pub(super) fn worker_elements<S: Simd, X: Source<S::T>>() -> usize {
    let (a, b) = together::<S, X>();
    a * packed_a::<S>() + b * packed_b::<S>() + SUMS
}

/// Chains that are done together, where there are no more and tiles round their sums to C: from one chain to the next there are sums of a tile then, or of a panel, not of
/// a block of columns, and rows of A are packed once for all columns.
const TOGETHER: usize = 2;

/// Chains that are packed at once at most: of A, and of B.
fn together<S: Simd, X: Source<S::T>>() -> (usize, usize) {
    let a = if X::PLAIN { 1 } else { TOGETHER };
    (a, if S::BLOCKING.chain_by_chain { 1 } else { a })
}

/// A block of so few panels reads A where it is: packing would cost more than it saves; but only rows that lie along the sum: others would be spread over too many cache lines.
const FEW_PANELS: usize = 2;

/// For so few rows what is read next of a B that is not packed is not fetched: there are no tiles behind which it could be.
const FEW_ROWS: usize = 32;

/// Tasks for each worker at least.
const TASKS: usize = 2;
/// The same where groups are of uneven sizes: one task too many is to be a small part of a worker's, but small tasks pack more.
const TASKS_OF_GROUPS: usize = 8;

/// A product that is running.
pub(super) struct Job<'a, X> {
    pub problem: &'a Problem,
    pub offsets: Option<*const i32>,
    pub a: *mut X,
    pub b: *mut X,
    pub c: *mut X,
    pub scratch: &'a Scratch,
    /// May tiles write to C?
    pub direct: bool,
    /// Called with each part of C that is complete.
    pub finished: &'a Finished<'a>,
}

/// First element of a part, from the start of the result; rows and columns; from one row to the next; the worker.
pub(super) type Finished<'a> = dyn Fn(usize, [usize; 2], usize, usize) + Sync + 'a;

// SAFETY: tasks read A and B, and write blocks of C that do not overlap.
unsafe impl<X> Sync for Job<'_, X> {}

/// `S` is the flavour of vectors throughout.
impl<X: Copy + 'static> Job<'_, X> {
    /// All tasks.
    ///
    /// # Safety
    /// The buffers hold the problem, the offsets are in range, the scratch is ours and as large as asked for.
    pub unsafe fn run<S: Simd>(&self, pool: &Pool)
    where
        X: Source<S::T>,
    {
        let per_batch = self.problem.groups.as_ref().map_or(1, |g| g.count);
        let pieces = self.problem.pieces();
        if pieces == 0 {
            return;
        }
        let serial = self.problem.work() <= SERIAL;
        let tasks_of = |piece: &Piece, cut: Cut| cut.blocks(piece.m, piece.n);
        let total = |cut| {
            let group_tasks = |g| tasks_of(&self.problem.piece(g, self.offsets), cut);
            pieces / per_batch * (0..per_batch).map(group_tasks).sum::<usize>()
        };
        // (The second is the first where tasks have no more rows.)
        let cuts = [(S::BLOCKING.rows, 1024), (256, 1024), (256, 512), (128, 512), (64, 512), (64, 192)];
        let cut = self.choose_cut::<S>(&cuts, pool, serial, total);
        let tasks = total(cut);
        let in_batch = tasks / (pieces / per_batch);
        // Of several pieces workers have whole ones, mostly.
        let bands = if serial || pieces > 1 { 1 } else { pool.workers() };
        // SAFETY: the caller's contract: the shared part is ours, and has room for a number for each group.
        let starts = unsafe { self.starts(per_batch, |group| tasks_of(&self.problem.piece(group, self.offsets), cut)) };
        // So many tasks behind the first of a piece; and how many behind that of its own piece.
        let find = |first: usize, mut behind: usize| {
            (first..pieces).find_map(|number| {
                let piece = self.problem.piece(number, self.offsets);
                let tasks = tasks_of(&piece, cut);
                if behind >= tasks {
                    behind -= tasks;
                    return None;
                }
                let (rows, columns) = cut.block::<S>(behind, piece.m, piece.n, bands);
                Some((Task { piece, rows, columns }, number, behind))
            })
        };
        each(pool, tasks, serial, &|task, worker| {
            let (batch, task) = (task / in_batch, task % in_batch);
            // The last group that begins at or before the task: those without tasks begin where the next one does.
            let group = starts.partition_point(|&start| start <= task).saturating_sub(1);
            let found = find(batch * per_batch + group, task - starts.get(group).map_or(0, |&start| start));
            let (task, number, behind) = found.expect("there are so many tasks");
            // A worker's own tasks follow each other; those that it takes over from others do not.
            let following = S::BLOCKING.fetches.then(|| find(number, behind + 1)).flatten().map(|(task, ..)| task);
            // SAFETY: the caller's contract; blocks of different tasks do not overlap.
            unsafe {
                S::begin();
                self.block::<S>(&task, following.as_ref(), worker);
                S::end();
            }
        });
    }

    /// The first task of each group, where there are groups.
    ///
    /// # Safety
    /// The shared part of the workspace is ours, and has room for them.
    unsafe fn starts(&self, groups: usize, tasks_of: impl Fn(usize) -> usize) -> &[usize] {
        if self.problem.groups.is_none() {
            return &[];
        }
        // SAFETY: the caller's contract; any bytes are numbers, and all are written.
        let starts = unsafe { std::slice::from_raw_parts_mut(self.scratch.shared().cast::<usize>(), groups) };
        let mut tasks = 0;
        for (group, start) in starts.iter_mut().enumerate() {
            *start = tasks;
            tasks += tasks_of(group);
        }
        starts
    }

    /// The coarsest cut that gives each worker a few tasks. Cuts do not change bits.
    fn choose_cut<S: Simd>(
        &self,
        cuts: &[(usize, usize)],
        pool: &Pool,
        serial: bool,
        total: impl Fn(Cut) -> usize,
    ) -> Cut
    where
        X: Source<S::T>,
    {
        let whole = match self.direct {
            true => !self.problem.accumulate,
            false => self.rounds::<S>() && self.problem.deepest() <= TOGETHER * S::BLOCK_K,
        };
        let limited = |&(rows, columns): &(usize, usize)| {
            let columns = if whole { columns } else { columns.min(SUMS / rows) };
            Cut::new::<S>(rows, columns)
        };
        let each = if self.problem.groups.is_some() { TASKS_OF_GROUPS } else { TASKS };
        let enough = if serial || pool.workers() == 1 { 1 } else { each * pool.workers() };
        let mut cuts = cuts.iter().map(limited);
        let last = cuts.next_back().expect("there are cuts");
        cuts.find(|&cut| total(cut) >= enough).unwrap_or(last)
    }

    /// Do tiles round the last sums to C themselves? Then C is of bf16.
    fn rounds<S: Simd>(&self) -> bool
    where
        X: Source<S::T>,
    {
        !X::PLAIN && self.problem.n.strides[2] == 1 && !self.problem.accumulate
    }

    /// Is B of the type that is summed, and are its rows rows in memory? Then tiles read it where it is: their part of a row is a few cache lines, and what would be packed is
    /// read as often. A chain must lie in one run, though.
    fn has_rows_of_b<S: Simd>(&self) -> bool
    where
        X: Source<S::T>,
    {
        X::PLAIN && S::IN_PLACE && self.problem.n.strides[1] == 1
    }

    /// A block of C, and what is to be done with it.
    unsafe fn block<S: Simd>(&self, task: &Task, following: Option<&Task>, worker: usize)
    where
        X: Source<S::T>,
    {
        let [row_stride, column_stride] = [self.problem.m.strides[2], self.problem.n.strides[2]];
        let first = self.first_of(task);
        let finished = |columns: Range<usize>| {
            let size = [task.rows.len(), columns.len()];
            (self.finished)(first + columns.start * column_stride, size, row_stride, worker);
        };
        // SAFETY: the caller's contract.
        unsafe { self.sums::<S>(task, following, worker, &finished) };
    }

    /// A block's first element, from the start of the result.
    fn first_of(&self, Task { piece, rows, columns }: &Task) -> usize {
        let [row_stride, column_stride] = [self.problem.m.strides[2], self.problem.n.strides[2]];
        piece.at[2] - self.problem.offsets[2] + rows.start * row_stride + columns.start * column_stride
    }

    /// A block of C; calls `finished` with columns of it that are complete.
    unsafe fn sums<S: Simd>(
        &self,
        task: &Task,
        following: Option<&Task>,
        worker: usize,
        finished: &dyn Fn(Range<usize>),
    ) where
        X: Source<S::T>,
    {
        let (piece, depth) = (&task.piece, task.piece.depth());
        // SAFETY: the caller's contract.
        unsafe {
            let block = self.laid_out::<S>(task, worker);
            let width = block.columns.len();
            if depth == 0 {
                self.nothing_to_sum::<S>(&block);
                return finished(0..width);
            }
            let together = (S::BLOCKING.epilogue / block.rows.len().max(1) / S::COLUMNS).max(1) * S::COLUMNS;
            let few = self.has_rows_of_b::<S>() && block.rows.len() <= FEW_ROWS;
            let mut done = 0;
            for k in (0..depth).step_by(block.span) {
                let span = k..(k + block.span).min(depth);
                let mut a = [self.rows_of_a::<S>(&block, k, 0); TOGETHER];
                for (chain, k) in span.clone().step_by(S::BLOCK_K).enumerate().skip(1) {
                    a[chain] = self.rows_of_a::<S>(&block, k, chain);
                }
                let next = match span.end < depth {
                    _ if !S::BLOCKING.fetches => None,
                    true => Some((task, span.end..(span.end + block.span).min(depth))),
                    false => following.map(|task| (task, 0..block.span.min(task.piece.depth()))),
                };
                let next_a = next.as_ref().map_or(Upcoming::none(), |(task, span)| {
                    self.upcoming(0, &task.piece, span.clone(), task.rows.clone(), task.rows.len())
                });
                for first in (0..width).step_by(S::COLUMNS) {
                    let rest = block.columns.start + first + S::COLUMNS..block.columns.end;
                    let next_b = match &next {
                        _ if !S::BLOCKING.fetches || few => Upcoming::none(),
                        _ if !rest.is_empty() => self.upcoming(1, piece, span.clone(), rest, S::COLUMNS),
                        Some((task, span)) => {
                            self.upcoming(1, &task.piece, span.clone(), task.columns.clone(), S::COLUMNS)
                        }
                        None => Upcoming::none(),
                    };
                    self.panel::<S>(&block, span.clone(), first, &a, [&next_a, &next_b]);
                    let end = (first + S::COLUMNS).min(width);
                    if span.end == depth && (end - done >= together || end == width) {
                        finished(done..end);
                        done = end;
                    }
                }
            }
        }
    }

    /// Where the parts of a block are.
    unsafe fn laid_out<'p, S: Simd>(&self, task: &'p Task, worker: usize) -> Block<'p, X, S::T>
    where
        X: Source<S::T>,
    {
        let Task { piece, rows, columns } = task;
        let (problem, depth) = (self.problem, piece.depth());
        let brief = self.rounds::<S>() && depth <= TOGETHER * S::BLOCK_K;
        let ((of_a, of_b), chains) = (together::<S, X>(), if brief && depth > S::BLOCK_K { TOGETHER } else { 1 });
        let first = self.first_of(task);
        let workspace = self.scratch.worker(worker).cast::<S::T>();
        // SAFETY: C has the block; the workspace has room for the parts (`worker_elements`): for the sums of a tile, of a panel, or of a block, whose cut is within `SUMS`.
        unsafe {
            Block {
                piece,
                c: self.c.add(problem.offsets[2] + first),
                packed_a: workspace,
                packed_b: workspace.add(of_a * packed_a::<S>()),
                sums: workspace.add(of_a * packed_a::<S>() + of_b * packed_b::<S>()),
                sums_stride: if brief { S::COLUMNS } else { columns.len().next_multiple_of(S::COLUMNS) },
                brief,
                span: chains * S::BLOCK_K,
                straight: self.direct && (!problem.accumulate || depth <= S::BLOCK_K),
                tile_rows: rows.len().div_ceil(rows.len().div_ceil(S::ROWS)).next_multiple_of(S::GRAIN),
                rows: rows.clone(),
                columns: columns.clone(),
            }
        }
    }

    /// A sum of nothing is zero.
    unsafe fn nothing_to_sum<S: Simd>(&self, block: &Block<X, S::T>)
    where
        X: Source<S::T>,
    {
        if !self.problem.accumulate {
            // SAFETY: a row of sums is in the workspace; stride 0 makes it every row.
            unsafe {
                std::slice::from_raw_parts_mut(block.sums, block.columns.len()).fill(S::T::default());
                self.finish::<S>(block, 0, block.columns.len(), 0);
            }
        }
    }

    /// Stores or adds columns of the sums.
    unsafe fn finish<S: Simd>(&self, block: &Block<X, S::T>, first: usize, columns: usize, stride: usize)
    where
        X: Source<S::T>,
    {
        let [row_stride, column_stride] = [self.problem.m.strides[2], self.problem.n.strides[2]];
        // SAFETY: the block has the columns, and so have its sums.
        unsafe {
            S::finish(FinishArgs {
                sums: block.sums.add(first),
                stride,
                rows: block.rows.len(),
                columns,
                c: block.c.add(first * column_stride),
                row_stride,
                column_stride,
                add: self.problem.accumulate,
            });
        }
    }

    /// The block's rows of A for the chain that begins at `k`, which is number `chain` of its span: where they are, if that costs less than packing them, or packed.
    unsafe fn rows_of_a<S: Simd>(&self, block: &Block<X, S::T>, k: usize, chain: usize) -> Rows<S::T>
    where
        X: Source<S::T>,
    {
        let (problem, piece, rows) = (self.problem, block.piece, &block.rows);
        let length = block.length::<S>(k);
        let in_place = X::PLAIN && S::IN_PLACE && problem.k.strides[0] == 1;
        let few = in_place && block.columns.len() <= FEW_PANELS * S::COLUMNS;
        // SAFETY: A has the rows; the workspace has room for them.
        unsafe {
            match self.whole(0, piece, chained::<S>(piece, k)).filter(|_| few) {
                Some(at) => {
                    let across = problem.m.strides[0];
                    let a = self.a.cast_const().cast::<S::T>().add(at + rows.start * across);
                    Rows { a, row: across, step: problem.k.strides[0], panel: block.tile_rows * across }
                }
                None => {
                    let packed = block.packed_a.add(chain * packed_a::<S>());
                    self.pack_a::<S>(piece, k, rows.clone(), block.tile_rows, packed);
                    Rows { a: packed.cast_const(), row: 1, step: S::PANEL, panel: S::panel_words(length) * S::PANEL }
                }
            }
        }
    }

    /// Tiles of one panel of B, for some chains.
    unsafe fn panel<S: Simd>(
        &self,
        block: &Block<X, S::T>,
        span: Range<usize>,
        first: usize,
        a: &[Rows<S::T>; TOGETHER],
        [next_a, next_b]: [&Upcoming<X>; 2],
    ) where
        X: Source<S::T>,
    {
        let Block { piece, rows, columns, tile_rows, .. } = block;
        let problem = self.problem;
        let [row_stride, column_stride] = [problem.m.strides[2], problem.n.strides[2]];
        let width = (columns.len() - first).min(S::COLUMNS);
        let ends = span.end == piece.depth() && !block.straight && !self.rounds::<S>();
        // SAFETY: A's rows, B's columns, C's block and the workspace are as long as `laid_out` made them.
        unsafe {
            let result = match S::BLOCKING.fetches && ends && column_stride == 1 {
                true => Upcoming {
                    at: block.c.add(first).cast_const(),
                    runs: rows.len(),
                    stride: row_stride,
                    length: width,
                },
                false => Upcoming::none(),
            };
            let (tile_count, panels) = (rows.len().div_ceil(*tile_rows), columns.len().div_ceil(S::COLUMNS));
            let chains = span.clone().step_by(S::BLOCK_K);
            let turns = tile_count * chains.len();
            // A share of the lines for each tile: a core waits where more are missing than it can have open.
            let mut of_a = Turns::new(next_a.runs, first / S::COLUMNS * turns, panels * turns);
            let mut of_b = Turns::new(next_b.runs, 0, turns);
            let mut of_c = Turns::new(result.runs, 0, turns);
            let mut fetch = || {
                if S::BLOCKING.fetches {
                    next_b.fetch(of_b.take());
                    result.fetch(of_c.take());
                    next_a.fetch(of_a.take());
                }
            };
            let columns_of_b = |number: usize, k: usize| self.columns_of_b::<S>(block, k, number, first..first + width);
            if S::BLOCKING.chain_by_chain {
                for (k, a) in chains.zip(a) {
                    // What the chain before has read of B is not needed any more.
                    let b = columns_of_b(0, k);
                    for panel in 0..tile_count {
                        fetch();
                        self.tile::<S>(block, [panel, first], k, a, b);
                    }
                }
            } else {
                let mut b = [Columns::none(); TOGETHER];
                chains.clone().enumerate().zip(&mut b).for_each(|((number, k), b)| *b = columns_of_b(number, k));
                for panel in 0..tile_count {
                    for ((k, a), &b) in chains.clone().zip(a).zip(&b) {
                        fetch();
                        self.tile::<S>(block, [panel, first], k, a, b);
                    }
                }
            }
            if ends {
                self.finish::<S>(block, first, width, block.sums_stride);
            }
        }
    }

    /// Columns of the block for the chain that begins at `k`: where B is, or packed to place `number`.
    unsafe fn columns_of_b<S: Simd>(
        &self,
        block: &Block<X, S::T>,
        k: usize,
        number: usize,
        of: Range<usize>,
    ) -> Columns<S::T>
    where
        X: Source<S::T>,
    {
        let (piece, column) = (block.piece, block.columns.start + of.start);
        // SAFETY: B has the columns; the workspace has room for them.
        unsafe {
            match self.whole(1, piece, chained::<S>(piece, k)).filter(|_| self.has_rows_of_b::<S>()) {
                Some(at) => {
                    let b = self.b.cast::<S::T>().add(at + column).cast_const();
                    Columns { b, step: self.problem.k.strides[1], padded: false }
                }
                None => {
                    let packed = block.packed_b.add(number * packed_b::<S>());
                    self.pack_b::<S>(piece, k, column, of.len(), packed);
                    Columns { b: packed.cast_const(), step: S::COLUMNS, padded: true }
                }
            }
        }
    }

    /// A tile's part of the chain that begins at `k`: panel number so much of A, columns from `first` on.
    unsafe fn tile<S: Simd>(
        &self,
        block: &Block<X, S::T>,
        [panel, first]: [usize; 2],
        k: usize,
        a: &Rows<S::T>,
        b: Columns<S::T>,
    ) where
        X: Source<S::T>,
    {
        let [row_stride, column_stride] = [self.problem.m.strides[2], self.problem.n.strides[2]];
        let (row, width) = (panel * block.tile_rows, (block.columns.len() - first).min(S::COLUMNS));
        let completes = k + S::BLOCK_K >= block.piece.depth();
        // SAFETY: A, B, C's block and the workspace are as long as `laid_out` made them.
        unsafe {
            let c = block.c.add(row * row_stride + first * column_stride);
            let (sums, sums_stride) = match block.straight {
                true => (c.cast::<S::T>(), row_stride),
                false => {
                    let at = block.place_of_sums::<S>([row, first]);
                    debug_assert!(at + (block.tile_rows - 1) * block.sums_stride + S::COLUMNS <= SUMS);
                    (block.sums.add(at), block.sums_stride)
                }
            };
            S::tile(&TileArgs {
                rows: (block.rows.len() - row).min(block.tile_rows),
                columns: width,
                depth: S::panel_words(block.length::<S>(k)),
                a: a.a.add(panel * a.panel),
                a_row: a.row,
                a_step: a.step,
                b: b.b,
                b_stride: b.step,
                padded: b.padded,
                c: sums,
                c_stride: sums_stride,
                add: k > 0 || (block.straight && self.problem.accumulate),
                rounded: (completes && self.rounds::<S>()).then(|| (c.cast(), row_stride)),
                turned: self.problem.turned,
                count: 1,
                a_next: 0,
                c_next: 0,
            });
        }
    }

    /// What will be read next of A (0) or B (1), to be packed or where it is: up to `most` of its rows or columns, a part of the summed dimension.
    fn upcoming(
        &self,
        operand: usize,
        piece: &Piece,
        of: Range<usize>,
        part: Range<usize>,
        most: usize,
    ) -> Upcoming<X> {
        let (length, width) = (of.len(), part.len().min(most));
        let Some(at) = (length > 0).then(|| self.whole(operand, piece, of)).flatten() else {
            return Upcoming::none();
        };
        let problem = self.problem;
        let across = [problem.m.strides[0], problem.n.strides[1]][operand];
        let at = [self.a, self.b][operand].cast_const().wrapping_add(at + part.start * across);
        match across {
            1 => Upcoming { at, runs: length, stride: problem.k.strides[operand], length: width },
            _ => Upcoming { at, runs: width, stride: across, length },
        }
    }

    /// Where a part of the summed dimension is in A (0) or B (1), when it is one run there.
    fn whole(&self, operand: usize, piece: &Piece, of: Range<usize>) -> Option<usize> {
        let (mut at, length) = (None, of.len());
        self.problem.runs(piece, of, |_, run, a, b| {
            if run == length {
                at = Some(piece.at[operand] + [a, b][operand]);
            }
        });
        at
    }

    /// Packs rows of A for a block of the summed dimension.
    unsafe fn pack_a<S: Simd>(&self, piece: &Piece, block: usize, rows: Range<usize>, tile_rows: usize, dst: *mut S::T)
    where
        X: Source<S::T>,
    {
        let length = chained::<S>(piece, block).len();
        let across = self.problem.m.strides[0];
        self.problem.runs(piece, chained::<S>(piece, block), |p, depth, a, _| {
            // SAFETY: A has the rows; the workspace has a panel for each `tile_rows` rows.
            unsafe {
                let pack = |row: usize, panels: usize| {
                    let args = PackArgs {
                        src: self.a.cast_const().add(piece.at[0] + (rows.start + row) * across + a),
                        width: (rows.len() - row).min(tile_rows),
                        depth,
                        across,
                        along: self.problem.k.strides[0],
                        dst: dst.add(row / tile_rows * S::panel_words(length) * S::PANEL),
                        panel: S::PANEL,
                        panels,
                        panel_step: S::panel_words(length) * S::PANEL,
                        completes: p % S::PAIR != 0,
                    };
                    S::pack_a(args, p);
                };
                let together = SIDE_BY_SIDE * tile_rows;
                let whole = rows.len() / together * together;
                (0..whole).step_by(together).for_each(|row| pack(row, SIDE_BY_SIDE));
                (whole..rows.len()).step_by(tile_rows).for_each(|row| pack(row, 1));
            }
        });
    }

    /// Packs a panel of B for a block of the summed dimension.
    unsafe fn pack_b<S: Simd>(&self, piece: &Piece, block: usize, column: usize, width: usize, dst: *mut S::T)
    where
        X: Source<S::T>,
    {
        let across = self.problem.n.strides[1];
        let words = S::panel_words(chained::<S>(piece, block).len());
        self.problem.runs(piece, chained::<S>(piece, block), |p, depth, _, b| {
            // SAFETY: B has the columns, the destination the panel.
            unsafe {
                let args = PackArgs {
                    src: self.b.cast_const().add(piece.at[1] + column * across + b),
                    width,
                    depth,
                    across,
                    along: self.problem.k.strides[1],
                    dst,
                    panel: S::COLUMNS,
                    panels: 1,
                    panel_step: 0,
                    completes: p % S::PAIR != 0,
                };
                S::pack_b(args, p, words);
            }
        });
    }
}

fn each(pool: &Pool, tasks: usize, serial: bool, call: &(dyn Fn(usize, usize) + Sync)) {
    if serial {
        (0..tasks).for_each(|task| call(task, 0));
    } else {
        pool.run(tasks, call);
    }
}
